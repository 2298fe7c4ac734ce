"""What each page's template may use, declared. A name that is not here is not on a page.

Templates are rendered with exactly the fields of one of these classes; an undefined name is an
error, and a test renders every page, so that pages and declarations cannot drift apart.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.pages.charts import LineChart
from server.web.security import ANYBODY, Person
from shared.problems import Problem
from shared.run_search import RunSearch
from shared.schemas import (
    Deletion,
    EnrolmentView,
    EventView,
    LedgerRow,
    RoundView,
    RunSummary,
    RunView,
    UserRole,
)

__all__ = [
    "CallEntry",
    "CallGroup",
    "CategoryRow",
    "CategoryTable",
    "ClientRow",
    "ComparePage",
    "ComparedLine",
    "ComparedRow",
    "ConfusionCell",
    "ConfusionTable",
    "Connected",
    "Headline",
    "LedgerLine",
    "NextStep",
    "Offer",
    "Page",
    "ParameterEntry",
    "ParticipantLine",
    "ProblemEntry",
    "ProblemPage",
    "ProblemsPage",
    "ReferencePage",
    "RoundLine",
    "RoundPage",
    "RunPage",
    "RunsPage",
    "Score",
    "ScoreLine",
    "ShadowLine",
    "WeightBar",
    "WeightCell",
    "WeightMap",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``events``: address of the stream that says when this page is out of date; ``None``: never.

    ``seal``: what the forms of who has signed in carry; ``None``: nobody has. ``visitor``: who looks at it.
    ``warnings``: sentences about the coordinator itself, such as a disk that is nearly full. ``pace``: how
    many seconds the page lets pass before it asks for itself again.
    """

    title: str
    now: dt.datetime
    events: str | None = None
    seal: str | None = None
    visitor: Person = ANYBODY
    warnings: Sequence[str] = ()
    pace: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """How many clients are registered (and not revoked), and how many of them asked for work lately."""

    registered: int
    heard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage(Page):
    """``count``: the runs that there are; ``states`` and ``tags``: those that can be asked for."""

    clients: Connected
    search: RunSearch
    count: int
    states: Sequence[str]
    tags: Sequence[str]
    active: Sequence[RunSummary]
    ended: Sequence[RunSummary]
    archived: Sequence[RunSummary]
    deleted: Sequence[Deletion]
    comparable: bool
    first_steps: Sequence[NextStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """Accuracy in one category at the first and at the newest evaluated round."""

    name: str
    first: float | None
    newest: float
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryTable:
    evaluator: str
    first_round: int
    newest_round: int
    rows: Sequence[CategoryRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionCell:
    """A share of a true class's examples; ``level`` is it in tenths, for the colour."""

    share: float
    level: int
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionTable:
    """``rows``: by true class, the shares by what the model said, both in the contract's order."""

    evaluator: str
    round: int
    classes: Sequence[str]
    rows: Sequence[tuple[str, Sequence[ConfusionCell]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A round's score as one number: of so many evaluators, out of all who score the run."""

    round: int
    value: float
    examples: int
    evaluators: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The score that a run chose to be shown first, in words."""

    name: str
    value: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """The numbers behind the charts: one evaluation, or a round's mean training loss alone."""

    round: int
    evaluator: str | None
    accuracy: float | None
    loss: float | None
    training_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    enrolment: EnrolmentView
    bar: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantLine:
    """A participant of the open round; ``done`` is how far its local training is, in per cent."""

    row: LedgerRow
    done: float
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBar:
    """One client's weight in a round's small picture: bar and the mark that sizes would have given."""

    x: float
    width: float
    height: float
    mark: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCell:
    """A client's weight in a round: where it stands in per cent of the width, and how strong, 0 to 9."""

    x: float
    level: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMap:
    """Weights by client (a row) over completed rounds; ``width`` is a cell's, in per cent."""

    rounds: Sequence[int]
    width: float
    largest: float
    rows: Sequence[tuple[str, Sequence[WeightCell]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLine:
    round: RoundView
    seconds: float | None
    arrived: int
    invited: int
    accuracy: float | None
    bars: Sequence[WeightBar]
    outliers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(Page):
    """``older_...``: before which round or event the next page of the past ends; None: there is none.

    ``newer_...``: whether the page is one of the past.
    """

    run: RunView
    summary: str
    weighting: str
    twin: str | None
    assistant: str | None
    assistance: str | None
    trainers: int
    examples: int | None
    accuracy: Score | None
    loss: Score | None
    open_round: RoundView | None
    participants: Sequence[ParticipantLine]
    headline: Headline | None
    charts: Sequence[LineChart]
    weight_map: WeightMap | None
    confusions: Sequence[ConfusionTable]
    shadow_cost: str | None
    scores: Sequence[ScoreLine]
    categories: Sequence[CategoryTable]
    admission: str
    unapproved: Sequence[str]
    clients: Sequence[ClientRow]
    rounds: Sequence[RoundLine]
    older_rounds: int | None
    newer_rounds: bool
    log: Sequence[EventView]
    older_events: int | None
    newer_events: bool
    configuration: str
    parameters: int
    next_steps: Sequence[NextStep]
    offers: Sequence[Offer]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """A row of the ledger, its bars in per cent of the longest, and its weight in words.

    ``ratio``: how many times larger its update would be if it had not been packed; None: it was not.
    ``begun_with``: whose model it went on from, where models travel.
    """

    row: LedgerRow
    weight_bar: float
    size_bar: float
    difference: float | None
    values: Sequence[float | None]
    sentence: str
    outlier: str | None
    ratio: float | None
    begun_with: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowLine:
    """One weighting of a round: the run's own, or a shadow, with what its model scored and cost."""

    name: str
    is_own: bool
    accuracy: float | None
    difference: float | None
    loss: float | None
    bars: Sequence[WeightBar]
    seconds: float | None
    bytes: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPage(Page):
    """``measures``: what a round is for in which nobody trains; None: it is one of training."""

    run: RunView
    round: RoundView
    seconds: float | None
    columns: Sequence[str]
    weighting: str
    adjustment: str | None
    formula: str
    legend: str
    fallback: str | None
    cap: str | None
    rule: str
    measures: str | None
    travels: str | None
    assistance: str | None
    outlier_rule: str
    lines: Sequence[LedgerLine]
    shadows: Sequence[ShadowLine]
    longest: float
    step: str | None
    arrived: int
    attempts: Sequence[RoundView]
    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemEntry:
    """A kind of problem: its place in the tree of errors, and what the source says about it."""

    code: str
    status: int
    title: str
    family: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemsPage(Page):
    problems: Sequence[ProblemEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemPage(Page):
    problem: Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Something that may be done now: where its form is, the command that does the same, and by whom."""

    label: str
    address: str
    command: str
    role: UserRole


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What is to be done for a run to go on: a sentence, and the lines to paste, if there are any."""

    sentence: str
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterEntry:
    """A parameter of a call; ``place``: path, query or header."""

    name: str
    place: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEntry:
    """A call of the API: which tokens it takes, its body and its answers by status, each with media type."""

    method: str
    path: str
    description: str
    tokens: Sequence[str]
    parameters: Sequence[ParameterEntry]
    body: str
    answers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    tag: str
    calls: Sequence[CallEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePage(Page):
    name: str
    description: str
    groups: Sequence[CallGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLine:
    """A series of a comparison: ``style`` of its curve (None: not drawn), numbers as they are written.

    ``settings`` are its values of what differs, in the order of the page's ``differing``. ``pin`` is what the
    address says of pinned runs once this one is pinned or, where it is, no longer.
    """

    name: str
    runs: Sequence[str]
    style: int | None
    settings: Sequence[str]
    rounds: str
    last: str
    best: str
    chosen: str
    reaches: str
    is_baseline: bool
    is_pinned: bool
    pin: str
    gain: str
    interval: str
    basis: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A category or client, and its value in each series that has a column; None: it has none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage(Page):
    """``asked...`` is what the address says, empty where a default stands."""

    asked: str
    asked_baseline: str
    asked_measure: str
    asked_target: str
    names: Sequence[str]
    known: Sequence[str]
    measure_words: str
    measures: Mapping[str, str]
    is_share: bool
    direction: str | None
    pins: Sequence[str]
    most_pinned: int
    target: str
    round: str
    grouped: bool
    differing: Sequence[str]
    lines: Sequence[ComparedLine]
    chart: LineChart | None
    columns: Sequence[str]
    categories: Sequence[ComparedRow]
    weights: Sequence[ComparedRow]
    undrawn: int

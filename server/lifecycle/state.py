"""What the state machine works on: a run, its enrolments, its current round. All frozen."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from shared.config import EVERYBODY, Draws, Participants, RunConfig, ScoreRule, SecureSums, StopWhen
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus, SumTotals
from shared.secure.coordinator import Coordinator, Phase

__all__ = ["Enrolment", "Participant", "Policy", "Round", "Run", "Score", "Wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The part of a run's configuration that decides transitions."""

    rounds: int
    seed: int
    min_clients: int
    clients_per_round: int | None
    draws: Draws = "seeded"
    quorum: int
    deadline: dt.timedelta
    max_attempts: int
    autostart: bool
    waiting_deadline: dt.timedelta = dt.timedelta(days=1)
    needs_discrepancy: bool
    participants: Participants = EVERYBODY
    join: Literal["late", "before_start"] = "late"
    max_examples: int | None = None
    approve: Literal["nothing", "sizes"] = "nothing"
    evaluate_every: int = 1
    stop_when: StopWhen | None = None
    keep: Literal["last", "best"] = "last"
    combine_scores: ScoreRule = "median"
    secure: SecureSums | None = None
    calibrates: bool = False

    @property
    def needs_scores(self) -> bool:
        """Whether the run's course goes by its evaluators' scores."""
        return self.stop_when is not None or self.keep == "best"

    @property
    def step_deadline(self) -> dt.timedelta:
        """For each step of a secure sum but the upload."""
        return dt.timedelta(seconds=self.secure.step_deadline_seconds) if self.secure else self.deadline

    @classmethod
    def of(cls, config: RunConfig, *, masked: bool = True) -> Policy:
        """``masked``: a run with secure sums has the steps of their protocol; a simulation has not."""
        secure = config.secure if masked else None
        return cls(
            rounds=config.rounds,
            seed=config.seed,
            min_clients=config.min_clients,
            clients_per_round=config.clients_per_round,
            draws=config.draws,
            quorum=config.updates_needed,
            deadline=dt.timedelta(seconds=config.round_deadline_seconds),
            max_attempts=config.max_attempts,
            autostart=config.autostart,
            waiting_deadline=dt.timedelta(seconds=config.waiting_deadline_seconds),
            needs_discrepancy=config.needs_discrepancy and secure is None,
            participants=config.participants,
            join=config.join,
            max_examples=config.max_examples,
            approve=config.approve,
            evaluate_every=config.evaluate_every,
            stop_when=config.stop_when,
            keep=config.keep,
            combine_scores=config.combine_scores,
            secure=secure,
            calibrates=config.calibration is not None,
        )

    def count_drawn(self, number: int) -> int | None:
        """The most clients of round ``number``; None: everybody.

        The sum that ends enrolment is over all, and the features of a calibration are those of all.
        """
        measures_all = not number or (self.calibrates and number == self.rounds)
        return None if measures_all else self.clients_per_round


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A client in a run. ``index`` orders all sums and seeds; fixed at the latest when the run starts.

    ``approved_examples``: the size that the operator approved; 0: the operator refused the client; None:
    neither, and of a trainer that declares no size also that a refusal was taken back.
    ``examples`` are 0 for the trainers of a secure run: only their sum is known. ``identity`` is the public
    key with which the client takes part in one.
    """

    client: str
    role: Role
    status: EnrolmentStatus
    examples: int
    index: int | None = None
    reason: str | None = None
    approved_examples: int | None = None
    identity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A client in one attempt of a round; ``answered``: the step of a secure sum that it answered last."""

    client: str
    index: int
    status: ParticipantStatus
    reason: str | None = None
    answered: Phase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One attempt of a round; ``participants`` in index order.

    ``secure`` is the coordinator's half of a secure sum; its steps are those of a collecting round.
    """

    number: int
    attempt: int
    status: RoundStatus
    deadline_at: dt.datetime
    participants: tuple[Participant, ...]
    reason: str | None = None
    secure: Coordinator | None = None

    def participant(self, client: str) -> Participant | None:
        return next((p for p in self.participants if p.client == client), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one evaluator's score of a round's model is; ``value`` is None if it is no finite number."""

    round: int
    client: str
    metric: str
    value: float | None
    examples: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Since when something keeps the run from going on, and until when that is put up with.

    Then a waiting run pauses, a running one (whose model is being scored) is a waiting one, and a round
    that misses its quorum is drawn again.
    """

    since: dt.datetime
    until: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the state machine sees it. ``round`` is the newest round, finished or not.

    ``wait``: what keeps it from going on is found by ``views.find_obstacle``; None: nothing does.

    ``totals`` are what a secure run's round 0, the sum that ends enrolment, has told.
    ``scores`` are the evaluators', by round and client; none where the policy does not go by them.

    ``highest_attempt`` is the highest number that any attempt of any round has had. When the run goes back,
    that becomes ``rewound_attempts``, and the highest round so far ``rewound_rounds``: attempts of rounds up
    to that are counted from there on, so none is named as an earlier one was.
    """

    id: str
    status: RunStatus
    policy: Policy
    enrolments: tuple[Enrolment, ...] = ()
    completed_rounds: int = 0
    round: Round | None = None
    reason: str | None = None
    highest_attempt: int = 0
    rewound_rounds: int = 0
    rewound_attempts: int = 0
    scores: tuple[Score, ...] = ()
    totals: SumTotals | None = None
    wait: Wait | None = None

    def enrolment(self, client: str) -> Enrolment | None:
        return next((e for e in self.enrolments if e.client == client), None)

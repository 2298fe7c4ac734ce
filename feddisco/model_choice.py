"""Which round's model of a run one takes home, by which score, and what to say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.config import ScoreRule
from shared.problems import InvalidConfiguration
from shared.schemas import EnrolmentStatus, EvaluationView, Role, RoundStatus, RoundView, RunView
from shared.scores import describe_score, find_score, is_better, pool, rank

__all__ = ["Choice", "choose_model", "scores_of"]


@dataclass(frozen=True)
class Choice:
    """``number`` 0 is the initial model; ``digest`` is that of the model to score."""

    number: int
    digest: str
    evaluations: tuple[EvaluationView, ...]
    sentence: str


def choose_model(
    view: RunView, rounds: Sequence[RoundView], wanted: str | None = None, metric: str | None = None
) -> Choice:
    """``wanted`` is ``last``, ``best`` by the score called ``metric``, or a round's number.

    None is what the run keeps; without a metric it is that by which the run goes, or the accuracy, or the
    loss where there is none.

    Raises:
        InvalidConfiguration: there is no such model, or no such score.
    """
    if wanted == "0":
        return Choice(0, view.initial_model, (), "the initial model, which nobody has trained")
    made = {one.round: one for one in rounds if one.status is RoundStatus.COMPLETED and one.scored_model}
    if not made:
        raise InvalidConfiguration(
            f"Run {view.run} has no completed round yet, so there is no trained model.",
            hint=f"{view.waiting_for or 'Wait for its first round'}. Its initial model is --round 0.",
        )
    judged = {number: _evaluators_of(view, one) for number, one in made.items()}
    name = metric or view.config.deciding_metric or _headline(list(judged.values()))
    scores = {number: pool(judged[number], name, view.config.combine_scores) for number in sorted(made)}
    order = rank(scores, name)
    number = _find_number(view, wanted, made, order, name, list(judged.values()))
    own = scores[number]
    unknown = ", not scored" if view.sums is None else ""  # a client is told its own scores alone
    scored = unknown if own is None else f", {describe_score(name, own)}"
    said = f"round {number} of {view.rounds}{scored}"
    return Choice(
        number,
        str(made[number].scored_model),
        tuple(judged[number]),
        said + _better(number, scores, order, name),
    )


def scores_of(evaluations: Sequence[EvaluationView], rule: ScoreRule) -> dict[str, float]:
    """All scores that the evaluators have of one model, as one evaluator's."""
    names = ["accuracy", "loss", *sorted({name for each in evaluations for name in each.extra})]
    found = {name: pool(evaluations, name, rule) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _evaluators_of(view: RunView, one: RoundView) -> list[EvaluationView]:
    names = {
        enrolment.client
        for enrolment in view.enrolments
        if enrolment.role is Role.EVALUATOR and enrolment.status is not EnrolmentStatus.REFUSED
    }
    return [evaluation for evaluation in one.evaluations if evaluation.client in names]


def _headline(judged: Sequence[Sequence[EvaluationView]]) -> str:
    has_accuracy = any(find_score(each, "accuracy") is not None for found in judged for each in found)
    return "accuracy" if has_accuracy else "loss"


def _find_number(
    view: RunView,
    wanted: str | None,
    made: Mapping[int, RoundView],
    order: Sequence[int],
    name: str,
    judged: Sequence[Sequence[EvaluationView]],
) -> int:
    first, last = min(made), max(made)
    if wanted == "last" or (wanted is None and view.config.keep == "last"):
        return last
    if wanted is None and (view.sums is not None or not order):
        # what an ended run keeps is known to its clients, too, who do not see the scores
        return next((number for number, one in made.items() if one.scored_model == view.model), last)
    if wanted in (None, "best"):
        if order:
            return order[0]
        known = sorted({known for found in judged for known in scores_of(found, view.config.combine_scores)})
        raise InvalidConfiguration(
            f"No round of {view.run} has a score called {name!r}, so none is the best.",
            hint=_name_scores(view, known),
        )
    if str(wanted).isdecimal() and int(str(wanted)) in made:
        return int(str(wanted))
    raise InvalidConfiguration(
        f"Run {view.run} has no completed round {wanted}.",
        hint=f"Completed are {first} to {last}; or say last, best, or 0 for the initial model.",
    )


def _name_scores(view: RunView, known: Sequence[str]) -> str:
    whose = "Its scores" if view.sums is None else "The scores of this client, which sees no other's,"
    if known:
        return f"{whose} are: {', '.join(known)}."
    if view.sums is None:
        return "No evaluator has scored a round."
    return "A client sees no other's scores; the run's operator can take the best round's model."


def _better(number: int, scores: dict[int, float | None], order: Sequence[int], name: str) -> str:
    """Whether another round was better, as the end of a sentence."""
    if not order or order[0] == number:
        return ""
    best, own = scores[order[0]], scores[number]
    if best is None or (own is not None and not is_better(name, best, own)):
        return ""
    return f"; round {order[0]} was better: {describe_score(name, best)} (--round best)"

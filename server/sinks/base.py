"""What a sink is told, and what it may answer."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Protocol, TypeGuard

from shared.schemas import EvaluationView, RoundView, RunView
from shared.scores import weighted_mean

__all__ = ["Sink", "SinkRefused", "SinkUnavailable", "list_round_numbers", "list_scores"]


class SinkUnavailable(Exception):
    """It cannot be reached, or cannot take anything now: the same is told again later."""


class SinkRefused(Exception):
    """It will never take this: told once, then left out."""


class Sink(Protocol):
    """Told what has happened, in order, on a thread of its own; each thing at least once.

    All methods raise :class:`SinkUnavailable` or :class:`SinkRefused`.
    """

    @property
    def name(self) -> str: ...

    def begin(self, run: RunView) -> None:
        """A run was created."""
        ...

    def note_taken(self, run: str, round: int, client: str, at: dt.datetime) -> None:
        """A client was handed its part of a round."""
        ...

    def write_round(self, run: RunView, round: RoundView) -> None:
        """A round is complete."""
        ...

    def write_scores(self, run: RunView, scores: EvaluationView) -> None:
        """An evaluator has scored a round's model; round 0 is the initial one."""
        ...

    def end(self, run: RunView, model: Path | None) -> None:
        """A run has ended, with the file of its model; None: it has none, or the file is gone."""
        ...


def list_scores(run: RunView, scores: EvaluationView) -> dict[str, float]:
    """An evaluation's numbers by name; of one of several evaluators, with its name before."""
    given = {"accuracy": scores.accuracy, "loss": scores.loss, **scores.extra}
    judges = [row for row in run.enrolments if row.role.value == "evaluator"]
    before = f"{scores.client}/" if len(judges) > 1 else ""
    return {f"{before}{name}": value for name, value in given.items() if is_finite(value)}


def list_round_numbers(round: RoundView) -> dict[str, float]:
    """What a completed round is in numbers beside its model's scores, the clients' weights among them."""
    taken = [row for row in round.ledger if row.included]
    losses = [(row.loss, row.weight) for row in taken if row.weight is not None and row.loss is not None]
    size = sum(row.bytes or 0 for row in taken)
    found: dict[str, float | None] = {"updates": float(len(taken)), "bytes": float(size)}
    if len(losses) == len(taken) and any(weight for _, weight in losses):
        found["training_loss"] = weighted_mean(losses)
    if round.completed_at is not None:
        found["seconds"] = (round.completed_at - round.opened_at).total_seconds()
    weights = {f"weight/{row.client}": row.weight for row in round.ledger}
    return {name: value for name, value in (found | weights).items() if is_finite(value)}


def is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)

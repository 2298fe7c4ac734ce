"""The step of a round that needs data: asked of the run's assistant, and what comes of the answer.

The average of a round is made twice: once to ask about it, and once more with the answer, which is stored
like an update. So a killed coordinator loses nothing, and a replay makes the same of the same files.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.database.assistances import Asked, StoredAssistance
from shared.distillation import Distilled
from shared.schemas import Assist, AssistedUpdate, TensorKind, TensorSpec
from shared.weightings import Contribution, load_weighting
from shared.weightings.base import Need, WeightingRound

if TYPE_CHECKING:
    from server.database.aggregations import AggregationInput, Update
    from shared.aggregation.distilled import ModelDistiller
    from shared.aggregation.round_end import RoundResult
    from shared.algorithms.base import Tensors
    from shared.config import RunConfig
    from shared.wire import Layout

__all__ = [
    "LEARNED",
    "NUMBERS",
    "AssistanceAwaited",
    "answer_layout",
    "find_deadline",
    "inputs_from",
    "make_asked",
    "settle",
]

LEARNED, NUMBERS = "learned", "numbers"
"""Group and tensor of what a weighting has learned."""


class AssistanceAwaited(Exception):
    """The round waits for its assistant until ``deadline``. ``is_new``: it is asked only now."""

    def __init__(self, client: str, deadline: dt.datetime, *, is_new: bool) -> None:
        super().__init__(f"{client} is asked until {deadline:%Y-%m-%d %H:%M:%S} UTC")
        self.client = client
        self.deadline = deadline
        self.is_new = is_new


@dataclass(frozen=True)
class _Undistilled:
    """Leaves the average as it is: before the assistant is asked, and where it does not answer."""

    def distil(
        self, student: Path, start: Path, teachers: Mapping[int, tuple[Path, float]], number: int
    ) -> tuple[Tensors, Distilled]:
        return {}, Distilled(0, 0, None, None)


@dataclass(frozen=True)
class _Answered:
    """The model that the assistant sent; frozen and integer tensors are the average's, whatever it says."""

    answer: Path
    manifest: Sequence[TensorSpec]
    report: Mapping[str, Any]

    def distil(
        self, student: Path, start: Path, teachers: Mapping[int, tuple[Path, float]], number: int
    ) -> tuple[Tensors, Distilled]:
        from shared import wire

        with ExitStack() as files:
            made, before = (files.enter_context(wire.opened(path)) for path in (self.answer, student))
            found = {
                spec.name: (before if spec.kind in (TensorKind.INTEGER, TensorKind.FROZEN) else made)
                .tensor(wire.MODEL, spec.name)
                .clone()
                for spec in self.manifest
            }
        chosen = int(self.report["chosen"])
        return found, Distilled(
            steps=int(self.report["steps"]),
            chosen=chosen,
            before=self.report.get("before"),
            after=self.report.get("after"),
            left_out=tuple(self.report.get("left_out", ())),
        )


def inputs_from(given: AggregationInput, path: Callable[[str], Path]) -> dict[str, Any]:
    """What :func:`shared.aggregation.round_end.close_round` is given of the assistant's answer.

    Without one, or where the round went on without it: nothing is distilled, and nothing was learned.
    """
    config, found = given.config, given.assistance
    used = found is not None and found.answer is not None and found.outcome == "used"
    answer = path(found.answer) if used and found is not None and found.answer is not None else None
    more: dict[str, Any] = {}
    if config.distillation is not None:
        distiller: ModelDistiller = _Undistilled()
        if answer is not None and found is not None:
            distiller = _Answered(answer, given.manifest, found.report or {})
        more["distiller"] = distiller
    if config.assistant is not None and Need.DATA in load_weighting(config.weighting).needs:
        more["learned"] = () if answer is None else _read_learned(answer)
    return more


def _read_learned(path: Path) -> tuple[float, ...]:
    from shared import wire

    with wire.opened(path) as file:
        return tuple(file.tensor(LEARNED, NUMBERS).tolist())


def answer_layout(asked: Asked | Assist, manifest: Sequence[TensorSpec]) -> Layout:
    """The tensors of an answer: the run's model, or as many numbers as the learning began with."""
    from shared import wire

    if asked.work == "distil":
        return wire.model_layout(manifest)
    numbers = TensorSpec(name=NUMBERS, shape=(len(asked.begin),), dtype="F64")
    return wire.groups_layout(manifest, (LEARNED,), {LEARNED: (numbers,)})


def make_asked(given: AggregationInput, updates: Sequence[Update], result: RoundResult) -> Asked | None:
    """What the assistant is to be asked about the round's average; None: there is nothing to be done on data.

    A round without weight, or in which clients only measured, needs no answer.
    """
    from shared.calibrated import find_algorithm

    config, files = given.config, result.files
    if (
        config.assistant is None
        or files is None
        or not find_algorithm(config, given.round).trains(given.round)
    ):
        return None
    digests = {update.index: update.digest for update in updates}
    weights = {row.index: row.weight for row in result.rows if row.included}
    if config.distillation is not None:
        shares = config.distillation.find_coefficients(weights)
        return Asked("distil", _list_updates(digests, shares), model=files.scored.digest)
    round = WeightingRound(
        [Contribution(row.index, row.examples) for row in result.rows if row.included], number=given.round
    )
    begin = load_weighting(config.weighting).begin(round).tolist()
    return Asked("learn", _list_updates(digests, weights), tuple(begin))


def _list_updates(digests: Mapping[int, str], shares: Mapping[int, float]) -> tuple[AssistedUpdate, ...]:
    return tuple(
        AssistedUpdate(index=index, update=digests[index], share=share)
        for index, share in sorted(shares.items())
    )


def settle(
    given: AggregationInput,
    updates: Sequence[Update],
    now: dt.datetime,
    find_fault: Callable[[str], str | None],
) -> AggregationInput:
    """``given`` with what is to become of the assistance: its answer is used, or why it is missed.

    Unchanged before it is asked. ``find_fault`` says what is wrong with a stored file. Raises
    AssistanceAwaited while the answer may still come.
    """
    found, assistant = given.assistance, given.config.assistant
    if found is None or assistant is None or found.outcome is not None:
        return given
    missed = _find_miss(given, found, updates, now)
    if missed is None and found.answer is not None and (fault := find_fault(found.answer)) is not None:
        missed = f"its stored answer {fault}"
    if missed is None and found.answer is None:
        raise AssistanceAwaited(assistant.client, found.deadline_at, is_new=False)
    outcome = "used" if missed is None else "missed"
    return replace(given, assistance=replace(found, outcome=outcome, fault=missed))


def _find_miss(
    given: AggregationInput, found: StoredAssistance, updates: Sequence[Update], now: dt.datetime
) -> str | None:
    asked, here = set(found.asked.indices), {update.index for update in updates}
    if not asked <= here:
        return "an update that it was asked about has been lost since"
    if found.asked.work == "learn" and asked != here:  # it learned a number for each of those
        return "an update that it was not asked about has come back since"
    if found.answer is not None:
        return None
    if found.fault is not None:
        return found.fault
    if given.assistant_gone is not None:
        return given.assistant_gone
    if now >= found.deadline_at:
        return f"no answer came until {found.deadline_at:%Y-%m-%d %H:%M:%S} UTC"
    return None


def find_deadline(config: RunConfig, now: dt.datetime) -> dt.datetime:
    assistant = config.assistant
    return now + dt.timedelta(seconds=assistant.deadline_seconds if assistant is not None else 0)

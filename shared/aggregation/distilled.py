"""A round's models after the average has learned what the clients' models say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shared import wire
from shared.schemas import TensorKind, TensorSpec

if TYPE_CHECKING:
    from shared.aggregation import Aggregated, UpdateFile
    from shared.algorithms.base import Tensors
    from shared.distillation import Distillation, Distilled
    from shared.wire import Written

__all__ = ["ModelDistiller", "distil_models"]


class ModelDistiller(Protocol):
    """Examples that belong to no client, with a model of the run (``shared.training.distillation``)."""

    def distil(
        self, student: Path, start: Path, teachers: Mapping[int, tuple[Path, float]], number: int
    ) -> tuple[Tensors, Distilled]: ...


def distil_models(
    made: Aggregated,
    asked: Distillation,
    distiller: ModelDistiller,
    manifest: Sequence[TensorSpec],
    start: Path,
    updates: Sequence[UpdateFile],
    weights: Mapping[int, float],
    folder: Path,
    *,
    number: int,
) -> Aggregated:
    """``made`` with other models, written into ``folder``; the same files where distillation changed nothing.

    The model that is scored is the student. Where the algorithm sends another one than it scores, that moves
    by what the student has moved. ``weights`` are those of the round, of the updates that count in it.
    """
    paths = {update.info.index: update.path for update in updates}
    coefficients = asked.find_coefficients({index: weights[index] for index in paths if index in weights})
    teachers = {index: (paths[index], share) for index, share in coefficients.items()}
    student, distilled = distiller.distil(made.scored.path, start, teachers, number)
    if not distilled.chosen:
        return replace(made, distilled=distilled)
    from shared.aggregation import write_model

    sent: Written | None = None
    if made.model is not made.scored:
        moved = _move_alike(made, student, manifest)
        sent = write_model(folder / "distilled-model.safetensors", manifest, moved)
    scored = write_model(folder / "distilled.safetensors", manifest, student)
    return replace(made, model=sent or scored, scored=scored, distilled=distilled)


def _move_alike(made: Aggregated, student: Tensors, manifest: Sequence[TensorSpec]) -> Tensors:
    """The model that is sent, moved as far as the scored one; running statistics are the student's."""
    kinds = {spec.name: spec.kind for spec in manifest}
    with ExitStack() as files:
        sent, scored = (files.enter_context(wire.opened(each.path)) for each in (made.model, made.scored))
        return {
            name: sent.tensor(wire.MODEL, name) + (value - scored.tensor(wire.MODEL, name))
            if kinds[name] is TensorKind.PARAMETER
            else value
            for name, value in student.items()
        }

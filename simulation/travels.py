"""Travelling models in a simulation's folder: the files between two averages, and who began from whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.aggregation.travelling import TravellingModel, TravellingRound
from shared.config import Frozen
from shared.travelling import deal_models

if TYPE_CHECKING:
    from shared.config import RunConfig

__all__ = ["Dealt", "TravellingFile", "Travels", "deal_files"]


class TravellingFile(Frozen):
    """A model between two averages: a name in the folder, who trained it last, what it counts so far."""

    file: str
    client: int
    earned: float

    def in_folder(self, folder: Path) -> TravellingModel:
        return TravellingModel(folder / self.file, self.client, self.earned)


@dataclass(frozen=True)
class Dealt:
    """Who of a round's clients starts from which model: by client index its number and its file.

    None as a number, and no file: the last average.
    """

    numbers: Mapping[int, int | None]
    files: Mapping[int, TravellingFile]


def deal_files(
    config: RunConfig, round: int, models: Sequence[TravellingFile], clients: Sequence[int]
) -> Dealt:
    """``clients`` are the indexes of those drawn for the round."""
    ordered = sorted(clients)
    drawn = deal_models(config.seed, round, len(models), len(ordered))
    numbers = dict(zip(ordered, drawn, strict=True))
    return Dealt(numbers, {index: models[at] for index, at in numbers.items() if at is not None})


@dataclass(frozen=True)
class Travels:
    """What a result file says of a round in which models travel.

    ``started_from``: by client index, who had trained the model that it started from (None: the average).
    ``clients`` and ``shares``, by the models' numbers: who trained each last, and its weight in the average
    so far. ``averaged``: whether all clients start from that average next.
    """

    started_from: Mapping[int, int | None]
    clients: tuple[int, ...]
    shares: tuple[float, ...]
    averaged: bool

    @classmethod
    def of(cls, dealt: Dealt, end: TravellingRound, *, averaged: bool) -> Travels:
        before = {index: file.client for index, file in dealt.files.items()}
        return cls(
            {index: before.get(index) for index in dealt.numbers},
            tuple(model.client for model in end.models),
            end.shares,
            averaged,
        )

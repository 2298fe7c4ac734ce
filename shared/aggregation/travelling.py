"""The end of a round in which models travel: what each counts so far, and what they would average to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from shared import wire
from shared.aggregation.round_end import (
    Arrived,
    RoundResult,
    Start,
    combine_updates,
    explain_weightless,
    look_at_updates,
)
from shared.algorithms.base import UpdateInfo
from shared.config import RunConfig
from shared.schemas import TensorSpec
from shared.travelling import add_up, find_shares
from shared.weightings import Contribution, LedgerEntry
from shared.weightings.base import UNCHANGED, Weighed, make_entry
from shared.wire import Written

__all__ = ["TravellingModel", "TravellingRound", "close_travelling_round"]


@dataclass(frozen=True)
class TravellingModel:
    """``client`` is the index of who trained it last, ``earned`` what it counts (``shared.travelling``).

    ``written``: the file, if this round made it.
    """

    path: Path
    client: int
    earned: float
    written: Written | None = None


@dataclass(frozen=True)
class TravellingRound:
    """``models`` are those that travel, by number, as the round left them; ``shares`` their weights so far.

    ``result.files`` are their average: what clients go on from after a round that averages, and otherwise
    only to be scored; then its state of the server is to be forgotten.
    """

    result: RoundResult
    models: tuple[TravellingModel, ...]
    shares: tuple[float, ...]


def close_travelling_round(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    arrived: Sequence[Arrived],
    dealt: Mapping[int, int | None],
    models: Sequence[TravellingModel],
    all_clients: Sequence[Contribution],
    folder: Path,
    *,
    number: int,
) -> TravellingRound:
    """As :func:`shared.aggregation.round_end.close_round`; ``start`` is the last average and its state.

    ``models`` are those that travelled when the round began; ``dealt`` says by client index which of them the
    client started from (None: from the average, and makes one more). A model whose client sent nothing, or
    nothing that counts, stays as it was. Files of models that go on are written into ``folder``.
    """
    looked = look_at_updates(config, manifest, start, arrived, all_clients, number=number, proxy=None)
    if not any(row.weight > 0 for row in looked.weighed.rows):
        why = explain_weightless(looked.rows)
        nothing = RoundResult(looked.rows, None, start.memory, UNCHANGED, why)
        return TravellingRound(nothing, tuple(models), ())
    rows = {row.index: row for row in looked.rows if row.included}
    counted = sorted(
        (update for update in looked.believed if update.info.index in rows), key=lambda each: each.info.index
    )
    after = _move_on(models, counted, dealt, rows)
    shares = tuple(find_shares([model.earned for model in after]))
    weighed = Weighed(
        [make_entry(Contribution(at, 0), 0.0, share) for at, share in enumerate(shares)],
        adjustment=looked.weighed.adjustment,
    )
    files = [
        Arrived(UpdateInfo(at, 0, 1.0, 0), model.path, Contribution(at, 0)) for at, model in enumerate(after)
    ]
    made = combine_updates(config, manifest, start, files, len(all_clients), weighed, folder, number=number)
    if not config.averages(number):
        sent = {update.path for update in counted}
        after = [
            _complete(manifest, start.model, model, folder / f"travelling-{at}")
            if model.path in sent
            else model
            for at, model in enumerate(after)
        ]
    result = RoundResult(
        looked.rows, made, looked.weighed.memory, looked.weighed.adjustment, believed=looked.believed
    )
    return TravellingRound(result, tuple(after), shares)


def _move_on(
    models: Sequence[TravellingModel],
    counted: Sequence[Arrived],
    dealt: Mapping[int, int | None],
    rows: Mapping[int, LedgerEntry],
) -> list[TravellingModel]:
    """The models with the updates that count in their places; those that are new come last, by index."""
    after = list(models)
    examples = sum(row.examples for row in rows.values())
    for update in counted:
        index, number = update.info.index, dealt[update.info.index]
        before = 0.0 if number is None else models[number].earned
        trained = TravellingModel(update.path, index, add_up(before, rows[index].weight, examples))
        if number is None:
            after.append(trained)
        else:
            after[number] = trained
    return after


def _complete(
    manifest: Sequence[TensorSpec], average: Path, model: TravellingModel, path: Path
) -> TravellingModel:
    """An update as a whole model: tensors that are never sent are those of the last average."""
    with ExitStack() as files:
        base, update = (files.enter_context(wire.opened(each)) for each in (average, model.path))
        tensors = {
            spec.name: (update if update.has(wire.MODEL, spec.name) else base).tensor(wire.MODEL, spec.name)
            for spec in manifest
        }
        written = wire.write(path, {wire.MODEL: tensors})
    return replace(model, path=written.path, written=written)

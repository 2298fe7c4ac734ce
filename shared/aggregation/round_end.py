"""A round's end: from the updates that arrived to the ledger and the next model.

The coordinator, the replay command and the simulation call this one function, so that a weight or a
bit cannot differ between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.algorithms.base import UpdateInfo
from shared.capping import cap_ledger
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.schemas import TensorKind, TensorSpec
from shared.weightings import Contribution, LedgerEntry, find_taken, load_weighting, weigh
from shared.weightings.base import (
    UNCHANGED,
    Adjustment,
    Memory,
    Need,
    Weighed,
    Weighting,
    WeightingRound,
    make_entry,
)

if TYPE_CHECKING:
    from shared.aggregation import Aggregated, RunningSum, UpdateFile
    from shared.aggregation.distilled import ModelDistiller
    from shared.aggregation.figures import Move
    from shared.aggregation.proxy import ProxyExamples
    from shared.aggregation.secure_sums import Plan, RoundSums
    from shared.secure.coordinator import Coordinator
    from shared.secure.ring import RingVector
    from shared.weightings.base import Totals

__all__ = [
    "Arrived",
    "LookedAt",
    "RoundResult",
    "Start",
    "close_masked_round",
    "close_round",
    "combine_updates",
    "explain_weightless",
    "look_at_updates",
    "unmask_totals",
    "weigh_updates",
]


@dataclass(frozen=True)
class Start:
    """What the round started from: files, and what its weighting remembers."""

    model: Path
    broadcast: Path | None = None
    private: Path | None = None
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True)
class Arrived:
    """A client's validated update, and what weighting knows of the client.

    ``move``: how it moves the model that it started from, if that was measured already. ``digest``: of the
    file, if that is known. ``start``: the model that this client started from, if that is not the round's.
    """

    info: UpdateInfo
    path: Path
    known: Contribution
    move: Move | None = None
    digest: str | None = None
    start: Path | None = None


@dataclass(frozen=True)
class RoundResult:
    """``files`` are the next model and its groups (None: no update has weight, ``weightless`` says why).

    ``sums`` are all that is known of a masked round; it has no rows. ``believed`` are the updates that could
    be weighed.
    """

    rows: tuple[LedgerEntry, ...]
    files: Aggregated | None
    memory: Memory
    adjustment: Adjustment
    weightless: str | None = None
    sums: RoundSums | None = None
    believed: tuple[Arrived, ...] = ()


def close_round(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    arrived: Sequence[Arrived],
    all_clients: Sequence[Contribution],
    folder: Path,
    *,
    number: int,
    proxy: ProxyExamples | None = None,
    distiller: ModelDistiller | None = None,
    learned: Sequence[float] | None = None,
    begun: Sequence[RunningSum] = (),
) -> RoundResult:
    """Weigh the updates and aggregate them; result files are written into ``folder``.

    ``all_clients`` are all trainers enrolled, whether drawn for round ``number`` or not. ``proxy`` is for
    weightings that need data, or ``learned`` what they have learned elsewhere; ``distiller`` is for a run
    with ``distillation``. ``begun``: see :func:`shared.aggregation.aggregate`.
    """
    arrived = _unpack(config, manifest, start, arrived, folder, number)
    looked = look_at_updates(
        config, manifest, start, arrived, all_clients, number=number, proxy=proxy, learned=learned
    )
    weighed, told = looked.weighed, looked.rows
    if not any(row.weight > 0 for row in weighed.rows):
        return RoundResult(told, None, start.memory, UNCHANGED, explain_weightless(told))
    if config.secure is not None:
        summed, why = _add_up(config, manifest, start, arrived, all_clients, folder, number)
        return RoundResult(told, summed, start.memory, UNCHANGED, why or None)
    believed = looked.believed
    made = combine_updates(
        config,
        manifest,
        start,
        believed,
        len(all_clients),
        weighed,
        folder,
        number=number,
        distiller=distiller,
        begun=begun,
    )
    if made.shares is not None:
        told = tuple(replace(row, share=made.shares.get(row.index, 0.0)) for row in told)
    return RoundResult(told, made, weighed.memory, weighed.adjustment, believed=believed)


@dataclass(frozen=True)
class LookedAt:
    """A round's updates, weighed: ``rows`` of all, with what they are like; which are ``believed``."""

    weighed: Weighed
    rows: tuple[LedgerEntry, ...]
    believed: tuple[Arrived, ...]


def look_at_updates(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    arrived: Sequence[Arrived],
    all_clients: Sequence[Contribution],
    *,
    number: int,
    proxy: ProxyExamples | None,
    learned: Sequence[float] | None = None,
) -> LookedAt:
    """What each of a round's whole updates is like, whether it is believed, and what it counts."""
    from shared.aggregation.figures import find_cosines, find_excess

    parameters = [spec for spec in manifest if spec.kind is TensorKind.PARAMETER]
    moves = {} if config.secure is not None else _measure(start.model, arrived, parameters)
    beyond = {index: why for index, move in moves.items() if (why := find_excess(move, config.max_norm))}
    believed = tuple(update for update in arrived if update.info.index not in beyond)
    weighed = weigh_updates(
        config,
        config.weighting,
        parameters,
        start,
        believed,
        all_clients,
        number=number,
        proxy=proxy,
        learned=learned,
    )
    from_one = all(update.start is None for update in arrived)
    paths = {update.info.index: update.path for update in believed if moves and from_one}
    cosines = find_cosines(start.model, paths, moves, parameters)
    told = _describe([*weighed.rows, *_leave_out(arrived, beyond)], moves, cosines)
    return LookedAt(weighed, told, believed)


def _unpack(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    arrived: Sequence[Arrived],
    folder: Path,
    number: int,
) -> Sequence[Arrived]:
    """The same updates as files of whole ones; without compression they are."""
    from shared.update_forms import find_form
    from shared.wire.packing import unpack

    form = None if config.calibrates(number) else find_form(config, manifest)
    if form is None:
        return arrived
    return [
        replace(update, path=unpack(update.path, start.model, form, folder / f"whole-{update.info.index}"))
        for update in arrived
    ]


def weigh_updates(
    config: RunConfig,
    weighting: Weighting,
    parameters: Sequence[TensorSpec],
    start: Start,
    believed: Sequence[Arrived],
    all_clients: Sequence[Contribution],
    *,
    number: int,
    proxy: ProxyExamples | None,
    learned: Sequence[float] | None = None,
) -> Weighed:
    """What each of the updates counts, with the run's cap on weights.

    Of a round in which clients do not train, a weighting learns nothing and remembers nothing.
    """
    from shared.aggregation import UpdateFile
    from shared.calibrated import find_algorithm

    weighting, local = load_weighting(weighting), config.local.in_round(number, config.rounds)
    trained = find_algorithm(config, number).trains(number)
    known = [update.known for update in believed]
    taken = find_taken(weighting, known)
    of_taken = {row.index for row in taken}
    files = sorted(
        (UpdateFile(update.info, update.path) for update in believed if update.info.index in of_taken),
        key=lambda file: file.info.index,
    )
    round = WeightingRound(
        taken=taken,
        everyone=all_clients,
        number=number,
        rounds=config.rounds,
        step_length=local.learning_rate / (1 - local.momentum),
        memory=start.memory,
        learned=learned if trained else (),
        **_look_at(weighting.needs, start.model, files, parameters, proxy),
    )
    weighed = weigh(weighting, known, round)
    return replace(
        weighed,
        rows=cap_ledger(tuple(weighed.rows), config.max_weight),
        memory=weighed.memory if trained else start.memory,
    )


def explain_weightless(rows: Sequence[LedgerEntry]) -> str:
    """Why no update of the round counts, from what their rows say."""
    return (
        "; ".join(sorted({row.reason for row in rows if row.reason})) or "no update that arrived can be read"
    )


def combine_updates(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    believed: Sequence[Arrived],
    clients: int,
    weighed: Weighed,
    folder: Path,
    *,
    number: int,
    distiller: ModelDistiller | None = None,
    begun: Sequence[RunningSum] = (),
) -> Aggregated:
    """The model that the updates make with these weights, at least one of which is above 0.

    Distilled, where the run asks for it and clients have trained. Raises InvalidConfiguration without a
    ``distiller`` then.
    """
    from shared.aggregation import UpdateFile, aggregate
    from shared.aggregation.distilled import distil_models
    from shared.calibrated import find_algorithm

    algorithm = find_algorithm(config, number)
    updates = [UpdateFile(update.info, update.path, update.digest) for update in believed]
    weights = {row.index: row.weight for row in weighed.rows if row.included}
    made = aggregate(
        algorithm=algorithm,
        manifest=manifest,
        model=start.model,
        broadcast=start.broadcast,
        private=start.private,
        updates=updates,
        weights=weights,
        clients=clients,
        local=config.local.in_round(number, config.rounds),
        buffers=config.buffers,
        folder=folder,
        adjustment=weighed.adjustment,
        rule=config.aggregation,
        number=number,
        seed=config.seed,
        begun=begun,
        sends_scored=config.calibrates(number + 1),
    )
    asked = config.distillation
    if asked is None or not algorithm.trains(number):
        return made
    if distiller is None:
        raise InvalidConfiguration("distillation needs examples, of which there are none here.")
    return distil_models(
        made, asked, distiller, manifest, start.model, updates, weights, folder, number=number
    )


def _measure(model: Path, arrived: Sequence[Arrived], parameters: Sequence[TensorSpec]) -> dict[int, Move]:
    from shared.aggregation.figures import measure_move

    moves: dict[int, Move] = {}
    known = {update.start: update.move.start for update in arrived if update.move is not None}  # norms
    for update in arrived:
        move = update.move or measure_move(
            update.start or model, update.path, parameters, known.get(update.start)
        )
        moves[update.info.index] = move
        known.setdefault(update.start, move.start)
    return moves


def _leave_out(arrived: Sequence[Arrived], beyond: Mapping[int, str]) -> list[LedgerEntry]:
    """Rows of updates that are not believed. A coordinator has refused them at the upload already."""
    return [
        replace(make_entry(update.known, 0.0, 0.0), included=False, reason=why, size_share=None)
        for update in arrived
        if (why := beyond.get(update.info.index)) is not None
    ]


def _describe(
    rows: Sequence[LedgerEntry], moves: Mapping[int, Move], cosines: Mapping[int, float]
) -> tuple[LedgerEntry, ...]:
    """The ledger by index, with what its updates are like; with secure sums nobody sees one."""
    ordered = sorted(rows, key=lambda row: row.index)
    if not moves:
        return tuple(ordered)
    return tuple(
        replace(
            row,
            norm=moves[row.index].norm,
            largest_entry=moves[row.index].largest,
            cosine=cosines.get(row.index),
        )
        for row in ordered
    )


def _look_at(
    needs: Set[Need],
    model: Path,
    updates: Sequence[UpdateFile],
    parameters: Sequence[TensorSpec],
    proxy: ProxyExamples | None,
) -> dict[str, Any]:
    """What of a round's updates the weighting needs: their inner products, or how they do on examples."""
    found: dict[str, Any] = {}
    if Need.UPDATES in needs and updates:
        from shared.aggregation.products import inner_products

        found["layers"] = inner_products(model, [update.path for update in updates], parameters)
        found["parameters"] = sum(math.prod(spec.shape) for spec in parameters)
    if Need.DATA in needs and proxy is not None:
        from shared.aggregation import Stream
        from shared.aggregation.proxy import Mixture

        found["proxy"] = Mixture(proxy, updates, Stream(updates, parameters))
    return found


def _add_up(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    arrived: Sequence[Arrived],
    all_clients: Sequence[Contribution],
    folder: Path,
    number: int,
) -> tuple[Aggregated | None, str]:
    """The next model of the sums that the coordinator of a secure run learns, here without masks.

    Without a model, why there is none; otherwise nothing.
    """
    from shared.aggregation.secure_sums import Plan, add_up_totals, score_of
    from shared.algorithms import load_algorithm

    algorithm = load_algorithm(config.algorithm)
    plan, totals = Plan(config, algorithm, manifest, len(arrived)), add_up_totals(config, all_clients)
    total = plan.ring.zeros(plan.length)
    for update in arrived:
        score = score_of(config, update.known, totals)
        total += plan.encode(start.model, update.path, score, update.info.steps)
    return _step_by_sums(plan, plan.decode(total, len(arrived)), start, len(all_clients), folder, number)


def close_masked_round(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    secure: Coordinator,
    uploads: Sequence[Path],
    clients: int,
    folder: Path,
    *,
    number: int = 1,
) -> RoundResult:
    """Unmask the sum of a secure round's uploads, and make the next model of it.

    ``uploads`` are those of ``secure.uploaded``, in any order; ``clients`` are all trainers enrolled.

    Raises:
        AttemptAbandoned: the sum cannot be unmasked.
    """
    from shared.aggregation.secure_sums import Plan
    from shared.algorithms import load_algorithm

    plan = Plan(config, load_algorithm(config.algorithm), manifest, len(secure.advertisements))
    sums = plan.decode(_unmask(secure, uploads), len(uploads))
    files, why = _step_by_sums(plan, sums, start, clients, folder, number)
    return RoundResult((), files, start.memory, UNCHANGED, why or None, sums)


def unmask_totals(config: RunConfig, secure: Coordinator, uploads: Sequence[Path]) -> Totals:
    """N and D of the clients whose ``uploads`` these are. Raises AttemptAbandoned."""
    from shared.aggregation.secure_sums import decode_totals

    return decode_totals(config, _unmask(secure, uploads), len(uploads))


def _unmask(secure: Coordinator, uploads: Sequence[Path]) -> RingVector:
    from shared.aggregation.secure_sums import read_vector
    from shared.secure.faults import AttemptAbandoned

    if len(uploads) != len(secure.uploaded):
        raise AttemptAbandoned(f"{len(uploads)} of {len(secure.uploaded)} uploads of the sum are here")
    total = read_vector(uploads[0])
    for path in uploads[1:]:
        total += read_vector(path)
    secure.unmask(total)
    return total


def _step_by_sums(
    plan: Plan, sums: RoundSums, start: Start, clients: int, folder: Path, number: int
) -> tuple[Aggregated | None, str]:
    """The next model of a round's sums. Without a model, why there is none; otherwise nothing."""
    from shared.aggregation import aggregate_sums

    if sums.score == 0:
        return None, "no client's score is above zero"
    files = aggregate_sums(
        sums,
        algorithm=plan.algorithm,
        manifest=plan.manifest,
        model=start.model,
        broadcast=start.broadcast,
        private=start.private,
        clients=clients,
        local=plan.config.local,
        folder=folder,
        number=number,
        seed=plan.config.seed,
    )
    return files, ""

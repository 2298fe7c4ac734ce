"""One round's updates become the next model: streamed, in index order, in constant memory.

Sums run in float32 or wider over the clients by index, whatever order their updates came in, and one
update file is mapped at a time: the result's bits depend neither on arrival nor on the number of
coordinator processes, and memory is a few models however many clients there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared import wire
from shared.aggregation.streams import RunningSum, Stream, UpdateFile, make_zeros
from shared.algorithms.base import Algorithm, Combined, ServerRound
from shared.config import LocalTraining
from shared.problems import InvalidConfiguration, InvalidRequest, ModelDiverged, WeightlessRound
from shared.rules import MEAN, AnyRule, MeanRule
from shared.schemas import TensorKind, TensorSpec
from shared.weightings.base import UNCHANGED, Adjustment, layer_of
from shared.wire import Written

if TYPE_CHECKING:
    from torch import Tensor

    from shared.aggregation.secure_sums import RoundSums
    from shared.algorithms.base import Groups
    from shared.distillation import Distilled

__all__ = [
    "Aggregated",
    "RunningSum",
    "Stream",
    "UpdateFile",
    "aggregate",
    "aggregate_sums",
    "write_model",
]


@dataclass(frozen=True)
class Aggregated:
    """The files written; ``scored`` is ``model`` itself where the algorithm scores what it sends.

    ``shares`` are what each update counts for in the model under an aggregation rule, by client index; None:
    the mean, where these are the weights, or a rule of coordinates, where they differ from one to the next.
    ``distilled``: how the models were distilled, where they were.
    """

    model: Written
    scored: Written
    broadcast: Written | None
    private: Written | None
    shares: Mapping[int, float] | None = None
    distilled: Distilled | None = None


def aggregate(
    *,
    algorithm: Algorithm[Any],
    manifest: Sequence[TensorSpec],
    model: Path,
    broadcast: Path | None,
    private: Path | None,
    updates: Sequence[UpdateFile],
    weights: Mapping[int, float],
    clients: int,
    local: LocalTraining,
    buffers: Literal["average", "keep-local"],
    folder: Path,
    adjustment: Adjustment = UNCHANGED,
    rule: AnyRule = MEAN,
    number: int = 1,
    seed: int = 0,
    begun: Sequence[RunningSum] = (),
    sends_scored: bool = False,
) -> Aggregated:
    """Combine a round's updates and write the results into ``folder``.

    ``model``, ``broadcast`` and ``private`` are what the round started from (None: state of zeros);
    ``weights`` are the p_k by client index, ``clients`` is N, all trainers enrolled. Parameters follow the
    algorithm, whose sums of updates go by ``rule``; floating buffers are the p_k-weighted mean (the rule's),
    or with ``keep-local`` stay those of ``model``, as do frozen and integer tensors. ``adjustment`` is made
    to the models that the algorithm returns. In a round ``number`` in which clients do not train, buffers
    stay, and nothing is adjusted. ``seed`` is the run's. Results have the manifest's dtypes. Of ``begun`` is
    used what are beginnings of the sums that are asked for; they are the caller's no longer.
    ``sends_scored``: the model that the algorithm scores is the one that clients are sent next, too.

    Raises WeightlessRound if no update has a weight, InvalidRequest if the weights do not sum to one over
    the updates, ModelDiverged if the result is not finite, and InvalidConfiguration if the algorithm does not
    return what it declares. Files must have passed ``shared.wire.validation``.
    """
    ordered = sorted(updates, key=lambda update: update.info.index)
    given = _check_weights([update.info.index for update in ordered], weights)
    names = {kind: [spec for spec in manifest if spec.kind is kind] for kind in TensorKind}
    stream = _make_stream(
        ordered, names[TensorKind.PARAMETER], rule, model, algorithm.own_specs(manifest), begun
    )
    trained = algorithm.trains(number)
    with ExitStack() as files:
        x = files.enter_context(wire.opened(model))
        stored = ((algorithm.downloads, broadcast), (algorithm.private, private))
        state = _read_state(files, algorithm, manifest, *stored)
        start = {spec.name: x.tensor(wire.MODEL, spec.name) for spec in stream.parameters}
        combined = algorithm.combine(
            ServerRound(
                model=start,
                state=state,
                weights=given,
                updates=stream,
                clients=clients,
                learning_rate=local.learning_rate,
                momentum=local.momentum,
                round=number,
                seed=seed,
            )
        )
        _check_groups(algorithm, combined)
        if adjustment and trained:
            combined = _adjust(combined, start, adjustment)
        if sends_scored and combined.score is not None:
            combined = Combined(combined.score, state=combined.state)
        averages = buffers == "average" and trained
        averaged = stream.sum_of(given, names[TensorKind.BUFFER]) if averages else {}
        rest = {s.name: x.tensor(wire.MODEL, s.name) for s in manifest if s.kind is not TensorKind.PARAMETER}
        rest |= averaged
        made = _write_results(algorithm, manifest, combined, rest, folder)
        return replace(made, shares=stream.shares(given))


def _make_stream(
    updates: Sequence[UpdateFile],
    parameters: Sequence[TensorSpec],
    rule: AnyRule,
    model: Path,
    own: Mapping[str, Sequence[TensorSpec]],
    begun: Sequence[RunningSum],
) -> Stream:
    if isinstance(rule, MeanRule):
        return Stream(updates, parameters, own, begun)
    from shared.aggregation.robust import RobustStream

    return RobustStream(updates, parameters, rule, model)


def aggregate_sums(
    sums: RoundSums,
    *,
    algorithm: Algorithm[Any],
    manifest: Sequence[TensorSpec],
    model: Path,
    broadcast: Path | None,
    private: Path | None,
    clients: int,
    local: LocalTraining,
    folder: Path,
    number: int = 1,
    seed: int = 0,
) -> Aggregated:
    """As :func:`aggregate`, of a round of which only sums are known; the sum of scores is above 0.

    Raises ModelDiverged if the result is not finite, and InvalidConfiguration if the algorithm asks for other
    sums than it declares.
    """
    from shared.aggregation.secure_sums import SecureRound

    parameters = [spec for spec in manifest if spec.kind is TensorKind.PARAMETER]
    with ExitStack() as files:
        x = files.enter_context(wire.opened(model))
        start = {spec.name: x.tensor(wire.MODEL, spec.name) for spec in manifest}
        stored = ((algorithm.downloads, broadcast), (algorithm.private, private))
        state = _read_state(files, algorithm, manifest, *stored)
        trainable = {spec.name: start.pop(spec.name) for spec in parameters}
        round = SecureRound.of(sums, trainable, state, clients, local, number, seed)
        combined = algorithm.combine(round)
        _check_groups(algorithm, combined)
        return _write_results(algorithm, manifest, combined, start | round.mean_buffers(start), folder)


def _check_weights(indices: Sequence[int], weights: Mapping[int, float]) -> dict[int, float]:
    """The weights that are not 0, in index order."""
    given = {index: weights[index] for index in indices if weights.get(index)}
    if not given:
        raise WeightlessRound(f"none of the round's {len(indices)} updates has a weight, the model stays")
    total = math.fsum(given.values())
    if len(set(indices)) < len(indices) or not abs(total - 1) < 1e-9:
        raise InvalidRequest(
            f"the weights of the updates {list(indices)} sum to {total}, not to 1",
            hint="Take the weights of the ledger over exactly these updates, one for each client.",
        )
    return given


def _read_state(
    files: ExitStack,
    algorithm: Algorithm[Any],
    manifest: Sequence[TensorSpec],
    *stored: tuple[Sequence[str], Path | None],
) -> dict[str, Mapping[str, Tensor]]:
    """The server's groups, mapped from their files; zeros that take no memory where there is no file."""
    state: dict[str, Mapping[str, Tensor]] = {}
    for groups, path in stored:
        file = files.enter_context(wire.opened(path)) if groups and path is not None else None
        for group in groups:
            state[group] = {
                spec.name: file.tensor(group, spec.name)
                if file
                else make_zeros(_scalar(spec)).expand(spec.shape)
                for spec in algorithm.specs_of(group, manifest)
            }
    return state


def _scalar(spec: TensorSpec) -> TensorSpec:
    return spec.model_copy(update={"shape": ()})


def _check_groups(algorithm: Algorithm[Any], combined: Combined) -> None:
    declared, returned = {*algorithm.downloads, *algorithm.private}, set(combined.state)
    if declared != returned:
        raise InvalidConfiguration(
            f"{type(algorithm).__name__} declares the server groups {sorted(declared)} "
            f"and returned {sorted(returned)}",
            hint="The server half returns every group of downloads and private, and no other.",
        )


def _adjust(combined: Combined, start: Mapping[str, Tensor], adjustment: Adjustment) -> Combined:
    """The models that are sent and scored, after what the weighting does to them."""

    def adjust(name: str, value: Tensor) -> Tensor:
        moved = value if adjustment.step == 1 else start[name] + adjustment.step * (value - start[name])
        return moved * (adjustment.shrink * adjustment.layers.get(layer_of(name), 1.0))

    scored = combined.score
    return Combined(
        model={name: adjust(name, value) for name, value in combined.model.items()},
        score=None if scored is None else {name: adjust(name, value) for name, value in scored.items()},
        state=combined.state,
    )


def _write_results(
    algorithm: Algorithm[Any],
    manifest: Sequence[TensorSpec],
    combined: Combined,
    rest: Mapping[str, Tensor],
    folder: Path,
) -> Aggregated:
    model = write_model(folder / "model.safetensors", manifest, {**rest, **combined.model})
    scored = model
    if combined.score is not None:
        scored = write_model(folder / "scored.safetensors", manifest, {**rest, **combined.score})
    return Aggregated(
        model,
        scored,
        _write_groups(
            folder / "broadcast.safetensors", manifest, algorithm, algorithm.downloads, combined.state
        ),
        _write_groups(folder / "private.safetensors", manifest, algorithm, algorithm.private, combined.state),
    )


def write_model(path: Path, manifest: Iterable[TensorSpec], tensors: Mapping[str, Tensor]) -> Written:
    """The model's file, its tensors in the manifest's dtypes.

    Raises InvalidConfiguration if one is missing or has another shape, ModelDiverged if one is not finite.
    """
    return wire.write(path, {wire.MODEL: {s.name: _cast_and_check(s, tensors, wire.MODEL) for s in manifest}})


def _write_groups(
    path: Path,
    manifest: Sequence[TensorSpec],
    algorithm: Algorithm[Any],
    groups: Sequence[str],
    state: Groups,
) -> Written | None:
    if not groups:
        return None
    specs = {group: algorithm.specs_of(group, manifest) for group in groups}
    return wire.write(
        path,
        {
            group: {spec.name: _cast_and_check(spec, state[group], group) for spec in specs[group]}
            for group in groups
        },
    )


def _cast_and_check(spec: TensorSpec, tensors: Mapping[str, Tensor], group: str) -> Tensor:
    """The tensor in the manifest's dtype, if it is there, has its shape and is finite."""
    import torch

    from shared.wire.header import DTYPES

    tensor = tensors.get(spec.name)
    if tensor is None or tensor.shape != spec.shape:
        found = "is missing" if tensor is None else f"has shape {list(tensor.shape)}, not {list(spec.shape)}"
        raise InvalidConfiguration(
            f"the algorithm's result for tensor {spec.name!r} of group {group!r} {found}",
            hint="The server half returns every trainable parameter, in its shape.",
        )
    cast = tensor.to(getattr(torch, DTYPES[spec.dtype].torch))
    if cast.is_floating_point() and not math.isfinite(_largest(cast)):
        raise ModelDiverged(
            f"tensor {spec.name!r} of group {group!r} is not finite after aggregation",
            hint="Lower the server's or the clients' learning rate, or clip local gradients.",
            tensor=spec.name,
        )
    return cast


def _largest(tensor: Tensor) -> float:
    """Largest magnitude, or NaN (``aminmax`` needs no copy, unlike ``isfinite``)."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.aminmax()  # both are NaN if one element is
    return max(abs(float(low)), abs(float(high)))

"""Before the first local step and after the last: a model made ready, and what a client sends and keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from shared.algorithms.base import Algorithm, LocalRound
from shared.faults import Diverged
from shared.problems import InvalidConfiguration
from shared.schemas import TensorKind, TensorSpec
from shared.wire.header import DTYPES
from shared.wire.tensors import load_into, manifest_of, trainable

if TYPE_CHECKING:
    from shared.algorithms.base import Groups, Tensors
    from shared.config import LocalTraining

__all__ = ["LOCAL_BUFFERS", "Diverged", "LocalResult", "local_result", "local_round"]

LOCAL_BUFFERS = "local_buffers"
"""The group under which a client keeps its running statistics with ``buffers: keep-local``."""


@dataclass(frozen=True)
class LocalResult:
    """What a client sends (``tensors``, by group, on the CPU), what it keeps, and a few numbers.

    ``steps`` are the optimizer steps taken, ``loss`` the mean batch loss over the round (None: no step).
    ``start_loss`` and ``end_loss`` are mean losses over all training examples, of the model received and of
    the one sent, where the run's weighting needs them (None: not finite, or not needed).
    """

    tensors: Groups
    kept: Groups
    steps: int
    examples: int
    loss: float | None
    seconds: float
    start_loss: float | None = None
    end_loss: float | None = None


def local_round(
    model: nn.Module,
    algorithm: Algorithm[Any],
    local: LocalTraining,
    start: Mapping[str, Tensor],
    received: Mapping[str, Mapping[str, Tensor]],
    kept: Mapping[str, Mapping[str, Tensor]],
    first_time: bool,
    relative_size: float,
    *,
    buffers: Literal["average", "keep-local"],
    round: int,
    look: Callable[[], Iterator[tuple[Tensor, Tensor]]],
) -> LocalRound:
    """``model``, overwritten by ``start``, ready to be trained.

    The arguments are those of :func:`shared.training.train`, and :attr:`LocalRound.look`.
    Raises InvalidConfiguration if the model has nothing to train.
    """
    load_into(model, {**start, **kept.get(LOCAL_BUFFERS, {})} if buffers == "keep-local" else start)
    model.train()
    parameters = trainable(model)
    if not parameters:
        raise InvalidConfiguration(
            f"model: {type(model).__name__} has no trainable parameter.",
            hint="Leave requires_grad of what is to be trained.",
        )
    manifest = manifest_of(model)
    return LocalRound(
        model=model,
        parameters=parameters,
        start={name: parameter.detach().clone() for name, parameter in parameters.items()},
        received=_groups(algorithm, algorithm.downloads, received, manifest, parameters),
        kept=_groups(algorithm, algorithm.keeps, kept, manifest, parameters),
        first_time=first_time,
        relative_size=relative_size,
        learning_rate=local.learning_rate,
        momentum=local.momentum,
        round=round,
        manifest=manifest,
        look=look,
    )


def local_result(
    algorithm: Algorithm[Any],
    state: LocalRound,
    examples: int,
    loss: float | None,
    seconds: float,
    *,
    buffers: Literal["average", "keep-local"],
) -> LocalResult:
    """What ``finish`` and the trained model give; raises Diverged if a parameter is no number."""
    finish = algorithm.finish(state)
    return LocalResult(
        tensors={"model": _model_tensors(state, buffers)}
        | _check_declared("uploads", algorithm.uploads, finish.uploads),
        kept=_check_declared("keeps", algorithm.keeps, finish.kept) | _local_buffers(state.model, buffers),
        steps=state.steps,
        examples=examples,
        loss=loss,
        seconds=seconds,
    )


def _groups(
    algorithm: Algorithm[Any],
    declared: Sequence[str],
    given: Mapping[str, Mapping[str, Tensor]],
    manifest: Sequence[TensorSpec],
    parameters: Mapping[str, nn.Parameter],
) -> Groups:
    """The declared groups on the parameters' device; zeros for a group that is not there yet."""
    device = next(iter(parameters.values())).device
    groups: Groups = {}
    for group in declared:
        specs = algorithm.specs_of(group, manifest)
        if group in given:
            groups[group] = {spec.name: given[group][spec.name].to(device) for spec in specs}
        else:
            groups[group] = {spec.name: _zeros(spec, device) for spec in specs}
    return groups


def _zeros(spec: TensorSpec, device: torch.device) -> Tensor:
    return torch.zeros(spec.shape, dtype=getattr(torch, DTYPES[spec.dtype].torch), device=device)


def _check_declared(kind: str, declared: Sequence[str], returned: Groups) -> Groups:
    """The groups that an algorithm's ``finish`` returned, on the CPU."""
    if set(returned) != set(declared):
        raise TypeError(f"the algorithm {kind} {sorted(declared)}, but finish() returned {sorted(returned)}")
    return {group: {name: _on_cpu(tensor) for name, tensor in returned[group].items()} for group in declared}


def _model_tensors(state: LocalRound, buffers: Literal["average", "keep-local"]) -> Tensors:
    """What is sent of the model: parameters, and running statistics if they are averaged."""
    tensors = {name: _on_cpu(parameter) for name, parameter in state.parameters.items()}
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise Diverged(f"The tensor {name!r} holds NaN or infinity after training.")
    return tensors | (_running_statistics(state.model) if buffers == "average" else {})


def _local_buffers(model: nn.Module, buffers: Literal["average", "keep-local"]) -> Groups:
    running = _running_statistics(model) if buffers == "keep-local" else {}
    return {LOCAL_BUFFERS: running} if running else {}


def _running_statistics(model: nn.Module) -> Tensors:
    """The floating buffers of the manifest, on the CPU."""
    wanted = {spec.name for spec in manifest_of(model) if spec.kind is TensorKind.BUFFER}
    return {name: _on_cpu(buffer) for name, buffer in model.named_buffers() if name in wanted}


def _on_cpu(tensor: Tensor) -> Tensor:
    """A contiguous copy that later training does not change."""
    return tensor.detach().to("cpu", copy=True).contiguous()

"""Models as named tensors.

A model's tensors are its unique parameters and persistent buffers, under the names and in the order that
``named_parameters()`` and ``named_buffers()`` give: tied weights count once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shared.problems import InvalidConfiguration, MissingTensor, UnknownTensor, WrongDtype, WrongShape
from shared.schemas import TensorKind, TensorSpec
from shared.wire.header import DTYPES, shown

__all__ = ["dtype_name", "load_into", "manifest_of", "state_of", "tied_names", "trainable"]

_NAMES = {getattr(torch, dtype.torch): name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype, tensor: str) -> str:
    """The dtype as safetensors writes it; InvalidConfiguration, naming ``tensor``, if it cannot be sent."""
    if dtype not in _NAMES:
        raise InvalidConfiguration(
            f"tensor {shown(tensor)} has dtype {dtype}, which cannot be sent",
            hint=f"Known are {', '.join(DTYPES)}.",
        )
    return _NAMES[dtype]


# ---------------------------------------------------------------- models


def manifest_of(model: nn.Module) -> tuple[TensorSpec, ...]:
    """What the coordinator must know of a model; InvalidConfiguration for lazy or unsendable tensors."""
    return tuple(_spec(name, tensor) for name, tensor in _tensors(model).items())


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Contiguous copies, on the CPU, of every tensor of the manifest."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in _tensors(model).items()
    }


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The live parameters of kind PARAMETER, by name."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if _kind(parameter) is TensorKind.PARAMETER
    }


def tied_names(model: nn.Module) -> dict[str, str]:
    """The names of ``state_dict`` that the manifest lacks, and under which name their tensor is in it."""
    live = {id(tensor): name for name, tensor in _tensors(model).items()}
    state = model.state_dict(keep_vars=True)
    found = {name: live.get(id(tensor), name) for name, tensor in state.items()}
    return {name: first for name, first in found.items() if name != first}


@torch.no_grad()
def load_into(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy all tensors of the manifest into the model, in place: ties and optimizers' references survive.

    Nothing is changed if anything is wrong.
    Raises UnknownTensor, MissingTensor, WrongShape, WrongDtype.
    """
    live = _tensors(model)
    for name, value in tensors.items():
        _check_value(name, value, live)
    missing = [name for name in live if name not in tensors]
    if missing:
        raise MissingTensor(f"the model's tensor {shown(missing[0])} is not given", tensor=shown(missing[0]))
    for name, value in tensors.items():
        live[name].copy_(value)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {**dict(model.named_parameters()), **buffers}


def _spec(name: str, tensor: Tensor) -> TensorSpec:
    if nn.parameter.is_lazy(tensor):
        raise InvalidConfiguration(
            f"tensor {shown(name)} has no shape yet",
            hint="Run one batch through the lazy module before the model is used.",
        )
    return TensorSpec(
        name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype, name), kind=_kind(tensor)
    )


def _kind(tensor: Tensor) -> TensorKind:
    if not tensor.is_floating_point():
        return TensorKind.INTEGER
    if isinstance(tensor, nn.Parameter):
        return TensorKind.PARAMETER if tensor.requires_grad else TensorKind.FROZEN
    return TensorKind.BUFFER


def _check_value(name: str, value: Tensor, live: Mapping[str, Tensor]) -> None:
    if name not in live:
        raise UnknownTensor(f"the model has no tensor {shown(name)}", tensor=shown(name))
    expected = live[name]
    if value.shape != expected.shape:
        raise WrongShape(
            f"tensor {shown(name)} has shape {list(value.shape)}, the model's has {list(expected.shape)}",
            tensor=shown(name),
        )
    if value.dtype != expected.dtype:
        raise WrongDtype(
            f"tensor {shown(name)} has dtype {value.dtype}, the model's has {expected.dtype}",
            tensor=shown(name),
        )

"""Updates in fewer bytes: of each parameter its displacement from the round's model, rounded or thinned out.

The groups of a packed file say how it is packed, and a run takes no others (decision 32):

========  ========================================================================================
bfloat16  ``bfloat16/NAME`` (BF16, the parameter's shape)
int8      ``int8/NAME`` (I8, the parameter's shape, -127 to 127), ``int8-scale/NAME`` (F32, no axis)
top-k     ``top-k-values/NAME`` (F32, k), ``top-k-places/NAME`` (I32, k: flat, ascending)
========  ========================================================================================

Averaged buffers and an algorithm's own groups are sent whole, under the keys that they always have.
:func:`unpack` makes the update of it that would have been sent whole. Coordinator, replay and simulation call
it alike, and it multiplies and adds in float32, one after the other: the same bits on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from shared import wire
from shared.compression import Compression
from shared.problems import InvalidConfiguration, OutOfBounds
from shared.schemas import TensorKind, TensorSpec
from shared.wire.header import DTYPES, shown
from shared.wire.validation import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from shared.algorithms.base import Groups, Tensors

__all__ = ["RESIDUAL", "Packed", "PackedForm", "check_packed", "pack", "packed_layout", "unpack"]

RESIDUAL = "compression_residual"
"""The group under which a client keeps what its updates have left out so far."""
LARGEST = 127
"""Of an int8: -128 has no counterpart above zero, and stays unused."""
PIECE = 1 << 20
"""Numbers that are looked at together."""


@dataclass(frozen=True)
class PackedForm:
    """What a packed update of a run is like: the run's compression, and the update as it is when unpacked."""

    compression: Compression
    whole: Layout

    @cached_property
    def parameters(self) -> tuple[TensorSpec, ...]:
        """The tensors that are packed."""
        return tuple(spec for name, spec in self.whole.items() if _is_packed(name, spec))

    @cached_property
    def layout(self) -> Layout:
        """What the file holds. Raises InvalidConfiguration for parameters that cannot be packed."""
        return packed_layout(self.whole, self.compression)

    @property
    def ratio(self) -> float:
        """How many times the numbers of a packed update go into those of a whole one."""
        whole, packed = (
            sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in layout.values())
            for layout in (self.whole, self.layout)
        )
        return whole / packed if packed else 1.0


@dataclass(frozen=True)
class Packed:
    """Displacements as they are sent, by group, and what they leave out."""

    groups: Groups
    residual: Tensors


# ---------------------------------------------------------------- what a file holds


def packed_layout(whole: Layout, compression: Compression) -> Layout:
    """The layout of a packed file; ``whole`` is that of the update, of which the parameters are packed.

    Raises InvalidConfiguration for parameters that are not float32, or too large for places of 32 bits.
    """
    found: dict[str, TensorSpec] = {}
    for name, spec in whole.items():
        if not _is_packed(name, spec):
            _add(found, name, spec)
            continue
        if spec.dtype != "F32" or math.prod(spec.shape) >= 2**31:
            raise InvalidConfiguration(
                f"compression: tensor {shown(spec.name)} ({spec.dtype} {list(spec.shape)}) cannot be packed",
                hint="Parameters are float32 with less than 2^31 numbers; otherwise leave out `compression`.",
            )
        for group, dtype, shape in _members(spec, compression):
            packed = TensorSpec(name=spec.name, shape=shape, dtype=dtype, kind=TensorKind.PARAMETER)
            _add(found, wire.key(group, spec.name), packed)
    return found


def _is_packed(name: str, spec: TensorSpec) -> bool:
    """Of a whole update the trainable parameters: no buffer, and nothing of an algorithm's own groups."""
    return spec.kind is TensorKind.PARAMETER and wire.group_of(name, spec) == wire.MODEL


def _add(found: dict[str, TensorSpec], name: str, spec: TensorSpec) -> None:
    if name in found:
        raise InvalidConfiguration(
            f"compression: the tensor key {shown(name)} stands for two tensors",
            hint="Rename the parameter or the algorithm's group, or leave out `compression`.",
        )
    found[name] = spec


def _members(spec: TensorSpec, compression: Compression) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Group, dtype and shape of each tensor that stands for a parameter."""
    if compression.kind == "bfloat16":
        yield "bfloat16", "BF16", spec.shape
    elif compression.kind == "int8":
        yield "int8", "I8", spec.shape
        yield "int8-scale", "F32", ()
    else:
        kept = (compression.count_kept(math.prod(spec.shape)),)
        yield "top-k-values", "F32", kept
        yield "top-k-places", "I32", kept


def check_packed(path: Path, form: PackedForm) -> None:
    """Of a file that has passed :func:`shared.wire.validate`: scales and places. Raises OutOfBounds."""
    with wire.opened(path) as file:
        for spec in form.parameters:
            if form.compression.kind == "int8":
                _check_scaled(spec, file.array("int8", spec.name), file.array("int8-scale", spec.name))
            elif form.compression.kind == "top-k":
                _check_places(spec, file.array("top-k-places", spec.name))


def _check_scaled(spec: TensorSpec, values: Any, scale: Any) -> None:
    if float(scale[()]) < 0 or np.signbit(scale[()]):
        _refuse(f"the scale of tensor {shown(spec.name)} is {float(scale[()]):g}, below zero", spec)
    flat = values.reshape(-1)
    if any((flat[first : first + PIECE] < -LARGEST).any() for first in range(0, flat.size, PIECE)):
        _refuse(f"tensor {shown(spec.name)} holds -128, which no int8 of an update is", spec)


def _check_places(spec: TensorSpec, places: Any) -> None:
    """Ascending, so that none is there twice, and each inside of the tensor."""
    if not places.size:
        return
    size, first, last = math.prod(spec.shape), int(places[0]), int(places[-1])
    for start in range(0, places.size - 1, PIECE):
        piece = places[start : start + PIECE + 1]
        falls = np.flatnonzero(piece[1:] <= piece[:-1])
        if falls.size:
            at = start + int(falls[0]) + 1
            _refuse(
                f"the places of tensor {shown(spec.name)} do not ascend: {places[at]} at position {at} "
                f"follows {places[at - 1]}",
                spec,
            )
    if first < 0 or last >= size:
        _refuse(
            f"the places of tensor {shown(spec.name)} go from {first} to {last}, it has {size} numbers", spec
        )


def _refuse(reason: str, spec: TensorSpec) -> NoReturn:
    raise OutOfBounds(reason, hint="Pack the update with shared.wire.packing.pack.", tensor=shown(spec.name))


# ---------------------------------------------------------------- packing


def pack(moved: Mapping[str, Tensor], residual: Mapping[str, Tensor], compression: Compression) -> Packed:
    """The displacements ``moved`` and what earlier updates left out, packed; all are float32 on the CPU.

    Tensors that ``residual`` lacks are zero. What is decoded and the new residual sum to both, to rounding.
    Raises ArithmeticError, which names the tensor, if a number is not finite or beyond the format.
    """
    groups: Groups = {}
    left: Tensors = {}
    for name, tensor in moved.items():
        whole = tensor if name not in residual else tensor + residual[name]
        members = _pack_tensor(whole, compression)
        for group, member in members.items():
            groups.setdefault(group, {})[name] = member
        decoded = _unpack_tensor(members, whole.shape)
        left[name] = whole - decoded
        if not bool(left[name].isfinite().all()):  # nor is then one of the two
            raise ArithmeticError(f"The tensor {name!r} moved by more than {compression.label} can hold.")
    return Packed(groups, left)


def _pack_tensor(values: Tensor, compression: Compression) -> Tensors:
    import torch

    if compression.kind == "bfloat16":
        return {"bfloat16": values.to(torch.bfloat16)}
    if compression.kind == "int8":
        scale = (values.abs().amax() / LARGEST) if values.numel() else values.new_zeros(())
        if not float(scale):  # nothing moved, or by less than a scale can say
            return {"int8": torch.zeros_like(values, dtype=torch.int8), "int8-scale": values.new_zeros(())}
        steps = (values / scale).round_().clamp_(-LARGEST, LARGEST)
        return {"int8": steps.to(torch.int8), "int8-scale": scale}
    flat = values.reshape(-1)
    places = torch.from_numpy(_largest_places(flat.abs().numpy(), compression))
    return {"top-k-values": flat[places.long()], "top-k-places": places}


def _largest_places(magnitudes: Any, compression: Compression) -> Any:
    """Where the largest are, ascending; of equal ones the first, whatever the number of threads."""
    kept = compression.count_kept(magnitudes.size)
    if not kept:
        return np.zeros(0, np.int32)
    least = np.partition(magnitudes, magnitudes.size - kept)[magnitudes.size - kept]
    above = np.flatnonzero(magnitudes > least)
    equal = np.flatnonzero(magnitudes == least)[: kept - above.size]
    return np.sort(np.concatenate([above, equal])).astype(np.int32)


# ---------------------------------------------------------------- unpacking


def unpack(packed: Path, model: Path, form: PackedForm, target: Path) -> Path:
    """Write the update that ``packed`` stands for, which was trained from ``model``, to ``target``.

    The file has passed the checks of this module. Memory: one model. Returns ``target``.
    """
    groups: Groups = {}
    with ExitStack() as files:
        update, start = (files.enter_context(wire.opened(path)) for path in (packed, model))
        for spec in form.parameters:
            members = {
                group: update.tensor(group, spec.name) for group, _, _ in _members(spec, form.compression)
            }
            decoded = _unpack_tensor(members, spec.shape).add_(start.tensor(wire.MODEL, spec.name))
            groups.setdefault(wire.MODEL, {})[spec.name] = decoded
        for name, spec in form.whole.items():
            if not _is_packed(name, spec):
                group = wire.group_of(name, spec)
                groups.setdefault(group, {})[spec.name] = update.tensor(group, spec.name)
        wire.write(target, groups, durable=False)
    return target


def _unpack_tensor(members: Mapping[str, Tensor], shape: Sequence[int]) -> Tensor:
    """A new tensor, float32."""
    import torch

    if "bfloat16" in members:
        return members["bfloat16"].to(torch.float32)
    if "int8" in members:
        return members["int8"].to(torch.float32).mul_(members["int8-scale"])
    found = torch.zeros(math.prod(shape))
    found[members["top-k-places"].long()] = members["top-k-values"]
    return found.reshape(tuple(shape))

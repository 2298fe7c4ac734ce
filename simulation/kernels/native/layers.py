"""Conv2d, ReLU and MaxPool2d in a row, and linear layers behind them, by the compiled kernels.

The model stays as it is. From one layer to the next images and features lie with the batch innermost,
(channels, height, width, lanes) and (features, lanes); for PyTorch they are ordinary (B, ...) tensors with
unusual strides.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simulation.kernels.native.library import Linear, Shape, Texts, load_library

__all__ = [
    "Block",
    "LinearLayer",
    "Row",
    "accelerate_rows",
    "call",
    "is_heard",
    "is_known_linear",
    "lanes_for",
    "lanes_of",
    "plan_layers",
]

Plan = list[tuple[Shape | Linear, tuple[int, ...]]]
"""For each layer what the kernels are told, and the sizes of what it gives, lanes last."""

LANES = 16
"""Batches are filled up to a multiple of so many with zeros."""


def accelerate_rows(model: nn.Module) -> list[Block]:
    """Let the kernels compute the rows in ``model``; parameters, names and hooks stay.

    Returned are those that follow one another, together. What the model uses in more than one place stays as
    it is.

    Raises:
        InvalidConfiguration: no compiler.
    """
    uses = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    sequences = [module for module in model.modules() if isinstance(module, nn.Sequential)]
    blocks = [block for layers in sequences for block in _find_blocks(list(layers), uses)]
    for block in blocks:
        load_library()
        block.take_over()
    return blocks


@dataclass(frozen=True)
class Step:
    """A layer and what follows it."""

    layer: nn.Conv2d | nn.Linear

    def parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Weights and bias, as they are now."""
        return cast(tuple[nn.Parameter, nn.Parameter], (self.layer.weight, self.layer.bias))


@dataclass(frozen=True)
class Row(Step):
    """Conv2d, ReLU, MaxPool2d."""

    def shape(self, given: tuple[int, ...], lanes: int) -> tuple[Shape, tuple[int, ...]]:
        """For images (C, H, W), and what becomes of them."""
        channels, height, width = given
        outputs, inputs, high, wide = self.layer.weight.shape
        if channels != inputs:
            raise ValueError(f"{self.layer} got {channels} channels")
        if height <= high or width <= wide:
            raise ValueError(f"{self.layer} and pooling leave nothing of images {given}")
        pooled = (outputs, (height - high + 1) // 2, (width - wide + 1) // 2)
        return Shape(inputs, height, width, outputs, high, wide, lanes), pooled


@dataclass(frozen=True)
class LinearLayer(Step):
    """Linear, and ReLU or not."""

    rectified: bool

    def shape(self, given: tuple[int, ...], lanes: int) -> tuple[Linear, tuple[int, ...]]:
        """For images (C, H, W) or features (F,), flattened, and what becomes of them."""
        outputs, inputs = self.layer.weight.shape
        if torch.Size(given).numel() != inputs:
            raise ValueError(f"{self.layer} got {torch.Size(given).numel()} features of {given}")
        return Linear(inputs, outputs, lanes, self.rectified), (outputs,)


@dataclass
class Block:
    """Layers one after the other, which the first of their modules computes whole."""

    modules: Sequence[nn.Module]
    layers: Sequence[Row | LinearLayer]
    computed: bool = False  # by the kernels, in the forward pass that goes on
    plans: dict[tuple[int, ...], Plan] = field(default_factory=dict)

    def take_over(self) -> None:
        first, *others = self.modules
        first.forward = partial(self._begin, first.forward)
        for module in others:
            module.forward = partial(self._go_on, module.forward)

    def _begin(self, forward: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Where somebody listens at a module, each computes its own part, by PyTorch."""
        self.computed = not any(is_heard(module) for module in self.modules)
        return self._compute(images) if self.computed else forward(images)

    def _go_on(self, forward: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        return values if self.computed else forward(values)

    def _compute(self, images: Tensor) -> Tensor:
        """What the layers give for (B, C, H, W).

        Raises:
            TypeError: the images are not float32 on the CPU.
            ValueError: they are not images of as many channels, or leave nothing to pool.
        """
        if (images.dtype, images.device.type) != (torch.float32, "cpu"):
            raise TypeError(
                f"the native kernels compute float32 on the CPU, got {images.dtype} on {images.device}"
            )
        if images.dim() != 4:
            raise ValueError(f"{self.modules[0]} got {tuple(images.shape)}, expected (B, C, H, W)")
        if (shape := tuple(images.shape)) not in self.plans:
            self.plans[shape] = plan_layers(self.layers, shape[1:], lanes_for(len(images)))
        parameters = [p for step in self.layers for p in step.parameters()]
        return cast(Tensor, _Computed.apply(images, self.plans[shape], *parameters))


def plan_layers(layers: Sequence[Row | LinearLayer], given: tuple[int, ...], lanes: int) -> Plan:
    """For images (C, H, W) of so many lanes; raises ValueError if a layer cannot take what comes to it."""
    plan = Plan()
    for layer in layers:
        told, given = layer.shape(given, lanes)
        plan.append((told, (*given, lanes)))
    return plan


def is_heard(module: nn.Module) -> bool:
    """Whether somebody is told what it gets or gives."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def _find_blocks(modules: list[nn.Module], uses: Counter[nn.Module]) -> list[Block]:
    blocks: list[Block] = []
    at = 0
    while at < len(modules):
        rows = 0
        while _is_row(modules[at + 3 * rows : at + 3 * rows + 3], uses):
            rows += 1
        layers: list[Row | LinearLayer] = [Row(cast(nn.Conv2d, modules[at + 3 * row])) for row in range(rows)]
        behind = modules[at + 3 * rows :] if rows else []
        linear = _find_linear(behind, uses)
        taken = 3 * rows + (1 + sum(1 + layer.rectified for layer in linear) if linear else 0)
        if rows:
            blocks.append(Block(modules[at : at + taken], [*layers, *linear]))
        at += max(1, taken)
    return blocks


def _is_row(modules: Sequence[nn.Module], uses: Counter[nn.Module]) -> bool:
    if len(modules) < 3 or any(uses[module] > 1 for module in modules):
        return False
    first, second, third = modules
    return (
        type(first) is nn.Conv2d
        and type(second) is nn.ReLU
        and type(third) is nn.MaxPool2d
        and _is_known(first)
        and _is_halving(third)
    )


def _find_linear(modules: Sequence[nn.Module], uses: Counter[nn.Module]) -> list[LinearLayer]:
    """The linear layers behind a Flatten that comes first."""
    if not modules or type(modules[0]) is not nn.Flatten or uses[modules[0]] > 1:
        return []
    if (modules[0].start_dim, modules[0].end_dim) != (1, -1):
        return []
    found = []
    for layer, following in pairwise((*modules[1:], nn.Identity())):
        if is_known_linear(layer) and uses[layer] < 2:
            found.append(LinearLayer(layer, type(following) is nn.ReLU and uses[following] < 2))
        elif not (found and found[-1].rectified and type(layer) is nn.ReLU):
            break
    return found


def is_known_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.bias is not None and layer.weight.dtype == torch.float32


def _is_known(layer: nn.Conv2d) -> bool:
    plain = (layer.stride, layer.dilation, layer.groups) == ((1, 1), (1, 1), 1)
    single = layer.bias is not None and layer.weight.dtype == torch.float32
    return plain and single and layer.padding in ((0, 0), "valid")


def _is_halving(layer: nn.MaxPool2d) -> bool:
    return (
        layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )


class _Computed(torch.autograd.Function):
    """ReLU after max-pooling instead of before it: the same values and gradients."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, plan: Plan, *parameters: Tensor) -> Tensor:
        library, kept = load_library(), list[Tensor]()
        values = lanes_of(images)
        for (told, sizes), weight, bias in zip(plan, parameters[::2], parameters[1::2], strict=True):
            weight, given = weight.contiguous(), values
            values = torch.empty(sizes)
            if isinstance(told, Shape):
                which = torch.empty(sizes, dtype=torch.uint8)
                call(library.row_forward, told, given, weight, bias.contiguous(), values, which)
                kept += given, weight, which
            else:
                call(library.linear_forward, told, given, weight, bias.contiguous(), values)
                kept += given, weight, values
        ctx.plan, ctx.batch = plan, len(images)
        ctx.save_for_backward(*kept)
        return batch_first(values, len(images))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        library, kept = load_library(), ctx.saved_tensors
        results = list[Tensor]()
        of_values: Tensor | None = lanes_of(gradient)
        for number, (told, _) in reversed(list(enumerate(ctx.plan))):
            given, weight, passed = kept[3 * number : 3 * number + 3]
            of_weight, of_bias = torch.empty_like(weight), torch.empty(len(weight))
            of_given = torch.empty_like(given) if number or ctx.needs_input_grad[0] else None
            made = (of_weight, of_bias, of_given)
            if isinstance(told, Shape):
                call(library.row_backward, told, given, weight, of_values, passed, *made)
            else:
                call(library.linear_backward, told, given, weight, passed, of_values, *made)
            results = [of_weight, of_bias, *results]
            of_values = of_given
        return None if of_values is None else batch_first(of_values, ctx.batch), None, *results


def lanes_of(values: Tensor) -> Tensor:
    """(B, ...) as (..., lanes), contiguous; zeros in the lanes that nothing of the batch has."""
    turned = values.movedim(0, -1)
    number = lanes_for(len(values))
    if number == len(values):
        return turned.contiguous()
    lanes = torch.zeros(*turned.shape[:-1], number)
    lanes[..., : len(values)] = turned
    return lanes


def batch_first(values: Tensor, batch: int) -> Tensor:
    """(..., lanes) as (B, ...), without the lanes beyond the batch; the memory stays as it is."""
    return values.movedim(-1, 0)[:batch]


def lanes_for(batch: int) -> int:
    """``batch`` filled up to whole registers."""
    return batch + -batch % LANES


def call(
    function: Callable[..., None], shape: Shape | Linear | Texts, *arguments: Tensor | int | None
) -> None:
    """With the addresses of tensors, which live as long as the call; they have to be contiguous."""
    function(ctypes.byref(shape), *(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))

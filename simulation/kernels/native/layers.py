"""Conv2d, ReLU and MaxPool2d in a row, computed by the compiled kernels in a model that stays as it is.

Images lie with the batch innermost, (channels, height, width, lanes), from one such row to the next; for
PyTorch they are ordinary (B, C, H, W) tensors with unusual strides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simulation.kernels.native.library import Shape, Texts, load_library

__all__ = ["accelerate_rows", "call", "lanes_for"]

LANES = 16
"""Batches are filled up to a multiple of so many with zeros."""


def accelerate_rows(model: nn.Module) -> int:
    """Let the kernels compute the rows in ``model``; parameters, names and hooks stay. How many there are.

    Raises:
        InvalidConfiguration: no compiler.
    """
    rows = [row for module in model.modules() if isinstance(module, nn.Sequential) for row in _rows(module)]
    for convolution, relu, pooling in rows:
        load_library()
        convolution.forward = partial(_forward, convolution)  # type: ignore[method-assign]
        relu.forward = pooling.forward = _unchanged  # type: ignore[method-assign,assignment]
    return len(rows)


def _rows(layers: nn.Sequential) -> list[tuple[nn.Conv2d, nn.ReLU, nn.MaxPool2d]]:
    found = []
    for first, second, third in zip(list(layers), list(layers)[1:], list(layers)[2:], strict=False):
        if (
            type(first) is nn.Conv2d
            and type(second) is nn.ReLU
            and type(third) is nn.MaxPool2d
            and _is_known(first)
            and _is_halving(third)
        ):
            found.append((first, second, third))
    return found


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


def _unchanged(images: Tensor) -> Tensor:
    return images


def _forward(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What the row of layers gives for (B, C, H, W).

    Raises:
        TypeError: the images are not float32 on the CPU.
        ValueError: they are not images of as many channels, or leave nothing to pool.
    """
    if (images.dtype, images.device.type) != (torch.float32, "cpu"):
        raise TypeError(
            f"the native kernels compute float32 on the CPU, got {images.dtype} on {images.device}"
        )
    height, width = layer.kernel_size
    if images.dim() != 4 or images.shape[1] != layer.in_channels:
        raise ValueError(f"{layer} got {tuple(images.shape)}, expected (B, {layer.in_channels}, H, W)")
    if images.shape[2] <= height or images.shape[3] <= width:
        raise ValueError(f"{layer} and pooling leave nothing of images {tuple(images.shape)}")
    return cast(Tensor, _Row.apply(images, layer.weight, layer.bias))


class _Row(torch.autograd.Function):
    """ReLU after max-pooling instead of before it: the same values and gradients."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        batch, wanted = len(images), weight.shape
        lanes = lanes_of(images)
        channels, height, width, number = lanes.shape
        shape = Shape(channels, height, width, wanted[0], wanted[2], wanted[3], number)
        pooled = (wanted[0], (height - wanted[2] + 1) // 2, (width - wanted[3] + 1) // 2, number)
        out = torch.empty(pooled)
        which = torch.empty(pooled, dtype=torch.uint8)
        kernels = weight.contiguous()
        call(load_library().forward, shape, lanes, kernels, bias.contiguous(), out, which)
        ctx.save_for_backward(lanes, kernels, which)
        ctx.shape, ctx.batch = shape, batch
        return out.permute(3, 0, 1, 2)[:batch]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        lanes, kernels, which = ctx.saved_tensors
        _, height, width, number = lanes.shape
        outputs, _, kernel_height, kernel_width = kernels.shape
        of_kernels, of_bias = torch.empty_like(kernels), torch.empty(outputs)
        of_images = torch.empty_like(lanes) if ctx.needs_input_grad[0] else None
        rows = 2 if of_images is None else height - kernel_height + 1
        scratch = torch.empty(outputs, rows, width - kernel_width + 1, number)
        results = (scratch, of_kernels, of_bias, of_images)
        call(load_library().backward, ctx.shape, lanes, kernels, lanes_of(gradient), which, *results)
        images = None if of_images is None else of_images.permute(3, 0, 1, 2)[: ctx.batch]
        return images, of_kernels, of_bias


def lanes_of(images: Tensor) -> Tensor:
    """(B, C, H, W) as (C, H, W, lanes), contiguous; zeros in the lanes that no image has."""
    turned = images.permute(1, 2, 3, 0)
    number = lanes_for(len(images))
    if number == len(images):
        return turned.contiguous()
    lanes = torch.zeros(*turned.shape[:3], number)
    lanes[..., : len(images)] = turned
    return lanes


def lanes_for(batch: int) -> int:
    """``batch`` filled up to whole registers."""
    return batch + -batch % LANES


def call(function: Callable[..., None], shape: Shape | Texts, *arguments: Tensor | int | None) -> None:
    """With the addresses of tensors, which live as long as the call; they have to be contiguous."""
    function(ctypes.byref(shape), *(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))

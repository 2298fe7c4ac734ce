"""TextCNN's convolutions over embedded tokens by the compiled kernels, in a model that stays as it is."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shared.models.textcnn import Features
from simulation.kernels.native.layers import call
from simulation.kernels.native.library import Texts, load_library

__all__ = ["accelerate_texts"]


def accelerate_texts(model: nn.Module) -> int:
    """Let the kernels compute the maxima over time in ``model``; its names stay. How many there are.

    Raises:
        InvalidConfiguration: no compiler.
    """
    found = [module for module in model.modules() if type(module) is Features]
    for features in found:
        load_library()
        features.maxima = partial(_maxima, features)  # type: ignore[method-assign]
    return len(found)


def _maxima(features: Features, tokens: Tensor) -> Tensor:
    """What :meth:`Features.maxima` gives for (B, tokens).

    Raises:
        TypeError: the parameters are not float32 on the CPU.
        IndexError: a token has no vector.
    """
    table = features.embedding.weight
    if (table.dtype, table.device.type) != (torch.float32, "cpu"):
        raise TypeError(f"the native kernels compute float32 on the CPU, got {table.dtype} on {table.device}")
    if tokens.numel():
        least, most = (int(each) for each in tokens.aminmax())
        if least < 0 or most >= len(table):
            raise IndexError(f"tokens from {least} to {most}, expected 0 to {len(table) - 1}")
    layers = cast(list[nn.Conv1d], list(features.convolutions))
    parameters = [cast(Tensor, p) for layer in layers for p in (layer.weight, layer.bias)]
    padding = cast(int, features.embedding.padding_idx)
    return cast(Tensor, _Maxima.apply(tokens.int().contiguous(), padding, table, *parameters))


class _Maxima(torch.autograd.Function):
    """Of windows with the same maximum, the first gets the gradient."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, padding: int, table: Tensor, *parameters: Tensor) -> Tensor:
        table = table.contiguous()
        weights, biases = ([each.contiguous() for each in parameters[kind::2]] for kind in (0, 1))
        found, places = [], []
        for weight, bias in zip(weights, biases, strict=True):
            best = torch.empty(len(tokens), len(weight))
            where = torch.empty(best.shape, dtype=torch.int32)
            shape = _shape(tokens, padding, weight)
            call(load_library().maxima_forward, shape, tokens, table, weight, bias, best, where)
            found.append(best)
            places.append(where)
        ctx.padding = padding
        ctx.save_for_backward(tokens, table, *weights, *places)
        return torch.cat(found, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, table, *saved = ctx.saved_tensors
        weights, places = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        of_table = torch.zeros_like(table)
        results = []
        parts = torch.split(gradient, [len(weight) for weight in weights], dim=1)
        for weight, where, part in zip(weights, places, parts, strict=True):
            of_weight, of_bias = torch.empty_like(weight), torch.empty(len(weight))
            given = (tokens, table, weight, part.contiguous(), where)
            shape = _shape(tokens, ctx.padding, weight)
            call(load_library().maxima_backward, shape, *given, of_table, of_weight, of_bias)
            results += [of_weight, of_bias]
        return None, None, of_table, *results


def _shape(tokens: Tensor, padding: int, weight: Tensor) -> Texts:
    batch, length = tokens.shape
    outputs, dimensions, width = weight.shape
    return Texts(batch, length, padding, dimensions, outputs, width)

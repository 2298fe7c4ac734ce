"""Models of one architecture as rows of stacked tensors, and one function that runs them all.

A convolution of K clients is one with K times the groups, a linear layer a batched matrix product; what has
no parameters runs as it is. Between layers, images lie channels last: several times faster on CPUs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from shared.problems import InvalidConfiguration

__all__ = ["ENGINE_HINT", "Rows", "StackedModel"]

ENGINE_HINT = "The engines in-process and processes train every model and every algorithm."

ELEMENTWISE = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
KNOWN = (nn.Conv2d, nn.Linear, nn.Flatten, *POOLING, *ELEMENTWISE)

Parameters = Mapping[str, Tensor]
"""Stacked parameters (K, ...) by the name that one model gives to its own (...)."""


class Rows:
    """``count`` copies of a model; their parameters are rows of ``stacks``: to write either changes both."""

    def __init__(self, template: nn.Module, count: int) -> None:
        self.models = [copy.deepcopy(template) for _ in range(count)]
        self.stacks: dict[str, Tensor] = {}  # (count, ...)
        self._trainable = {name: p.requires_grad for name, p in template.named_parameters()}
        for name, parameter in template.named_parameters():
            self.stacks[name] = parameter.detach().expand(count, *parameter.shape).clone()
            for model, row in zip(self.models, self.stacks[name], strict=True):
                model.get_parameter(name).data = row

    def first(self, count: int) -> dict[str, Tensor]:
        """The first ``count`` rows as leaves that collect gradients (frozen ones do not)."""
        return {
            name: stack[:count].detach().requires_grad_(self._trainable[name])
            for name, stack in self.stacks.items()
        }


@dataclass(frozen=True)
class _Activations:
    """Of K clients with batches of B: (K, B, ...), or images joined as (B, K C, H, W), channels last."""

    values: Tensor
    clients: int
    joined: bool = False

    def images(self) -> Tensor:
        """(B, K C, H, W)"""
        return self.values if self.joined else _joined(list(self.values))

    def vectors(self) -> Tensor:
        """(K, B, F), each client's example flattened in the order channels, height, width."""
        if not self.joined:
            return self.values.flatten(2)
        return self.values.reshape(len(self.values), self.clients, -1).transpose(0, 1)

    def with_images(self, images: Tensor) -> _Activations:
        return _Activations(images, self.clients, joined=True)

    def with_vectors(self, vectors: Tensor) -> _Activations:
        return _Activations(vectors, self.clients)


_Operation = Callable[[_Activations, Parameters], _Activations]


class StackedModel:
    """What ``model`` computes, for stacked parameters.

    Its ``forward`` has to pass its input through known layers, one after the other (``KNOWN``).

    Raises:
        InvalidConfiguration: it does not; names the layer, or what is done instead.
    """

    def __init__(self, model: nn.Module) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        layers = _pooling_first([_checked(path, layer) for path, layer in _chain(model)])
        self._operations = [_operation(layer, names) for layer in layers]
        self._takes_images = bool(layers) and isinstance(layers[0], (nn.Conv2d, *POOLING))

    def __call__(self, inputs: Sequence[Tensor], parameters: Parameters) -> Tensor:
        """K clients' inputs (B_k, ...) to outputs (K, B, outputs), B the longest; row k is client k's.

        Shorter batches are filled up with zeros: their last outputs mean nothing.
        """
        filled = _filled(inputs)
        activations = (
            _Activations(_joined(filled), len(filled), joined=True)
            if self._takes_images
            else _Activations(torch.stack(filled), len(filled))
        )
        for operation in self._operations:
            activations = operation(activations, parameters)
        return activations.vectors()


def _filled(inputs: Sequence[Tensor]) -> list[Tensor]:
    longest = max(len(values) for values in inputs)
    return [
        values
        if len(values) == longest
        else torch.cat([values, values.new_zeros(longest - len(values), *values.shape[1:])])
        for values in inputs
    ]


def _joined(images: Sequence[Tensor]) -> Tensor:
    """K times (B, C, H, W) as (B, K C, H, W), channels last; first side by side, which is faster."""
    return torch.cat(list(images), dim=1).contiguous(memory_format=torch.channels_last)


def _chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers that ``model.forward`` passes its input through, with their paths, first to last."""
    name = type(model).__name__
    try:
        nodes = list(fx.Tracer().trace(model).nodes)
    except Exception as error:  # a stand-in for the input goes through anybody's forward
        raise InvalidConfiguration(
            f"engine: grouped cannot follow {name}.forward: {error}", hint=ENGINE_HINT
        ) from error
    chain: list[tuple[str, nn.Module]] = []
    node = nodes[-1].args[0]
    while not (isinstance(node, fx.Node) and node.op == "placeholder"):
        if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.all_input_nodes) != 1:
            what = node.target if isinstance(node, fx.Node) else node
            raise InvalidConfiguration(
                f"engine: grouped cannot follow {name}.forward at {getattr(what, '__name__', what)}: "
                "it takes one layer (a module) after the other.",
                hint=ENGINE_HINT,
            )
        path = str(node.target)
        chain.insert(0, (path, model.get_submodule(path)))
        node = node.args[0]
    return chain


def _checked(path: str, layer: nn.Module) -> nn.Module:
    """The layer, if it is exactly one of the known and uses no option that is not."""
    odd = (
        type(layer) not in KNOWN
        or (isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros")
        or (isinstance(layer, nn.MaxPool2d) and layer.return_indices)
        or (isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1))
    )
    if odd:
        raise InvalidConfiguration(
            f"engine: grouped does not know the layer {path}: {layer}.",
            hint=f"It knows {', '.join(kind.__name__ for kind in KNOWN)}. {ENGINE_HINT}",
        )
    return layer


def _pooling_first(layers: list[nn.Module]) -> list[nn.Module]:
    """Max-pooling before ReLU instead of after it: the same values and gradients, less work."""
    layers = list(layers)
    for i in range(len(layers) - 1):
        if isinstance(layers[i], nn.ReLU) and isinstance(layers[i + 1], nn.MaxPool2d):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return layers


def _operation(layer: nn.Module, names: Mapping[int, str]) -> _Operation:
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer, names)
    if isinstance(layer, nn.Linear):
        return _linear(layer, names)
    if isinstance(layer, nn.Flatten):
        return lambda x, _: x.with_vectors(x.vectors())
    if isinstance(layer, POOLING):
        return lambda x, _: x.with_images(cast(Tensor, layer(x.images())))
    return lambda x, _: _Activations(layer(x.values), x.clients, x.joined)


def _convolution(layer: nn.Conv2d, names: Mapping[int, str]) -> _Operation:
    weight, bias = names[id(layer.weight)], _bias(layer.bias, names)

    def operate(x: _Activations, parameters: Parameters) -> _Activations:
        kernels = parameters[weight].flatten(0, 1)  # (K outputs, inputs / groups, h, w)
        return x.with_images(
            functional.conv2d(
                x.images(),
                kernels.contiguous(memory_format=torch.channels_last),
                None if bias is None else parameters[bias].flatten(),
                layer.stride,
                layer.padding,
                layer.dilation,
                x.clients * layer.groups,
            )
        )

    return operate


def _linear(layer: nn.Linear, names: Mapping[int, str]) -> _Operation:
    weight, bias = names[id(layer.weight)], _bias(layer.bias, names)

    def operate(x: _Activations, parameters: Parameters) -> _Activations:
        if x.joined or x.values.dim() != 3:
            raise InvalidConfiguration(
                f"engine: grouped takes {layer} only after nn.Flatten, not for images.", hint=ENGINE_HINT
            )
        matrices = parameters[weight].transpose(1, 2)  # (K, inputs, outputs)
        if bias is None:
            return x.with_vectors(torch.bmm(x.values, matrices))
        return x.with_vectors(torch.baddbmm(parameters[bias].unsqueeze(1), x.values, matrices))

    return operate


def _bias(bias: Tensor | None, names: Mapping[int, str]) -> str | None:
    return None if bias is None else names[id(bias)]

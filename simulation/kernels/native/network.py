"""A batch's gradients of a whole network by one call of the compiled kernels, without autograd."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shared.models.base import Model
from simulation.kernels.native.layers import (
    Block,
    LinearLayer,
    Row,
    is_heard,
    is_known_linear,
    lanes_of,
    plan_layers,
)
from simulation.kernels.native.library import Layer, Shape, load_library

__all__ = ["Network", "find_network"]


@dataclass(frozen=True)
class _Plan:
    """What the kernels are told for images of one size and so many lanes, and the memory that they fill."""

    layers: ctypes.Array[Layer]
    gradients: list[Tensor]
    filled: list[Tensor]


@dataclass
class Network:
    """Rows and linear layers that are the whole of ``model``; see :class:`shared.training.Gradients`."""

    model: nn.Module
    layers: list[Row | LinearLayer]
    classes: int
    _plans: dict[tuple[int, ...], _Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._modules = list(self.model.modules())

    def __call__(self, inputs: Tensor, targets: Tensor) -> float | None:
        """None for what PyTorch has to compute, or to refuse: it is not of the expected kind and size."""
        parameters = [p for step in self.layers for p in step.parameters()]
        if not self._can_take(inputs, targets, parameters):
            return None
        given = lanes_of(inputs)
        sizes = tuple(given.shape)
        if sizes not in self._plans:
            self._plans[sizes] = self._make_plan(sizes)
        plan = self._plans[sizes]
        values = [parameter.detach().contiguous() for parameter in parameters]
        for layer, weight, bias in zip(plan.layers, values[::2], values[1::2], strict=True):
            layer.weights, layer.bias = weight.data_ptr(), bias.data_ptr()
        labels = targets.contiguous()
        loss: float = load_library().fill_gradients(
            plan.layers, len(plan.layers), given.data_ptr(), len(inputs), labels.data_ptr()
        )
        for parameter, gradient in zip(parameters, plan.gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _can_take(self, inputs: Tensor, targets: Tensor, parameters: list[nn.Parameter]) -> bool:
        if any(map(is_heard, self._modules)) or not all(p.requires_grad for p in parameters):
            return False
        return (
            inputs.dim() == 4
            and (inputs.dtype, inputs.device.type) == (torch.float32, "cpu")
            and (targets.dtype, targets.device.type) == (torch.int64, "cpu")
            and targets.shape == (len(inputs),)
            and len(targets) > 0
            and all(0 <= int(each) < self.classes for each in targets.aminmax())
        )

    def _make_plan(self, sizes: tuple[int, ...]) -> _Plan:
        *given, lanes = sizes
        layers, filled, gradients = (Layer * len(self.layers))(), list[Tensor](), list[Tensor]()
        before: Tensor | None = None
        plan = plan_layers(self.layers, tuple(given), lanes)
        for layer, step, (told, made) in zip(layers, self.layers, plan, strict=True):
            out, which = torch.empty(made), torch.empty(made, dtype=torch.uint8)
            of_weight, of_bias = torch.empty_like(step.layer.weight), torch.empty(len(step.layer.weight))
            layer.is_row = isinstance(told, Shape)
            if isinstance(told, Shape):
                layer.row = told
            else:
                layer.linear = told
            layer.out, layer.which = out.data_ptr(), which.data_ptr()
            layer.of_weights, layer.of_bias = of_weight.data_ptr(), of_bias.data_ptr()
            layer.of_given = None if before is None else before.data_ptr()
            gradients += of_weight, of_bias
            filled += [out, which] if before is None else [out, which, before]
            before = torch.empty(made)  # the next layer's gradient of what this one gives
        return _Plan(layers, gradients, filled)


def find_network(model: nn.Module, blocks: list[Block]) -> Network | None:
    """``model`` as one network, if it is one of the blocks and a linear classifier, and nothing else."""
    if not isinstance(model, Model) or type(model).forward is not Model.forward or len(blocks) != 1:
        return None
    features, classifier, (block,) = model.features, model.classifier, blocks
    if type(features) is not nn.Sequential or list(features) != list(block.modules):
        return None
    if not is_known_linear(classifier):
        return None
    if not isinstance(block.layers[-1], LinearLayer) or len(list(model.buffers())):
        return None
    return Network(model, [*block.layers, LinearLayer(classifier, rectified=False)], len(classifier.weight))

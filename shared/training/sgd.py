"""Stochastic gradient descent in place, with heavy-ball momentum and weight decay.

The same arithmetic as ``torch.optim.SGD(fused=True)``, whose constructor imports PyTorch's compiler: 1.5
CPU seconds in every worker process before its first step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["SGD", "fused_step"]


class SGD:
    """``m <- momentum m + g + weight_decay w; w <- w - lr m``; the first ``m`` is the gradient itself.

    New for every round, so momentum starts at zero. Parameters without a gradient are left alone.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocity: dict[nn.Parameter, Tensor] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients."""
        groups: dict[tuple[torch.device, torch.dtype, bool], list[nn.Parameter]] = {}
        for parameter in self.parameters:
            if parameter.grad is not None:
                first = parameter not in self._velocity  # a first gradient may come later than others
                groups.setdefault((parameter.device, parameter.dtype, first), []).append(parameter)
        for (_, _, first), chosen in groups.items():
            self._step_group(chosen, first)

    def _step_group(self, parameters: list[nn.Parameter], first: bool) -> None:
        velocities = []
        if self.momentum:
            if first:
                self._velocity.update({p: torch.zeros_like(p) for p in parameters})
            velocities = [self._velocity[p] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        settings = (self.learning_rate, self.momentum, self.weight_decay)
        fused_step(parameters, gradients, velocities, *settings, first=first)


@torch.no_grad()
def fused_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    *,
    first: bool,
) -> None:
    """One step, in place, of tensors of one device and dtype; no ``velocities`` without ``momentum``.

    ``first``: the velocities begin as the gradients, whatever they hold.
    """
    torch._fused_sgd_(
        list(parameters),
        list(gradients),
        list(velocities),
        weight_decay=weight_decay,
        momentum=momentum,
        lr=learning_rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=first,
    )

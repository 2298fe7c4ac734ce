"""A model with everything that aggregation gets wrong, and one client's round on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared import wire
from shared.config import LocalTraining
from shared.data import Examples
from shared.schemas import TensorSpec
from shared.training import LocalResult, TrainProgress, train

LOCAL = LocalTraining(steps=3, batch_size=4, learning_rate=0.05, momentum=0.9, weight_decay=1e-4)
SIZES = (12, 24, 6)


class Awkward(nn.Module):
    """Batch norm with its integer counter, tied weights, a frozen and a 0-dimensional parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.up = nn.Linear(4, 4)
        self.up.weight = self.down.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:  # (B, 4) -> (B, 3)
        hidden = self.norm(self.down(inputs)).relu()
        out: Tensor = self.head(self.scale * (self.up(hidden) + self.frozen))
        return out


class Tame(nn.Module):
    """The same function of the same trained numbers: no tie, nothing frozen, no scalar."""

    def __init__(self) -> None:
        super().__init__()
        awkward = build()
        self.down, self.norm, self.head = awkward.down, awkward.norm, awkward.head
        self.up_bias = nn.Parameter(awkward.up.bias.detach().clone())
        self.scale = nn.Parameter(awkward.scale.detach().reshape(1))

    def forward(self, inputs: Tensor) -> Tensor:  # (B, 4) -> (B, 3)
        hidden = self.norm(self.down(inputs)).relu()
        out: Tensor = self.head(self.scale * (functional.linear(hidden, self.down.weight, self.up_bias) + 1))
        return out


class LabelTask:
    """As much of a classification task as the trainer uses."""

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return inputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)


def build() -> Awkward:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Awkward()


def examples_of(client: int) -> Examples:
    """The client's own examples; the labels lean to one class."""
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(SIZES[client], 4, generator=generator)
    lean = torch.rand(SIZES[client], generator=generator) < 0.6
    targets = torch.randint(0, 3, (SIZES[client],), generator=generator)
    return Examples(inputs, torch.where(lean, client, targets))


def local_round(
    method: Any,
    client: int,
    start: Mapping[str, Tensor],
    received: Mapping[str, Mapping[str, Tensor]] | None = None,
    kept: Mapping[str, Mapping[str, Tensor]] | None = None,
    *,
    number: int = 1,
    local: LocalTraining = LOCAL,
    model: nn.Module | None = None,
    on_progress: Callable[[TrainProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> LocalResult:
    return train(
        task=LabelTask(),  # type: ignore[arg-type]
        model=build() if model is None else model,
        algorithm=method,
        examples=examples_of(client),
        local=local,
        start=start,
        received=received or {},
        kept=kept or {},
        first_time=not kept,
        relative_size=len(SIZES) * SIZES[client] / sum(SIZES),
        seed=7,
        round=number,
        index=client,
        device=torch.device("cpu"),
        clock=lambda: 0.0,
        on_progress=on_progress,
        should_stop=should_stop,
    )


def groups_in(path: Path | None, method: Any, manifest: Sequence[TensorSpec]) -> dict[str, dict[str, Tensor]]:
    """What clients receive of a broadcast file."""
    names = {group: [spec.name for spec in method.specs_of(group, manifest)] for group in method.downloads}
    return {} if path is None else {group: wire.read_group(path, group, names[group]) for group in names}

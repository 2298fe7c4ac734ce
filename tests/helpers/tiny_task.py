"""A task of made-up examples and a model of fifteen numbers, by import path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared.data import Examples, Unlabelled
from shared.seeds import torch_generator
from shared.tasks.base import Split, Task

__all__ = ["TASK", "Tiny"]

EXAMPLES = 90


class Tiny(Task):
    """Points near one of three corners."""

    name = "tiny"
    default_model = "linear"
    classes = ("cat", "dog", "owl")
    input_shape = (4,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        targets = torch.arange(EXAMPLES) % len(self.classes)
        generator = torch_generator(seed, "split" if split == "train" else "validation")
        noise = torch.randn(EXAMPLES, 4, generator=generator)
        return Examples(torch.eye(4)[targets] + 0.3 * noise, targets)

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        raise NotImplementedError("nobody has such files")

    def describe_inputs(self) -> dict[str, Any]:
        return {"kind": "numbers", "shape": list(self.input_shape)}

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        made = nn.Linear(4, len(self.classes))
        generator = torch_generator(seed, "initial-model")
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.uniform_(-0.5, 0.5, generator=generator)
        return made

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return inputs


TASK = "tests.helpers.tiny_task:Tiny"

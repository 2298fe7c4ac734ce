"""Tasks and an algorithm of one's own, by import path, for the worker's tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from shared.algorithms.fedavg import FedAvg
from shared.config import Frozen
from shared.data import Examples
from shared.tasks.base import Split
from shared.tasks.digits import Digits

__all__ = ["Faulty", "Own", "Slow"]


class Own(FedAvg):
    """An algorithm that nobody built in."""


class SlowOptions(Frozen):
    seconds_a_step: float = 0.01


class Slow(Digits):
    """Digits whose every step takes a while without using the processor."""

    Options = SlowOptions

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        assert isinstance(self.options, SlowOptions)
        if generator is not None:  # only in training
            time.sleep(self.options.seconds_a_step)
        return super().prepare(inputs, generator)


class FaultyOptions(Frozen):
    fault: Literal["none", "memory", "bug", "empty", "evaluation", "loading", "building", "scoring"] = "none"


class Faulty(Digits):
    """Digits that go wrong as a user's own task might, or as a small machine does."""

    Options = FaultyOptions
    _scored_before = False

    def _has(self, fault: str) -> bool:
        assert isinstance(self.options, FaultyOptions)
        return self.options.fault == fault

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        if self._has("loading"):
            raise ValueError("row 7 has a column too many")
        examples = super().load(split, source, seed)
        return examples.subset(torch.arange(0)) if self._has("empty") else examples

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        if self._has("building"):
            torch.empty(2**50)
        return super().build_model(model, seed)

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        if self._has("scoring") and generator is None and not self._scored_before:
            self._scored_before = True
            raise ValueError("a scratched test image")
        if self._has("evaluation") and generator is None and len(inputs) > 64:
            torch.empty(2**50)  # no machine has it
        return super().prepare(inputs, generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._has("memory"):
            torch.empty(2**50)
        if self._has("bug"):
            raise KeyError("a bug in somebody's task")
        return super().loss(outputs, targets)

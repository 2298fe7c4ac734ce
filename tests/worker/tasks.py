"""Tasks of one's own, by import path, for the worker's tests."""

from __future__ import annotations

import time
from typing import Literal

import torch
from torch import Tensor

from shared.config import Frozen
from shared.tasks.digits import Digits

__all__ = ["Faulty", "Slow"]


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
    fault: Literal["memory", "bug"]


class Faulty(Digits):
    """Digits whose loss goes wrong, as a user's own might."""

    Options = FaultyOptions

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert isinstance(self.options, FaultyOptions)
        if self.options.fault == "memory":
            torch.empty(2**50)
        raise KeyError("a bug in somebody's task")

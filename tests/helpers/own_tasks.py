"""Tasks and an algorithm of one's own, by import path, for the worker's tests."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from shared.algorithms.fedavg import FedAvg
from shared.config import Frozen
from shared.data import Examples
from shared.tasks.base import Split
from shared.tasks.digits import Digits
from shared.training import Stopped

__all__ = ["RAISED", "Faulty", "Own", "Slow"]


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


class Weird(BaseException):
    """What no ``except Exception`` catches, and cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED: dict[str, BaseException] = {
    "exit": SystemExit("a task that ends the process"),
    "interrupt": KeyboardInterrupt("a task that plays ctrl-c"),
    "stopped": Stopped("nobody asked for it"),
    "weird": Weird(),
    "recursion": RecursionError("too deep"),
    "unreadable": PermissionError(13, "Permission denied", "/data/patient-7.png"),
    "bug": KeyError("a bug in somebody's task"),
    "value": ValueError("row 7 has a column too many"),
}


class FaultyOptions(Frozen):
    fault: str = "none"


class Faulty(Digits):
    """Digits that go wrong as a user's own task might, or as a small machine does.

    ``fault`` is a word of its own, or a place and what is raised there: ``loading:exit``.
    """

    Options = FaultyOptions
    _scored_before = False
    _checked = False

    def _has(self, fault: str) -> bool:
        assert isinstance(self.options, FaultyOptions)
        return self.options.fault == fault

    def _reach(self, place: str) -> None:
        assert isinstance(self.options, FaultyOptions)
        where, _, what = self.options.fault.partition(":")
        if where == place and what == "memory":
            torch.empty(2**50)  # no machine has it
        if where == place:
            raise RAISED[what]

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        self._reach("loading")
        examples = super().load(split, source, seed)
        return examples.subset(torch.arange(0)) if self._has("empty") else examples

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        self._reach("building")
        return super().build_model(model, seed)

    def categories(self, targets: Tensor) -> Tensor:
        if self._checked:  # after the labels were checked at loading
            self._reach("counting")
        self._checked = True
        return super().categories(targets)

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is None:
            self._reach("scoring")
            if not self._scored_before:
                self._scored_before = True
                self._reach("scoring-once")
        if self._has("evaluation") and generator is None and len(inputs) > 64:
            torch.empty(2**50)
        return super().prepare(inputs, generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._reach("training")
        return super().loss(outputs, targets)

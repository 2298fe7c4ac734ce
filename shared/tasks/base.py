"""What a task is: its classes, its data, its model, its loss and its scores.

The defaults are those of classification with cross-entropy; a regression overrides ``loss``,
``score`` and ``categories``, and its ``classes`` are the names of its bins.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from shared.config import Frozen
from shared.data import fingerprint_of
from shared.left_out import OnBroken
from shared.models import build_model, require_inputs
from shared.problems import InvalidConfiguration
from shared.reproducible import reproducible
from shared.seeds import derive
from shared.texts import find_nearest

if TYPE_CHECKING:
    from torch import nn

    from shared.data import Examples, Unlabelled

__all__ = ["LoadCall", "NoOptions", "Split", "Task", "ask_nearest"]

Split = Literal["train", "test"]


class NoOptions(Frozen):
    """For a task without options."""


class Task(ABC):
    """Base of all tasks. ``options`` is an instance of the class's own ``Options``.

    ``cache`` is a folder where decoded data may be kept; the site sets it on the task, not the run.
    ``on_broken`` and ``labels`` are the site's too: what it does about examples that cannot be read, and
    which class of the contract a name in its data stands for, where the two differ.
    ``same_model`` says what a site does whose model is not the run's.
    ``tokens`` says that the inputs are token numbers (:mod:`shared.data.tokens`), not measured ones.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Frozen]] = NoOptions

    default_model: str
    tokens: bool = False
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    cache: Path | None = None
    on_broken: OnBroken = "decline"
    labels: Mapping[str, str] = MappingProxyType({})
    same_model: str = "Install the same versions of the task and of PyTorch as at the coordinator."

    def __init__(self, options: Frozen) -> None:
        self.options = options

    @abstractmethod
    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """One split of the data, whole, in a fixed order.

        ``source`` is where the data lie; ``seed`` is the run's, for tasks that make the split themselves.

        Raises:
            InvalidConfiguration: the data are not there; says what was looked for, and where.
        """

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        """Inputs as ``load`` gives them, of files without labels, for a trained model.

        What cannot be read is in ``left_out`` of the result.

        Raises:
            InvalidConfiguration: this task reads no single files.
        """
        raise InvalidConfiguration(
            f"task {self.name!r} reads no single files.",
            hint="Its class may override read_inputs; or give the model tensors, as task.prepare takes them.",
        )

    def describe_inputs(self) -> dict[str, Any]:
        """Plain values that say how an input is made from a file, for whoever has the model alone."""
        return {"kind": "texts" if self.tokens else "numbers", "shape": list(self.input_shape)}

    def class_of(self, name: str) -> str | None:
        """The class that a name in the data stands for; None if the contract has no such class."""
        label = self.labels.get(name, name)
        return label if label in self.classes else None

    def guess_class(self, name: str) -> tuple[str, str] | None:
        """The class that an unknown name in the data may mean, and how a site says so; None if none is near.

        For the site alone. Names that its map has count, too, as they may be mistyped there.
        """
        near = find_nearest(name, [*self.classes, *self.labels])
        if not near:
            return None
        label = self.labels.get(near[0], near[0])
        return label, f"--labels '{json.dumps({**self.labels, name: label}, ensure_ascii=False)}'"

    def ask_class(self, name: str) -> str:
        """As :meth:`guess_class`, as a question; empty if no class is near."""
        if (guess := self.guess_class(name)) is None:
            return ""
        return f"Did you mean {guess[0]}? Rename it, or start the worker with {guess[1]}."

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """A batch as the model takes it, float32: normalised, and augmented when a generator is given.

        The generator is a CPU one whatever the device of ``inputs``: every device sees the same draws.
        """
        return inputs.float()

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        """The initial model (None: ``default_model``), the same for the same seed, on the CPU.

        The global generator is left as it was found.
        """
        name = model or self.default_model
        require_inputs(name, self.tokens)
        with reproducible(derive(seed, "initial-model"), torch.device("cpu")):
            return build_model(name, self.outputs, self.input_shape)

    @property
    def outputs(self) -> int:
        """Numbers that the model gives for each example."""
        return len(self.classes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch, a scalar: cross-entropy of logits (B, classes) and labels (B,)."""
        return functional.cross_entropy(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Whether each example is right, bool (B,); None where there is no right and wrong."""
        return outputs.argmax(dim=1) == targets

    def predict(self, outputs: Tensor) -> Tensor:
        """What the model's outputs say: the probability of each class (B, classes), or a number each (B,)."""
        return outputs.softmax(dim=1)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Further numbers of each example (B,), of which an evaluation gives the mean, by name."""
        return {}

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float]:
        """Scores over a whole test set, by name: of outputs (N, ...) and targets (N,) of all its examples.

        Both are on the CPU. What is no finite number is left out.
        """
        return {}

    def categories(self, targets: Tensor) -> Tensor:
        """The class index of each target, int64 (N,): what the discrepancy counts."""
        return targets


@dataclass(frozen=True)
class LoadCall:
    """All that decides what a call of :meth:`Task.load` returns: equal calls load the same examples.

    Made from the task that loads, not from the configuration that the task was made from: what
    ``load`` can see cannot be forgotten here. ``fingerprint`` is of the data at ``source``.
    """

    kind: type[Task]
    options: Frozen
    classes: tuple[str, ...]
    on_broken: OnBroken
    labels: tuple[tuple[str, str], ...]
    split: Split
    source: Path | None
    seed: int
    fingerprint: str

    @classmethod
    def of(cls, task: Task, split: Split, source: Path | None, seed: int) -> Self:
        """The call ``task.load(split, source, seed)``, made now."""
        return cls(
            kind=type(task),
            options=task.options,
            classes=task.classes,
            on_broken=task.on_broken,
            labels=tuple(sorted(task.labels.items())),
            split=split,
            source=source,
            seed=seed,
            fingerprint=fingerprint_of(source),
        )

    def digest(self) -> str:
        """SHA-256 in hex, the same in every process: for what has to outlast one."""
        kind = f"{self.kind.__module__}:{self.kind.__qualname__}"
        told = (kind, repr(self.options), self.classes, self.on_broken, self.labels, self.split, self.seed)
        return hashlib.sha256(repr((told, self.fingerprint)).encode("utf-8", "surrogatepass")).hexdigest()


def ask_nearest(name: str, names: Iterable[str]) -> str:
    """A question with the one of ``names`` that ``name`` may mean; empty if none is near.

    >>> ask_nearest("Nevi", ["melanoma", "nevus"])
    'Did you mean nevus?'
    """
    near = find_nearest(name, names)
    return f"Did you mean {near[0]}?" if near else ""

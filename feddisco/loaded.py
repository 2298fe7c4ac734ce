"""``feddisco.load``: a model file, ready to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from feddisco.models import check_allowed, load_allowed_task
from shared import wire
from shared.data import Unlabelled
from shared.left_out import LeftOut, Reason
from shared.model_files import ModelFacts, read_facts
from shared.problems import InvalidConfiguration
from shared.wire.tensors import load_into, manifest_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shared.tasks.base import Task

__all__ = ["LoadedModel", "Prediction", "Predictions", "load"]

BATCH = 256
_NO_NUMBER = "gets no finite number from the model: its values are too large, or the model is broken"


@dataclass(frozen=True)
class Prediction:
    """What a model says of one input. ``name`` is a file, or a file and a line.

    ``label`` is the likeliest class and ``probability`` its probability; of a regression both are None, and
    ``value`` is the number predicted.
    """

    name: str
    label: str | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None


@dataclass(frozen=True)
class Predictions:
    """``left_out`` says of which files nothing is predicted, and why."""

    found: tuple[Prediction, ...]
    left_out: LeftOut

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its task's way of reading. Unpacks to model, transform, classes."""

    model: nn.Module
    task: Task
    facts: ModelFacts

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.transform, self.classes))

    def transform(self, source: str | Path | Sequence[str | Path] | Tensor) -> Tensor:
        """A batch as the model takes it: of files, or of raw inputs as the task loads them.

        Raises:
            InvalidConfiguration: a file cannot be read; names it.
        """
        if isinstance(source, torch.Tensor):
            return self.task.prepare(source, None)
        files = [source] if isinstance(source, str | Path) else source
        read = self._read(files)
        read.left_out.refuse_faults(Path.cwd())
        return self.task.prepare(read.inputs, None)

    def predict(self, *files: str | Path) -> Predictions:
        """What the model says of each image, row or text in the files.

        What cannot be read is left out, and so is that of which it gives no finite numbers.
        """
        read = self._read(files)
        found: list[Prediction] = []
        for first in range(0, len(read), BATCH):
            names, inputs = read.names[first : first + BATCH], read.inputs[first : first + BATCH]
            with torch.inference_mode():
                said = self.task.predict(self.model(self.task.prepare(inputs, None)))
            for name, one in zip(names, said, strict=True):
                if torch.isfinite(one).all():
                    found.append(self._predicted(name, one))
                else:
                    read.left_out.add(Reason.BROKEN, name, _NO_NUMBER)
        return Predictions(tuple(found), read.left_out)

    def _read(self, files: Sequence[str | Path]) -> Unlabelled:
        return self.task.read_inputs([Path(file) for file in files])

    def _predicted(self, name: str, said: Tensor) -> Prediction:
        if said.ndim == 0:
            return Prediction(name, value=float(said))
        probabilities = dict(zip(self.classes, said.tolist(), strict=True))
        label = self.classes[int(said.argmax())]
        return Prediction(name, label, probabilities[label], probabilities)


def load(path: str | Path, *, allow: Sequence[str] = ()) -> LoadedModel:
    """The model in a file that ``feddisco run model`` wrote, with its transform and its classes.

    ``allow`` are patterns of import paths: a task or model of one's own is code, which is imported only if
    it is named here, whatever the file says.

    Raises:
        InvalidConfiguration: no such file, not such a file, or its task is not at hand.
    """
    path = Path(path)
    facts = read_facts(path)
    check_allowed("model", facts.model, allow)
    task = load_allowed_task(facts.task, facts.task_options, facts.classes, allow)
    model = task.build_model(facts.model, seed=0)
    with wire.opened(path) as file:
        names = [spec.name for spec in manifest_of(model)]
        if missing := [name for name in names if not file.has(wire.MODEL, name)]:
            raise InvalidConfiguration(
                f"{path} has no tensor {missing[0]}, which the model that task {facts.task} builds here has.",
                hint=task.same_model,
            )
        load_into(model, {name: file.tensor(wire.MODEL, name) for name in names})
    return LoadedModel(model.eval(), task, facts)

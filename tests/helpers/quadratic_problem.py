"""Three clients with a quadratic loss each, through the real trainer, weighting, files and aggregation.

A client's only example is its problem: ``inputs`` of shape (1, 2, 2) holds (h_k, m_k), the "model" returns
``F_k(w) = 1/2 sum_j h_kj (w_j - m_kj)^2``. All tensors are float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from shared import wire
from shared.aggregation import Aggregated, UpdateFile, aggregate
from shared.algorithms import load_algorithm
from shared.algorithms.base import UpdateInfo
from shared.config import (
    AlgorithmChoice,
    DiscoWeighting,
    LocalTraining,
    SizesWeighting,
    UniformWeighting,
    Weighting,
)
from shared.data import Examples
from shared.discrepancy import discrepancy
from shared.training import train
from shared.weightings import Contribution, ledger
from shared.wire.tensors import manifest_of, state_of

DATA: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "algorithms" / "quadratic_vectors.yaml").read_text("utf-8")
)
VECTORS: dict[str, Any] = DATA["quadratic"]
LIMITS: dict[str, Any] = DATA["limits"]

FULL = ((0, 1, 2),) * 3
PART = ((0, 1), (1, 2), (0, 2))
WEIGHTINGS: dict[str, Weighting] = {"n": SizesWeighting(), "u": UniformWeighting(), "disco": DiscoWeighting()}
NAME = "w"


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(VECTORS["w0"], dtype=torch.float64))

    def forward(self, problem: Tensor) -> Tensor:  # (1, 2, 2) -> ()
        h, m = problem[0]
        value: Tensor = (h * (self.w - m).square()).sum() / 2
        return value

    def reset_parameters(self) -> None:
        nn.init.normal_(self.w)


class QuadraticTask:
    """As much of a task as the trainer uses."""

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        return inputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs


@dataclass
class Round:
    """What is there after a round; tensors of shape (2,)."""

    model: Tensor
    scored: Tensor
    server: dict[str, Tensor]
    kept: list[dict[str, Tensor]]


@dataclass
class Federation:
    """The three clients and the coordinator's files, round after round."""

    folder: Path
    algorithm: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    weighting: str = "n"
    steps: Sequence[int] = (2, 2, 2)
    momentum: float = 0.0

    def rounds(self, participation: Sequence[Sequence[int]]) -> Iterator[Round]:
        model, kept = Quadratic(), [dict[str, Any]() for _ in range(3)]
        method = load_algorithm(AlgorithmChoice(name=self.algorithm, parameters=dict(self.parameters)))
        manifest = manifest_of(model)
        sent = wire.write(self.folder / "initial.safetensors", {"model": state_of(model)}).path
        broadcast: Path | None = None
        private: Path | None = None
        for number, present in enumerate(participation, 1):
            folder = self.folder / str(number)
            folder.mkdir()
            files = [self._client(index, number, method, sent, broadcast, kept, folder) for index in present]
            done = aggregate(
                algorithm=method,
                manifest=manifest,
                model=sent,
                broadcast=broadcast,
                private=private,
                updates=files[::-1],
                weights=self.weights(present),
                clients=3,
                local=self._local(0),
                buffers="average",
                folder=folder,
            )
            sent = done.model.path
            broadcast = done.broadcast.path if done.broadcast else None
            private = done.private.path if done.private else None
            yield self._seen(method, done, kept)

    def last(self, participation: Sequence[Sequence[int]]) -> Round:
        *_, last = self.rounds(participation)
        return last

    def _local(self, index: int) -> LocalTraining:
        return LocalTraining(
            steps=self.steps[index],
            batch_size=1,
            learning_rate=VECTORS["lr"],
            momentum=self.momentum,
            weight_decay=0,
        )

    def weights(self, present: Sequence[int]) -> dict[int, float]:
        rows = [
            Contribution(index, int(sum(counts)), discrepancy(counts, "uniform", "kl"))
            for index, counts in enumerate(VECTORS["counts"])
        ]
        entries = ledger(WEIGHTINGS[self.weighting], [rows[index] for index in present], rows)
        return {entry.index: entry.weight for entry in entries}

    def _client(
        self,
        index: int,
        number: int,
        method: Any,
        sent: Path,
        broadcast: Path | None,
        kept: list[dict[str, Any]],
        folder: Path,
    ) -> UpdateFile:
        problem = torch.tensor([[VECTORS["h"][index], VECTORS["m"][index]]], dtype=torch.float64)
        received = {g: wire.read_group(broadcast, g, [NAME]) for g in method.downloads} if broadcast else {}
        relative_size = 3 * VECTORS["n"][index]
        result = train(
            task=QuadraticTask(),  # type: ignore[arg-type]
            model=Quadratic(),
            algorithm=method,
            examples=Examples(problem, torch.zeros(1)),
            local=self._local(index),
            start=wire.read_group(sent, "model", [NAME]),
            received=received,
            kept=kept[index],
            first_time=not kept[index],
            relative_size=relative_size,
            seed=0,
            round=number,
            index=index,
            device=torch.device("cpu"),
            clock=lambda: 0.0,
        )
        kept[index] = result.kept
        path = wire.write(folder / f"update-{index}.safetensors", result.tensors).path
        examples = int(sum(VECTORS["counts"][index]))
        return UpdateFile(UpdateInfo(index, examples, relative_size, result.steps), path)

    def _seen(self, method: Any, done: Aggregated, kept: list[dict[str, Any]]) -> Round:
        server = {}
        for groups, file in ((method.downloads, done.broadcast), (method.private, done.private)):
            for group in groups:
                assert file is not None
                server[group] = wire.read_group(file.path, group, [NAME])[NAME]
        return Round(
            model=wire.read_group(done.model.path, "model", [NAME])[NAME],
            scored=wire.read_group(done.scored.path, "model", [NAME])[NAME],
            server=server,
            kept=[{group: tensors[NAME] for group, tensors in client.items()} for client in kept],
        )

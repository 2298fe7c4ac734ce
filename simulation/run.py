"""``feddisco simulate``: a run on this machine, its curve as JSON lines, resumable after a crash.

The first line of a result file is the run (configuration, versions, machine), each further line a
round; the last one, ``end``, has the final model's digest.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from shared import wire
from shared.config import RunConfig
from shared.data import Examples
from shared.device import choose
from shared.problems import InvalidConfiguration
from shared.schemas import Metrics
from shared.training.evaluation import evaluate
from shared.wire.tensors import load_into
from simulation.engines import EngineName, InProcess, OpenEngine, Processes
from simulation.federation import Federation, RoundOutcome
from simulation.grouped import Grouped
from simulation.jobs import Workshop
from simulation.native import Native
from simulation.ray_engine import Ray
from simulation.results import Results, check_same, checkpoint_of, header, same_results

__all__ = ["Results", "Setup", "Simulation", "same_results", "simulate"]


CPU = torch.device("cpu")


def simulate(
    config: RunConfig,
    *,
    source: Path | None,
    out: Path,
    cache: Path | None = None,
    engine: EngineName | None = None,
    processes: int = 1,
    address: str | None = None,
    device: str = "cpu",
    until: int | None = None,
    say: Callable[[str], None] = print,
) -> str:
    """Run ``config``, writing to ``out``; goes on where an interrupted call left. Returns the final digest.

    ``cache`` is a folder where decoded images are kept from call to call.
    ``until`` stops after that round; a later call goes on from there.
    ``processes`` > 1 trains a round's clients side by side; the result is the same, bit for bit.
    ``engine``: None is what ``processes`` asks for; ``grouped`` and ``native`` are equal but for rounding.
    ``device`` is where the engine in-process trains: cpu, cuda, cuda:N, mps, or auto for the best of them.
    ``address`` is the cluster of the engine ``ray``: see :func:`simulation.ray_cluster.connected`.

    Raises InvalidConfiguration if ``out`` belongs to another configuration or the run cannot start.
    """
    chosen = _chosen(engine, processes, address)
    setup = Setup(source, cache, chosen, processes, address, choose(device))
    with Simulation(config, setup, out, say) as run:
        if run.over:
            say(f"{out}: done already, final model sha256 {run.digest}")
        return run.train(until)


@dataclass(frozen=True)
class Setup:
    """Where a run's data lie and how it is trained; of its result, only rounding depends on it."""

    source: Path | None = None
    cache: Path | None = None
    engine: EngineName = "in-process"
    processes: int = 1
    address: str | None = None
    device: torch.device = CPU


class Simulation:
    """A run, held open: task, data and engine stay in memory from one call of ``train`` to the next.

    Raises InvalidConfiguration if ``out`` belongs to another configuration or the run cannot start.
    """

    def __init__(self, config: RunConfig, setup: Setup, out: Path, say: Callable[[str], None]) -> None:
        self._config = config
        self._setup = setup
        self._say = say
        self._results = Results(out)
        _check_place(setup)
        check_same(config, setup.engine, setup.device, self._results.lines(), out)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if not self.over:
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def over(self) -> bool:
        """Whether the last round's result is there, and so nothing is left to train."""
        lines = self._results.lines()
        return bool(lines) and lines[-1]["kind"] == "end"

    @property
    def digest(self) -> str:
        """SHA-256 of the newest model's file; empty before the first round."""
        return str(self._results.lines()[-1].get("model", ""))

    @property
    def completed(self) -> int:
        """How many rounds there are."""
        return self._config.rounds if self.over else self._federation.files.completed

    def train(self, until: int | None = None) -> str:
        """Train up to and with round ``until`` (None: the last); returns the newest model's digest."""
        if self.over:
            return self.digest
        self._rounds(until)
        digest = self.digest
        if self.completed == self._config.rounds:
            self._results.append({"kind": "end", "model": digest})
            shutil.rmtree(checkpoint_of(self._results.path))
        return digest

    def _begin(self) -> None:
        setup = self._setup
        workshop = Workshop(self._config, setup.source, setup.cache, setup.device)
        folder = checkpoint_of(self._results.path)
        folder.mkdir(parents=True, exist_ok=True)
        self._workshop = workshop
        self._federation = Federation(self._config, workshop, folder)
        self._tests = _Tests.of(workshop) if self._config.evaluate_every else None
        self._engine = self._open.enter_context(_engine(workshop, setup, self._say))
        if lines := self._results.lines():
            self._results.rewrite([line for line in lines if line.get("round", 0) <= self.completed])
        else:
            self._results.append(header(self._config, setup.engine, setup.device))

    def _rounds(self, until: int | None) -> None:
        config, tests = self._config, self._tests
        began = time.perf_counter()
        for outcome in self._federation.rounds(self._engine, until):
            due = tests and _due(config, outcome.round)
            scores = _scored(self._workshop, tests, outcome) if tests and due else None
            self._results.append(_round_line(outcome, scores, time.perf_counter() - began))
            began = time.perf_counter()
            accuracy = scores.common.accuracy if scores else None
            said = "" if accuracy is None else f"  accuracy {100 * accuracy:6.2f} %"
            self._say(f"{config.name}  round {outcome.round:>4}/{config.rounds}{said}")


@dataclass(frozen=True)
class _Tests:
    """The common test set and, where the partition holds some out, each client's own (if not empty) and
    what of the training set was dealt to nobody.
    """

    common: Examples
    own: tuple[Examples, ...]
    validation: Examples | None

    @classmethod
    def of(cls, workshop: Workshop) -> _Tests:
        own = (workshop.own_test(index) for index in range(workshop.clients))
        kept = tuple(examples for examples in own if len(examples))
        return cls(workshop.test_examples(), kept, workshop.validation_examples())


@dataclass(frozen=True)
class _Scores:
    common: Metrics
    per_client: tuple[float, ...]
    validation: Metrics | None


def _due(config: RunConfig, number: int) -> bool:
    return number % config.evaluate_every == 0 or number == config.rounds


def _scored(workshop: Workshop, tests: _Tests, outcome: RoundOutcome) -> _Scores:
    names = [spec.name for spec in workshop.manifest]
    with wire.opened(outcome.scored) as file:
        load_into(workshop.model, {name: file.tensor(wire.MODEL, name) for name in names})

    def scored(examples: Examples) -> Metrics:
        return evaluate(task=workshop.task, model=workshop.model, examples=examples, device=workshop.device)

    own = tuple(scored(examples).accuracy for examples in tests.own)
    return _Scores(
        scored(tests.common),
        tuple(accuracy for accuracy in own if accuracy is not None),
        None if tests.validation is None else scored(tests.validation),
    )


def _round_line(outcome: RoundOutcome, scores: _Scores | None, seconds: float) -> dict[str, Any]:
    metrics = scores.common if scores else None
    validation = scores.validation if scores else None
    return {
        "kind": "round",
        "round": outcome.round,
        "accuracy": metrics.accuracy if metrics else None,
        "loss": metrics.loss if metrics else None,
        **({"validation_accuracy": validation.accuracy} if validation else {}),
        "per_category": metrics.per_category if metrics else {},
        "measures": metrics.extra if metrics else {},
        "per_client": scores.per_client if scores else (),
        "participants": [done.index for done in outcome.done],
        "weights": [row.weight for row in outcome.ledger],
        "steps": [done.steps for done in outcome.done],
        "local_loss": [done.loss for done in outcome.done],
        "seconds": round(seconds, 3),
        "model": outcome.digest,
    }


# ---------------------------------------------------------------- surroundings


def _check_place(setup: Setup) -> None:
    if setup.device.type != "cpu" and setup.engine != "in-process":
        raise InvalidConfiguration(
            f"device: the engine {setup.engine} trains on the CPU, received {setup.device}.",
            hint="Take --engine in-process on a GPU.",
        )


def _chosen(engine: EngineName | None, processes: int, address: str | None) -> EngineName:
    chosen = engine or ("in-process" if processes == 1 else "processes")
    if processes > 1 and chosen != "processes":
        raise InvalidConfiguration(
            f"engine: {chosen} does not take a number of processes, received {processes}.",
            hint="Leave processes out, or choose the engine processes.",
        )
    if address and chosen != "ray":
        raise InvalidConfiguration(
            f"address: {chosen} trains on this machine, received {address}.",
            hint="Leave the address out, or choose the engine ray.",
        )
    return chosen


def _engine(workshop: Workshop, setup: Setup, say: Callable[[str], None]) -> OpenEngine:
    if setup.engine == "grouped":
        return Grouped(workshop)
    if setup.engine == "native":
        return Native(workshop)
    if setup.engine == "in-process":
        return InProcess(workshop)
    if setup.engine == "ray":
        return Ray(workshop.config, setup.source, setup.cache, setup.address, say)
    return Processes(workshop.config, setup.source, setup.cache, setup.processes)

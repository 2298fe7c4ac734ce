"""``feddisco simulate``: a run on this machine, its curve as JSON lines, resumable after a crash.

The first line of a result file is the run (configuration, versions, machine), each further line a
round; the last one, ``end``, has the final model's digest.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from server.lifecycle.views import find_standing
from shared.config import RunConfig
from shared.data import Examples
from shared.device import choose
from shared.files import replace_file
from shared.problems import InvalidConfiguration
from shared.schemas import Metrics, RunStatus
from shared.texts import format_seconds
from shared.training.workbench import Workbench
from simulation.checkpoints import claim_checkpoint, clear_checkpoint, has_checkpoint
from simulation.engines import Engine, EngineName, OpenEngine, choose_engine
from simulation.engines.in_process import InProcess
from simulation.engines.processes import Processes
from simulation.engines.ray import Ray
from simulation.federation import Federation, RoundOutcome, TimedShadow
from simulation.jobs import WorkbenchSpec
from simulation.kernels import KernelsName
from simulation.results import (
    Results,
    check_kernels,
    check_same,
    checkpoint_of,
    config_of,
    header,
    is_longer,
    same_results,
)

__all__ = ["Results", "Setup", "Simulation", "same_results", "simulate"]


CPU = torch.device("cpu")


def simulate(
    config: RunConfig,
    *,
    source: Path | None,
    out: Path,
    cache: Path | None = None,
    engine: EngineName | None = None,
    kernels: KernelsName = "torch",
    processes: int = 1,
    address: str | None = None,
    device: str = "cpu",
    until: int | None = None,
    keep_model: Path | None = None,
    keep_checkpoint: bool = False,
    say: Callable[[str], None] = print,
) -> str:
    """Run ``config``, writing to ``out``; goes on where an interrupted call left. Returns the final digest.

    ``cache`` is a folder where decoded images are kept from call to call.
    ``until`` stops after that round; a later call goes on from there.
    ``keep_model`` is where the model is put that the run ends with (until then: its newest, or its best).
    ``keep_checkpoint``: a later call may ask for more rounds, also when all are done.
    ``engine`` maps the clients of a round, with the same result, bit for bit: None is what ``processes``
    (more than one trains clients side by side) or ``address`` asks for.
    ``kernels`` compute a client: those of ``native`` are faster on small networks and equal but for rounding.
    ``device`` is where to train: cpu, cuda, cuda:N, mps, or auto for the best of them.
    ``address`` is the cluster of the engine ``ray``: see :func:`simulation.cluster.connect`.

    Raises InvalidConfiguration if ``out`` belongs to another configuration or the run cannot start.
    """
    chosen = choose_engine(engine, processes, address)
    setup = Setup(
        source, cache, chosen, kernels, processes, address, choose(device), keep_model, keep_checkpoint
    )
    with Simulation(config, setup, out, say) as run:
        if run.is_over:
            say(f"{out}: done already, final model sha256 {run.digest}")
        return run.train(until)


@dataclass(frozen=True)
class Setup:
    """Where a run's data lie and how it is trained; of its result, only rounding depends on it."""

    source: Path | None = None
    cache: Path | None = None
    engine: EngineName = "in-process"
    kernels: KernelsName = "torch"
    processes: int = 1
    address: str | None = None
    device: torch.device = CPU
    keep_model: Path | None = None
    keep_checkpoint: bool = False


class Simulation:
    """A run, held open: task, data and engine stay in memory from one call of ``train`` to the next.

    Raises InvalidConfiguration if ``out`` belongs to another configuration or the run cannot start.
    """

    def __init__(self, config: RunConfig, setup: Setup, out: Path, say: Callable[[str], None]) -> None:
        self._config = config
        self._setup = setup
        self._say = say
        self._results = Results(out)
        _check_device(setup)
        check_same(config, setup.kernels, setup.device, self._results.lines(), out)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if not self.is_over:
            try:
                self._begin()
            except BaseException:
                self._open.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def is_over(self) -> bool:
        """Whether the last round's result is there, and so nothing is left to train."""
        lines = self._results.lines()
        return bool(lines) and lines[-1]["kind"] == "end" and not self._is_longer(lines)

    def _is_longer(self, lines: list[dict[str, Any]]) -> bool:
        """Whether it asks for more rounds than the file was begun with."""
        return bool(lines) and is_longer(self._config, config_of(lines, self._results.path))

    @property
    def digest(self) -> str:
        """SHA-256 of the newest model's file; empty before the first round."""
        return str(self._results.lines()[-1].get("model", ""))

    @property
    def completed(self) -> int:
        """How many rounds there are."""
        if self.is_over:
            return len(self._round_lines())
        return self._federation.checkpoint.completed

    def _round_lines(self) -> list[dict[str, Any]]:
        return [line for line in self._results.lines() if line["kind"] == "round"]

    def train(self, until: int | None = None) -> str:
        """Train up to and with round ``until`` (None: the last); returns the newest model's digest."""
        if self.is_over:
            return self.digest
        self._train_rounds(until)
        if self._federation.run.status is RunStatus.COMPLETED:
            self._results.append(self._end_line())
            if not self._setup.keep_checkpoint:
                shutil.rmtree(checkpoint_of(self._results.path))
        return self.digest

    def _end_line(self) -> dict[str, Any]:
        """The model that the run keeps, and of which round it is where that is not the last."""
        found = find_standing(self._federation.run) if self._config.keep == "best" else None
        if found is None:
            return {"kind": "end", "model": self.digest}
        line = next(line for line in self._round_lines() if line["round"] == found.best_round)
        return {"kind": "end", "model": line["model"], "round": found.best_round}

    def _keep_model(self, outcome: RoundOutcome) -> None:
        """Where the caller asks for it, unless an earlier round's is the one to keep."""
        place = self._setup.keep_model
        found = find_standing(self._federation.run) if self._config.keep == "best" else None
        if place is not None and (found is None or found.best_round == outcome.round):
            replace_file(place, outcome.scored.read_bytes(), durable=False)

    def _begin(self) -> None:
        setup, folder = self._setup, checkpoint_of(self._results.path)
        self._open.enter_context(claim_checkpoint(folder, self._results.path))
        before = self._results.lines()
        if before:
            check_kernels(before[0], self._results.path)
        elif has_checkpoint(folder) and self._results.path.exists():
            raise InvalidConfiguration(
                f"{self._results.path} has lost its lines, and {folder} has completed rounds.",
                hint="Restore the file from a copy, or remove it to run all rounds anew.",
            )
        else:  # its results were removed, and with them what they were made with
            clear_checkpoint(folder)
        spec = WorkbenchSpec.of(self._config, setup.source, setup.cache, setup.kernels)
        self._workbench = spec.build(setup.device)
        longer = self._is_longer(before)
        if longer and before[-1]["kind"] == "end" and not has_checkpoint(folder):
            raise InvalidConfiguration(
                f"{self._results.path} has all its rounds; what a further one would start from was not kept.",
                hint="Give another --out; with --keep-checkpoint from the start, rounds can be added.",
            )
        engine = self._open.enter_context(_make_engine(self._workbench, spec, setup, self._say))
        rounds = {line["round"]: line for line in before if line["kind"] == "round"}
        needed = rounds if self._config.needs_scores else {}
        scores = {number: _read_scores(line) for number, line in needed.items()}
        self._federation = self._make_federation(folder, scores)
        kept = self._pick_completed(rounds, folder)
        self._tests = _Tests.of(self._workbench) if self._config.evaluate_every else None
        self._engine = self._adapt(engine)
        if not before:
            first = header(self._config, setup.engine, setup.kernels, setup.device)
        else:
            first = before[0] | ({"config": self._config.model_dump(mode="json")} if longer else {})
        self._results.rewrite([first, *kept])

    def _pick_completed(self, rounds: Mapping[int, dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
        """The lines of rounds that the checkpoint counts; raises InvalidConfiguration if one is not there."""
        completed = range(1, self._federation.checkpoint.completed + 1)
        if missing := [number for number in completed if number not in rounds]:
            raise InvalidConfiguration(
                f"{self._results.path} lacks round {missing[0]}, which {folder} has completed.",
                hint=f"Restore the file from a copy, or remove {folder} to run all rounds anew.",
            )
        return [rounds[number] for number in completed]

    def _make_federation(self, folder: Path, scores: Mapping[int, Metrics]) -> Federation:
        """What an experiment with other clients overrides."""
        return Federation(self._config, self._workbench, folder, scores)

    def _adapt(self, engine: Engine) -> Engine:
        """What an experiment with other updates overrides."""
        return engine

    def _train_rounds(self, until: int | None) -> None:
        config, tests = self._config, self._tests
        began = started = time.perf_counter()
        first = self.completed
        for outcome in self._federation.train_rounds(self._engine, until):
            due = config.is_scored(outcome.round)
            scores = _score(self._workbench, tests, outcome) if tests and due else None
            self._results.append(_round_line(outcome, scores, time.perf_counter() - began))
            if scores is not None:
                self._federation.note_scores(outcome.round, scores.common)
            self._keep_model(outcome)
            now = time.perf_counter()
            accuracy = scores.common.accuracy if scores else None
            said = "" if accuracy is None else f"  accuracy {100 * accuracy:6.2f} %"
            each = (now - started) / (outcome.round - first)
            left = each * ((config.rounds if until is None else min(until, config.rounds)) - outcome.round)
            paced = f"  {now - began:.1f} s" + (f", {format_seconds(left)} left" if left > 0 else "")
            self._say(f"{config.name}  round {outcome.round:>4}/{config.rounds}{said}{paced}")
            began = now


@dataclass(frozen=True)
class _Tests:
    """The common test set and, where the partition holds some out, each client's own (if not empty) and
    what of the training set was dealt to nobody.
    """

    common: Examples
    own: tuple[Examples, ...]
    validation: Examples | None

    @classmethod
    def of(cls, workbench: Workbench) -> _Tests:
        own = (workbench.own_test_examples(index) for index in range(workbench.clients))
        kept = tuple(examples for examples in own if len(examples))
        return cls(workbench.test_examples, kept, workbench.validation_examples())


@dataclass(frozen=True)
class _Scores:
    common: Metrics
    per_client: tuple[float, ...]
    validation: Metrics | None
    shadows: Mapping[str, Metrics]


def _score(workbench: Workbench, tests: _Tests, outcome: RoundOutcome) -> _Scores:
    workbench.load_model(outcome.scored)
    own = tuple(workbench.evaluate(examples).accuracy for examples in tests.own)
    return _Scores(
        workbench.evaluate(tests.common, metrics=workbench.config.metrics),
        tuple(accuracy for accuracy in own if accuracy is not None),
        None if tests.validation is None else workbench.evaluate(tests.validation),
        dict(_score_shadows(workbench, tests, outcome)),
    )


def _score_shadows(
    workbench: Workbench, tests: _Tests, outcome: RoundOutcome
) -> Iterator[tuple[str, Metrics]]:
    for timed in outcome.shadows:
        if timed.shadow.scored is not None:
            workbench.load_model(timed.shadow.scored.path)
            yield timed.shadow.name, workbench.evaluate(tests.common, metrics=workbench.config.metrics)


def _read_scores(line: dict[str, Any]) -> Metrics:
    """Of a round's line, as much as a run may go by."""
    return Metrics(loss=line["loss"], accuracy=line["accuracy"], extra=line["measures"], examples=1)


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
        **({"confusion": metrics.confusion} if metrics and metrics.confusion else {}),
        "per_client": scores.per_client if scores else (),
        "participants": [result.index for result in outcome.results],
        "weights": [row.weight for row in outcome.ledger],
        "steps": [result.steps for result in outcome.results],
        "local_loss": [result.loss for result in outcome.results],
        **_losses(outcome),
        **_travels(outcome),
        **_shadows(outcome, scores),
        **({"distilled": asdict(outcome.distilled)} if outcome.distilled else {}),
        "seconds": round(seconds, 3),
        "model": outcome.digest,
    }


def _travels(outcome: RoundOutcome) -> dict[str, Any]:
    """Where models travel: who started from whose, who has each now, and what each would count."""
    travels = outcome.travels
    if travels is None:
        return {}
    return {
        "averaged": travels.averaged,
        "started_from": [travels.started_from[result.index] for result in outcome.results],
        "models": [
            {"client": client, "weight": share}
            for client, share in zip(travels.clients, travels.shares, strict=True)
        ],
    }


def _shadows(outcome: RoundOutcome, scores: _Scores | None) -> dict[str, Any]:
    """What other weightings made of the round, where the run asked for it."""
    if scores is None or not outcome.shadows:
        return {}
    return {"shadows": {timed.shadow.name: _shadow(timed, scores) for timed in outcome.shadows}}


def _shadow(timed: TimedShadow, scores: _Scores) -> dict[str, Any]:
    shadow, metrics = timed.shadow, scores.shadows.get(timed.shadow.name)
    return {
        "accuracy": metrics.accuracy if metrics else None,
        "loss": metrics.loss if metrics else None,
        "measures": metrics.extra if metrics else {},
        "weights": [row.weight for row in shadow.rows],
        "reason": shadow.reason,
        "seconds": round(timed.seconds, 3),
        "model": None if shadow.scored is None else shadow.scored.digest,
    }


def _losses(outcome: RoundOutcome) -> dict[str, Any]:
    """Clients' losses before and after training, where the weighting asked for them."""
    columns = {
        "start_loss": [result.start_loss for result in outcome.results],
        "end_loss": [result.end_loss for result in outcome.results],
    }
    return {name: values for name, values in columns.items() if any(v is not None for v in values)}


# ---------------------------------------------------------------- surroundings


def _check_device(setup: Setup) -> None:
    if setup.device.type != "cpu" and (setup.engine, setup.kernels) != ("in-process", "torch"):
        raise InvalidConfiguration(
            f"device: the engine {setup.engine} with {setup.kernels} kernels trains on the CPU, "
            f"received {setup.device}.",
            hint="Take --engine in-process and --kernels torch on a GPU.",
        )


def _make_engine(
    workbench: Workbench, spec: WorkbenchSpec, setup: Setup, say: Callable[[str], None]
) -> OpenEngine:
    if setup.engine == "in-process":
        return InProcess(workbench)
    if setup.engine == "ray":
        return Ray(spec, setup.address, say)
    return Processes(spec, setup.processes)

"""``feddisco simulate``: a run on this machine, its curve as JSON lines, resumable after a crash.

The first line of a result file is the run (configuration, versions, machine), each further line a
round; the last one, ``end``, has the final model's digest.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shared import wire
from shared.config import RunConfig
from shared.data import Examples
from shared.evaluation import evaluate
from shared.problems import InvalidConfiguration
from shared.schemas import Metrics
from shared.tensors import load_into
from simulation.engines import ROUNDING, Engine, EngineName, InProcess, Processes
from simulation.federation import Federation, RoundOutcome
from simulation.grouped import Grouped
from simulation.jobs import Workshop
from simulation.native import Native

__all__ = ["Results", "same_results", "simulate"]

SERVICE_ONLY = ("quorum", "round_deadline_seconds", "max_attempts", "keep_updates")
"""Fields that a simulation, whose clients neither fail nor are late, does not heed."""

PACKAGES = ("feddisco", "torch", "torchvision", "numpy", "safetensors")


@dataclass(frozen=True)
class Results:
    """A result file: appended line by line, each written whole."""

    path: Path

    def lines(self) -> list[dict[str, Any]]:
        """What is there; a last line that a crash cut short does not count."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def rewrite(self, lines: list[dict[str, Any]]) -> None:
        """Keep only these lines (a crash left more, or less, than the checkpoint)."""
        draft = self.path.with_name(self.path.name + ".tmp")
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        draft.replace(self.path)

    def append(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


def simulate(
    config: RunConfig,
    *,
    source: Path | None,
    out: Path,
    cache: Path | None = None,
    engine: EngineName | None = None,
    processes: int = 1,
    until: int | None = None,
    say: Callable[[str], None] = print,
) -> str:
    """Run ``config``, writing to ``out``; goes on where an interrupted call left. Returns the final digest.

    ``cache`` is a folder where decoded images are kept from call to call.
    ``until`` stops after that round; a later call goes on from there.
    ``processes`` > 1 trains a round's clients side by side; the result is the same, bit for bit.
    ``engine``: None is what ``processes`` asks for; ``grouped`` and ``native`` are equal but for rounding.

    Raises InvalidConfiguration if ``out`` belongs to another configuration or the run cannot start.
    """
    results = Results(out)
    lines = results.lines()
    chosen = _chosen(engine, processes)
    _check_same(config, chosen, lines, out)
    if lines and lines[-1]["kind"] == "end":
        say(f"{out}: done already, final model sha256 {lines[-1]['model']}")
        return str(lines[-1]["model"])
    folder = _checkpoint(out)
    workshop = Workshop(config, source, cache)
    federation = Federation(config, workshop, folder)
    if lines:
        results.rewrite([line for line in lines if line.get("round", 0) <= federation.files.completed])
    else:
        results.append(_header(config, chosen))
    with _engine(chosen, workshop, source, cache, processes) as mapping:
        _rounds(federation, workshop, mapping, results, until, say)
    digest = str(results.lines()[-1].get("model", ""))
    if federation.files.completed < config.rounds:
        return digest
    results.append({"kind": "end", "model": digest})
    shutil.rmtree(folder)
    return digest


def _rounds(
    federation: Federation,
    workshop: Workshop,
    engine: Engine,
    results: Results,
    until: int | None,
    say: Callable[[str], None],
) -> None:
    config = federation.config
    tests = _Tests.of(workshop) if config.evaluate_every else None
    began = time.perf_counter()
    for outcome in federation.rounds(engine, until):
        scores = _scored(workshop, tests, outcome) if tests and _due(config, outcome.round) else None
        results.append(_round_line(outcome, scores, time.perf_counter() - began))
        began = time.perf_counter()
        accuracy = scores.common.accuracy if scores else None
        said = "" if accuracy is None else f"  accuracy {100 * accuracy:6.2f} %"
        say(f"{config.name}  round {outcome.round:>4}/{config.rounds}{said}")


@dataclass(frozen=True)
class _Tests:
    """The common test set and, where the partition holds some out, each client's own (if not empty)."""

    common: Examples
    own: tuple[Examples, ...]

    @classmethod
    def of(cls, workshop: Workshop) -> _Tests:
        own = (workshop.own_test(index) for index in range(workshop.clients))
        return cls(workshop.test_examples(), tuple(examples for examples in own if len(examples)))


@dataclass(frozen=True)
class _Scores:
    common: Metrics
    per_client: tuple[float, ...]


def _due(config: RunConfig, number: int) -> bool:
    return number % config.evaluate_every == 0 or number == config.rounds


def _scored(workshop: Workshop, tests: _Tests, outcome: RoundOutcome) -> _Scores:
    names = [spec.name for spec in workshop.manifest]
    with wire.opened(outcome.scored) as file:
        load_into(workshop.model, {name: file.tensor(wire.MODEL, name) for name in names})
    common, *own = (
        evaluate(task=workshop.task, model=workshop.model, examples=examples, device=workshop.device)
        for examples in (tests.common, *tests.own)
    )
    return _Scores(common, tuple(metrics.accuracy for metrics in own if metrics.accuracy is not None))


def _round_line(outcome: RoundOutcome, scores: _Scores | None, seconds: float) -> dict[str, Any]:
    metrics = scores.common if scores else None
    return {
        "kind": "round",
        "round": outcome.round,
        "accuracy": metrics.accuracy if metrics else None,
        "loss": metrics.loss if metrics else None,
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


def _chosen(engine: EngineName | None, processes: int) -> EngineName:
    chosen = engine or ("in-process" if processes == 1 else "processes")
    if processes > 1 and chosen != "processes":
        raise InvalidConfiguration(
            f"engine: {chosen} is one process, received processes {processes}.",
            hint="Leave processes out, or choose the engine processes.",
        )
    return chosen


def _engine(
    chosen: EngineName, workshop: Workshop, source: Path | None, cache: Path | None, processes: int
) -> InProcess | Processes | Grouped:
    if chosen == "grouped":
        return Grouped(workshop)
    if chosen == "native":
        return Native(workshop)
    if chosen == "in-process":
        return InProcess(workshop)
    return Processes(workshop.config, source, cache, processes)


def _header(config: RunConfig, engine: EngineName) -> dict[str, Any]:
    import torch

    return {
        "kind": "run",
        "config": config.model_dump(mode="json"),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "engine": engine,
        },
    }


def same_results(one: RunConfig, other: RunConfig) -> bool:
    """Whether two configurations make the same rounds: they may differ in what only a service heeds."""
    defaults = {name: RunConfig.model_fields[name].get_default() for name in SERVICE_ONLY}
    return one.model_copy(update=defaults) == other.model_copy(update=defaults)


def _check_same(config: RunConfig, engine: EngineName, lines: list[dict[str, Any]], out: Path) -> None:
    """The same run; the engine may change where that changes no bit."""
    if not lines:
        return
    if not same_results(RunConfig.model_validate(lines[0].get("config")), config):
        raise InvalidConfiguration(
            f"{out} holds the results of another configuration.",
            hint="Give another --out, or remove the file.",
        )
    begun = lines[0].get("machine", {}).get("engine", "in-process")
    if begun != engine and ROUNDING & {begun, engine}:
        raise InvalidConfiguration(
            f"{out} was begun with the engine {begun}, whose results differ from {engine}'s by rounding.",
            hint=f"Go on with --engine {begun}, or give another --out.",
        )


def _checkpoint(out: Path) -> Path:
    """A folder beside the result file, so that a later call finds it; removed when the run is done."""
    folder = out.with_name(out.name + ".checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    return folder

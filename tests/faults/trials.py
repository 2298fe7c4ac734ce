"""One trial: a run that meets a random fault at a random moment, and what the checker says of it."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.config import RunConfig
from shared.schemas import RunStatus
from tests.faults.faults import Fault, draw_fault
from tests.faults.federation import Federation
from tests.faults.history import History, Result, Sent, find_violations
from tests.helpers.processes import run_config

__all__ = ["Trial", "play", "play_undisturbed"]


@dataclass(frozen=True)
class Trial:
    """What came of one fault; a line of the results. ``commit``: the program's, empty outside a clone."""

    commit: str
    database: str
    seed: int
    fault: str
    detail: str
    seconds: float
    updates: int
    """Acknowledged."""
    lost_answers: int
    is_same_model: bool
    violations: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    detail: str
    sent: Sequence[Sent]
    is_same_model: bool
    violations: tuple[str, ...]


def config(name: str) -> RunConfig:
    """Some seconds of work, so that a fault meets it in any of its states."""
    return run_config(name, rounds=3, evaluate_every=1, keep_updates=1)


def play_undisturbed(fed: Federation) -> Result:
    fed.system.create(config("undisturbed"))
    fed.wait_until_over("undisturbed")
    return fed.read("undisturbed")


def play(fed: Federation, seed: int, undisturbed: Result) -> Trial:
    """What goes wrong is the trial's result, too; its log is kept in the federation's folder."""
    fault = draw_fault(fed, seed)
    run = f"{fault.__name__.replace('_', '-')}-{seed}"
    began = time.monotonic()
    try:
        outcome = _play(fed, fault, run, random.Random(f"fault {seed}"), undisturbed)
    except Exception as error:
        kept = f"{type(error).__name__}: {error}\n{fed.system.logs()}"
        (fed.system.folder / f"{run}.txt").write_text(kept, encoding="utf-8")
        outcome = Outcome("", (), False, (kept.partition("\n")[0],))
    return Trial(
        commit=_read_commit(),
        database="sqlite" if fed.postgres is None else "postgresql",
        seed=seed,
        fault=fault.__name__,
        detail=outcome.detail,
        seconds=round(time.monotonic() - began, 1),
        updates=sum(sent.answer == "acknowledged" for sent in outcome.sent),
        lost_answers=sum(sent.answer == "lost" for sent in outcome.sent),
        is_same_model=outcome.is_same_model,
        violations=outcome.violations,
    )


def _play(fed: Federation, fault: Fault, run: str, draws: random.Random, undisturbed: Result) -> Outcome:
    """A run, the fault at a time that has nothing to do with what the run is doing, and the checker."""
    fed.system.create(config(run))
    if draws.random() < 0.8:
        fed.system.wait_for(lambda: fed.system.status(run) is not RunStatus.ENROLLING, "the run begins")
    time.sleep(draws.uniform(0.0, 1.5))
    detail = fault(fed, run, draws)
    fed.wait_until_over(run)
    history = History(sent=fed.recorder.sent(run), undisturbed=undisturbed)
    history.result = result = fed.read(run)
    fed.look_around(run, history)
    violations = tuple(map(str, find_violations(history)))
    if violations:
        history.write(fed.system.folder / f"{run}.json")
    fed.ended.append(run)
    last, wanted = result.attempts[-1], undisturbed.attempts[-1]
    is_same = (last.round, last.status, last.model) == (wanted.round, "completed", wanted.model)
    return Outcome(detail, history.sent, is_same, violations)


def _read_commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()

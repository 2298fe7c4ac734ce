"""kill -9 at every step boundary, and in a storm without regard to any: the same final model each time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from shared.config import LocalTraining, RunConfig
from shared.schemas import ParticipantStatus, RoundStatus, RunStatus
from simulation.run import simulate
from tests.helpers.databases import Postgres
from tests.helpers.processes import HELD, Deployment, Settings, deployment, run_config

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]

WORKERS = ("site-0", "site-1", "site-2")
DELIVERED = (ParticipantStatus.UPLOADED, ParticipantStatus.AGGREGATED)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One coordinator and three workers, on each database."""
    postgres: Postgres | None = None
    url = None
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
        url = postgres.fresh()
    with deployment(tmp_path_factory.mktemp(request.param), url) as made:
        made.start_coordinator()
        made.start_workers(len(WORKERS))
        yield made
    if postgres is not None and url is not None:
        postgres.recycle(url)


def config(name: str) -> RunConfig:
    """With state at the clients (drift, gradient) and at the coordinator, and a second upload group."""
    return run_config(name, algorithm="feddc", rounds=4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return simulated(config("undisturbed"), tmp_path_factory.mktemp("simulated"))


def simulated(given: RunConfig, folder: Path) -> str:
    return simulate(given, source=None, out=folder / "result.jsonl", say=lambda line: None)


# ---------------------------------------------------------------- the coordinator


def while_enrolling(system: Deployment, run: str) -> None:
    """One worker cannot enrol, so the run waits; the others have."""
    with system.frozen("site-2"):
        system.create(config(run))
        system.wait_for(lambda: len(system.admin.run(run).enrolments) == 2, "two are enrolled")
        restart(system)
        assert system.status(run) is RunStatus.ENROLLING


def before_anything_is_uploaded(system: Deployment, run: str) -> None:
    """The assignments are given, all workers are frozen in the middle of them."""
    system.create(config(run))
    system.wait_for(lambda: system.status(run) is RunStatus.RUNNING, "the run begins")
    with ExitStack() as stack:
        for name in WORKERS:
            stack.enter_context(system.frozen(name))
        restart(system)


def after_an_upload_is_acknowledged(system: Deployment, run: str) -> None:
    """What was answered 2xx is there after the restart, under the same digest."""
    system.create(config(run))
    system.wait_for(lambda: system.row(run, "site-2") is not None, "a round is open")
    with system.frozen("site-2"):
        row = system.wait_for(
            lambda: (found := system.row(run, "site-0")) and found.status in DELIVERED and found,
            "site-0 has uploaded",
        )
        restart(system)
        again = system.rounds(run)[0].ledger[row.index]
        assert (again.client, again.status in DELIVERED, again.update) == ("site-0", True, row.update)


def while_aggregating(system: Deployment, run: str) -> None:
    """Twice in the same round: the second one finds what the first one left."""
    system.kill("coordinator")
    system.start_coordinator(settings=HELD)
    system.create(config(run))
    aggregating(system, run)
    restart(system, HELD)
    aggregating(system, run)
    restart(system)


def aggregating(system: Deployment, run: str) -> None:
    system.wait_for(
        lambda: (view := system.open_round(run)) and view.status is RoundStatus.AGGREGATING,
        "a round is aggregated",
    )


def after_a_round_completed(system: Deployment, run: str) -> None:
    system.create(config(run))
    system.wait_for(lambda: system.admin.run(run).completed_rounds, "a round is completed")
    restart(system)


def restart(system: Deployment, settings: Settings | None = None) -> None:
    system.kill("coordinator")
    system.start_coordinator(settings=settings)


BOUNDARIES: list[Callable[[Deployment, str], None]] = [
    while_enrolling,
    before_anything_is_uploaded,
    after_an_upload_is_acknowledged,
    while_aggregating,
    after_a_round_completed,
]


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=lambda boundary: boundary.__name__)
def test_the_coordinator_is_killed(
    system: Deployment, undisturbed: str, boundary: Callable[[Deployment, str], None]
) -> None:
    run = boundary.__name__.replace("_", "-")
    boundary(system, run)
    assert system.digest(run) == undisturbed


# ---------------------------------------------------------------- workers


def test_workers_are_killed_after_training_before_the_upload(system: Deployment, tmp_path: Path) -> None:
    """The coordinator is away when they finish; started again, they send what they had."""
    long = config("unsent").model_copy(update={"local": LocalTraining(steps=300, batch_size=16)})
    system.create(long)
    system.wait_for(lambda: system.status("unsent") is RunStatus.RUNNING, "the run begins")
    with ExitStack() as frozen:
        for name in WORKERS:
            system.wait_for(partial(is_told, system, name), f"{name} is to train")
            frozen.enter_context(system.frozen(name))
        training = [name for name in WORKERS if status_of(system, name) is ParticipantStatus.TRAINING]
        read = {name: len(system.log(name)) for name in training}
        system.kill("coordinator")
    for name in training:
        system.wait_for(partial(finds_nobody, system, name, read[name]), f"{name} cannot send")
        system.kill(name)
    unsent = [name for name in training if (system.folder / name / "runs" / "unsent" / "entry.json").exists()]
    assert unsent, f"none was caught in training: {training}\n{system.logs()}"
    system.start_coordinator()
    for name in training:
        system.start_again(name)
    assert system.digest("unsent") == simulated(long, tmp_path)
    for name in unsent:
        assert "trained already, sending the finished update again" in system.log(name)[read[name] :]


def is_told(system: Deployment, client: str) -> bool:
    return status_of(system, client) is not ParticipantStatus.INVITED


def finds_nobody(system: Deployment, client: str, read: int) -> bool:
    return "Nothing listens" in system.log(client)[read:]


def status_of(system: Deployment, client: str) -> ParticipantStatus | None:
    row = system.row("unsent", client)
    return row.status if row else None


def test_all_workers_are_killed_at_once(system: Deployment, undisturbed: str) -> None:
    system.create(config("all-workers"))
    system.wait_for(lambda: system.admin.run("all-workers").completed_rounds, "a round is completed")
    for name in WORKERS:
        system.kill(name)
    for name in WORKERS:
        system.start_again(name)
    assert system.digest("all-workers") == undisturbed


def test_a_storm(system: Deployment, undisturbed: str) -> None:
    """Everybody is killed at times that have nothing to do with what they are doing."""
    draws = random.Random(7)
    system.create(run := config("storm"))
    for _ in range(8):
        time.sleep(draws.uniform(0.0, 1.5))
        victim = draws.choice(("coordinator", *WORKERS))
        system.kill(victim)
        if victim == "coordinator":
            system.start_coordinator(wait=False)
        else:
            system.start_again(victim)
    assert system.digest(run.name) == undisturbed

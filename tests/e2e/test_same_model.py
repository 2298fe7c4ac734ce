"""Whatever is killed, whichever database, service or simulation: the same final model, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.algorithms import available
from shared.config import RunConfig
from shared.schemas import ParticipantStatus, RoundStatus
from simulation.run import simulate
from tests.helpers.first_time import GENTLE_START
from tests.helpers.processes import HELD, Deployment, run_config

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("same-model"),
    pytest.mark.usefixtures("one_thread"),
]

# Scaffold keeps state at the clients and at the coordinator: both have to survive.
# Half a second of training a round: long enough to be caught in it.
KILLED = {
    "algorithm": "scaffold",
    "rounds": 4,
    "local": {"steps": 300, "batch_size": 16, "learning_rate": 0.01},
}


@pytest.fixture(params=[pytest.param("on_sqlite", marks=pytest.mark.slow), "on_postgres"])
def system(request: pytest.FixtureRequest) -> Deployment:
    made: Deployment = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return simulated(run_config("undisturbed", **KILLED), tmp_path_factory.mktemp("simulated"))


def simulated(config: RunConfig, folder: Path) -> str:
    return simulate(config, source=None, out=folder / "result.jsonl", say=lambda line: None)


@pytest.mark.slow
def test_nobody_is_killed(system: Deployment, undisturbed: str) -> None:
    system.create(run_config("calm", **KILLED))
    assert system.digest("calm") == undisturbed


@pytest.mark.long
def test_coordinators_are_killed_while_they_aggregate(system: Deployment, undisturbed: str) -> None:
    names = list(system.urls)
    for name in names:
        assert system.end(name) == 0
        system.start_coordinator(name, settings=HELD)
    system.create(run_config("aggregating", **KILLED))
    system.wait_for(
        lambda: (view := system.open_round("aggregating")) and view.status is RoundStatus.AGGREGATING,
        "round 1 is aggregated",
    )
    for name in names:
        system.kill(name)
    for name in names:
        system.start_coordinator(name)
    assert system.digest("aggregating") == undisturbed


@pytest.mark.long
def test_a_worker_is_killed_while_it_trains(system: Deployment, tmp_path: Path) -> None:
    """It trains for seconds: on a machine with much else to do it is looked at late."""
    longer = KILLED | {"rounds": 2, "local": {"steps": 1500, "batch_size": 16, "learning_rate": 0.01}}
    config = run_config("training", **longer)
    system.create(config)
    victim = "site-1"
    kill_in_one_of(system, "training", (1, 2), victim)
    system.start_again(victim)
    assert system.digest("training") == simulated(config, tmp_path)


def kill_in_one_of(system: Deployment, run: str, rounds: Sequence[int], victim: str) -> None:
    caught = any(kill_in_round(system, run, number, victim) for number in rounds)
    assert caught, "the worker always had uploaded already when it was looked at"


def kill_in_round(system: Deployment, run: str, number: int, victim: str) -> bool:
    """Freeze the worker as soon as it is told to train; if it has not uploaded yet, kill it."""
    system.wait_for(lambda: trains(system, run, number, victim), f"{victim} trains in round {number}")
    with system.frozen(victim):
        row = system.row(run, victim)
        caught = row is not None and row.status is ParticipantStatus.TRAINING
        if caught:
            system.kill(victim)
    return caught


def trains(system: Deployment, run: str, number: int, client: str) -> bool:
    """Whether the client has got its assignment in this round (or in a later one, if nobody looked)."""
    view = system.admin.run(run)
    if view.status.is_terminal or view.completed_rounds >= number:
        return True
    row = system.row(run, client)
    return row is not None and row.status is not ParticipantStatus.INVITED


@pytest.mark.slow
def test_models_travel_while_a_worker_and_coordinators_are_killed(system: Deployment, tmp_path: Path) -> None:
    """In a round between two averages: the worker as it trains what another has trained, and then all of the
    coordinator; where the round is drawn and dealt already, that is what everybody goes on with.
    """
    config = run_config("travels", **(KILLED | {"algorithm": "fedavgm", "average_every": 3, "rounds": 5}))
    system.create(config)
    victim = "site-1"
    kill_in_one_of(system, "travels", (2, 4, 5), victim)
    for name in list(system.urls):
        system.kill(name)
        system.start_coordinator(name)
    system.start_again(victim)
    assert system.digest("travels") == simulated(config, tmp_path)


# ---------------------------------------------------------------- every algorithm, every weighting


# those that remember rounds, ask for losses, or look at updates; Disco is what the algorithms run with
WEIGHTINGS = ("entropy", "fedadp", "fedawa", "feddgga", "fedlws", "nashmtl", "qfedavg")
PACKED = ("int8", "top-k")
# FedDyn scores another model than it sends, and its clients keep what they have not told
CALIBRATED: dict[str, dict[str, Any]] = {
    "calibrated-feddyn": {"algorithm": "feddyn"},
    "calibrated-top-k": {"compression": "top-k"},
}
TRAVELLING = "travelling"
KINDS = (*available(), GENTLE_START, *WEIGHTINGS, *PACKED, *CALIBRATED, TRAVELLING)
# so that three rounds train, measure, and train with what was measured
PARAMETERS = {"fedfm": {"start": 1}}


def config_of(kind: str) -> RunConfig:
    if kind == GENTLE_START:  # some clients take part in the second round for the first time
        return run_config("with-gentle-start", algorithm=kind, clients_per_round=2, rounds=4)
    if kind in CALIBRATED:
        return run_config(kind, calibration={"epochs": 2}, **CALIBRATED[kind])
    if kind in PACKED:  # what a client keeps of its update waits until it is drawn again
        return run_config(f"packed-{kind}", compression=kind, clients_per_round=2, rounds=4)
    if kind == TRAVELLING:  # ends between two averages; other clients are drawn, and a server has momentum
        return run_config(TRAVELLING, algorithm="fedavgm", average_every=3, clients_per_round=2, rounds=5)
    if kind in WEIGHTINGS:
        return run_config(f"weighted-{kind}", weighting={"kind": kind}, clients_per_round=2, rounds=4)
    return run_config(f"with-{kind}", algorithm={"name": kind, "parameters": PARAMETERS.get(kind, {})})


@pytest.fixture(scope="module")
def with_every_kind(on_sqlite: Deployment) -> Deployment:
    """A run of each at once on the same workers, with a restart of the coordinator in the midst of them."""
    for kind in KINDS:
        on_sqlite.create(config_of(kind))
    middle = config_of(KINDS[len(KINDS) // 2]).name
    on_sqlite.wait_for(lambda: on_sqlite.admin.run(middle).completed_rounds >= 1, "half of the work is done")
    on_sqlite.kill("coordinator")
    on_sqlite.start_coordinator()
    return on_sqlite


@pytest.mark.parametrize("kind", KINDS)
def test_service_and_simulation(kind: str, with_every_kind: Deployment, tmp_path: Path) -> None:
    config = config_of(kind)
    assert with_every_kind.digest(config.name) == simulated(config, tmp_path)


# ---------------------------------------------------------------- two coordinators


@pytest.mark.long
def test_what_one_coordinator_commits_wakes_the_other_ones_clients(on_postgres: Deployment) -> None:
    """Shorter than the 8 seconds after which a poll looks again by itself: only the relay can answer it."""
    wait = 6.0
    on_postgres.create(
        run_config("before", min_clients=50)
    )  # a first model takes as long as importing PyTorch
    on_postgres.admin.control("before", "stop")
    second = on_postgres.urls["second"]
    join = {"Authorization": f"Bearer {on_postgres.processes.environment['FEDDISCO_JOIN_TOKEN']}"}
    with httpx.Client(base_url=f"{second}/api/v1", timeout=60) as http, ThreadPoolExecutor() as threads:
        joined = http.post("/clients", json={"name": "listener"}, headers=join).json()
        http.headers["Authorization"] = f"Bearer {joined['token']}"
        assert http.get("/work").json()["kind"] == "wait"
        before = waiting_polls(second)
        poll = threads.submit(http.get, "/work", params={"wait": wait})
        on_postgres.wait_for(lambda: waiting_polls(second) > before, "the poll waits")
        on_postgres.create(run_config("woken", min_clients=50))
        answer = poll.result()
    on_postgres.admin.control("woken", "stop")
    assert answer.status_code == 200, answer.headers
    assert (answer.json()["kind"], answer.json()["run"]) == ("enrol", "woken")
    assert answer.elapsed.total_seconds() < wait


def waiting_polls(url: str) -> float:
    found = re.search(r"^feddisco_waiting_polls (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])

"""The target that is everybody's labels together: one secure sum, once, over the same sites only."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.database.migrations import upgrade
from shared.faults import SENTENCES, FaultCode
from shared.schemas import RunStatus
from simulation.run import simulate
from tests.helpers.live_coordinator import Live, live
from tests.helpers.processes import run_config
from tests.helpers.worker_crew import Member, create, worker
from worker.secure_work import note_label_sum

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

pytestmark = pytest.mark.usefixtures("one_thread")

GLOBAL = {"kind": "disco", "target": "global"}
STEPS = {"steps": 2, "batch_size": 8}


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Live]:
    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    upgrade(url)
    with live(url, tmp_path / "coordinator") as found:
        yield found


@pytest.fixture
def on_both(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "coordinator") as found:
        yield found


def join_all(at: Live, run: str, crew: list[Member]) -> None:
    at.wait_for(lambda: at.run(run)["status"] == RunStatus.COMPLETED, 90)
    for member in crew:
        member.join()


def test_it_is_the_sum_of_all_labels_and_the_simulations_model(on_both: Live, tmp_path: Path) -> None:
    at = on_both
    config = run_config("all", rounds=2, secure={}, weighting=GLOBAL, local=STEPS)
    create(at, **config.model_dump(mode="json"))
    crew = [worker(at, tmp_path, f"site-{i}", partition="run", index=i) for i in range(3)]
    join_all(at, "all", crew)
    told = at.run("all")["totals"]
    assert (told["clients"], sum(told["counts"])) == (3, told["examples"])
    digest = simulate(config, source=None, out=tmp_path / "result.jsonl", say=lambda line: None)
    assert at.run("all")["model"] == digest
    assert "Labels of all trainers, the target" in at.admin.get(f"{at.url}/runs/all").text
    assert "sent examples and label counts, masked" in crew[0].log
    assert not (tmp_path / "site-0" / "label-sums.json").exists(), "what a run deals is nobody's secret"


@pytest.mark.long
def test_who_joins_late_changes_no_sum_and_trains_by_the_target_of_the_others(
    at: Live, tmp_path: Path
) -> None:
    shares = {"partition": "niid1:4:0.3"}
    create(at, min_clients=3, rounds=4, secure={}, weighting=GLOBAL, local={"steps": 40, "batch_size": 8})
    crew = [worker(at, tmp_path, f"site-{i}", index=i, **shares) for i in range(3)]
    at.wait_for(lambda: at.run()["completed_rounds"] >= 1, 90)
    assert at.admin.post("/runs/demo/pause").status_code == 200
    told = at.run()["totals"]
    crew.append(worker(at, tmp_path, "late", index=3, **shares))
    at.wait_for(lambda: any(row["client"] == "late" for row in at.run()["enrolments"]), 60)
    assert at.admin.post("/runs/demo/resume").status_code == 200
    join_all(at, "demo", crew)
    assert (told["clients"], at.run()["totals"]) == (3, told)
    last = at.admin.get("/runs/demo/rounds/4").json()["ledger"]
    assert {row["client"]: row["status"] for row in last}["late"] == "aggregated"
    assert "sent examples and label counts" not in crew[3].log
    assert "own weight" in crew[0].log


@pytest.mark.long
def test_labels_are_summed_over_the_same_sites_only(at: Live, tmp_path: Path) -> None:
    """A second run with one site more would tell that site's labels by the difference of the two sums."""
    shares = {"partition": "iid:4"}
    wanted = {"secure": {}, "weighting": GLOBAL, "local": STEPS, "rounds": 1, "max_attempts": 1}
    create(at, name="first", min_clients=3, **wanted)
    join_all(at, "first", [worker(at, tmp_path, f"site-{i}", index=i, **shares) for i in range(3)])
    kept = json.loads((tmp_path / "site-0" / "label-sums.json").read_text())["members"]
    assert {len(members) for members in kept.values()} == {3}

    create(at, name="same", min_clients=3, **wanted)
    join_all(at, "same", [worker(at, tmp_path, f"site-{i}", index=i, **shares) for i in range(3)])

    create(at, name="more", min_clients=4, **wanted)
    crew = [worker(at, tmp_path, f"site-{i}", index=i, **shares) for i in range(4)]
    at.wait_for(lambda: at.run("more")["status"] == RunStatus.PAUSED, 90)
    assert at.run("more")["totals"] is None, "nothing was unmasked"
    assert "the label counts here were summed with those of other sites before" in crew[0].log
    assert at.admin.post("/runs/more/stop").status_code == 200
    for member in crew:
        member.join()


def test_a_site_whose_policy_has_no_global_target_declines(at: Live, tmp_path: Path) -> None:
    create(at, min_clients=3, secure={}, weighting=GLOBAL)
    policy = tmp_path / "policy.yaml"
    policy.write_text("targets: [uniform, explicit]\n")
    member = worker(at, tmp_path, "north", policy=policy)
    assert member.join() == 4
    (row,) = at.run()["enrolments"]
    assert (row["status"], row["reason"]) == ("declined", SENTENCES[FaultCode.TARGET_NOT_ALLOWED])
    assert f"{policy} line 1 has targets: [uniform, explicit]" in member.log


def note_many(state: Path, slot: str, together: Barrier) -> None:
    for number in range(20):
        together.wait(60)
        note_label_sum(state, [f"{slot}-{number}"], ("a", "b", "c"))


def test_two_slots_of_one_folder_lose_no_sum(tmp_path: Path) -> None:
    """Each reads, changes and writes the file at the same time."""
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(2)
    slots = [spawn.Process(target=note_many, args=(tmp_path, slot, together)) for slot in ("one", "two")]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join(120)
        assert slot.exitcode == 0
    kept = json.loads((tmp_path / "label-sums.json").read_text())["members"]
    assert kept.keys() == {f"{slot}-{number}" for slot in ("one", "two") for number in range(20)}

"""What the sums of several secure rounds tell together, and the policy that is against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.database.migrations import upgrade
from shared.config import RunConfig
from shared.schemas import RunStatus
from tests.helpers.benches import make_bench
from tests.helpers.live_coordinator import Live, live
from tests.helpers.worker_crew import Member, create, worker

pytestmark = pytest.mark.usefixtures("one_thread")

SHARES = {"partition": "niid1:4:0.5"}


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Live]:
    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    upgrade(url)
    with live(url, tmp_path / "coordinator") as found:
        yield found


def let_one_come_late(at: Live, folder: Path, policy: Path | None) -> list[Member]:
    """Three sites, and after a round a fourth."""
    local = {"steps": 2, "batch_size": 8}
    create(at, min_clients=3, rounds=99, secure={}, weighting={"kind": "sizes"}, local=local, max_attempts=1)
    crew = [worker(at, folder, f"site-{i}", index=i, policy=policy, **SHARES) for i in range(3)]
    at.wait_for(lambda: at.run()["completed_rounds"] >= 1, 90)
    assert at.admin.post("/runs/demo/pause").status_code == 200
    crew.append(worker(at, folder, "late", index=3, policy=policy, **SHARES))
    at.wait_for(lambda: any(row["client"] == "late" for row in at.run()["enrolments"]), 60)
    assert at.admin.post("/runs/demo/resume").status_code == 200
    return crew


def read_sum(at: Live, sites: int) -> dict[str, Any]:
    """What is known of the newest round's sum over so many sites; nothing if there is none."""
    sums: list[dict[str, Any]] = [found["secure"] for found in at.admin.get("/runs/demo/rounds").json()]
    known = [each for each in sums if each["score"] is not None and each["survivors"] == sites]
    return known[-1] if known else {}


def stop(at: Live, crew: list[Member]) -> None:
    assert at.admin.post("/runs/demo/stop").status_code == 200
    for member in crew:
        member.join()


def test_who_is_in_some_rounds_only_is_known_by_its_score(at: Live, tmp_path: Path) -> None:
    """Weighted by sizes, a score is the number of examples: docs/privacy.md says so."""
    crew = let_one_come_late(at, tmp_path, None)
    without, together = read_sum(at, 3), at.wait_for(lambda: read_sum(at, 4), 90)
    stop(at, crew)
    found = (together["score"] - without["score"]) * at.run()["totals"]["examples"]
    assert found == pytest.approx(count_examples(3), abs=1e-6)


def count_examples(index: int) -> int:
    config = RunConfig.model_validate({"name": "demo", "task": "digits"} | SHARES)
    return len(make_bench(config).training_examples(index))


def test_a_policy_unmasks_no_sums_that_differ_by_one_site(at: Live, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("smallest_difference: 3\n")
    crew = let_one_come_late(at, tmp_path, policy)
    at.wait_for(lambda: at.run()["status"] == RunStatus.PAUSED, 90)
    assert read_sum(at, 3)
    assert not read_sum(at, 4)
    at.wait_for(lambda: "differ by 1 of the sites, whose score the difference would tell" in crew[0].log)
    stop(at, crew)

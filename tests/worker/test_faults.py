"""Faults of a task or of memory outside training: told to the coordinator, never the end of the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.problems import InvalidConfiguration
from tests.helpers.live_coordinator import Live
from tests.helpers.worker_crew import Member, create, keep, worker
from worker.faults import LocalFault, local_faults

TASK = "tests.helpers.own_tasks:Faulty"
FAULTS = [
    ("loading", "loading the training data failed: ValueError: row 7 has a column too many"),
    ("building", "preparing the task and its model failed: Memory ran out"),
]


def _dismiss(at: Live, member: Member) -> None:
    assert member.exit_code is None  # it lives
    assert at.admin.delete("/clients/site").status_code == 204
    assert member.join() == 3


def _enrolled_before(at: Live, folder: Path) -> None:
    """The state folder of a worker that enrolled in the run, and was then started again."""
    site = at.site("site")
    assert site.enrol("demo", 100, task=TASK, classes=at.run()["classes"]).status_code == 200
    keep(at, folder, site)


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_at_enrolment_the_run_is_declined(at: Live, tmp_path: Path, fault: str, words: str) -> None:
    create(at, task=TASK)
    member = worker(at, tmp_path, "site", task=TASK, task_options={"fault": fault})
    row = at.wait_for(lambda: next(iter(at.run()["enrolments"]), None))
    assert row["status"] == "declined"
    assert words in row["reason"]
    at.wait_for(lambda: "demo: not taking part" in member.log)
    _dismiss(at, member)


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_in_a_round_it_is_a_failure(at: Live, tmp_path: Path, fault: str, words: str) -> None:
    create(at, task=TASK, min_clients=1, max_attempts=1, weighting={"kind": "sizes"})
    _enrolled_before(at, tmp_path)
    member = worker(at, tmp_path, "site", task=TASK, task_options={"fault": fault})
    at.wait_for(lambda: at.run()["status"] == "paused")
    entry = at.admin.get("/runs/demo/rounds").json()[0]["ledger"][0]
    assert entry["status"] == "failed"
    assert words in entry["reason"]
    _dismiss(at, member)


def test_an_evaluator_says_it_once_and_tries_again(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK, task_options={"fault": "scoring"}, min_clients=1, rounds=1)
    judge = worker(at, tmp_path, "judge", role="evaluator", task=TASK)
    at.wait_for(lambda: "demo: enrolled" in judge.log)
    trainer = worker(at, tmp_path, "trainer", task=TASK)
    assert [judge.join(), trainer.join()] == [0, 0]
    assert judge.log.count("scoring the model failed: ValueError: a scratched test image. Trying again.") == 1
    assert at.admin.get("/runs/demo/rounds").json()[0]["evaluations"][0]["client"] == "judge"


def test_what_the_loop_knows_passes() -> None:
    for error in (InvalidConfiguration("no data"), OSError(28, "full"), LocalFault("bug", "inner")):
        with pytest.raises(type(error)) as caught, local_faults("loading"):
            raise error
        assert caught.value is error

"""Whatever goes wrong with one run is told, in a sentence of the fixed set, and never ends the worker."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.faults import SENTENCES, TRANSIENT, Doing, Fault, FaultCode
from shared.problems import (
    Conflict,
    InvalidConfiguration,
    NotFound,
    Problem,
    RevokedToken,
    StorageUnavailable,
)
from tests.helpers.live_coordinator import Live
from tests.helpers.own_tasks import RAISED
from tests.helpers.worker_crew import Member, create, keep, worker
from worker.answers import UnexpectedAnswer
from worker.faults import (
    LocalFault,
    concerns_all_runs,
    describe_fault,
    is_disk_full,
    local_faults,
)
from worker.shutdown import ShutdownRequested

TASK = "tests.helpers.own_tasks:Faulty"
CODES = {"unreadable": FaultCode.DATA_UNREADABLE, "memory": FaultCode.OUT_OF_MEMORY}


def code_of(what: str) -> FaultCode:
    return CODES.get(what, FaultCode.TASK_ERROR)


@contextmanager
def living(member: Member, at: Live) -> Iterator[Member]:
    """A worker that is alive at the end, and is then sent away."""
    yield member
    assert member.exit_code is None, member.log
    assert at.admin.delete(f"/clients/{member.settings.name}").status_code == 204
    assert member.join() == 3


def _enrolled_before(at: Live, folder: Path) -> None:
    """The state folder of a worker that enrolled in the run, and was then started again."""
    site = at.site("site")
    assert site.enrol("demo", 100, task=TASK, classes=at.run()["classes"]).status_code == 200
    keep(at, folder, site)


# ---------------------------------------------------------------- one run never ends another


@pytest.mark.parametrize("what", [*RAISED, "memory"])
def test_at_enrolment_the_run_is_declined_and_the_next_one_trained(
    at: Live, tmp_path: Path, what: str
) -> None:
    create(at, name="bad", task=TASK, task_options={"fault": f"loading:{what}"})
    create(at, name="good", task=TASK, min_clients=1, rounds=1)
    assert worker(at, tmp_path, "site", task=TASK).join() == 0
    assert at.run("good")["status"] == "completed"
    row = at.run("bad")["enrolments"][0]
    told = Fault(code_of(what), Doing.LOADING_TRAINING_DATA)
    assert (row["status"], row["reason"]) == ("declined", told.sentence)
    event = next(event for event in at.events("bad") if event["kind"] == "client_declined")
    assert event["detail"]["code"] == code_of(what)


@pytest.mark.parametrize("what", ["exit", "memory"])
def test_a_model_that_cannot_be_built_here_is_declined(at: Live, tmp_path: Path, what: str) -> None:
    create(at, task=TASK)
    more: dict[str, Any] = {"task_options": {"fault": f"building:{what}"}, "exit_when_finished": False}
    with living(worker(at, tmp_path, "site", task=TASK, **more), at):
        at.wait_for(lambda: at.run()["enrolments"])
    row = at.run()["enrolments"][0]
    assert (row["status"], row["reason"]) == ("declined", Fault(code_of(what), Doing.PREPARING).sentence)


def test_an_evaluator_that_declines_before_it_enrols_is_shown_as_one(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK, task_options={"fault": "loading:memory"})
    with living(worker(at, tmp_path, "judge", role="evaluator", task=TASK, exit_when_finished=False), at):
        row = at.wait_for(lambda: at.run()["enrolments"])[0]
    assert (row["client"], row["role"], row["status"]) == ("judge", "evaluator", "declined")


def test_counting_that_fails_for_ever_is_declined_and_the_next_run_trained(at: Live, tmp_path: Path) -> None:
    create(at, name="bad", task=TASK, task_options={"fault": "counting:bug"}, weighting={"kind": "disco"})
    create(at, name="good", task=TASK, min_clients=1, rounds=1)
    assert worker(at, tmp_path, "site", task=TASK).join() == 0
    row = at.run("bad")["enrolments"][0]
    told = Fault(FaultCode.TASK_ERROR, Doing.COUNTING)
    assert (row["status"], row["reason"]) == ("declined", told.sentence)


@pytest.mark.parametrize("what", ["exit", "interrupt", "stopped", "weird", "recursion", "bug", "memory"])
def test_in_a_round_it_is_a_failure_and_the_next_run_is_trained(at: Live, tmp_path: Path, what: str) -> None:
    more: dict[str, Any] = {"min_clients": 1, "weighting": {"kind": "sizes"}}
    create(at, name="bad", task=TASK, task_options={"fault": f"training:{what}"}, max_attempts=2, **more)
    create(at, name="good", task=TASK, rounds=1, **more)
    member = worker(at, tmp_path, "site", task=TASK)
    assert member.join() == 0
    assert at.run("good")["status"] == "completed"
    at.wait_for(lambda: at.run("bad")["status"] == "paused")
    told = Fault(code_of(what), Doing.TRAINING)
    for row in at.admin.get("/runs/bad/rounds").json():
        assert (row["ledger"][0]["status"], row["ledger"][0]["reason"]) == ("failed", told.sentence)
    assert at.run("bad")["enrolments"][0]["last_error"] == f"{told.code}: {told.sentence}"
    assert f"no update ({told.code}): training failed: " in member.log


@pytest.mark.parametrize("place", ["loading", "building"])
def test_after_a_restart_it_is_a_failure(at: Live, tmp_path: Path, place: str) -> None:
    create(at, task=TASK, min_clients=1, max_attempts=1, weighting={"kind": "sizes"})
    _enrolled_before(at, tmp_path)
    with living(worker(at, tmp_path, "site", task=TASK, task_options={"fault": f"{place}:bug"}), at):
        at.wait_for(lambda: at.run()["status"] == "paused")
    entry = at.admin.get("/runs/demo/rounds").json()[0]["ledger"][0]
    doing = Doing.LOADING_TRAINING_DATA if place == "loading" else Doing.PREPARING
    assert (entry["status"], entry["reason"]) == ("failed", Fault(FaultCode.TASK_ERROR, doing).sentence)


def test_after_a_restart_with_settings_that_do_not_fit_the_worker_leaves_with_the_reason(
    at: Live, tmp_path: Path
) -> None:
    create(at, task=TASK, min_clients=1, weighting={"kind": "sizes"})
    _enrolled_before(at, tmp_path)
    member = worker(at, tmp_path, "site", task=TASK, task_options={"fualt": "x"}, exit_when_finished=False)
    with living(member, at):
        at.wait_for(lambda: at.run()["enrolments"][0]["status"] == "declined")
    assert at.run()["enrolments"][0]["reason"] == Fault(FaultCode.CONFIGURATION).sentence
    assert "fualt" in member.log


def test_a_score_is_tried_again(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK, task_options={"fault": "scoring-once:value"}, min_clients=1, rounds=1)
    judge = worker(at, tmp_path, "judge", role="evaluator", task=TASK)
    at.wait_for(lambda: "demo: enrolled" in judge.log)
    trainer = worker(at, tmp_path, "trainer", task=TASK)
    assert [judge.join(), trainer.join()] == [0, 0]
    assert judge.log.count("scoring a model failed: ValueError: row 7 has a column too many") == 1
    assert at.admin.get("/runs/demo/rounds").json()[0]["evaluations"][0]["client"] == "judge"


def test_a_model_that_can_never_be_scored_is_not_asked_for_again(at: Live, tmp_path: Path) -> None:
    create(at, name="bad", task=TASK, task_options={"fault": "scoring:exit"}, min_clients=1)
    create(at, name="good", task=TASK, min_clients=1, rounds=1, autostart=False)
    judge = worker(at, tmp_path, "judge", role="evaluator", task=TASK)
    at.wait_for(lambda: [row["status"] for row in at.run("bad")["enrolments"]] == ["declined"])
    at.wait_for(lambda: "good: enrolled" in judge.log)
    trainer = worker(at, tmp_path, "trainer", task=TASK, run="good")
    at.wait_for(lambda: len(at.run("good")["enrolments"]) == 2)
    at.wait_for(lambda: at.admin.post("/runs/good/start").status_code == 200)
    assert [judge.join(), trainer.join()] == [0, 0]
    rows = {row["client"]: row["reason"] for row in at.run("bad")["enrolments"]}
    assert rows["judge"] == Fault(FaultCode.TASK_ERROR, Doing.SCORING).sentence
    assert "good round 1: loss" in judge.log


def test_a_run_that_is_stopped_while_it_trains_is_no_fault(at: Live, tmp_path: Path) -> None:
    slow, local = "tests.helpers.own_tasks:Slow", {"steps": 50_000}
    create(at, task=slow, min_clients=1, local=local, weighting={"kind": "sizes"})
    member = worker(at, tmp_path, "site", task=slow)
    at.wait_for(lambda: at.run()["current_round"] and at.run()["current_round"]["ledger"][0]["progress"])
    at.admin.post("/runs/demo/stop", json={"reason": "enough"})
    assert member.join() == 4
    assert "demo round 1: stopped training, " in member.log
    assert not [event for event in at.events() if event["kind"] == "failure_reported"]


# ---------------------------------------------------------------- when nothing can work


def test_without_any_data_the_runs_know_before_the_worker_ends(at: Live, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    create(at, task="fashion-mnist", min_clients=1, partition="iid:1")
    member = worker(at, tmp_path, "site", task="fashion-mnist", data=tmp_path / "data", partition="run")
    assert member.join() == 2
    assert str(tmp_path / "data") in member.log
    row = at.run()["enrolments"][0]
    assert (row["status"], row["reason"]) == ("declined", Fault(FaultCode.NO_DATA).sentence)


def test_a_data_folder_that_is_gone_at_a_restart_is_told(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK)
    _enrolled_before(at, tmp_path)
    member = worker(at, tmp_path, "site", task=TASK, data=tmp_path / "gone")
    assert member.join() == 2
    assert f"--data (FEDDISCO_DATA): there is nothing at {tmp_path / 'gone'}" in member.log
    row = at.run()["enrolments"][0]
    assert (row["status"], row["reason"]) == ("declined", Fault(FaultCode.NO_DATA).sentence)
    assert worker(at, tmp_path, "new", task=TASK, data=tmp_path / "gone").join() == 2
    assert [row["client"] for row in at.admin.get("/clients").json()] == ["site"]  # no need to register


def test_a_device_that_is_gone_at_a_restart_is_told(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK)
    _enrolled_before(at, tmp_path)
    assert worker(at, tmp_path, "site", task=TASK, device="cuda:99").join() == 2
    assert at.run()["enrolments"][0]["reason"] == Fault(FaultCode.SETTINGS).sentence


def test_a_state_folder_that_cannot_be_made_is_one_sentence(at: Live, tmp_path: Path) -> None:
    (tmp_path / "site").write_text("a file where the folder should be")
    member = worker(at, tmp_path, "site")
    assert member.join() == 2
    assert len(member.log.splitlines()) == 1
    assert str(tmp_path / "site") in member.log


# ---------------------------------------------------------------- one-shot workers


def test_a_one_shot_worker_whose_only_run_is_declined_ends_with_4(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK, task_options={"fault": "empty"})
    member = worker(at, tmp_path, "site", task=TASK)
    assert member.join() == 4
    assert "All runs that this worker is for have been declined." in member.log
    assert worker(at, tmp_path, "site", task=TASK).join() == 4  # and again at a restart


def test_a_one_shot_worker_waits_for_its_run_if_it_declined_others(at: Live, tmp_path: Path) -> None:
    create(at, name="theirs")
    member = worker(at, tmp_path, "site", run="ours")
    at.wait_for(lambda: "theirs: not taking part" in member.log)
    create(at, name="ours", rounds=1, min_clients=1)
    assert member.join() == 0


def test_a_one_shot_worker_that_trained_nothing_ends_with_4(at: Live, tmp_path: Path) -> None:
    create(at, task=TASK, task_options={"fault": "training:bug"}, min_clients=1, max_attempts=1)
    member = worker(at, tmp_path, "site", task=TASK)
    at.wait_for(lambda: at.run()["status"] == "paused")
    at.admin.post("/runs/demo/stop", json={"reason": "enough"})
    assert member.join() == 4
    assert "without an update or a score of this worker" in member.log


# ---------------------------------------------------------------- a full disk


def test_a_full_disk_is_waited_for_with_the_update_in_hand(
    at: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, make = threading.Event(), tempfile.mkstemp

    def make_or_refuse(*given: Any, **more: Any) -> Any:  # the file system's answer, for updates of the site
        if full.is_set() and str(more.get("prefix", "")).startswith(".update-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(*given, **more)

    monkeypatch.setattr(tempfile, "mkstemp", make_or_refuse)
    full.set()
    create(at, min_clients=1, rounds=1, max_attempts=1, weighting={"kind": "sizes"})
    member = worker(at, tmp_path, "site")
    at.wait_for(lambda: "demo round 1: There is no space left" in member.log)
    row = at.wait_for(lambda: at.run()["current_round"]["ledger"][0])
    at.wait_for(lambda: at.run()["current_round"]["ledger"][0]["heartbeat_at"])
    assert (row["status"], row["reason"]) == ("training", None)
    full.clear()
    assert member.join() == 0
    (made,) = at.admin.get("/runs/demo/rounds").json()
    assert (made["attempt"], made["status"]) == (1, "completed")
    assert member.log.count("There is no space left") == 1


# ---------------------------------------------------------------- which fault is whose


def test_the_border_around_a_tasks_code() -> None:
    full = StorageUnavailable("the cache")
    full.__cause__ = OSError(errno.ENOSPC, "full")
    passing = [
        full,
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EDQUOT, "quota"),
        ShutdownRequested(),
        LocalFault(Fault(FaultCode.NO_EXAMPLES), "inner"),
    ]
    for error in passing:
        with pytest.raises(type(error)) as caught, local_faults(Doing.COUNTING):
            raise error
        assert caught.value is error
    for other in (*RAISED.values(), InvalidConfiguration("x"), OSError(5, "io")):
        with pytest.raises(LocalFault), local_faults(Doing.COUNTING):
            raise other


def test_what_concerns_all_runs() -> None:
    remote: list[Problem] = [StorageUnavailable("x"), RevokedToken("x"), NotFound("x"), Conflict("x")]
    for problem in remote:
        problem.remote = True
    all_runs = [httpx.ReadTimeout(""), UnexpectedAnswer(502, "html"), *remote[:2], OSError(30, "read-only")]
    assert [concerns_all_runs(error) for error in all_runs] == [True] * 5
    one_run = [*remote[2:], UnexpectedAnswer(413, "html"), InvalidConfiguration("x"), RAISED["exit"]]
    assert [concerns_all_runs(error) for error in one_run] == [False] * 5
    assert {describe_fault(error, Doing.WORKING).told.code for error in one_run[:3]} <= TRANSIENT
    assert not is_disk_full(remote[0])


# ---------------------------------------------------------------- the fixed set


@pytest.mark.parametrize(
    "wrong",
    [
        {"code": FaultCode.NO_PART_LEFT},
        {"code": FaultCode.NO_PART_LEFT, "counts": {"parts": "Jane Doe"}},
        {"code": FaultCode.NO_PART_LEFT, "counts": {"parts": True}},
        {"code": FaultCode.NO_PART_LEFT, "counts": {"parts": 3, "name": 4}},
        {"code": FaultCode.NO_EXAMPLES, "doing": Doing.COUNTING},
        {"code": FaultCode.TASK_ERROR, "doing": "/data/patient-7.png"},
    ],
)
def test_a_fault_takes_its_own_counts_and_nothing_else(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Fault(**wrong)


def test_every_sentence_can_be_said() -> None:
    figures = {"parts": 3, "index": 4, "now": 5, "enrolled": 6, "status": 413, "examples": 7, "bytes": 38_756}
    figures |= {"allowed": 8, "asked": 9}
    for code, template in SENTENCES.items():
        counts = {name: count for name, count in figures.items() if f"{{{name}}}" in template}
        doing = Doing.TRAINING if "{doing}" in template else None
        sentence = Fault(code, doing, counts).sentence
        assert sentence.endswith((".", ")."))
        assert "{" not in sentence
        assert len(sentence) < 300

"""Workers with a real coordinator over real HTTP: what people see, and what goes wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shared.config import Partition
from shared.data.partition import partition
from shared.discrepancy import discrepancy
from shared.faults import Fault, FaultCode
from shared.tasks import load_task
from tests.helpers.live_coordinator import Live
from tests.helpers.worker_crew import Member, create, keep, settings, worker

OWN = "tests.helpers.own_tasks:Own"


def _enrolment(at: Live, client: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [row for row in at.run()["enrolments"] if row["client"] == client]
    assert len(found) == 1, at.run()["enrolments"]
    return found[0]


def _judge(at: Live, folder: Path, **more: Any) -> Member:
    """An evaluator that is enrolled, so that no run ends before it came."""
    member = worker(at, folder, "judge", role="evaluator", **more)
    at.wait_for(lambda: "demo: enrolled" in member.log)
    return member


def _rounds(at: Live) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = at.admin.get("/runs/demo/rounds").json()
    return sorted(found, key=lambda row: (row["round"], row["attempt"]))


# ---------------------------------------------------------------- a whole run


def test_two_trainers_and_an_evaluator_take_a_run_to_its_end(at: Live, tmp_path: Path) -> None:
    create(at, partition="niid1:2:0.5", weighting={"kind": "disco"}, shadow=["sizes"], metrics=["auroc"])
    judge = _judge(at, tmp_path)
    crew = [*(worker(at, tmp_path, f"site-{number}", partition="run") for number in range(2)), judge]
    assert [member.join() for member in crew] == [0, 0, 0]
    run = at.run()
    assert (run["status"], run["completed_rounds"]) == ("completed", 2)

    task = load_task("digits")
    targets = task.load("train", None, 0).targets.numpy()
    parts = partition(Partition.model_validate("niid1:2:0.5"), targets, 10, 0)
    trainers = sorted(
        (row for row in run["enrolments"] if row["role"] == "trainer"), key=lambda row: row["index"]
    )
    assert [row["index"] for row in trainers] == [0, 1]
    for row, part in zip(trainers, parts, strict=True):
        counts = np.bincount(targets[part], minlength=10)
        assert row["examples"] == len(part)
        assert math.isclose(row["discrepancy"], discrepancy(counts, "uniform"), rel_tol=1e-12)
    for row in _rounds(at):
        assert [entry["steps"] for entry in row["ledger"]] == [3, 3]
        (evaluation,) = row["evaluations"]
        assert evaluation["client"] == "judge"
        shadow = evaluation["shadows"]["sizes"]
        assert shadow["loss"] != evaluation["loss"]
        assert abs(shadow["loss"] - evaluation["loss"]) < 1, "one step away"
        assert 0 < evaluation["extra"]["auroc"] != shadow["extra"]["auroc"] > 0
    assert {row["status"] for row in run["enrolments"]} == {"finished"}  # all have seen the end
    assert "demo round 2: 3 steps, loss " in crew[0].log
    assert "demo: completed" in crew[2].log


def test_the_state_of_a_finished_run_is_removed_and_the_credential_kept(at: Live, tmp_path: Path) -> None:
    create(at, rounds=1, min_clients=1, weighting={"kind": "sizes"})
    assert worker(at, tmp_path, "site").join() == 0
    names = {path.name for path in (tmp_path / "site").rglob("*")}
    assert names == {"credential.json", "identity.key", "lock", "runs", "told.jsonl"}


def test_a_second_start_needs_no_join_code(at: Live, tmp_path: Path) -> None:
    for name in ("first", "second"):
        create(at, name=name, rounds=1, min_clients=1)
        code = "join-token-of-the-tests" if name == "first" else None
        assert worker(at, tmp_path, "site", join_token=code).join() == 0
    assert [row["client"] for row in at.admin.get("/clients").json()] == ["site"]


# ---------------------------------------------------------------- not taking part


@pytest.mark.parametrize(
    ("config", "more", "told", "words"),
    [
        (
            {"task": "tests.helpers.own_tasks:Slow"},
            {},
            Fault(FaultCode.OTHER_TASK),
            "has the task digits, the run needs tests.helpers.own_tasks:Slow",
        ),
        ({}, {"run": "other-*"}, Fault(FaultCode.OTHER_RUNS), "takes part only in runs named other-*"),
        ({"partition": "iid:2"}, {}, Fault(FaultCode.OWN_DATA), "Start it with --partition run"),
        (
            {"partition": "iid:2"},
            {"partition": "run", "index": 2},
            Fault(FaultCode.NO_PART_LEFT, counts={"parts": 2}),
            "index 2 is none of them",
        ),
        ({}, {"task_options": {"sise": 3}}, Fault(FaultCode.CONFIGURATION), "sise"),
        (
            {"algorithm": OWN},
            {},
            Fault(FaultCode.ALGORITHM_NOT_ALLOWED),
            f"({OWN}; the default policy has algorithms: ['*'])",
        ),
        (
            {"algorithm": OWN},
            {"algorithms": "tests.worker.other:*"},
            Fault(FaultCode.ALGORITHM_NOT_ALLOWED),
            f"({OWN}; --algorithms has algorithms: ['*', 'tests.worker.other:*'])",
        ),
    ],
)
@pytest.mark.parametrize("tell", ["sentences", "full"])
def test_a_run_that_does_not_fit_is_declined_with_a_sentence(
    at: Live, tmp_path: Path, config: dict[str, Any], more: dict[str, Any], told: Fault, words: str, tell: str
) -> None:
    create(at, **config)
    member = worker(at, tmp_path, "site", exit_when_finished=False, tell=tell, **more)
    row = at.wait_for(lambda: next(iter(at.run()["enrolments"]), None))
    assert row["status"] == "declined"
    if tell == "full":
        assert words in row["reason"]
    else:
        assert row["reason"] == told.sentence
    at.wait_for(lambda: "demo: not taking part" in member.log)
    assert words in member.log
    _dismiss(at, member)


def test_an_algorithm_of_ones_own_trains_where_it_is_allowed(at: Live, tmp_path: Path) -> None:
    create(at, algorithm=OWN, rounds=1, min_clients=1)
    assert worker(at, tmp_path, "site", algorithms="tests.helpers.own_tasks:*").join() == 0
    assert at.run()["status"] == "completed"


def _dismiss(at: Live, member: Member) -> None:
    """Revoke its token, which is how a worker that has nothing to finish is sent away."""
    assert at.admin.delete(f"/clients/{member.settings.name}").status_code == 204
    assert member.join() == 3
    assert "has revoked this client's token" in member.log


def _declined_before(at: Live, folder: Path) -> None:
    """A run, and the state folder of a worker that declined it and was then ended."""
    create(at, rounds=1, min_clients=1, partition="iid:2")
    site = at.site("site")
    assert site.http.post("/runs/demo/decline", json={"reason": "has data of its own"}).status_code == 204
    keep(at, folder, site)


def test_a_worker_started_anew_takes_part_in_what_it_had_declined(at: Live, tmp_path: Path) -> None:
    _declined_before(at, tmp_path)
    assert worker(at, tmp_path, "site", partition="run").join() == 0
    assert _enrolment(at, "site")["index"] == 0


def test_a_worker_started_anew_that_still_does_not_fit_says_so(at: Live, tmp_path: Path) -> None:
    _declined_before(at, tmp_path)
    member = worker(at, tmp_path, "site", partition="run", index=2)
    assert member.join() == 4
    assert "demo: not taking part, all 2 parts" in member.log
    assert _enrolment(at, "site")["status"] == "declined"


def test_an_index_of_somebody_else_is_declined_and_a_free_one_found(at: Live, tmp_path: Path) -> None:
    create(at, partition="iid:2", min_clients=2, rounds=1)
    first = worker(at, tmp_path, "first", partition="run", index=0)
    at.wait_for(lambda: any(row["index"] == 0 for row in at.run()["enrolments"]))
    second = worker(at, tmp_path, "second", partition="run", index=0)
    assert second.join() == 4
    assert "not taking part" in second.log
    third = worker(at, tmp_path, "third", partition="run")
    assert (first.join(), third.join()) == (0, 0)
    assert _enrolment(at, "third")["index"] == 1
    told = Fault(FaultCode.INDEX_TAKEN, counts={"index": 0})
    assert _enrolment(at, "second")["reason"] == told.sentence


def test_workers_that_race_for_parts_get_one_each(at: Live, tmp_path: Path) -> None:
    create(at, partition="iid:5", min_clients=5, rounds=1)
    crew = [worker(at, tmp_path, f"site-{number}", partition="run") for number in range(5)]
    assert [member.join() for member in crew] == [0] * 5
    assert sorted(row["index"] for row in at.run()["enrolments"]) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- faults


def test_a_training_that_diverges_is_told(at: Live, tmp_path: Path) -> None:
    local = {"steps": 3, "learning_rate": 1e30, "momentum": 0.0}
    create(at, min_clients=1, max_attempts=2, local=local)
    member = worker(at, tmp_path, "site")
    at.wait_for(lambda: at.run()["status"] == "paused")
    rounds = _rounds(at)
    assert [row["status"] for row in rounds] == ["abandoned", "abandoned"]
    for row in rounds:
        assert row["ledger"][0]["reason"] == Fault(FaultCode.DIVERGED).sentence
    assert "no update (diverged)" in member.log
    at.admin.post("/runs/demo/stop", json={"reason": "enough"})
    assert member.join() == 4  # it was there to see the end, without an update in it
    assert "demo: stopped: enough" in member.log


def test_an_evaluator_whose_memory_is_small_scores_in_smaller_batches(at: Live, tmp_path: Path) -> None:
    task = "tests.helpers.own_tasks:Faulty"
    create(at, task=task, task_options={"fault": "evaluation"}, min_clients=1, rounds=1)
    crew = [_judge(at, tmp_path, task=task), worker(at, tmp_path, "trainer", task=task)]
    assert [member.join() for member in crew] == [0, 0]
    evaluation = _rounds(at)[0]["evaluations"][0]
    assert (evaluation["client"], evaluation["examples"]) == ("judge", 359)


class _RewindsBeforeAScore(httpx.HTTPTransport):
    """The run goes back while the evaluator scores round 1, as often as ``times`` says."""

    def __init__(self, at: Live, times: int) -> None:
        super().__init__()
        self._at = at
        self.left = times
        self.models: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds/1/metrics"):
            self.models.append(request.url.params["model"])
            if self.left:
                self.left -= 1
                self._at.admin.post("/runs/demo/rewind", json={"round": 0}).raise_for_status()
        return super().handle_request(request)


def test_a_score_that_comes_too_late_is_dropped_and_the_next_model_scored(at: Live, tmp_path: Path) -> None:
    create(at, partition="niid1:2:0.5", weighting={"kind": "sizes"}, stop_when={"patience": 2})
    network = _RewindsBeforeAScore(at, times=6)  # more than a fault of this site is tried again
    judge = _judge(at, tmp_path, transport=network)
    crew = [*(worker(at, tmp_path, f"site-{number}", partition="run") for number in range(2)), judge]
    assert [member.join() for member in crew] == [0, 0, 0]
    assert network.left == 0
    assert judge.log.count("demo round 1: the score was not taken") == 6
    assert "not taking part" not in judge.log
    scored = [row["scored_model"] for row in _rounds(at) if row["status"] == "completed"]
    assert network.models[-1] == scored[0]


def test_a_site_without_examples_is_no_part_of_the_run(at: Live, tmp_path: Path) -> None:
    task = "tests.helpers.own_tasks:Faulty"
    create(at, task=task, task_options={"fault": "empty"})
    member = worker(at, tmp_path, "site", task=task)
    assert member.join() == 4
    assert "this site has no examples to train on" in member.log
    assert _enrolment(at, "site")["reason"] == Fault(FaultCode.NO_EXAMPLES).sentence


class _CutOnce(httpx.BaseTransport):
    """A network that breaks in the middle of the first upload."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.cut = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT" and request.url.path.endswith("/update") and not self.cut:
            self.cut = True
            raise httpx.WriteError("broken pipe", request=request)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


def test_an_upload_that_broke_is_sent_again_without_training_again(at: Live, tmp_path: Path) -> None:
    create(at, min_clients=1, rounds=2)
    member = worker(at, tmp_path, "site", transport=_CutOnce())
    assert member.join() == 0
    assert "did not arrive" in member.log
    assert member.log.count("demo round 1: trained already, sending the finished update again") == 1
    assert [row["status"] for row in _rounds(at)] == ["completed", "completed"]


class _DeafOnce(httpx.BaseTransport):
    """The first registration is done, and its answer lost."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        if request.method == "POST" and request.url.path.endswith("/clients") and not self.lost:
            self.lost = True
            response.close()
            raise httpx.ReadError("connection reset", request=request)
        return response

    def close(self) -> None:
        self._inner.close()


def test_a_registration_whose_answer_was_lost_is_repeated(at: Live, tmp_path: Path) -> None:
    create(at, min_clients=1, rounds=1)
    join = at.admin.post("/join-tokens", json={"uses": 1}).json()["token"]
    assert worker(at, tmp_path, "site", transport=_DeafOnce(), join_token=join).join() == 0
    assert [row["client"] for row in at.admin.get("/clients").json()] == ["site"]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"join_token": "wrong-join-token-of-the-tests"}, 3, "does not accept the join code"),
        ({"join_token": None}, 2, "no join code is given"),
        ({"url": None}, 2, "no coordinator is given"),
        ({"device": "cuda:99"}, 2, "--device cuda:99: this machine has"),
    ],
)
def test_a_start_that_cannot_work_ends_with_one_sentence(
    at: Live, tmp_path: Path, more: dict[str, Any], code: int, words: str
) -> None:
    member = worker(at, tmp_path, "site", **more)
    assert member.join() == code
    assert words in member.log
    assert len(member.log.splitlines()) <= 3  # who it is, its identity, and the sentence


def test_a_name_that_is_in_use_ends_the_start(at: Live, tmp_path: Path) -> None:
    at.site("site")
    member = worker(at, tmp_path, "site")
    assert member.join() == 3
    assert "site" in member.log


def test_another_name_than_the_state_folders_is_refused(at: Live, tmp_path: Path) -> None:
    create(at, rounds=1, min_clients=1)
    assert worker(at, tmp_path, "site").join() == 0
    member = Member(settings(at, tmp_path, "other", state=tmp_path / "site")).start()
    assert member.join() == 2
    assert "belongs to the client site" in member.log


def test_data_that_are_not_there_end_the_worker_with_what_was_looked_for(at: Live, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    task = "fashion-mnist"
    create(at, task=task, min_clients=1)
    member = worker(at, tmp_path, "site", task=task, data=empty)
    assert member.join() == 2
    assert str(empty) in member.log

"""A run's assistant, by hand: what it is sent and nobody else, answers that lie, rounds without one."""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from feddisco.admin import AdminClient, make_run_request
from feddisco.cards import fetch_card
from feddisco.record import write_record
from feddisco.replay import replay_round
from server.database.join_tokens import ClientGrant
from server.database.session import make_engine
from server.database.store import Store
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from tests.helpers.live_coordinator import (
    ADMIN,
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    settings_for,
    sha256,
    tensors,
    upload_headers,
)

DISTILS: dict[str, Any] = {
    "distillation": {},
    "weighting": {"kind": "sizes"},
    "min_clients": 2,
    "rounds": 2,
    "evaluate_every": 0,
}
LEARNS: dict[str, Any] = {**DISTILS, "distillation": None, "weighting": {"kind": "fedlaw"}}
MEAN = 1.75
"""Of updates of ones and twos, by sizes 10 and 30."""


def answer(client: ManualClient, body: bytes, number: int = 1, **report: Any) -> httpx.Response:
    told = {"attempt": 1, "steps": 9, "chosen": 5, "before": 0.5, "after": 0.25, **report}
    return client.http.put(
        f"/runs/demo/rounds/{number}/assistance", params=told, content=body, headers=upload_headers(body)
    )


def create(at: Live, name: str = "demo", **config: Any) -> ManualClient:
    """The run, and its assistant, which has registered before."""
    judge = at.site("judge")
    at.create(name, **config)
    return judge


def enrol(at: Live, judge: ManualClient) -> list[ManualClient]:
    trainers = [at.site(name) for name in ("north", "south")]
    assert judge.enrol("demo", 5, role="evaluator").status_code == 200
    for client, size in zip(trainers, (10, 30), strict=True):
        assert client.enrol("demo", size).status_code == 200
    return trainers


def upload(trainers: list[ManualClient], number: int = 1) -> list[str]:
    """Ones and twos; their digests."""
    bodies = [file_of(1.0), file_of(2.0)]
    for client, body in zip(trainers, bodies, strict=True):
        client.until("train")
        assert client.upload("demo", number, body).status_code == 200
    return [sha256(body) for body in bodies]


def completed(at: Live, number: int = 1) -> dict[str, Any]:
    at.wait_for(lambda: at.run()["completed_rounds"] >= number)
    found: dict[str, Any] = at.admin.get(f"/runs/demo/rounds/{number}").json()
    return found


def values(at: Live, digest: str) -> float:
    body = at.admin.get(f"/blobs/{digest}").content
    return float(np.frombuffer(body[-17 * 4 :], dtype=np.float32).mean())


def test_it_alone_is_sent_single_updates_and_only_while_it_is_asked(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant="judge", **DISTILS)
        trainers = enrol(at, judge)
        assert answer(judge, file_of(3.0)).status_code == 404, "nothing is asked yet"
        updates = upload(trainers)
        work = judge.until("assist")
        assert [each["update"] for each in work["updates"]] == updates
        assert [each["share"] for each in work["updates"]] == [0.5, 0.5]
        assert (work["work"], work["round"], work["attempt"]) == ("distil", 1, 1)
        assert values(at, work["model"]) == pytest.approx(MEAN)
        page = at.http().get(f"{at.url}/runs/demo").text
        assert "judge, the run&#39;s assistant, is sent every single update" in page
        assert "The round waits for judge, its assistant, until" in page
        waits = at.run()["waiting_for"]
        assert waits.startswith(
            "round 1: 2 updates are being aggregated; judge, the run's assistant, is asked"
        )
        told = trainers[0].http.get("/runs/demo").json()["waiting_for"]
        assert "; the run's assistant is asked until" in told
        assert "judge" not in told
        for digest in (*updates, work["model"]):
            assert judge.http.get(f"/blobs/{digest}").status_code == 200
            assert trainers[0].http.get(f"/blobs/{digest}").status_code == 403
        assert answer(trainers[0], file_of(3.0)).status_code == 403

        sent = file_of(3.0)
        assert answer(judge, sent, left_out=[1]).status_code == 204
        found = completed(at)
        assert answer(judge, sent).status_code == 204, "its 204 may be lost"
        assert answer(judge, file_of(4.0)).status_code == 409
        assert values(at, found["model"]) == 3.0
        assert found["assistance"]["outcome"] == "used"
        assert [found["assistance"][name] for name in ("steps", "chosen", "after")] == [9, 5, 0.25]
        assert [row["weight"] for row in found["ledger"]] == [0.25, 0.75]
        assert found["assistance"]["left_out"] == [1]
        told = at.http().get(f"{at.url}/runs/demo/rounds/1").text
        assert "without south, whose models say nothing that is a finite number" in told
        assert "the divergence from the clients&#39; models together fell from 0.5 to 0.25" in told
        for digest in updates:
            assert judge.http.get(f"/blobs/{digest}").status_code == 403
        assert trainers[0].http.get("/runs/demo/rounds/1").json()["assistance"] is None

        referenced = at.coordinator.store.referenced_blobs()
        assert work["model"] not in referenced, "the average is not kept"
        assert sha256(sent) in referenced
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 1)[0]


def test_an_answer_that_lies_is_refused_and_another_one_taken(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant="judge", max_norm=20.0, **DISTILS)
        trainers = enrol(at, judge)
        upload(trainers)
        judge.until("assist")
        lies = {
            "one tensor is missing": save({k: v for k, v in tensors(1.0).items() if k != "scale"}),
            "one is none of the model's": save({**tensors(1.0), "more": np.ones(1, dtype=np.float32)}),
            "numbers that are none": file_of(math.nan),
            "too far away": file_of(1e6),
            "no safetensors": b"nothing of the kind",
        }
        for what, body in lies.items():
            refused = answer(judge, body)
            assert refused.status_code == 422, (what, refused.text)
        assert answer(judge, file_of(1.0), attempt=2).status_code == 404
        assert answer(judge, file_of(2.5)).status_code == 204
        assert values(at, completed(at)["model"]) == 2.5


def test_a_restarted_coordinator_asks_the_same_and_deadlines_move(database_url: str, tmp_path: Path) -> None:
    """The answer that came before is used, too; the deadline is a minute away at least."""
    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant={"client": "judge", "deadline_seconds": 30}, **DISTILS)
        trainers = enrol(at, judge)
        upload(trainers)
        before = judge.until("assist")
        tokens = {c.name: c.http.headers["Authorization"].removeprefix("Bearer ") for c in (*trainers, judge)}
    with live(database_url, tmp_path / "data") as at:
        judge = ManualClient(at.http(tokens["judge"]), "judge")
        after = judge.until("assist")
        moved, was = (dt.datetime.fromisoformat(each.pop("deadline_at")) for each in (after, before))
        assert after == before
        assert moved > was
        assert answer(judge, file_of(3.0)).status_code == 204
        assert values(at, completed(at)["model"]) == 3.0


def test_a_deadline_ends_the_wait_and_a_late_answer_is_refused(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant={"client": "judge", "deadline_seconds": 1.0}, **DISTILS)
        trainers = enrolled(at, (10, 30))
        upload(trainers)
        at.wait_for(lambda: "judge, the run's assistant, is asked until" in at.run()["waiting_for"])
        assert at.run()["waiting_for"].endswith(", and takes no part in the run yet")
        assert judge.enrol("demo", 5, role="evaluator").status_code == 200
        found = completed(at)
        assert found["assistance"]["outcome"] == "missed"
        assert found["assistance"]["reason"].startswith("no answer came until ")
        assert values(at, found["model"]) == pytest.approx(MEAN)
        assert answer(judge, file_of(3.0)).status_code == 409
        (event,) = [event for event in at.events() if event["kind"] == "assistance_missed"]
        assert event["round"] == 1
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 1)[0]


def test_nobody_waits_for_one_that_has_left_or_says_that_it_cannot(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant="judge", **DISTILS)
        trainers = enrol(at, judge)
        upload(trainers)
        judge.until("assist")
        fault = {"attempt": 1, "code": "no-examples", "reason": "There is nothing here."}
        path = "/runs/demo/rounds/1/assistance/failure"
        assert trainers[0].http.post(path, json=fault).status_code == 403
        assert judge.http.post(path, json=fault).status_code == 204
        assert judge.http.post(path, json=fault).status_code == 204
        assert completed(at)["assistance"]["reason"] == "There is nothing here."
        assert judge.http.delete("/runs/demo/enrolments/me").status_code == 204
        upload(trainers, 2)
        assert completed(at, 2)["assistance"]["reason"] == "it has left the run"
        with AdminClient(at.url, token=ADMIN) as admin:
            card = fetch_card(admin, "demo")
        assert "| distillation of each average | feddf, steps 10000" in card
        assert "which was sent every single update" in card
        assert "was missed in this round" in card
        assert "judge" not in card


def test_an_assistant_of_several_runs_is_asked_by_the_order_of_the_questions(
    database_url: str, tmp_path: Path
) -> None:
    """By the age of the runs, the first two would take turns, and the third would never have an answer."""
    with live(database_url, tmp_path / "data") as at:
        judge, names = at.site("judge"), ("first", "second", "third")
        trainers = [at.site(name) for name in ("north", "south")]
        for name in names:
            at.create(name, assistant="judge", **DISTILS | {"rounds": 3})
            assert judge.enrol(name, 5, role="evaluator").status_code == 200
            for client in trainers:
                assert client.enrol(name, 10).status_code == 200

        def upload_all(run: str, number: int) -> None:
            at.wait_for(lambda: at.run(run)["completed_rounds"] == number - 1)
            for client in trainers:
                assert client.upload(run, number, file_of(1.0)).status_code == 200
            at.wait_for(lambda: "is asked until" in (at.run(run)["waiting_for"] or ""))

        for name in names:
            upload_all(name, 1)
        served = []
        for _ in range(4):
            work = judge.until("assist")
            run, number = work["run"], work["round"]
            served.append((run, number))
            address, body = f"/runs/{run}/rounds/{number}/assistance", file_of(3.0)
            told = {"attempt": 1, "steps": 9, "chosen": 5}
            sent = judge.http.put(address, params=told, content=body, headers=upload_headers(body))
            assert sent.status_code == 204
            upload_all(run, number + 1)
        assert served == [("first", 1), ("second", 1), ("third", 1), ("first", 2)]


def test_learned_weights_are_those_of_the_answer(database_url: str, tmp_path: Path) -> None:
    """softmax(0, log 3) are 1/4 and 3/4, gamma is e^0.1; the learning begins with the sizes."""

    def learned(*numbers: float) -> bytes:
        return save({"learned/numbers": np.array(numbers, dtype=np.float64)})

    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant={"client": "judge", "deadline_seconds": 20}, **LEARNS)
        trainers = enrol(at, judge)
        updates = upload(trainers)
        work = judge.until("assist")
        assert (work["work"], work["model"]) == ("learn", None)
        assert [each["update"] for each in work["updates"]] == updates
        assert work["begin"] == pytest.approx([math.log(0.25), math.log(0.75), 0.0])
        for lie in (learned(0.0, 0.0), learned(0.0, math.inf, 0.0), learned(0, 101, 0), learned(0, 0, 4)):
            assert answer(judge, lie).status_code == 422
        assert answer(judge, learned(0.0, math.log(3.0), 0.1)).status_code == 204
        found = completed(at)
        assert [row["weight"] for row in found["ledger"]] == pytest.approx([0.25, 0.75])
        assert found["adjustment"]["shrink"] == pytest.approx(math.exp(0.1))
        assert values(at, found["model"]) == pytest.approx(MEAN * math.exp(0.1))
        assert judge.http.delete("/runs/demo/enrolments/me").status_code == 204
        upload(trainers, 2)
        missed = completed(at, 2)
        assert missed["adjustment"] is None
        with AdminClient(at.url, token=ADMIN) as admin:
            write_record(admin, "demo", tmp_path / "record.json")
        first, second = json.loads((tmp_path / "record.json").read_text())["rounds"]
        assert (first["assistance"]["outcome"], second["assistance"]["outcome"]) == ("used", "missed")
        assert first["adjustment"] == found["adjustment"]
        assert [row["weight"] for row in missed["ledger"]] == pytest.approx([0.25, 0.75])
    for number in (1, 2):
        assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", number)[0]


def test_numbers_are_not_used_for_other_updates_than_they_were_learned_of(
    database_url: str, tmp_path: Path
) -> None:
    """One was lost when the assistant was asked, and is sent again before it answers."""
    with live(database_url, tmp_path / "data", lost_update_seconds=0.2) as at:
        judge = create(at, assistant="judge", **{**LEARNS, "min_clients": 3, "quorum": 2, "rounds": 1})
        trainers = enrol(at, judge)
        late = at.site("east")
        assert late.enrol("demo", 40).status_code == 200
        late.until("train")
        assert late.upload("demo", 1, file_of(3.0)).status_code == 200
        at.coordinator.blobs.path(sha256(file_of(3.0))).unlink()
        upload(trainers)
        assert len(judge.until("assist")["updates"]) == 2
        assert late.upload("demo", 1, file_of(3.0)).status_code == 200
        numbers = save({"learned/numbers": np.zeros(3)})
        assert answer(judge, numbers).status_code == 204
        found = completed(at)
        assert found["assistance"]["reason"] == "an update that it was not asked about has come back since"
        assert sorted(row["weight"] for row in found["ledger"]) == pytest.approx([0.125, 0.375, 0.5])


def test_an_answer_that_was_lost_is_not_used(database_url: str, tmp_path: Path) -> None:
    settings = settings_for(database_url, tmp_path / "data")
    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant="judge", **DISTILS)
        trainers = enrol(at, judge)
        upload(trainers)
        judge.until("assist")
        now = at.coordinator.clock()
    engine = make_engine(settings.database)
    report = {"steps": 9, "chosen": 5, "before": None, "after": None}
    assert Store(engine).add_assistance(("demo", 1, 1), "judge", "0" * 64, 100, report, now)
    engine.dispose()
    with live(database_url, tmp_path / "data") as at:
        found = completed(at)
        assert found["assistance"]["reason"] == "its stored answer is missing"
        assert values(at, found["model"]) == pytest.approx(MEAN)


def test_pages_say_what_became_of_a_question(database_url: str, tmp_path: Path) -> None:
    def told(number: int) -> str:
        return at.http().get(f"{at.url}/runs/demo/rounds/{number}").text

    with live(database_url, tmp_path / "data") as at:
        judge = create(at, assistant="judge", **{**DISTILS, "rounds": 3})
        trainers = enrol(at, judge)
        for number, report in enumerate(({"chosen": 0}, {"steps": 0, "chosen": 0}), start=1):
            upload(trainers, number)
            judge.until("assist")
            assert answer(judge, file_of(3.0), number, **report).status_code == 204
            completed(at, number)
        assert "none of them brought it nearer to the clients&#39; models together" in told(1)
        assert "left the average as it was" in told(2)
        upload(trainers, 3)
        judge.until("assist")
        assert at.admin.post("/runs/demo/stop", json={"reason": "enough"}).status_code in (200, 204)
        assert "was asked, and the round was given up before it was made" in told(3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"distillation": None}, "no step of this run needs data"),
        ({"weighting": {"kind": "fedlaw"}}, "it does one step a round"),
        ({"shadow": ["uniform"], "evaluate_every": 1}, "its step for each shadow"),
        (
            {"participants": {"trainers": "anyone", "evaluators": ["other"]}},
            "judge is not among participants",
        ),
        ({"assistant": None}, "Name an evaluator that is to be sent them"),
        ({"secure": {}, "min_clients": 3}, "of which nobody sees one with secure sums"),
    ],
)
def test_what_an_assistant_cannot_go_with_is_refused(
    fields: dict[str, Any], said: str, database_url: str, tmp_path: Path
) -> None:
    with (
        live(database_url, tmp_path / "data") as at,
        pytest.raises(AssertionError, match=said),
    ):
        create(at, **{"assistant": "judge", **DISTILS, **fields})


def test_nobody_becomes_the_assistant_by_its_name(database_url: str, tmp_path: Path) -> None:
    """It has registered before the run is created, or a join code is for it."""
    with live(database_url, tmp_path / "data") as at:
        for name in ("judge", "admin"):
            with pytest.raises(AssertionError, match="anybody could register under that name"):
                at.create(assistant=name, **DISTILS)
        kept = ClientGrant(role="evaluator", name="judge")
        store, now = at.coordinator.store, at.coordinator.clock()
        store.add_join_token("0" * 64, 1, None, now, grant=kept)
        at.create(assistant="judge", **DISTILS)
        with pytest.raises(AssertionError, match="is kept"):
            at.site("judge")


def test_a_task_without_logits_is_refused_whoever_made_its_first_model(
    database_url: str, tmp_path: Path
) -> None:
    """By the coordinator with uploaded weights, and by the command, where code of one's own is."""
    fields = {"name": "demo", "assistant": "judge", **DISTILS}
    with live(database_url, tmp_path / "data") as at:
        at.site("judge")
        with pytest.raises(AssertionError, match="'facebook-comments' are no logits of its classes"):
            at.create(**{**fields, "task": "facebook-comments", "classes": None})
        own = RunConfig.model_validate(fields | {"task": "shared.tasks.facebook_comments:TASK"})
        with (
            AdminClient(at.url, token=ADMIN) as admin,
            pytest.raises(InvalidConfiguration, match="no logits"),
        ):
            make_run_request(admin, own)


def test_an_erased_assistant_has_no_name_any_more_and_said_nothing(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        evaluators = {"trainers": "anyone", "evaluators": ["judge"]}
        judge = create(at, "other", assistant="judge", participants=evaluators, **DISTILS)
        at.create(assistant="judge", **DISTILS)
        trainers = enrol(at, judge)
        upload(trainers)
        judge.until("assist")
        fault = {"attempt": 1, "code": "no-examples", "reason": "Dr Miller took them home."}
        assert judge.http.post("/runs/demo/rounds/1/assistance/failure", json=fault).status_code == 204
        assert completed(at)["assistance"]["reason"] == "Dr Miller took them home."
        now, store = at.coordinator.clock(), at.coordinator.store
        store.revoke("judge", "admin", now)
        name = store.erase_client("judge", "admin", now)
        assert at.run()["config"]["assistant"]["client"] == name
        assert at.admin.get("/runs/demo/rounds/1").json()["assistance"]["reason"] == "(erased)"
        stored = store.aggregation_input("demo", 1, 1).assistance
        assert stored is not None
        assert stored.fault == "(erased)"
        assert "Miller" not in str(at.events())
        assert at.run("other")["config"]["participants"]["evaluators"] == [name], "it was never in it"
        assert "judge" not in str(at.run("other"))

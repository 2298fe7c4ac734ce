"""A client that withdraws: what goes, what stays, and that no backup brings it back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from feddisco.backup import back_up, restore
from feddisco.replay import replay_round
from server.clock import utc_now
from server.database import erasure
from server.database.session import make_engine
from server.database.tables import metadata
from server.removals import FILE, Removals
from server.runs.verification import verify
from server.web.security import hash_token
from shared.json_lines import FileLines
from shared.problems import NotFound
from tests.helpers.live_coordinator import ADMIN, Live, ManualClient, file_of, live, settings_for, sha256

NAME = "south-hospital"


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def train(at: Live, rounds: int = 2) -> tuple[ManualClient, ManualClient]:
    """Two sites named in the run's participants; in the first attempt one fails, with words of its own."""
    participants = {"trainers": [NAME, "north"], "evaluators": [NAME, "north", "judge"]}
    at.create(min_clients=2, rounds=rounds, quorum=2, weighting={"kind": "sizes"}, participants=participants)
    south, north = at.site(NAME), at.site("north")
    assert south.enrol("demo", 30, index=0, device="cuda").status_code == 200
    assert north.enrol("demo", 10, index=1).status_code == 200
    report = {"attempt": 1, "code": "out-of-memory", "reason": "no memory on ward 7"}
    assert south.http.post("/runs/demo/rounds/1/failure", json=report).status_code == 204
    assert north.upload("demo", 1, file_of(9.0)).status_code == 200
    return south, north


def upload_round(number: int, attempt: int, south: ManualClient, north: ManualClient) -> set[str]:
    bodies = file_of(10.0 * number), file_of(10.0 * number + 4)
    for site, body in zip((south, north), bodies, strict=True):
        assert site.upload("demo", number, body, attempt=attempt).status_code == 200
    return {sha256(bodies[0])}


def everything(at: Live) -> str:
    """All rows of the database but the audit log's as one text."""
    with at.coordinator.store.engine.connect() as connection:
        return json.dumps(
            [
                [str(value) for row in connection.execute(sa.select(table)) for value in row]
                for table in metadata.sorted_tables
                if table.name != "audit_log"  # it keeps who was there: names, none of their words
            ]
        )


def make_old(at: Live) -> None:
    for path in at.coordinator.blobs.folder.glob("[0-9a-f][0-9a-f]/*"):
        os.utime(path, (time.time() - 700,) * 2)


@contextmanager
def read_past(at: Live) -> Iterator[str]:
    """What an event stream of the run says until the run's end; it stays open."""
    told = b""
    with at.admin.stream("GET", "/runs/demo/events?after=0") as stream:
        pieces = stream.iter_bytes()
        while b"run_completed" not in told:
            told += next(pieces)
        yield told.decode()


def ledger(at: Live, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = at.admin.get(f"/runs/demo/rounds/{number}").json()["ledger"]
    return found


def test_name_words_and_files_go_and_numbers_stay_nameless(at: Live) -> None:
    south, north = train(at)
    at.wait_for(lambda: at.run()["current_round"]["attempt"] == 2)
    own = upload_round(1, 2, south, north)
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    own |= upload_round(2, 1, south, north)
    at.wait_for(lambda: at.run()["status"] == "completed")
    before = ledger(at, 1)
    score = {"loss": 1.0, "accuracy": 0.5, "examples": 30, "per_category": {"cat": 0.25}}
    assert south.http.put("/runs/demo/rounds/1/metrics", json=score).status_code < 300
    assert NAME in everything(at)
    assert "ward 7" in everything(at)
    make_old(at)
    addresses = [f"/blobs/{digest}" for digest in own]
    assert {at.admin.get(address).status_code for address in addresses} == {200}

    with read_past(at) as told:  # as an open page does, which has the run's past kept
        assert NAME in told
        answer = at.admin.post(f"/clients/{NAME}/erase")
        with read_past(at) as told_now:
            assert "erased-1" in told_now
            assert NAME not in told_now
            assert "ward 7" not in told_now
    assert {at.admin.get(address).status_code for address in addresses} == {404}
    assert (answer.status_code, answer.json()) == (200, {"name": "erased-1", "waiting_for": []}), answer.text
    after = everything(at)
    assert NAME not in after
    assert "ward 7" not in after
    assert "cuda" not in after
    assert not any(at.coordinator.blobs.exists(digest) for digest in own)
    numbers = ("index", "examples", "weight", "size_weight", "update", "status")
    assert [[row[key] for key in numbers] for row in ledger(at, 1)] == [
        [row[key] for key in numbers] for row in before
    ]
    assert [row["client"] for row in ledger(at, 1)] == ["erased-1", "north"]
    assert at.run()["config"]["participants"]["trainers"] == ["erased-1", "north"]
    (evaluation,) = at.admin.get("/runs/demo/evaluations").json()
    assert (evaluation["client"], evaluation["accuracy"], evaluation["per_category"]) == ("erased-1", 0.5, {})
    assert [(c["client"], c["revoked_at"] is None) for c in at.admin.get("/clients").json()] == [
        ("erased-1", False),
        ("north", True),
    ]
    assert south.http.get("/work").status_code == 401
    assert verify(at.coordinator.store, at.coordinator.blobs).faults == ()
    with pytest.raises(NotFound, match="update of erased-1 in round 1 of demo was erased"):
        replay_round(at.coordinator.settings, "demo", 1)
    page = at.admin.get(f"{at.url}/runs/demo").text
    assert "erased-1" in page
    assert NAME not in page
    assert at.admin.post(f"/clients/{NAME}/erase").status_code == 404
    assert at.site(NAME).name == NAME, "who comes back is somebody else"


def test_an_update_that_is_being_counted_is_waited_for(at: Live) -> None:
    south, north = train(at)
    at.wait_for(lambda: at.run()["current_round"]["attempt"] == 2)
    body = file_of(10.0)
    assert south.upload("demo", 1, body, attempt=2).status_code == 200
    answer = at.admin.post(f"/clients/{NAME}/erase").json()
    assert answer == {"name": None, "waiting_for": ["demo, round 1"]}
    assert south.http.get("/work").status_code == 401, "it is revoked at once"
    at.coordinator.removal.erase_pending()
    assert NAME in everything(at)
    assert north.upload("demo", 1, file_of(14.0), attempt=2).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    make_old(at)
    at.coordinator.removal.erase_pending()
    assert NAME not in everything(at)
    assert not at.coordinator.blobs.exists(sha256(body))
    assert [row["client"] for row in ledger(at, 1)] == ["erased-1", "north"]


def test_an_erasure_killed_after_its_note_is_ended_by_the_next_start(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        site = at.site(NAME)
        token = site.http.headers["Authorization"].removeprefix("Bearer ")
        Removals(FileLines(at.coordinator.settings.data_folder / FILE)).add_client(
            hash_token(token), "admin", utc_now()
        )
    with live(database_url, tmp_path / "data") as at:
        assert [client["client"] for client in at.admin.get("/clients").json()] == ["erased-1"]
        assert at.http(token).get("/work").status_code == 401
        (event,) = [event for event in at.events(None) if event["kind"] == "client_erased"]
        assert (event["client"], event["actor"]) == ("erased-1", "admin")


def test_an_erasure_in_the_background_ends_the_token_at_once(at: Live) -> None:
    """It was asked for when the database refused, and is made up for later."""
    site = at.site(NAME)
    token = site.http.headers["Authorization"].removeprefix("Bearer ")
    assert site.http.get("/work").status_code == 200, "whose it is, is remembered"
    at.coordinator.removal.removals.add_client(hash_token(token), "admin", utc_now())
    at.coordinator.removal.erase_pending()
    assert site.http.get("/work").status_code == 401


def test_a_restored_backup_does_not_bring_it_back(database_url: str, tmp_path: Path) -> None:
    settings = settings_for(database_url, tmp_path / "data")
    with live(database_url, tmp_path / "data") as at:
        south, north = train(at, rounds=1)
        at.wait_for(lambda: at.run()["current_round"]["attempt"] == 2)
        own = upload_round(1, 2, south, north)
        at.wait_for(lambda: at.run()["status"] == "completed")
        back_up(settings, tmp_path / "backup")
        assert at.admin.post(f"/clients/{NAME}/erase").json()["name"] == "erased-1"
    engine = make_engine(database_url)
    with engine.begin() as connection:  # as if it had been off for a while
        connection.execute(metadata.tables["installation"].update().values(alive_at=None))
    engine.dispose()
    restore(settings, tmp_path / "backup", replace=True, later="none", with_deleted=True)
    with live(database_url, tmp_path / "data") as at:
        assert NAME not in everything(at)
        make_old(at)
        at.coordinator.runner.collect_unneeded()
        assert not any(at.coordinator.blobs.exists(digest) for digest in own)


def test_words_of_one_client_change_nothing_that_others_are_called(at: Live) -> None:
    """Any client can choose its words: they may be a part of others' names, or of the coordinator's words."""
    others = ["a-clinic", "b-clinic", "anyone"]
    participants = {"trainers": [*others, "west"], "evaluators": "anyone"}
    at.create("demo", participants=participants, weighting={"kind": "sizes"}, min_clients=3)
    at.create("second", participants="anyone", min_clients=3)
    sites = {name: at.site(name) for name in [*others, "west"]}
    for words in ("clinic", "a", "anyone", "left at its own request"):
        said = {"code": "no-data", "reason": words}
        assert sites["west"].http.post("/runs/demo/decline", json=said).status_code == 204
    for name in ("a-clinic", "west"):
        assert sites[name].enrol("second", 10).status_code == 200
        assert sites[name].http.delete("/runs/second/enrolments/me").status_code == 204
    assert at.admin.post("/clients/west/erase").status_code == 200
    config = at.run()["config"]["participants"]
    assert config["trainers"] == [*others, "erased-1"]
    assert config["evaluators"] == "anyone"
    assert sites["b-clinic"].until("enrol")["run"] == "demo"
    rows = {row["client"]: row["reason"] for row in at.run("second")["enrolments"]}
    assert rows == {"a-clinic": "left at its own request", "erased-1": None}
    assert at.admin.post("/clients/anyone/erase").status_code == 200
    assert at.run()["config"]["participants"]["evaluators"] == "anyone", "a word of ours"
    assert at.run("second")["config"]["participants"]["trainers"] == "anyone"


def test_a_configuration_that_cannot_be_read_costs_its_own_run_only(at: Live) -> None:
    at.create("broken", min_clients=2)
    at.create("sound", min_clients=2)
    runs = metadata.tables["runs"]
    with at.coordinator.store.engine.begin() as connection:
        broken = {"config": {"name": "?"}, "revision": runs.c.revision + 1, "version": runs.c.version + 1}
        connection.execute(runs.update().where(runs.c.run == "broken").values(broken))
    assert at.site("north").until("enrol")["run"] == "sound"


@pytest.mark.parametrize("metric", ["macro_f1", "sensitivity:cat"])
def test_an_erased_evaluator_leaves_what_chose_the_model_and_no_other_score(at: Live, metric: str) -> None:
    at.create(
        min_clients=1, rounds=3, quorum=1, weighting={"kind": "sizes"}, keep="best",
        metrics=["macro_f1", "sensitivity:cat"], stop_when={"metric": metric, "patience": 3},
        shadow=[{"kind": "uniform"}],
    )  # fmt: skip
    judges = [at.site(name) for name in ("judge-1", "judge-2", "judge-3")]
    for judge in judges:
        assert judge.enrol("demo", 30, role="evaluator").status_code == 200
    trainer = at.site("north")
    assert trainer.enrol("demo", 10, index=0).status_code == 200
    for number, value in ((1, 0.2), (2, 0.9), (3, 0.4)):
        assert trainer.until("train")["round"] == number
        assert trainer.upload("demo", number, file_of(float(number))).status_code == 200
        at.wait_for(lambda count=number: bool(at.run()["completed_rounds"] >= count))  # type: ignore[misc]
        extra = {"macro_f1": value, "sensitivity:cat": value, "sensitivity:dog": 0.125}
        score = {
            "loss": 1.0, "accuracy": 0.5, "examples": 30, "per_category": {"cat": 0.25}, "extra": extra,
            "confusion": [[0.25, 0.75], [0.5, 0.5]],
            "shadows": {"uniform": {"loss": 2.0, "accuracy": 0.25, "extra": {"sensitivity:cat": 0.125}}},
        }  # fmt: skip
        for judge in judges:
            assert judge.http.put(f"/runs/demo/rounds/{number}/metrics", json=score).status_code == 204
    at.wait_for(lambda: at.run()["status"] == "completed")
    model = at.run()["model"]
    assert at.admin.post("/clients/judge-1/erase").status_code == 200
    assert at.run()["model"] == model
    scores = [each for each in at.admin.get("/runs/demo/evaluations").json() if each["client"] == "erased-1"]
    assert [each["extra"] for each in scores if each["round"] == 2] == [{metric: 0.9}]
    for each in scores:
        assert (each["per_category"], each["confusion"], each["accuracy"]) == ({}, None, 0.5)
        assert each["shadows"]["uniform"] == {"loss": 2.0, "accuracy": 0.25, "extra": {}}


def test_of_each_column_it_is_decided_whether_it_goes() -> None:
    """A new column of what a client tells must be added here, and to what is erased if it has to go."""
    goes = {
        "enrolments": {"device", "examples", *erasure._TOLD_AT_ENROLMENT},
        "participants": set(erasure._TOLD_IN_A_ROUND),
        "evaluations": {"extra", "shadows", *erasure._SCORES},
    }
    stays = {
        "enrolments": {"run", "client", "role", "status", "index", "enrolled_at"},
        "participants": {
            *(
                "run",
                "round",
                "attempt",
                "client",
                "index",
                "status",
                "examples",
                "relative_size",
                "taken_at",
            ),
            *("update", "bytes", "steps", "uploaded_at", "included", "size_share", "discrepancy"),
            *("discrepancy_share", "score", "weight", "size_weight", "uncapped_weight", "norm"),
            *("largest_entry", "cosine", "share", "details", "answered"),
            *("start_model", "start_number", "started_from"),
        },
        "evaluations": {"run", "round", "client", "loss", "accuracy", "examples", "at"},
    }
    for table, gone in goes.items():
        assert {column.name for column in metadata.tables[table].c} == gone | stays[table], table


def test_a_name_inside_other_words_is_left_alone(at: Live) -> None:
    for name in ("site", "site-2", "site.b"):
        at.site(name)
    at.create("visit", min_clients=3)
    at.admin.post(
        "/runs/visit/stop", json={"reason": "site told us. Not site-2, not site.b, not onsite; site."}
    )
    with at.coordinator.store.engine.begin() as connection:
        connection.execute(
            metadata.tables["enrolments"].insert().values(
                run="visit", client="site", role="trainer", status="left", index=None, examples=5, device="",
                enrolled_at=utc_now(),
            )
        )  # fmt: skip
    assert at.admin.post("/clients/site/erase").json()["name"] == "erased-1"
    told = "erased-1 told us. Not site-2, not site.b, not onsite; erased-1."
    assert at.run("visit")["reason"] == told
    (event,) = [event for event in at.events("visit") if event["kind"] == "run_stopped"]
    assert event["detail"]["reason"] == told
    names = [client["client"] for client in at.admin.get("/clients").json()]
    assert names == ["erased-1", "site-2", "site.b"]


def test_an_erasure_that_waits_is_noted_once(at: Live, tmp_path: Path) -> None:
    train(at)
    assert at.admin.post(f"/clients/{NAME}/erase").status_code < 300
    path = tmp_path / "data" / "revocations.jsonl"
    noted = path.read_bytes()
    for _ in range(3):
        at.coordinator.removal.erase_pending()
    assert path.read_bytes() == noted


def test_clients_that_are_erased_at_the_same_moment_get_names_of_their_own(at: Live) -> None:
    for round in range(3):
        names = [f"site-{round}-{number}" for number in range(4)]
        for name in names:
            at.site(name)
        barrier = threading.Barrier(8)

        def erase(name: str, barrier: threading.Barrier = barrier) -> int:
            with at.http(ADMIN) as http:
                barrier.wait(10)
                return http.post(f"/clients/{name}/erase").status_code

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(erase, [*names, *names]))
        assert all(sorted(pair)[0] == 200 for pair in zip(answers[:4], answers[4:], strict=True)), answers
        assert set(answers) <= {200, 404}
    listed = [client["client"] for client in at.admin.get("/clients").json()]
    assert sorted(listed) == sorted(f"erased-{number}" for number in range(1, 13))

"""Health, metrics, the list of calls, and how faults are told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.api.uploads import MEDIA_TYPES
from server.background import repeat
from server.database.migrations import upgrade
from server.database.session import make_engine, reading
from server.monitoring.readiness import LIMIT, Readiness
from server.threads import Threads
from shared.problems import StorageUnavailable
from shared.versions import VERSION
from tests.helpers.live_coordinator import JOIN, Live, enrolled, file_of, live, sha256, upload_headers


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def test_health_and_readiness(at: Live) -> None:
    http = at.http()
    assert http.get(f"{at.url}/healthz").json() == {"status": "ok", "version": VERSION, "checks": {}}
    ready = http.get(f"{at.url}/readyz")
    assert ready.json()["checks"] == dict.fromkeys(
        ("database", "schema", "blobs", "background", "files", "aggregation", "space"), "ok"
    )
    incoming = at.coordinator.blobs.folder / "incoming"
    incoming.rmdir()
    spoiled = http.get(f"{at.url}/readyz")
    assert spoiled.status_code == 503
    assert spoiled.json()["checks"]["blobs"].startswith("storage-unavailable")
    assert spoiled.json()["checks"]["database"] == "ok"
    incoming.mkdir()


def test_where_the_storage_is_stands_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "own.sqlite"
    upgrade(f"sqlite:///{database}")
    body = file_of(1.0)
    with live(f"sqlite:///{database}", tmp_path / "data") as at:
        (at.coordinator.blobs.folder / "incoming").rmdir()
        answers = [at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))]
        with at.coordinator.store.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE clients RENAME TO elsewhere")
        for _ in range(2):
            answers.append(at.http(JOIN).post("/clients", json={"name": "north", "version": "test"}))
        ready = at.http().get(f"{at.url}/readyz")
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "storage-unavailable")
        assert answer.json()["hint"] == "Try again later; the coordinator's log has the reason."
    assert [answer.json()["detail"] for answer in answers] == [
        "the storage cannot be used: No such file or directory",
        *["the database does not answer"] * 2,
    ]
    assert ready.status_code == 503
    assert not [answer.text for answer in (*answers, ready) if str(tmp_path) in answer.text]
    lines = [row.getMessage() for row in caplog.records if row.name == "feddisco.errors"]
    assert str(tmp_path / "data") in lines[0]
    assert len([line for line in lines if str(database) in line]) == 1, "once a minute"


def test_a_database_that_is_away_is_told_without_its_address() -> None:
    engine = make_engine("postgresql://somebody:secret@127.0.0.1:1/runs")
    with pytest.raises(StorageUnavailable, match="somebody:") as caught, reading(engine):
        pass
    assert caught.value.public == "the database does not answer"


def test_whoever_asks_is_not_kept_waiting_by_a_database_that_hangs(database_url: str, at: Live) -> None:
    if not database_url.startswith("postgresql"):
        pytest.skip("nothing keeps a reader of SQLite waiting")
    with at.coordinator.store.engine.connect() as other:
        other.exec_driver_sql("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        with ThreadPoolExecutor(12) as probes:
            told = list(probes.map(lambda _: at.http().get(f"{at.url}/readyz"), range(12)))
        assert LIMIT <= time.monotonic() - began < 2 * LIMIT
        assert at.http().get(f"{at.url}/healthz").status_code == 200
    late = "storage-unavailable: no answer within 3 s"
    for answer in told:
        assert answer.status_code == 503
        found = answer.json()["checks"]
        assert (found["database"], found["schema"], found["blobs"]) == ("ok", late, late)
    at.wait_for(lambda: at.http().get(f"{at.url}/readyz").json()["status"] == "ok")


def test_many_probes_share_one_look() -> None:
    threads, goes_on, looks = Threads(1), threading.Event(), list[str]()

    def hang() -> None:
        looks.append(threading.current_thread().name)
        goes_on.wait(30)

    async def probe() -> None:
        readiness, checks = Readiness(threads), {"first": lambda: None, "second": hang}
        told = await asyncio.gather(*(readiness.find(checks) for _ in range(20)))
        late = "storage-unavailable: no answer within 3 s"
        assert told == [{"first": "ok", "second": late}] * 20
        assert len(looks) == 1
        goes_on.set()
        assert await readiness.find(checks) == {"first": "ok", "second": "ok"}

    asyncio.run(probe())
    threads.close()


def test_an_old_schema_is_not_ready(at: Live) -> None:
    with at.coordinator.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'older'")
    answer = at.http().get(f"{at.url}/readyz")
    assert answer.status_code == 503
    assert "schema-outdated" in answer.json()["checks"]["schema"]


def test_a_coordinator_without_one_of_its_tasks_is_not_ready(
    at: Live, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("out of luck")

    loop = at.coordinator.runner._loop
    assert loop is not None
    loop.call_soon_threadsafe(at.coordinator.background.start, "sample", fail())
    answer = at.wait_for(lambda: (found := at.http().get(f"{at.url}/readyz")).status_code == 503 and found)
    assert answer.json()["checks"]["background"] == "service-fault: a background task has ended: sample"
    assert "out of luck" in next(row.getMessage() for row in caplog.records if row.levelname == "CRITICAL")


def test_what_is_repeated_goes_on_after_any_fault(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(len(done))
        if len(done) == 1:
            raise StorageUnavailable("the disk is full")
        if len(done) == 2:
            raise ValueError("a mistake of ours")
        if len(done) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(repeat(0.001, work, "cannot do it now"))
    assert done == [0, 1, 2]
    assert [row.levelname for row in caplog.records] == ["WARNING", "ERROR"]


def test_an_outage_is_told_once_and_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """An hour without the database were 3600 lines of each task."""
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise asyncio.CancelledError
        if calls % 20:
            raise StorageUnavailable("shutting down" if calls % 20 < 3 else "refused")

    with caplog.at_level("INFO"), pytest.raises(asyncio.CancelledError):
        asyncio.run(repeat(0.001, work, "cannot do it now"))
    outage = [
        "cannot do it now: shutting down",
        "cannot do it now: refused",
        "over after 0 s: cannot do it now",
    ]
    assert [row.getMessage() for row in caplog.records] == 2 * outage


def test_metrics(at: Live) -> None:
    at.create(min_clients=1, rounds=1)
    (site,) = enrolled(at, (10,), (0.25,))
    site.upload("demo", 1, file_of(1.0)[:-1])
    body = file_of(1.0)
    assert site.upload("demo", 1, body).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    answer = at.http().get(f"{at.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        "feddisco_updates_total 1.0",
        f"feddisco_received_bytes_total {float(len(body))}",
        'feddisco_problems_total{code="truncated"} 1.0',
        'feddisco_discrepancy{client="site-0",run="demo"} 0.25',
        'feddisco_aggregation_weight{client="site-0",run="demo"} 1.0',
        'feddisco_stored{noun="runs",status="completed"} 1.0',
        "feddisco_aggregation_seconds_count 1.0",
        "feddisco_waiting_polls 0.0",
    ):
        assert line in answer.text.splitlines(), line


def test_the_reference_lists_every_call(at: Live) -> None:
    html = at.http().get(f"{at.url}/docs").text
    for path, methods in at.http().get(f"{at.url}/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}</code>" in html
    assert "http://" not in html
    assert "<script" not in html
    assert all(kind in html for kind in MEDIA_TYPES)


def test_refusals_name_field_and_value(at: Live) -> None:
    config = {"name": "Demo", "rounds": 0, "local": {"optimizer": "sgdd"}}
    answer = at.admin.post("/runs", json={"config": config})
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (422, "invalid-request")
    assert {error["field"] for error in problem["errors"]} == {
        *("body.config.name", "body.config.rounds", "body.config.local.optimizer")
    }
    assert "'Demo'" in problem["detail"]


def test_every_kind_of_refusal_is_a_problem_document(at: Live) -> None:
    http = at.http()
    for answer, status, code in (
        (http.get("/nothing"), 404, "not-found"),
        (at.admin.put("/runs"), 405, "method-not-allowed"),
        (at.admin.post("/runs", content="{"), 422, "invalid-request"),
        (at.admin.post("/runs", content=b'"' + b"x" * 2**20 + b'"'), 413, "too-large"),
        (http.get("/runs/%00"), 422, "invalid-request"),
        (http.get("/runs/demo"), 404, "not-found"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_fault_is_told_without_its_traceback(at: Live, caplog: pytest.LogCaptureFixture) -> None:
    with at.coordinator.store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE join_tokens RENAME TO elsewhere")
    answer = at.admin.get("/join-tokens")
    assert answer.status_code in (500, 503)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in answer.text


def test_a_run_of_a_built_in_task_needs_no_upload(at: Live) -> None:
    config = {"name": "digits", "task": "digits", "seed": 3}
    first = at.admin.post("/runs", json={"config": config}).json()
    again = at.admin.post("/runs", json={"config": {**config, "name": "again"}}).json()
    other = at.admin.post("/runs", json={"config": {**config, "name": "other", "seed": 4}}).json()
    assert first["classes"] == [str(digit) for digit in range(10)]
    assert first["initial_model"] == again["initial_model"] != other["initial_model"]
    assert at.admin.post("/runs", json={"config": config}).json()["code"] == "name-taken"


def test_configurations_that_cannot_be_built(at: Live) -> None:
    for config, words in (
        ({"task": "nothing-like-it"}, "no built-in task"),
        ({"task": "my.module:Task"}, "not built in"),
        ({"task": "hf-text", "task_options": {"base": "theirs/model"}}, "hf:theirs/model lies at the sites"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"algorithm": "no_such_algorithm"}, "no_such_algorithm"),
        ({"weighting": {"kind": "disco", "target": [0.5, 0.5]}}, "2 shares for 10 classes"),
    ):
        answer = at.admin.post("/runs", json={"config": {"name": "odd", **config}})
        assert answer.status_code == 422, answer.text
        assert words in answer.text
    assert at.admin.get("/runs").json() == []


def test_updates_larger_than_allowed_are_refused_at_the_runs_creation(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data", max_update_bytes=1000) as at:
        answer = at.admin.post("/runs", json={"config": {"name": "big"}})
        assert answer.json()["code"] == "invalid-configuration"
        assert "FEDDISCO_MAX_UPDATE_BYTES" in answer.json()["hint"]


def test_enrolment_compares_the_class_contract(at: Live) -> None:
    at.create()
    site = at.site("site-0")
    wrong = site.enrol("demo", 10, classes=["cat", "owl", "dog"])
    assert wrong.json()["code"] == "class-contract-mismatch"
    assert "class 1" in wrong.json()["detail"]
    assert site.enrol("demo", 10, classes=["cat", "dog"]).status_code == 409
    assert site.enrol("demo", 10, task="other").status_code == 409
    assert site.enrol("demo", 10, index=0).json() == site.enrol("demo", 10, index=0).json()
    assert site.enrol("demo", 11, index=0).json()["code"] == "already-enrolled"
    other = at.site("site-1")
    assert other.enrol("demo", 10, index=0).json()["code"] == "index-taken"
    assert other.http.post("/runs/demo/decline", json={"reason": "other data"}).status_code == 204


def test_a_discrepancy_is_submitted_once(at: Live) -> None:
    at.create(weighting={"kind": "disco", "target": [0.5, 0.5, 0.0]})  # an owl is infinitely far
    (site,) = enrolled(at, (10,), (0.25,))
    assert site.submit("demo", 0.25).status_code == 204
    assert site.submit("demo", 0.5).json()["code"] == "discrepancy-already-submitted"
    assert site.submit("demo", 0.25, metric="l1").status_code in (409, 422)
    other = at.site("site-1")
    other.enrol("demo", 10)
    assert other.submit("demo", "Infinity").status_code == 204
    assert [row["discrepancy"] for row in at.run()["enrolments"]] == [0.25, "Infinity"]

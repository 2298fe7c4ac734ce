"""The whole protocol over real HTTP on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from tests.helpers.live_coordinator import Live, enrolled, file_of, live, sha256

SIZES = (50, 30, 20)
DISCREPANCIES = (0.2, 0.3, 0.5)
# reference 1.1 with a = 0.5, b = 0.1: 0.5 - 0.1 + 0.1, 0.3 - 0.15 + 0.1, 0.2 - 0.25 + 0.1, over the sum 0.8
WEIGHTS = (0.5 / 0.8, 0.25 / 0.8, 0.05 / 0.8)


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def has_completed(at: Live, rounds: int) -> bool:
    return bool(at.run()["completed_rounds"] == rounds)


def model(at: Live, digest: str) -> dict[str, np.ndarray]:
    answer = at.admin.get(f"/blobs/{digest}")
    assert answer.status_code == 200
    assert sha256(answer.content) == digest
    return load(answer.content)


def test_a_run_from_enrolment_to_its_end(at: Live) -> None:
    at.create(min_clients=3, rounds=2)
    sites = enrolled(at, SIZES, DISCREPANCIES)
    for number in (1, 2):
        for index, site in enumerate(sites):
            task = site.until("train")
            assert (task["round"], task["attempt"], task["index"]) == (number, 1, index)
            assert task["relative_size"] == pytest.approx(3 * SIZES[index] / 100)
            assert task["last_aggregated_round"] == number - 1
            assert model(at, task["model"])["scale"].shape == ()
            numbers = {"examples": SIZES[index], "steps": 7, "loss": 0.5, "seconds": 1.5}
            answer = site.upload("demo", number, file_of(10.0 * index + number), **numbers)
            assert answer.status_code == 200, answer.text
            assert answer.json()["row"] is None
        at.wait_for(partial(has_completed, at, number))
        view = at.admin.get(f"/runs/demo/rounds/{number}").json()
        assert [row["weight"] for row in view["ledger"]] == pytest.approx(WEIGHTS)
        assert [row["size_weight"] for row in view["ledger"]] == pytest.approx([0.5, 0.3, 0.2])
        assert [row["discrepancy_share"] for row in view["ledger"]] == pytest.approx(DISCREPANCIES)
        assert [row["steps"] for row in view["ledger"]] == [7, 7, 7]
        expected = sum(weight * (10.0 * index + number) for index, weight in enumerate(WEIGHTS))
        for value in model(at, view["model"]).values():
            assert value == pytest.approx(expected, rel=1e-6)
        receipt = sites[1].http.get(f"/runs/demo/rounds/{number}/receipt").json()
        assert receipt["row"]["weight"] == pytest.approx(WEIGHTS[1])
    assert at.run()["status"] == "completed"
    for site in sites:
        end = site.until("finished")
        assert end["status"] == "completed"
        assert site.http.delete("/runs/demo/enrolments/me").status_code == 204
        assert site.work() is None


def test_an_evaluator_scores_every_round(at: Live) -> None:
    at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
    judge, site = at.site("judge"), at.site("site-0")
    assert judge.enrol("demo", 4, role="evaluator").status_code == 200
    assert site.enrol("demo", 10).json()["status"] == "ready"
    metrics = {"loss": 1.5, "accuracy": 0.5, "examples": 4, "per_category": {"cat": 1.0}}
    assert judge.until("evaluate")["round"] == 0
    assert judge.http.put("/runs/demo/rounds/0/metrics", json=metrics).status_code == 204
    site.until("train")
    assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    assert judge.until("evaluate")["round"] == 1
    put = [judge.http.put("/runs/demo/rounds/1/metrics", json=metrics).status_code for _ in range(2)]
    assert put == [204, 204], "the same again is fine"
    other = judge.http.put("/runs/demo/rounds/1/metrics", json={**metrics, "loss": 2.0})
    assert other.status_code == 409
    assert at.run()["accuracy"] == 0.5
    assert [entry["round"] for entry in at.admin.get("/runs/demo/evaluations").json()] == [0, 1]


def test_a_failure_and_a_departure_do_not_end_the_round_for_the_others(at: Live) -> None:
    at.create(min_clients=3, rounds=1, quorum=1, weighting={"kind": "sizes"})
    first, second, third = enrolled(at, (10, 10, 20))
    first.until("train")
    body = {"attempt": 1, "code": "out_of_memory", "reason": "no memory left"}
    assert first.http.post("/runs/demo/rounds/1/failure", json=body).status_code == 204
    assert at.admin.delete("/clients/site-1").status_code == 204
    assert second.http.get("/work").json()["code"] == "revoked-token", "revocation holds at once"
    assert third.upload("demo", 1, file_of(3.0)).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    ledger = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
    assert [(row["client"], row["status"], row["weight"]) for row in ledger] == [
        ("site-0", "failed", None),
        ("site-1", "failed", None),
        ("site-2", "aggregated", 1.0),
    ]


def test_a_failure_that_is_told_again_is_one_also_in_the_next_attempt(at: Live) -> None:
    """Its answer was lost, and the round has begun anew meanwhile."""
    at.create("alone", min_clients=1, quorum=1, weighting={"kind": "sizes"})
    site = at.site("south")
    assert site.enrol("alone", 10).status_code == 200
    body = {"attempt": 1, "code": "out-of-memory", "reason": "no memory"}
    for _ in range(2):
        assert site.http.post("/runs/alone/rounds/1/failure", json=body).status_code == 204
    assert at.run("alone")["current_round"]["attempt"] == 2
    assert [event["kind"] for event in at.events("alone")].count("failure_reported") == 1
    late = site.http.post("/runs/alone/rounds/1/failure", json={**body, "attempt": 3})
    assert late.status_code == 409


def test_progress_says_whether_to_go_on(at: Live) -> None:
    at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
    (site,) = enrolled(at, (10,))
    site.until("train")
    beat = {"attempt": 1, "epoch": 1, "epochs": 2, "step": 5, "steps": 10, "loss": 0.25}
    assert site.http.post("/runs/demo/rounds/1/progress", json=beat).json() == {"proceed": True, "reason": ""}
    assert at.run()["current_round"]["ledger"][0]["progress"]["step"] == 5
    assert at.admin.post("/runs/demo/stop", json={"reason": "enough"}).json()["status"] == "stopped"
    answer = site.http.post("/runs/demo/rounds/1/progress", json=beat).json()
    assert answer["proceed"] is False
    assert site.until("finished")["reason"] == "enough"


def test_control_of_a_run(at: Live) -> None:
    at.create(min_clients=2, rounds=3, autostart=False, weighting={"kind": "sizes"})
    early = at.admin.post("/runs/demo/start")
    assert (early.status_code, early.json()["code"]) == (409, "illegal-transition")
    sites = enrolled(at, (10, 10))
    assert at.admin.post("/runs/demo/start").json()["status"] == "running"
    assert at.admin.post("/runs/demo/pause", json={"reason": "lunch"}).json()["reason"] == "lunch"
    for site in sites:
        site.until("train")
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200, "the open round goes on"
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    assert sites[0].work() is None
    assert at.admin.post("/runs/demo/resume").json()["status"] == "running"
    assert sites[0].until("train")["round"] == 2


def test_weightless_rounds_keep_the_model_and_pause_the_run(at: Live) -> None:
    disco = {"kind": "disco", "a": 100.0, "b": 0.0, "on_all_zero": "raise"}
    made = at.create(min_clients=1, rounds=1, max_attempts=2, weighting=disco)
    (site,) = enrolled(at, (10,), (0.5,))
    for attempt in (1, 2):
        assert site.until("train")["attempt"] == attempt
        assert site.upload("demo", 1, file_of(1.0), attempt=attempt).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "paused")
    assert at.run()["model"] == made["initial_model"]
    first = at.admin.get("/runs/demo/rounds/1", params={"attempt": 1}).json()
    assert first["status"] == "abandoned"
    assert first["ledger"][0]["score"] == pytest.approx(1 - 100)

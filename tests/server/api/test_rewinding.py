"""``POST /runs/{run}/rewind``: the same run from an earlier model, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live

SETTINGS: dict[str, Any] = {
    "weighting": {"kind": "sizes"},
    "min_clients": 3,
    "rounds": 6,
    "algorithm": {"name": "fedavgm", "parameters": {"beta": 0.5}},  # with state at the server
}


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def play(at: Live, sites: list[ManualClient], upto: int, lie: float = 0.0) -> None:
    """Every client moves each round's model by a number that is its own and the round's."""
    while (number := at.run()["completed_rounds"] + 1) <= upto:
        for place, site in enumerate(sites):
            train = site.until("train")
            assert train["round"] == number
            value = 0.1 * (place + 1) * number + (lie if place == 0 else 0.0)
            answer = site.upload("demo", number, file_of(value), attempt=train["attempt"])
            assert answer.status_code == 200, answer.text
        at.wait_for(lambda number=number: at.run()["completed_rounds"] >= number)  # type: ignore[misc]


def models(at: Live) -> dict[int, str]:
    """The digests of the completed rounds."""
    views = at.admin.get("/runs/demo/rounds").json()
    return {view["round"]: view["model"] for view in views if view["status"] == "completed"}


def test_a_run_goes_back_and_on_bit_for_bit(at: Live) -> None:
    at.create(**SETTINGS)
    sites = enrolled(at, [100, 200, 300])
    play(at, sites, 4)
    honest = models(at)
    back = at.admin.post("/runs/demo/rewind", json={"round": 2, "reason": "once more"})
    assert back.status_code == 200, back.text
    assert (back.json()["completed_rounds"], back.json()["model"]) == (2, honest[2])
    assert models(at) == {1: honest[1], 2: honest[2]}
    play(at, sites, 4)
    assert models(at) == honest, "as if rounds 3 and 4 had never been"
    statuses = [(v["round"], v["attempt"], v["status"]) for v in at.admin.get("/runs/demo/rounds").json()]
    assert statuses == [
        (1, 1, "completed"),
        (2, 1, "completed"),
        (3, 1, "rewound"),
        (3, 2, "completed"),
        (4, 1, "rewound"),
        (4, 2, "completed"),
        (5, 1, "abandoned"),
        (5, 2, "collecting"),
    ]
    (event,) = [event for event in at.events() if event["kind"] == "run_rewound"]
    assert (event["round"], event["actor"]) == (2, "admin")
    assert event["detail"] == {"completed": 4, "reason": "once more"}


def test_a_liar_is_taken_out_and_its_rounds_are_undone(at: Live) -> None:
    at.create(**SETTINGS, quorum=2)
    sites = enrolled(at, [100, 200, 300])
    play(at, sites, 2)
    before = models(at)
    play(at, sites, 3, lie=200.0)
    at.admin.post("/runs/demo/pause", json={})
    at.admin.post("/runs/demo/enrolments/site-0/refuse", json={"reason": "a liar"})
    assert at.admin.post("/runs/demo/rewind", json={"round": 2}).json()["status"] == "paused"
    at.admin.post("/runs/demo/resume", json={})
    assert at.run()["model"] == before[2]
    play(at, sites[1:], 3)
    ledger = at.admin.get("/runs/demo/rounds/3").json()["ledger"]
    assert [row["client"] for row in ledger] == ["site-1", "site-2"]
    page = at.admin.get(f"{at.url}/runs/demo").text
    assert "rewound" in page
    assert at.admin.get(f"{at.url}/runs/demo/rounds/3?attempt=1").status_code == 200


def test_rounds_are_scored_anew(at: Live) -> None:
    at.create(**SETTINGS)
    judge = at.site("judge")
    judge.enrol("demo", 10, role="evaluator")
    sites = enrolled(at, [100, 200, 300])
    play(at, sites, 2)

    def score_all(accuracy: float) -> list[int]:
        scored = []
        while (found := judge.work()) is not None and found["kind"] == "evaluate":
            body = {"loss": 1.0, "accuracy": accuracy, "examples": 10}
            answer = judge.http.put(f"/runs/demo/rounds/{found['round']}/metrics", json=body)
            assert answer.status_code == 204, answer.text
            scored.append(found["round"])
        return scored

    assert score_all(0.5) == [0, 1, 2]
    at.admin.post("/runs/demo/rewind", json={"round": 1})
    assert score_all(0.75) == []
    assert [row["round"] for row in at.admin.get("/runs/demo/evaluations").json()] == [0, 1]
    play(at, sites, 2)
    assert score_all(0.75) == [2]
    assert at.run()["accuracy"] == 0.75
    kept = [e["detail"]["accuracy"] for e in at.events() if e["kind"] == "evaluation_received"]
    assert kept == [0.5, 0.5, 0.5, 0.75], "the log has all of them"


def test_a_late_score_of_a_rewound_model_is_not_the_new_models(at: Live) -> None:
    at.create(**SETTINGS)
    judge = at.site("judge")
    judge.enrol("demo", 10, role="evaluator")
    sites = enrolled(at, [100, 200, 300])

    def tell(assigned: dict[str, Any], accuracy: float, *, model: str | None = None) -> httpx.Response:
        path = f"/runs/demo/rounds/{assigned['round']}/metrics"
        body = {"loss": 1.0, "accuracy": accuracy, "examples": 10}
        return judge.http.put(path, json=body, params={"model": model or assigned["model"]})

    play(at, sites, 1)
    for _ in range(2):
        first = judge.until("evaluate")
        assert tell(first, 0.5).status_code == 204
    play(at, sites, 2, lie=200.0)
    spoilt = judge.until("evaluate")
    at.admin.post("/runs/demo/rewind", json={"round": 1})
    play(at, sites, 2)
    late = tell(spoilt, 0.125)
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert f"and {spoilt['model']} was scored" in late.json()["detail"]
    honest = judge.until("evaluate")
    assert (honest["round"], honest["model"]) == (2, models(at)[2])
    assert tell(honest, 0.75).status_code == 204
    assert tell(honest, 0.75).status_code == 204, "the same again"
    assert tell({**first, "round": 0}, 0.5).status_code == 409, "nor is it the initial model's"
    assert tell(honest, 0.75, model="no digest").status_code == 422
    assert at.run()["accuracy"] == 0.75


def test_the_training_loss_on_the_page_is_that_of_the_rounds_that_count(at: Live) -> None:
    at.create(**SETTINGS)
    sites = enrolled(at, [100, 200, 300])
    play(at, sites, 2)
    assert at.admin.get(f"{at.url}/runs/demo").status_code == 200  # it learns the losses
    at.admin.post("/runs/demo/rewind", json={"round": 1})
    for site in sites:
        train = site.until("train")
        answer = site.upload("demo", 2, file_of(0.5), attempt=train["attempt"], loss=7.125)
        assert answer.status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 2)
    assert "7.125" in at.admin.get(f"{at.url}/runs/demo").text


def test_what_is_refused(at: Live) -> None:
    at.create(**SETTINGS)
    at.create("kept", **{**SETTINGS, "algorithm": "scaffold"})
    sites = enrolled(at, [100, 200, 300])
    play(at, sites, 1)
    for number in (2, 99):
        answer = at.admin.post("/runs/demo/rewind", json={"round": number})
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal-transition")
        assert f"stands at round 1, so it cannot go back to {number}" in answer.json()["detail"]
    stateful = at.admin.post("/runs/kept/rewind", json={"round": 0})
    assert stateful.status_code == 409
    assert "trains by Scaffold, whose clients keep control" in stateful.json()["detail"]
    assert sites[0].http.post("/runs/demo/rewind", json={"round": 0}).status_code == 403
    assert at.admin.post("/runs/demo/rewind", json={"round": -1}).status_code == 422


def test_a_secure_run_is_neither_changed_nor_goes_back(at: Live) -> None:
    """Its clients hold each other to one configuration, and unmask a round once."""
    at.create(**SETTINGS, secure={})
    before = at.run()["revision"]
    changed = at.admin.patch("/runs/demo", json={"rounds": 9})
    back = at.admin.post("/runs/demo/rewind", json={"round": 0})
    for answer, why in ((changed, "hold each other to one configuration"), (back, "unmask a round once")):
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal-transition")
        assert f"run 'demo' has secure sums, and its clients {why}" in answer.json()["detail"]
        assert "run create --weights" in answer.json()["hint"]
    assert at.run()["revision"] == before

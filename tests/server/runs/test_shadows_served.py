"""Shadows in the service: made, scored by the evaluators, shown, and nobody else's business."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddisco.replay import replay_round
from server.runs.runner import UNNEEDED_AFTER
from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live, settings_for, sha256

SIZES, UNIFORM = 0.1 * 1 + 0.9 * 3, 0.5 * 1 + 0.5 * 3
"""Of updates of ones and threes by clients of 10 and 90 examples."""


def begin(at: Live, **more: Any) -> tuple[list[ManualClient], ManualClient]:
    """Two trainers that count the same for Disco alone, and an evaluator; the round is trained."""
    at.create(**{"min_clients": 2, "rounds": 1, "shadow": ["sizes", "uniform"], **more})
    judge = at.site("judge")
    assert judge.enrol("demo", 50, role="evaluator").status_code == 200
    sites = enrolled(at, [10, 90], [0.1, 0.9])
    for site, value in zip(sites, (1.0, 3.0), strict=True):
        site.until("train")
        assert site.upload("demo", 1, file_of(value)).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    return sites, judge


def score(judge: ManualClient, round: int, **more: Any) -> int:
    body = {"loss": 0.5, "accuracy": 0.75, "examples": 50, **more}
    return judge.http.put(f"/runs/demo/rounds/{round}/metrics", json=body).status_code


def evaluate(judge: ManualClient) -> dict[str, Any]:
    """The assignment of the round, after that of the initial model."""
    assert judge.until("evaluate")["shadows"] == {}
    assert score(judge, 0) == 204
    return judge.until("evaluate")


def values(body: bytes) -> Any:
    return np.frombuffer(body[-17 * 4 :], dtype=np.float32)


def test_shadows_are_made_scored_and_shown(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        _, judge = begin(at)
        work = evaluate(judge)
        assert list(work["shadows"]) == ["sizes", "uniform"]
        for (name, digest), expected in zip(work["shadows"].items(), (SIZES, UNIFORM), strict=True):
            body = judge.http.get(f"/blobs/{digest}").content
            assert sha256(body) == digest
            assert values(body) == pytest.approx(np.full(17, expected)), name
        scores = {"sizes": {"loss": 0.6, "accuracy": 0.5}, "uniform": {"loss": None, "accuracy": 0.25}}
        assert score(judge, 1, shadows=scores) == 204
        assert score(judge, 1, shadows=scores) == 204, "sent again"
        assert score(judge, 1) == 409, "other values"

        made = at.admin.get("/runs/demo/rounds/1").json()
        by_name = {shadow["name"]: shadow for shadow in made["shadows"]}
        assert by_name["sizes"]["weights"] == pytest.approx({"0": 0.1, "1": 0.9})
        assert by_name["uniform"]["weights"] == {"0": 0.5, "1": 0.5}
        assert all(shadow["seconds"] > 0 and shadow["bytes"] > 68 for shadow in by_name.values())
        told = made["evaluations"][0]["shadows"]
        assert (told["sizes"]["accuracy"], told["uniform"]["loss"]) == (0.5, None)
        assert at.admin.get("/runs/demo/rounds").json()[0] == made

        page = at.http().get(f"{at.url}/runs/demo/rounds/1").text
        assert "site-0 10.00" in page
        assert "-25.00" in page.replace("\u2212", "-"), "sizes against the run's own"
        page = at.http().get(f"{at.url}/runs/demo").text
        assert "shadow uniform" in page
        assert "In round 1 they cost the coordinator" in page
    same, sentence = replay_round(settings_for(database_url, tmp_path / "data"), "demo", 1)
    assert same, sentence


def test_what_others_weigh_is_not_told_to_a_client(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        sites, judge = begin(at)
        work = evaluate(judge)
        assert score(judge, 1, shadows={"sizes": {"loss": 0.6, "accuracy": 0.5}}) == 204
        for client in (sites[0], judge):
            seen = client.http.get("/runs/demo/rounds/1").json()
            assert seen["shadows"] == []
        assert sites[0].http.get("/runs/demo/rounds/1").json()["evaluations"] == []
        stranger = at.site("stranger")
        assert stranger.http.get(f"/blobs/{work['shadows']['sizes']}").status_code == 403


def test_a_shadow_is_kept_until_every_evaluator_has_scored_it(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        _, judge = begin(at)
        work = evaluate(judge)
        digests = set(work["shadows"].values())
        store = at.coordinator.store
        assert digests <= store.referenced_blobs()
        assert sum(store.stored_bytes()[0].values()) > 0
        assert score(judge, 1, shadows={}) == 204
        assert digests <= set(store.unneeded_blobs())
        later = at.coordinator.clock() + UNNEEDED_AFTER + dt.timedelta(seconds=1)
        at.coordinator.blobs.remove(store.unneeded_blobs(), later, store.forget_blobs)
        second = at.site("second")
        assert second.enrol("demo", 50, role="evaluator").status_code in (200, 409), "the run may have ended"
        assert not digests & store.referenced_blobs()
        assert at.run()["model"] in store.referenced_blobs()


def test_a_damaged_shadow_costs_no_evaluation(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        _, judge = begin(at)
        work = evaluate(judge)
        at.coordinator.store.note_blob_fault(work["shadows"]["sizes"], "is damaged", at.coordinator.clock())
        assert list(judge.until("evaluate")["shadows"]) == ["uniform"]


def test_behind_which_a_run_goes_back_no_shadow_is_kept(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        _, judge = begin(at, rounds=2)
        digests = set(evaluate(judge)["shadows"].values())
        assert digests <= at.coordinator.store.referenced_blobs()
        answer = at.admin.post("/runs/demo/rewind", json={"round": 0, "reason": "again"})
        assert answer.status_code == 200, answer.text
        assert not digests & at.coordinator.store.referenced_blobs()


def test_secure_rounds_have_no_shadows(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at, pytest.raises(AssertionError, match="nobody sees one"):
        at.create(min_clients=3, secure={}, shadow=["sizes"])

"""Weightings in the service: what they remember and are told is stored, shown, and replayed."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddisco.replay import replay_round
from shared.weightings.base import Weighed, Weighting, WeightingRound, make_rows
from tests.helpers.live_coordinator import Live, ManualClient, file_of, live, settings_for, tensors

LOSSES = ({"a": (2.0, 1.0), "b": (2.0, 1.5)}, {"a": (1.9, 0.9), "b": (1.6, 1.2)})


def play(at: Live, clients: list[ManualClient], number: int, reports: list[dict[str, Any]]) -> dict[str, Any]:
    for value, (client, report) in enumerate(zip(clients, reports, strict=True)):
        work = client.until("train")
        assert work["round"] == number
        answer = client.upload("demo", number, file_of(number + value), **report)
        assert answer.status_code == 200, answer.text
    at.wait_for(lambda: at.run()["completed_rounds"] >= number)
    found: dict[str, Any] = at.admin.get(f"/runs/demo/rounds/{number}").json()
    return found


def enrol(at: Live, *sizes: int) -> list[ManualClient]:
    clients = [at.site(name) for name in "abcdef"[: len(sizes)]]
    for client, size in zip(clients, sizes, strict=True):
        assert client.enrol("demo", size).status_code == 200
    return clients


def is_completed(at: Live, run: str) -> bool:
    return bool(at.run(run)["status"] == "completed")


def reports(losses: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    return [{"start_loss": before, "end_loss": after} for before, after in losses.values()]


def test_feddg_ga_remembers_over_a_restart_and_a_replay_finds_the_same(
    database_url: str, tmp_path: Path
) -> None:
    """Gaps 1.9 - 1.0 and 1.6 - 1.5, less their mean: 0.4, -0.4. The step is 0.2 (1 + 1 / 2) / 2 = 0.15."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=2, weighting={"kind": "feddgga"})
        clients = enrol(at, 10, 30)
        first = play(at, clients, 1, reports(LOSSES[0]))
        assert [row["weight"] for row in first["ledger"]] == [0.5, 0.5]
        assert [row["end_loss"] for row in first["ledger"]] == [1.0, 1.5]
        tokens = [(c.name, c.http.headers["Authorization"].removeprefix("Bearer ")) for c in clients]
    with live(database_url, tmp_path / "data") as at:
        clients = [
            ManualClient(at.http(token), name, size)
            for (name, token), size in zip(tokens, (10, 30), strict=True)
        ]
        second = play(at, clients, 2, reports(LOSSES[1]))
        assert [row["weight"] for row in second["ledger"]] == pytest.approx([0.65, 0.35])
        assert second["ledger"][0]["details"] == pytest.approx({"before": 0.5, "gap": 0.9})
        page = at.http().get(f"{at.url}/runs/demo/rounds/2").text
        assert "Its gap of +0.9000 moves 0.5000 to 0.6500" in page
    settings = settings_for(database_url, tmp_path / "data")
    for number in (1, 2):
        same, sentence = replay_round(settings, "demo", number)
        assert same, sentence


def test_q_fedavg_shortens_the_step_and_says_so(database_url: str, tmp_path: Path) -> None:
    """Updates of ones and twos on 17 numbers at 0; F = 1 and 2, lr / (1 - 0.9) = 0.1, q = 1, n = 1/4, 3/4:
    sum n F = 1.75, sum n |u|^2 / 0.1 = (17 / 4 + 68 * 3 / 4) / 0.1 = 552.5."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "qfedavg", "q": 1})
        clients = enrol(at, 10, 30)
        made = play(at, clients, 1, [{"start_loss": 1.0}, {"start_loss": 2.0}])
        step = 1.75 / (1.75 + 552.5)
        assert made["adjustment"]["step"] == pytest.approx(step)
        assert [row["weight"] for row in made["ledger"]] == pytest.approx([1 / 7, 6 / 7])
        body = at.admin.get(f"/blobs/{made['model']}").content
        values = np.frombuffer(body[-17 * 4 :], dtype=np.float32)
        assert values == pytest.approx(np.full(17, step * (1 / 7 + 2 * 6 / 7)), rel=1e-6)
        page = at.http().get(f"{at.url}/runs/demo/rounds/1").text
        assert f"Then the mean update is taken {step:.4f} times." in page
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 1)[0]


def test_nash_mtl_bargains_in_the_service_and_leaves_out_who_did_not_move(
    database_url: str, tmp_path: Path
) -> None:
    """Parallel updates of lengths 1 and 2 (times 17 numbers): alpha as 2 to 1, whatever the sizes."""
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=3, rounds=1, weighting={"kind": "nashmtl"})
        clients = enrol(at, 10, 30, 20)
        for value, client in enumerate(clients):
            client.until("train")
            assert client.upload("demo", 1, file_of(float(value))).status_code == 200
        at.wait_for(lambda: at.run()["completed_rounds"] >= 1)
        ledger = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
        assert [row["weight"] for row in ledger] == pytest.approx([0, 2 / 3, 1 / 3], abs=1e-7)
        assert ledger[0]["reason"] == "its update does not move the model"
        assert [row["details"]["gain"] for row in ledger] == pytest.approx([0, 17 * 4 / 3, 17 * 8 / 3])
        assert "Gain" in at.http().get(f"{at.url}/runs/demo/rounds/1").text
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 1)[0]


def test_a_client_that_tells_no_loss_is_left_out_with_the_reason(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=1, weighting={"kind": "qfedavg"})
        made = play(at, enrol(at, 10, 30), 1, [{"start_loss": 1.0}, {}])
        told, silent = made["ledger"]
        assert (told["weight"], silent["included"]) == (1.0, False)
        assert silent["status"] == "rejected"
        assert silent["reason"] == "its loss of the model that it received is missing or not finite"


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_a_loss_that_is_no_number_is_refused(database_url: str, tmp_path: Path, value: str) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=1, rounds=1, weighting={"kind": "qfedavg"})
        (client,) = enrol(at, 10)
        client.until("train")
        assert client.upload("demo", 1, file_of(1.0), start_loss=value).status_code == 422


@pytest.mark.parametrize(
    ("weighting", "said"),
    [
        ({"kind": "fedpals"}, "fedpals needs the label counts of every client"),
        ({"kind": "disco", "target": "global"}, "global needs the label counts of every client"),
        ({"kind": "fedlaw"}, "fedlaw needs labelled examples where rounds are aggregated"),
        ({"kind": "no_such.module:Rule"}, "'no_such.module:Rule' cannot be imported"),
        ({"kind": "fedwhat"}, "kind is none of disco, entropy"),
        ({"kind": "fedlws", "mean": {"kind": "disco", "target": [1, 2]}}, "weighting.target: 2 shares for 3"),
    ],
)
def test_what_cannot_be_had_here_is_refused_when_the_run_is_created(
    database_url: str, tmp_path: Path, weighting: dict[str, Any], said: str
) -> None:
    with live(database_url, tmp_path / "data") as at:
        with pytest.raises(AssertionError, match=said):
            at.create(weighting=weighting)
        assert at.admin.get("/runs").json() == []


def test_distillation_is_refused_when_the_run_is_created(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        with pytest.raises(AssertionError, match="distillation needs examples where rounds are aggregated"):
            at.create(distillation={})
        assert at.admin.get("/runs").json() == []


class ByLoss(Weighting):
    """One's own: by the loss after training, remembered."""

    def weigh(self, round: WeightingRound) -> Weighed:
        known = round.recall("loss", 1.0) * np.array([row.end_loss for row in round.taken])
        rows = make_rows(round, known / math.fsum(known), known)
        return Weighed(rows, memory=round.remember("loss", known))


def test_a_weighting_of_ones_own_is_served(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        own = {"kind": f"{__name__}:ByLoss", "losses": True}
        at.create(min_clients=2, rounds=2, weighting=own)
        clients = enrol(at, 10, 10)
        first = play(at, clients, 1, reports({"a": (1, 3.0), "b": (1, 1.0)}))
        assert [row["weight"] for row in first["ledger"]] == [0.75, 0.25]
        second = play(at, clients, 2, reports({"a": (1, 1.0), "b": (1, 1.0)}))
        assert [row["weight"] for row in second["ledger"]] == [0.75, 0.25]
        assert "a rule of your own" in at.http().get(f"{at.url}/runs/demo/rounds/2").text


def test_updates_of_which_nobody_moved(database_url: str, tmp_path: Path) -> None:
    """Angles and distances of vectors of length 0: equal sizes, equal weights, and the model stays."""
    with live(database_url, tmp_path / "data") as at:
        for kind in ("fedadp", "fedawa", "fedlws", "nashmtl"):
            at.create(kind, min_clients=1, rounds=1, weighting={"kind": kind})
            client = at.site(f"of-{kind}")
            assert client.enrol(kind, 10).status_code == 200
            assert client.until("train")["run"] == kind
            assert client.upload(kind, 1, file_of(0.0)).status_code == 200
            at.wait_for(partial(is_completed, at, kind))
            assert at.run(kind)["model"] == at.run(kind)["initial_model"]
    assert set(tensors(0.0)) == {"layer.weight", "layer.bias", "scale"}

"""Numbers that a client declares beside its size: words, steps that it did not take, losses below 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from shared.problems import InvalidConfiguration
from shared.weightings import Contribution, find_taken, weigh
from shared.weightings.base import Weighed, Weighting, WeightingRound, make_rows
from shared.weightings.feddgga import FedDgGaWeighting
from tests.helpers.live_coordinator import CLASSES, TASK, Live, enrolled, file_of, live

SIZES = {"kind": "sizes"}


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def test_words_are_no_numbers(at: Live) -> None:
    at.create(weighting={"kind": "disco"}, min_clients=1)
    site, judge = at.site("anna"), at.site("judge")
    enrolment = {"task": TASK, "classes": CLASSES, "examples": 10}
    assert judge.enrol("demo", 10, role="evaluator").status_code == 200
    changes: list[dict[str, Any]]
    for word in (True, "1", "0.5"):
        changes = [{"examples": word}, {"index": word}, {"left_out": {"empty": word}}]
        for change in changes:
            answer = site.http.post("/runs/demo/enrolments", json=enrolment | change)
            assert answer.status_code == 422, (change, answer.text)
    assert site.http.post("/runs/demo/enrolments", json=enrolment).status_code == 200
    score: dict[str, Any] = {"loss": 1.0, "accuracy": 0.5, "examples": 10}
    for word in (True, "1", "0.5"):
        for body in ({"value": word}, {"value": 0.1, "grade": "noised", "epsilon": word}):
            answer = site.http.put("/runs/demo/discrepancy", json={"metric": "kl", **body})
            assert answer.status_code == 422, (body, answer.text)
        changes = [{name: word} for name in score]
        changes += [{name: {"cat": word}} for name in ("per_category", "extra")]
        for change in [*changes, {"confusion": [[word]]}]:
            answer = judge.http.put("/runs/demo/rounds/0/metrics", json=score | change)
            assert answer.status_code == 422, (change, answer.text)
    assert site.submit("demo", 0.1).status_code == 204
    assert judge.http.put("/runs/demo/rounds/0/metrics", json=score).status_code == 204
    for word in (True, "1"):
        for name in ("epoch", "epochs", "step", "steps", "loss"):
            beat = {"attempt": 1, name: word}
            assert site.http.post("/runs/demo/rounds/1/progress", json=beat).status_code == 422


@pytest.mark.parametrize(
    "algorithm",
    ["fednova", {"name": "fedprox", "parameters": {"normalised": True}}],
    ids=["fednova", "fedprox normalised"],
)
def test_steps_that_were_not_taken_do_not_bend_a_run_that_divides_by_them(at: Live, algorithm: Any) -> None:
    """130 examples in batches of 64, twice: 4 steps. More of them would make everybody's step longer."""
    at.create(algorithm=algorithm, weighting=SIZES, min_clients=2, rounds=1, local={"epochs": 2})
    sites = enrolled(at, [130, 130])
    for steps in (2**53, 5, 3, 0):
        answer = sites[0].upload("demo", 1, file_of(1.0), steps=steps)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
        sentence = f"the update was trained for {steps} steps, but 130 examples make 4 in round 1"
        assert sentence in answer.json()["detail"]
    for site in sites:
        assert site.upload("demo", 1, file_of(1.0), steps=4).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    model = load(at.admin.get(f"/blobs/{at.run()['model']}").content)
    assert all(tensor == pytest.approx(1.0) for tensor in model.values())


def test_a_loss_below_0_turns_no_update_round(at: Live) -> None:
    """By q-FedAvg with q = 1, losses of 1 and -0.9 would be weights of 10 and -9."""
    at.create(weighting={"kind": "qfedavg"}, min_clients=2, rounds=1)
    sites = enrolled(at, [10, 10])
    for site, loss in zip(sites, (1.0, -0.9), strict=True):
        assert site.upload("demo", 1, file_of(1.0), steps=1, start_loss=loss).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    honest, liar = at.admin.get("/runs/demo/rounds/1").json()["ledger"]
    assert (honest["weight"], liar["included"]) == (1.0, False)
    assert liar["reason"] == "its loss of the model that it received is below 0"


@pytest.mark.parametrize("loss", [1.7e308, -1.7e308])
def test_losses_whose_sum_is_no_number_are_left_out(loss: float) -> None:
    """Two of 1.7e308 made every weight NaN by the rule of FedDG-GA, and so the run paused."""
    weighting = FedDgGaWeighting()
    liars = [Contribution(index, 10, start_loss=loss, end_loss=1.0) for index in range(2)]
    rows = [*liars, Contribution(2, 10, start_loss=1.0, end_loss=0.5)]
    weighed = weigh(weighting, rows, WeightingRound(find_taken(weighting, rows), rows))
    assert [row.weight for row in weighed.rows] == [0, 0, 1]
    assert weighed.rows[0].reason == f"it declares a loss of {loss:g}, and none above 1e+100 is believed"


class Upside(Weighting):
    """One's own, that makes weights of whatever clients tell."""

    kind: str = "upside"
    weight: str

    def weigh(self, round: WeightingRound) -> Weighed:
        return Weighed(make_rows(round, np.array([1.0, float(self.weight)])))


@pytest.mark.parametrize("weight", ["-1", "nan", "inf"])
def test_a_weight_below_0_or_that_is_none_makes_no_model(weight: str) -> None:
    clients = [Contribution(0, 10), Contribution(1, 10)]
    with pytest.raises(InvalidConfiguration, match="gives client"):
        weigh(Upside(weight=weight), clients, WeightingRound(clients))

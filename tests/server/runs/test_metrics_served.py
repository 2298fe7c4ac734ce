"""Further scores in the service: refused by name, kept, shown, and the headline by choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.live_coordinator import ManualClient, enrolled, file_of, live

ASKED: dict[str, Any] = {
    "metrics": ["balanced_accuracy", "sensitivity:owl", "calibration_error", "confusion_matrix"],
    "headline": "sensitivity:owl",
}
CONFUSION = [[0.9, 0.1, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]


def score(judge: ManualClient, round: int, **more: Any) -> int:
    extra = {"balanced_accuracy": 0.8, "sensitivity:owl": 0.625, "calibration_error": 0.0375}
    body = {"loss": 0.5, "accuracy": 0.75, "examples": 50, "extra": extra, "confusion": CONFUSION, **more}
    return judge.http.put(f"/runs/demo/rounds/{round}/metrics", json=body).status_code


def test_they_are_kept_and_shown(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"}, **ASKED)
        judge = at.site("judge")
        assert judge.enrol("demo", 50, role="evaluator").status_code == 200
        (site,) = enrolled(at, [10])
        site.until("train")
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
        for round in (0, 1):
            assert judge.until("evaluate")["round"] == round
            assert (score(judge, round), score(judge, round)) == (204, 204)
        assert score(judge, 1, confusion=[[1.0]]) == 409
        found = at.admin.get("/runs/demo/rounds/1").json()["evaluations"][0]
        assert found["confusion"] == CONFUSION
        assert found["extra"]["sensitivity:owl"] == 0.625
        page = at.http().get(f"{at.url}/runs/demo").text
        assert at.admin.get("/runs").json()[0]["headline"] == {"name": "sensitivity:owl", "value": 0.625}
        assert "sensitivity, owl <b>62.5\u202f%</b>" in at.http().get(f"{at.url}/").text
        assert "Sensitivity, owl</dt><dd><b>62.5\u202f%</b>" in page
        for title in (
            "Balanced accuracy by round",
            "Sensitivity, owl by round",
            "Calibration error by round",
        ):
            assert title in page
        assert '<td class="n heat-9"><b>100.0\u202f%</b></td>' in page
        assert '<td class="n heat-2">25.0\u202f%</td>' in page


@pytest.mark.parametrize(
    ("metrics", "said"),
    [(["sensitivity:emu"], "the run has no class 'emu'"), (["accurcy"], "accuracy is in every evaluation")],
)
def test_what_cannot_be_computed_is_refused_when_the_run_is_created(
    database_url: str, tmp_path: Path, metrics: list[str], said: str
) -> None:
    with live(database_url, tmp_path / "data") as at, pytest.raises(AssertionError, match=said):
        at.create(metrics=metrics)


def test_an_evaluator_of_several_runs_scores_what_has_waited_longest(
    database_url: str, tmp_path: Path
) -> None:
    """By the age of the runs, a slow one would never come to the newer."""
    with live(database_url, tmp_path / "data") as at:
        judge, trainer, names = at.site("judge"), at.site("north"), ("first", "second")
        for name in names:
            at.create(name, min_clients=1, rounds=3, weighting={"kind": "sizes"})
            assert judge.enrol(name, 5, role="evaluator").status_code == 200
            assert trainer.enrol(name, 10).status_code == 200

        def train(run: str, number: int) -> None:
            at.wait_for(lambda: at.run(run)["completed_rounds"] == number - 1)
            assert trainer.upload(run, number, file_of(1.0)).status_code == 200
            at.wait_for(lambda: at.run(run)["completed_rounds"] == number)

        for number in (1, 2):
            train("first", number)
        train("second", 1)
        served = []
        for _ in range(6):
            work = judge.until("evaluate")
            run, number = work["run"], work["round"]
            served.append((run, number))
            told = {"loss": 0.5, "accuracy": 0.75, "examples": 5}
            assert judge.http.put(f"/runs/{run}/rounds/{number}/metrics", json=told).status_code == 204
            if served[-1] == ("first", 1):
                train("first", 3)  # it goes on while the evaluator works
        assert served == [
            ("first", 0),
            ("second", 0),
            ("first", 1),
            ("first", 2),
            ("second", 1),
            ("first", 3),
        ]

"""A model without a finite loss is scored like any other: it is a result, not a fault of the evaluator."""

from __future__ import annotations

from pathlib import Path

import httpx

from feddisco.console import _format_rounds
from shared.schemas import RoundView
from tests.helpers.live_coordinator import enrolled, file_of, live


def test_a_loss_that_is_not_finite_is_stored_shown_and_blocks_nothing(
    database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=1, rounds=2, weighting={"kind": "sizes"})
        judge = at.site("judge")
        assert judge.enrol("demo", 4, role="evaluator").status_code == 200
        (site,) = enrolled(at, (10,))
        for number, loss in ((0, 1.5), (1, None), (2, 2.5)):
            if number:
                assert site.until("train")["round"] == number
                assert site.upload("demo", number, file_of(float(number))).status_code == 200
            assert judge.until("evaluate")["round"] == number
            body = {"loss": loss, "accuracy": 0.25, "examples": 4}
            for _ in range(2):
                answer = judge.http.put(f"/runs/demo/rounds/{number}/metrics", json=body)
                assert answer.status_code == 204, answer.text
        scored = at.admin.get("/runs/demo/evaluations").json()
        assert [entry["loss"] for entry in scored] == [1.5, None, 2.5]
        views = [RoundView.model_validate(view) for view in at.admin.get("/runs/demo/rounds").json()]
        assert "loss not finite" in next(iter(_format_rounds(views, 2, set())))
        run, diverged, sound = (
            httpx.get(f"{at.url}{page}")
            for page in ("/runs/demo", "/runs/demo/rounds/1", "/runs/demo/rounds/2")
        )
        assert [page.status_code for page in (run, diverged, sound)] == [200, 200, 200]
        assert [page.text.count("not finite") for page in (run, diverged, sound)] == [1, 1, 0]
        assert "judge, round 0: 1.5000" in run.text
        assert "judge, round 2: 2.5000" in run.text

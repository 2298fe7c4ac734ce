"""Charts as files, read out point by point, from zero by choice; weights over rounds."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import sqlalchemy as sa

from server.database.tables import evaluations
from server.lifecycle.events import PauseRequested, ResumeRequested, RewindRequested
from server.pages.chart_files import find_chart, write_csv
from server.pages.charts import LARGEST, line_chart
from server.pages.losses import TrainingLosses
from server.pages.words import percent
from tests.browser import seed
from tests.helpers.live_coordinator import enrolled, file_of, live
from tests.helpers.page_reading import client_on

CURVES = {"judge": [(0, 0.1), (1, 0.5), (2, 0.75), (3, 0.75), (4, 0.5)]}


def test_the_best_is_the_earliest_of_equals_and_losses_are_best_when_low() -> None:
    chart = line_chart("c", "C", CURVES, write=percent, tick=percent, best="highest")
    assert chart is not None
    assert chart.curves[0].best is not None
    assert (chart.curves[0].best.x, chart.curves[0].best.label) == (
        50.0,
        "best of judge: 75.0\u202f% at round 2",
    )
    chart = line_chart("c", "C", CURVES, write=percent, tick=percent, best="lowest", thin=("judge",))
    assert chart is not None
    assert chart.curves[0].best is None, "a thin one has no mark"


def test_every_point_can_be_read_though_a_long_curve_marks_its_end_only() -> None:
    long = {"judge": [(n, n / 100) for n in range(101)]}
    chart = line_chart("c", "C", long, write=percent, tick=percent)
    assert chart is not None
    readings = json.loads(chart.curves[0].readings)
    assert len(readings) == 101
    assert readings[50] == [50, 50.0, 50.0, "50.0\u202f%", 0.5]


def test_the_scale_from_zero() -> None:
    near = {"judge": [(0, 0.91), (1, 0.93)]}
    levels = []
    for from_zero in (False, True):
        chart = line_chart("c", "C", near, write=percent, tick=percent, from_zero=from_zero)
        assert chart is not None
        levels.append(chart.y_ticks[0].label)
    assert levels == ["91.0\u202f%", "0.0\u202f%"]


def test_a_run_has_its_charts_as_files(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"})
        judge = at.site("judge")
        assert judge.enrol("demo", 50, role="evaluator").status_code == 200
        sites = enrolled(at, [10, 30])
        accuracy = (0.125, 0.5, 0.25)
        for number in (1, 2):
            for place, site in enumerate(sites):
                site.until("train")
                assert site.upload("demo", number, file_of(number + place)).status_code == 200
        at.wait_for(lambda: at.run()["completed_rounds"] == 2)
        for number, value in enumerate(accuracy):
            assert judge.until("evaluate")["round"] == number
            body = {"loss": 1.0 - value, "accuracy": value, "examples": 50}
            assert judge.http.put(f"/runs/demo/rounds/{number}/metrics", json=body).status_code == 204

        http, base = at.http(), f"{at.url}/runs/demo"
        answer = http.get(f"{base}/charts/accuracy.csv")
        assert answer.headers["Content-Disposition"] == 'attachment; filename="demo-accuracy.csv"'
        assert list(csv.reader(answer.text.splitlines())) == [
            ["round", "judge"],
            ["0", "0.125"],
            ["1", "0.5"],
            ["2", "0.25"],
        ]
        picture = http.get(f"{base}/charts/accuracy.svg?zero=1")
        assert picture.headers["Content-Type"].startswith("image/svg+xml")
        texts = [node.text or "" for node in ElementTree.fromstring(picture.text).iter() if node.text]
        assert any("best of judge: 50.0" in text for text in texts)
        assert http.get(f"{base}/charts/nothing.svg").status_code == 404
        assert http.get(f"{base}/charts/accuracy.exe").status_code == 404
        assert http.get(f"{at.url}/runs/nobody/charts/accuracy.svg").status_code == 404

        page = http.get(base).text
        assert "site-1, round 2: 75.00\u202f%" in page, "the map of weights"
        assert 'href="?zero=1#course"' in page
        assert 'href="?#course"' in http.get(f"{base}?zero=1").text


@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_a_chart_of_a_run_that_nobody_has_scored_is_not_there(
    database_url: str, tmp_path: Path, name: str
) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create()
        assert at.http().get(f"{at.url}/runs/demo/charts/{name}.svg").status_code == 404


@pytest.mark.parametrize(
    "losses", [(1e308, -1e308), (0.5, 1.7e308), (0.0, 5e-324), (1e308, 1e308), (-1.7e308, 0.5)]
)
def test_a_run_with_scores_of_any_size_has_its_page(
    tmp_path: Path, database_url: str, losses: tuple[float, float]
) -> None:
    """Such as earlier versions have stored: what cannot be drawn is left out, and the page is there."""
    client, store = client_on(database_url, tmp_path)
    course = seed.Course(store, seed.config("demo", metrics=["macro_f1"])).create().enrol()
    course.play()
    for number, loss in enumerate(losses):
        course.evaluate(number)
        stored = sa.update(evaluations).where(evaluations.c.round == number)
        with store.engine.begin() as connection:
            connection.execute(stored.values(loss=loss, extra={"macro_f1": loss, "theirs": loss}))
    for path in (
        "/",
        "/runs/demo",
        "/runs/demo?zero=1",
        "/runs/demo/rounds/1",
        "/compare?runs=demo&measure=loss",
    ):
        assert client.get(path).status_code == 200, path
    file = client.get("/runs/demo/charts/loss.csv").text
    for number, loss in enumerate(losses):
        line = next((line for line in file.splitlines() if line.startswith(f"{number},")), "")
        assert (str(loss) in line) == (abs(loss) <= LARGEST), file
    store.engine.dispose()


class OtherLosses(seed.Course):
    """Whose training ends at another loss each time that ``level`` is changed."""

    level = 1.0

    def loss(self, index: int) -> float:
        return self.level


def test_training_losses_are_of_the_rounds_that_count(tmp_path: Path, database_url: str) -> None:
    """However often the run went back, and whether its page was looked at meanwhile."""
    client, store = client_on(database_url, tmp_path)
    course = OtherLosses(store, seed.config("demo", rounds=8, weighting={"kind": "sizes"}))
    course.create().enrol()

    def shown() -> list[str]:
        found = client.get("/runs/demo/charts/loss.csv")
        if found.status_code == 404:
            return []
        chart = find_chart(store, TrainingLosses(), "demo", "loss", course.now, from_zero=False)
        assert found.text == write_csv(chart), "what another process shows"
        return found.text.splitlines()[1:]

    def go_back(number: int) -> None:
        course.apply(RewindRequested(number, "once more"), "admin")
        course.completed = number

    while course.completed < 5:
        course.play()
    course.apply(PauseRequested("to look"), "admin")
    assert shown() == [f"{number},1.0" for number in range(1, 6)]
    go_back(3)
    assert shown() == ["1,1.0", "2,1.0", "3,1.0"]
    go_back(1)
    assert shown() == ["1,1.0"], "no attempt was made between the two"
    go_back(0)
    course.apply(ResumeRequested(), "admin")
    course.level = 2.0
    for number in range(1, 5):
        current = store.run_state("demo").round
        assert current is not None
        course.attempt = current.attempt
        course.play()
        assert course.completed == number
    assert shown() == [f"{number},2.0" for number in range(1, 5)]
    store.engine.dispose()

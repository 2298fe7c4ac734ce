"""A site's own images, three runs that ask about them, and the list of all that was told."""

from __future__ import annotations

import datetime as dt
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from feddisco.console import print_run
from feddisco.main import app
from shared.faults import Fault, FaultCode
from shared.schemas import RunView
from tests.helpers.live_coordinator import Live
from tests.helpers.worker_crew import create, worker
from worker.told import Told, told_lines

NOW = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
CLASSES = {"melanoma": 7, "nevus": 4}


def _images(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for name, number in CLASSES.items():
        path = folder / "train" / name
        path.mkdir(parents=True)
        for image in range(number):
            pixels = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / f"{image:04}.png")
    return folder


def _ask(at: Live, run: str, **weighting: object) -> None:
    create(
        at,
        name=run,
        task="imagefolder",
        task_options={"classes": list(CLASSES), "size": 32, "channels": 3},
        rounds=1,
        min_clients=1,
        autostart=False,
        weighting={"kind": "disco", **weighting},
    )


def _find_row(at: Live, run: str, status: str) -> Callable[[], dict[str, object] | None]:
    def find() -> dict[str, object] | None:
        rows = at.run(run)["enrolments"]
        return rows[0] if rows and rows[0]["status"] == status else None

    return find


def test_a_site_answers_once_and_lists_what_it_told(
    at: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _ask(at, "first")
    _ask(at, "second", a=0.3)
    _ask(at, "attack", metric="l1", target=[1, 0])
    data = _images(tmp_path / "scans")
    member = worker(at, tmp_path, "north", task="imagefolder", data=data, sizes="rounded")

    first, second = (
        at.wait_for(_find_row(at, "first", "ready"), 120),
        at.wait_for(_find_row(at, "second", "ready"), 120),
    )
    assert first["discrepancy"] == second["discrepancy"]
    assert (first["grade"], first["epsilon"]) == ("noised", 1.0)
    declined = at.wait_for(_find_row(at, "attack", "declined"), 120)
    assert declined["reason"] == Fault(FaultCode.OTHER_METRIC).sentence
    page = at.http().get(f"{at.url}/runs/first").text
    assert "noised, epsilon 1" in page
    print_run(RunView.model_validate(at.run("first")), [])
    assert "noised, epsilon 1" in " ".join(capsys.readouterr().out.split())

    listed = CliRunner().invoke(app, ["worker", "told", "--state", str(tmp_path / "north")])
    assert listed.exit_code == 0
    for run in ("first", "second"):
        assert f"POST /runs/{run}/enrolments: role trainer, task imagefolder, examples 11" in listed.output
        told = re.search(rf"PUT /runs/{run}/discrepancy: metric kl, value (\S+), grade noised", listed.output)
        assert told is not None
        assert float(told[1]) == first["discrepancy"]
    assert "POST /runs/attack/decline" in listed.output
    assert "token" not in listed.output
    assert at.admin.delete("/clients/north").status_code == 204
    assert member.join() == 3


def test_a_retry_is_one_line_and_the_file_is_private(tmp_path: Path) -> None:
    told = Told(tmp_path, lambda: NOW)
    for value in (1, 1, 2):
        told.record("PUT /runs/demo/discrepancy", {"value": value})
    path = tmp_path / "told.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(told_lines(tmp_path)) == [
        "2026-11-28T12:00:00+00:00  PUT /runs/demo/discrepancy: value 1",
        "2026-11-28T12:00:00+00:00  PUT /runs/demo/discrepancy: value 2",
    ]


def test_a_line_that_is_no_message_is_shown_as_it_is(tmp_path: Path) -> None:
    told = Told(tmp_path, lambda: NOW)
    told.record("PUT /runs/demo/discrepancy", {"value": 1})
    with (tmp_path / "told.jsonl").open("a") as file:
        file.write('{}\n{"at": "2026-11-28", "what": "POST /x", "content": 5}\n')
    assert list(told_lines(tmp_path)) == [
        "an entry that is no message: {}",
        'an entry that is no message: {"at": "2026-11-28", "what": "POST /x", "content": 5}',
        "2026-11-28T12:00:00+00:00  PUT /runs/demo/discrepancy: value 1",
    ]


def test_a_torn_line_hides_no_other_and_slots_are_listed_together(tmp_path: Path) -> None:
    slot = tmp_path / "slot-1"
    slot.mkdir()
    entry = {"at": "2026-11-28T11:00:00+00:00", "what": "POST /x", "content": {"reason": "\u2028"}}
    line = json.dumps(entry, ensure_ascii=False).encode()  # as earlier versions wrote
    (slot / "told.jsonl").write_bytes(line + b'\n\x80\n1\n{"at": "2026')
    Told(tmp_path, lambda: NOW).record("POST /y", {"n": 3})
    Told(slot, lambda: NOW).record("POST /z", {"n": "\u00e4\u2028"})
    assert [each.split("  ")[1] for each in told_lines(tmp_path)] == [
        "POST /x: reason \u2028",
        "POST /y: n 3",
        "POST /z: n \u00e4\u2028",
    ]


@pytest.mark.parametrize("arguments", [["--state", "/nowhere/at/all"]])
def test_no_state_folder_is_said(arguments: list[str]) -> None:
    listed = CliRunner().invoke(app, ["worker", "told", *arguments])
    assert listed.exit_code != 0
    assert "no state folder" in str(listed.exception)

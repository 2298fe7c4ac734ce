"""Data as they are, at a worker with a real coordinator: cases D1, D4 and D5 of issue 8."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from shared.config import Frozen
from shared.data import Examples
from shared.faults import Fault, FaultCode
from shared.tasks.base import Split, Task
from tests.helpers.live_coordinator import Live
from tests.helpers.worker_crew import Member, create, keep, worker
from worker import changed_data
from worker.journal import RunJournal
from worker.main import leave
from worker.site import LocalRun

OPTIONS = {"classes": ["a", "b"], "size": 16}


def images(folder: Path, format: dict[str, str], number: int = 20) -> Path:
    """Noise in a folder for each class, with the suffix that ``format`` says."""
    random = np.random.default_rng(0)
    for name, suffix in format.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(number):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index:02}{suffix}")
    return folder


def row_of(at: Live, run: str, client: str) -> dict[str, Any]:
    """The client's enrolment, once there is one."""
    found: dict[str, Any] = at.wait_for(
        lambda: next((row for row in at.run(run)["enrolments"] if row["client"] == client), None)
    )
    return found


def revoke(at: Live, member: Member) -> None:
    """End a worker that waits for work."""
    assert at.admin.delete(f"/clients/{member.settings.name}").status_code == 204
    assert member.join() == 3


def test_d1_tif_counts_and_what_is_left_out_is_on_the_page(at: Live, tmp_path: Path) -> None:
    data = images(tmp_path / "data", {"a": ".png", "b": ".tif"})
    (data / "a" / "notes.txt").write_text("private")
    (data / ".DS_Store").write_text("private")
    create(
        at,
        name="skin",
        task="imagefolder",
        task_options=OPTIONS,
        rounds=1,
        min_clients=1,
        weighting={"kind": "disco"},
    )
    member = worker(at, tmp_path, "north", task="imagefolder", disclosure="exact", data=data)
    assert member.join() == 0
    row = row_of(at, "skin", "north")
    assert (row["examples"], row["discrepancy"]) == (40, 0)
    assert row["left_out"] == {"hidden": 1, "not-an-image": 1}
    assert "skin: train data: left out, no image by the name's ending: 1 (a/notes.txt)" in member.log
    page = httpx.get(f"{at.url}/runs/skin").text
    assert "left out: 1 hidden, 1 no image by the name" in page
    assert "notes.txt" not in page


def test_d4_a_broken_image_declines_the_run_and_the_worker_stays(at: Live, tmp_path: Path) -> None:
    data = images(tmp_path / "data", {"a": ".png", "b": ".png"})
    (data / "a" / "03.png").write_bytes(b"")
    create(at, name="skin", task="imagefolder", task_options=OPTIONS, rounds=1, min_clients=1)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data)
    row = row_of(at, "skin", "north")
    assert (row["status"], row["reason"]) == ("declined", Fault(FaultCode.DATA_UNFIT).sentence)
    at.wait_for(lambda: "not taking part, data: a/03.png in" in member.log)
    assert "is empty (0 bytes)" in member.log
    assert member.join() == 4


def test_d4_a_broken_image_is_skipped_where_the_site_says_so(at: Live, tmp_path: Path) -> None:
    data = images(tmp_path / "data", {"a": ".png", "b": ".png"})
    (data / "a" / "03.png").write_bytes(b"")
    create(at, name="skin", task="imagefolder", task_options=OPTIONS, rounds=1, min_clients=1)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data, on_broken="skip")
    assert member.join() == 0
    row = row_of(at, "skin", "north")
    assert (row["examples"], row["left_out"]) == (39, {"empty": 1})
    assert "left out, empty files: 1 (a/03.png is empty (0 bytes))" in member.log


class OddOptions(Frozen):
    odd: Literal["none", "minus one", "one above", "fraction", "nan input"] = "none"


class Odd(Task):
    """A task of one's own whose data are not what its classes say."""

    name = "odd"
    Options = OddOptions
    default_model = "mlp"
    classes = ("no", "yes", "maybe")
    input_shape = (2,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        assert isinstance(self.options, OddOptions)
        inputs, targets = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
        match self.options.odd:
            case "minus one":
                targets[4] = -1
            case "one above":
                targets[4:] = 3
            case "fraction":
                targets = targets.float()
            case "nan input":
                inputs[3, 1] = torch.nan
        return Examples(inputs, targets)


SAID = {
    "minus one": "1 of 6 train examples have a label that is none of the run's classes, "
    "the first is example 4 with -1. Labels go from 0 (no) to 2 (maybe).",
    "one above": "2 of 6 train examples have a label that is none of the run's classes, "
    "the first is example 4 with 3.",
    "fraction": "the classes of 6 train examples are torch.float32 of shape [6], not 6 whole numbers",
    "nan input": "1 of 6 train examples have an input that is not a finite number, the first is example 3",
}


@pytest.mark.parametrize("odd", SAID)
def test_d5_labels_outside_the_contract_decline_the_run(at: Live, tmp_path: Path, odd: str) -> None:
    name = f"{__name__}:Odd"
    create(at, name="odd", task=name, task_options={"odd": odd}, min_clients=1, weighting={"kind": "disco"})
    member = worker(at, tmp_path, "north", task=name)
    row = row_of(at, "odd", "north")
    assert (row["status"], row["reason"]) == ("declined", Fault(FaultCode.DATA_UNFIT).sentence)
    at.wait_for(lambda: "not taking part" in member.log)
    assert SAID[odd] in member.log
    assert "trying again" not in member.log.lower()
    assert member.join() == 4


def test_a_label_map_that_leads_to_no_class_declines_the_run(at: Live, tmp_path: Path) -> None:
    data = images(tmp_path / "data", {"mel": ".png", "b": ".png"}, 4)
    options = {"classes": ["melanoma", "b"], "size": 16}
    create(at, name="skin", task="imagefolder", task_options=options, rounds=1, min_clients=1)
    bad = worker(at, tmp_path, "bad", task="imagefolder", data=data, labels='{"mel": "melanom"}')
    assert row_of(at, "skin", "bad")["reason"] == Fault(FaultCode.DATA_UNFIT).sentence
    at.wait_for(lambda: "labels: 'mel' stands for 'melanom', which is none of the classes" in bad.log)
    assert "Did you mean melanoma?" in bad.log
    assert bad.join() == 4
    good = worker(at, tmp_path, "good", task="imagefolder", data=data, labels='{"mel": "melanoma"}')
    assert good.join() == 0
    assert row_of(at, "skin", "good")["examples"] == 8


# ---------------------------------------------------------------- D6: data that change


def change(data: Path, number: int = 5) -> None:
    """Five more images in each class."""
    images(data, {"a": ".new.png", "b": ".new.png"}, number)


def waiting_run(at: Live, tmp_path: Path, **config: Any) -> Path:
    """A run that starts when it is told to, and 40 images for it."""
    given = {
        "rounds": 2,
        "min_clients": 1,
        "autostart": False,
        "weighting": {"kind": "disco"},
        "max_attempts": 5,
    }
    create(at, name="skin", task="imagefolder", task_options=OPTIONS, **(given | config))
    return images(tmp_path / "data", {"a": ".png", "b": ".png"})


def start(at: Live) -> None:
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    assert at.admin.post("/runs/skin/start").status_code == 200


def test_d6_changed_data_are_noticed_before_training_and_enrolled_anew(at: Live, tmp_path: Path) -> None:
    data = waiting_run(at, tmp_path)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data)
    row = at.wait_for(
        lambda: row_of(at, "skin", "north")["status"] == "ready" and row_of(at, "skin", "north")
    )
    assert row["examples"] == 40
    change(data)
    start(at)
    assert member.join() == 0
    after = row_of(at, "skin", "north")
    assert (after["examples"], after["index"], at.run("skin")["status"]) == (50, 0, "completed")
    said = "skin: the data here have changed since this client enrolled; leaving, and enrolling anew"
    assert member.log.count(said) == 1
    assert member.log.count("told d = ") == 2  # other data have another one
    assert "steps, loss" not in member.log.split(said)[0]  # nothing was trained for nothing


def test_d6_a_table_that_is_being_written_is_waited_for(
    at: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at in the middle of a row: neither declined nor enrolled with a part of it."""
    options = {"columns": ["age"], "target": "verdict", "classes": ["good", "bad"]}
    create(
        at, name="skin", task="csv", task_options=options, rounds=1, min_clients=1, autostart=False,
        weighting={"kind": "disco"},
    )  # fmt: skip
    table = tmp_path / "data" / "train.csv"
    table.parent.mkdir()
    table.write_text("age,verdict\n" + "1,good\n2,bad\n" * 10)
    member = worker(at, tmp_path, "north", task="csv", data=table.parent)
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    rest = ["3,good\n", "4,bad\n"]
    found, loaded = changed_data.DataWatch._look_again, []

    def write_on(watch: changed_data.DataWatch, local: LocalRun) -> str:
        if rest:
            with table.open("a") as file:
                file.write(rest.pop(0))
        loaded.append(member.log)
        return found(watch, local)

    monkeypatch.setattr(changed_data, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(changed_data.DataWatch, "_look_again", write_on)
    with table.open("a") as file:
        file.write("5,good\n6,")
    rest.insert(0, "bad\n")
    start(at)
    assert member.join() == 0, member.log
    assert (row_of(at, "skin", "north")["examples"], len(loaded)) == (24, 4)
    assert member.log.count("leaving, and enrolling anew") == 1


def test_d6_data_that_never_stay_are_taken_as_they_are() -> None:
    marks, said = map(str, range(1000)), list[str]()
    site = SimpleNamespace(
        find_data_mark=lambda local: next(marks),
        reload_data=lambda local: said.append("loaded"),
        loaded_data_mark=lambda local: ("", "other"),
    )
    journal = SimpleNamespace(open_run=lambda run: SimpleNamespace(data_mark="files examples 5 exact"))
    watch = changed_data.DataWatch(Any, journal, site, said.append, sleep=lambda seconds: None)  # type: ignore[arg-type]
    assert watch.has_changed(SimpleNamespace(view=SimpleNamespace(run="skin")))  # type: ignore[arg-type]
    assert said == ["skin: the data here are still changing; taking them as they are", "loaded"]


def test_d6_changed_data_decline_the_run_where_the_site_says_so(at: Live, tmp_path: Path) -> None:
    data = waiting_run(at, tmp_path)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data, on_changed_data="decline")
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    change(data)
    start(at)
    row = at.wait_for(
        lambda: row_of(at, "skin", "north")["status"] == "declined" and row_of(at, "skin", "north")
    )
    assert row["reason"] == Fault(FaultCode.DATA_CHANGED).sentence
    assert "declining the run (on_changed_data)" in member.log
    assert member.join() == 4


@pytest.mark.parametrize("number", ["same", "other"])
def test_d6_changed_data_are_gone_on_with_only_if_their_number_is_the_same(
    at: Live, tmp_path: Path, number: str
) -> None:
    data = waiting_run(at, tmp_path)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data, on_changed_data="continue")
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    if number == "same":
        (data / "a" / "00.png").rename(data / "b" / "moved.png")
        start(at)
        assert member.join() == 0
        assert "skin: the data here have changed; continuing with 40 examples as before" in member.log
        assert row_of(at, "skin", "north")["examples"] == 40
    else:
        change(data)
        start(at)
        at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "declined")
        assert "skin: the data here have changed: 50 examples, enrolled with 40" in member.log
        assert member.join() == 4


def test_d6_rounded_sizes_that_stay_the_same_are_gone_on_with(at: Live, tmp_path: Path) -> None:
    """What counts is the number that was told: 104 and 102 are both 100."""
    data = waiting_run(at, tmp_path)
    images(data, {"a": ".png", "b": ".png"}, 51)
    settings = {"sizes": "rounded", "on_changed_data": "continue"}
    member = worker(at, tmp_path, "north", task="imagefolder", data=data, **settings)
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    change(data, 1)
    start(at)
    assert member.join() == 0
    assert (
        "skin: the data here have changed; continuing with 104 examples, told as 100 as before" in member.log
    )
    assert row_of(at, "skin", "north")["examples"] == 100


@pytest.mark.parametrize("mark", ["leaving changed data", ""], ids=["now", "of an earlier version"])
def test_d6_a_worker_that_was_killed_while_it_left_enrols_anew(at: Live, tmp_path: Path, mark: str) -> None:
    """Before the coordinator heard of it."""
    data = waiting_run(at, tmp_path)
    north = at.site("north")
    assert north.enrol("skin", 10, task="imagefolder", classes=["a", "b"]).status_code == 200
    keep(at, tmp_path, north)
    RunJournal(tmp_path / "north" / "runs" / "skin", print).keep_data_mark(mark)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data)
    at.wait_for(lambda: row_of(at, "skin", "north")["examples"] == 40)
    start(at)
    assert member.join() == 0


def test_d6_changed_data_are_noticed_at_the_start(at: Live, tmp_path: Path) -> None:
    data = waiting_run(at, tmp_path)
    north = at.site("north")
    assert north.enrol("skin", 40, task="imagefolder", classes=["a", "b"]).status_code == 200
    keep(at, tmp_path, north)
    RunJournal(tmp_path / "north" / "runs" / "skin", print).keep_data_mark("of other data")
    member = worker(at, tmp_path, "north", task="imagefolder", data=data)
    at.wait_for(lambda: "leaving, and enrolling anew" in member.log)
    start(at)
    assert member.join() == 0


def test_d7_a_site_with_one_example_declines_a_model_with_batch_normalisation(
    at: Live, tmp_path: Path
) -> None:
    name = "tests.shared.test_batches_of_one:Normed"
    create(at, name="norm", task=name, min_clients=1, partition="iid:9")
    member = worker(at, tmp_path, "north", task=name, partition="run")
    row = row_of(at, "norm", "north")
    told = Fault(FaultCode.TOO_FEW_EXAMPLES)
    assert (row["status"], row["reason"]) == ("declined", told.sentence)
    assert member.join() == 4
    assert "which needs 2 examples in a batch; there is 1 example." in member.log


def test_d7_a_joined_batch_is_said(at: Live, tmp_path: Path) -> None:
    name = "tests.shared.test_batches_of_one:Normed"
    local = {"epochs": 1, "batch_size": 4, "drop_last": False}
    create(at, name="norm", task=name, min_clients=1, local=local, rounds=1)
    member = worker(at, tmp_path, "north", task=name)
    assert member.join() == 0
    assert "norm: the last batch of an epoch would have one example, too few for batch norm" in member.log
    assert "2 steps" in member.log


def test_d6_a_run_is_left_by_a_command(at: Live, tmp_path: Path) -> None:
    data = waiting_run(at, tmp_path)
    member = worker(at, tmp_path, "north", task="imagefolder", data=data)
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    assert leave(member.settings, "skin") == "north has left skin."
    assert row_of(at, "skin", "north")["status"] == "left"
    revoke(at, member)


@pytest.mark.long
def test_d6_files_that_are_none_of_the_examples_change_nothing(at: Live, tmp_path: Path) -> None:
    """Like the worker's own state, where somebody has put it beside the data."""
    data = waiting_run(at, tmp_path)
    member = worker(at, data, "north", task="imagefolder", data=data)  # its state is in data/north
    at.wait_for(lambda: row_of(at, "skin", "north")["status"] == "ready")
    (data / "notes.txt").write_text("written meanwhile")
    (data / "a" / "00.png").touch()
    start(at)
    assert member.join() == 0
    assert at.run("skin")["status"] == "completed"
    assert "have changed" not in member.log
    assert member.log.count("told d = ") == 1


@pytest.mark.long
def test_d6_changed_data_in_a_secure_run_after_its_sums(at: Live, tmp_path: Path) -> None:
    """The coordinator knows no site's number: whether it is the same, the site remembers by itself."""
    local = {"steps": 1, "batch_size": 8}
    create(
        at, name="skin", task="imagefolder", task_options=OPTIONS, rounds=99, min_clients=3, secure={},
        weighting={"kind": "disco"}, local=local,
    )  # fmt: skip
    settings = {"north": "continue", "south": "decline", "west": "enrol"}
    data = {name: images(tmp_path / f"{name}-data", {"a": ".png", "b": ".png"}) for name in settings}
    crew = {
        name: worker(at, tmp_path, name, task="imagefolder", data=data[name], on_changed_data=what)
        for name, what in settings.items()
    }
    at.wait_for(lambda: at.run("skin")["completed_rounds"] >= 1, 60)
    assert at.admin.post("/runs/skin/pause").status_code == 200
    told = at.run("skin")["totals"]
    (data["north"] / "a" / "00.png").rename(data["north"] / "b" / "moved.png")
    change(data["west"])
    assert at.admin.post("/runs/skin/resume").status_code == 200
    at.wait_for(lambda: "continuing with 40 examples as before" in crew["north"].log, 60)
    at.wait_for(lambda: crew["west"].log.count("skin: enrolled") == 2, 60)
    assert "leaving, and enrolling anew" in crew["west"].log
    done = at.run("skin")["completed_rounds"]
    at.wait_for(
        lambda: at.run("skin")["completed_rounds"] > done + 1, 60
    )  # no numbers here are in the totals
    assert at.admin.post("/runs/skin/stop").status_code == 200
    for member in crew.values():
        member.join()
    assert at.run("skin")["totals"] == told
    rows = at.run("skin")["enrolments"]
    assert [row["examples"] for row in rows] == [0, 0, 0]
    assert not any(number in (row["reason"] or "") for row in rows for number in ("40", "50"))

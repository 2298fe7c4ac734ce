"""What a site keeps of one run must never be used in another for which it would be wrong."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shared.config import Frozen, RunConfig
from shared.data import Examples
from shared.faults import Fault, FaultCode
from shared.left_out import LeftOut, Reason
from shared.schemas import RunStatus, RunView
from shared.secure.faults import ProtocolRefused
from shared.tasks import load_task
from shared.tasks.base import Split, Task
from shared.wire.tensors import manifest_of
from tests.helpers.worker_crew import ALONE
from worker.faults import LocalFault
from worker.policy.document import load_policy
from worker.secure_work import SecureWork
from worker.settings import WorkerSettings
from worker.site import LocalRun, Site

SHADES = {"dark": 20, "light": 230}
NUMBERS = {"dark": 3, "light": 2}
ORDERS = [("dark", "light"), ("light", "dark")]
COLUMNS = {"columns": ["x"], "target": "y"}


class NamedOptions(Frozen):
    classes: tuple[str, ...]


class Named(Task):
    """A task of one's own whose classes come from the contract alone."""

    name = "named"
    Options = NamedOptions
    default_model = "mlp"
    input_shape = (1, 2, 2)

    def __init__(self, options: NamedOptions) -> None:
        super().__init__(options)
        self.classes = options.classes

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        targets = [self.classes.index(name) for name, number in NUMBERS.items() for _ in range(number)]
        return Examples(torch.zeros(len(targets), 1, 2, 2), torch.tensor(targets))


class Renamed(Named):
    """Another task with the same options."""

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        examples = super().load(split, source, seed)
        return Examples(examples.inputs, 1 - examples.targets)


class Interrupted(Named):
    """A share that was away for a moment as one of the files was read, which leaves no trace in them."""

    is_away = True

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        whole = super().load(split, source, seed)
        if not Interrupted.is_away:
            return whole
        left_out = LeftOut()
        left_out.add(Reason.UNREADABLE, "4.png", "cannot be read (Stale file handle)")
        return Examples(whole.inputs[:4], whole.targets[:4], left_out=left_out)


def written(folder: Path) -> Path:
    """Images and a table of three dark and two light, in both splits."""
    for split in ("train", "test"):
        lines = ["x,y"]
        for name, number in NUMBERS.items():
            for index in range(number):
                path = folder / split / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(np.full((8, 8, 3), SHADES[name], dtype=np.uint8))
                image.save(path, compress_level=0)  # all files of one size
                lines.append(f"{SHADES[name]},{name}")
        (folder / f"{split}.csv").write_text("\n".join(lines))
    return folder


def view(run: str, task: str, classes: tuple[str, ...], **config: Any) -> RunView:
    """A run as its coordinator shows it; the contract is in ``classes``, not among the task's options."""
    given = {"name": run, "task": task, "classes": classes, "min_clients": 1, "model": "mlp", **config}
    made = RunConfig.model_validate(given)
    model = load_task(task, made.task_options, classes).build_model(made.model, made.seed)
    return RunView(
        run=run,
        status=RunStatus.RUNNING,
        reason=None,
        task=task,
        algorithm=made.algorithm.name,
        weighting=made.weighting.kind,
        rounds=made.rounds,
        completed_rounds=0,
        created_at=dt.datetime(2026, 11, 28, tzinfo=dt.UTC),
        finished_at=None,
        accuracy=None,
        config=made,
        classes=classes,
        manifest=manifest_of(model),
        initial_model="0" * 64,
        model="0" * 64,
        enrolments=(),
        current_round=None,
        waiting_for="",
    )


def site(folder: Path, task: str, told: list[str] | None = None, **more: Any) -> Site:
    given = WorkerSettings(task=task, data=folder / "data", policy=ALONE, **more)
    say = (list[str]() if told is None else told).append
    return Site(given, load_policy(given), folder / "cache", say)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path / "data")
    return tmp_path


TASKS = [
    pytest.param("imagefolder", {"size": 8}, id="images"),
    pytest.param("csv", COLUMNS, id="table"),
    pytest.param(f"{__name__}:Named", {}, id="own"),
]


@pytest.mark.parametrize("orders", [ORDERS, ORDERS[::-1]], ids=["dark first", "light first"])
@pytest.mark.parametrize(("task", "options"), TASKS)
def test_labels_are_those_of_the_runs_own_contract(
    folder: Path, task: str, options: dict[str, Any], orders: list[tuple[str, ...]]
) -> None:
    here = site(folder, task)
    runs = [
        here.prepare_run(view(f"run-{place}", task, classes, task_options=options))
        for place, classes in enumerate([*orders, *orders])
    ]
    for local in runs:
        assert here.count_classes(local, None) == [NUMBERS[name] for name in local.view.classes]
        tested = here.test_examples(local).targets.bincount()
        assert tested.tolist() == [NUMBERS[name] for name in local.view.classes]
        if task == "imagefolder":
            examples = here.training_examples(local, None)
            for shade, target in zip(examples.inputs[:, 0, 0, 0], examples.targets, strict=True):
                assert SHADES[local.view.classes[target]] == shade


def test_parts_of_a_dealt_set_are_those_of_the_runs_own_contract(folder: Path) -> None:
    here = site(folder, "imagefolder", partition="run")
    runs = [
        here.prepare_run(
            view(f"run-{place}", "imagefolder", classes, task_options={"size": 8}, partition="iid:1")
        )
        for place, classes in enumerate(ORDERS)
    ]
    assert [here.count_classes(local, 0) for local in runs] == [[3, 2], [2, 3]]


def test_a_misspelt_class_is_not_covered_by_what_another_run_has_loaded(folder: Path) -> None:
    here = site(folder, "imagefolder")
    good = here.prepare_run(view("good", "imagefolder", ORDERS[0], task_options={"size": 8}))
    assert len(here.training_examples(good, None)) == 5
    bad = here.prepare_run(view("bad", "imagefolder", ("dark", "lihgt"), task_options={"size": 8}))
    with pytest.raises(LocalFault, match=r"light/0\.png") as caught:
        here.training_examples(bad, None)
    assert caught.value.told == Fault(FaultCode.DATA_UNFIT)


def is_shared(here: Site, one: LocalRun, two: LocalRun) -> bool:
    pairs = ((here.training_examples(local, None).inputs.data_ptr()) for local in (one, two))
    return len(set(pairs)) == 1


def test_only_what_loads_the_same_is_shared(folder: Path) -> None:
    here = site(folder, "imagefolder")

    def taken_up(run: str, *, classes: tuple[str, ...] = ORDERS[0], **config: Any) -> LocalRun:
        return here.prepare_run(view(run, "imagefolder", classes, **{"task_options": {"size": 8}, **config}))

    one = taken_up("one")
    assert is_shared(here, one, taken_up("same"))
    assert is_shared(here, one, taken_up("defaults", task_options={"size": [8, 8], "channels": 3}))
    assert is_shared(here, one, taken_up("as-option", task_options={"size": 8, "classes": ORDERS[0]}))
    assert not is_shared(here, one, taken_up("seed", seed=1))
    assert not is_shared(here, one, taken_up("more", classes=(*ORDERS[0], "grey")))
    assert not is_shared(here, one, taken_up("grey", task_options={"size": 8, "channels": 1}))


def test_another_task_with_the_same_options_loads_for_itself(folder: Path) -> None:
    here = site(folder, f"{__name__}:Named")
    one = here.prepare_run(view("one", f"{__name__}:Named", ORDERS[0]))
    here.settings = here.settings.model_copy(update={"task": f"{__name__}:Renamed"})
    two = here.prepare_run(view("two", f"{__name__}:Renamed", ORDERS[0]))
    assert [here.count_classes(local, None) for local in (one, two)] == [[3, 2], [2, 3]]


def test_what_could_not_be_read_for_a_moment_is_read_for_the_next_run(folder: Path) -> None:
    Interrupted.is_away = True
    here = site(folder, f"{__name__}:Interrupted", on_broken="skip")
    one = here.prepare_run(view("one", f"{__name__}:Interrupted", ORDERS[0]))
    assert here.count_classes(one, None) == [3, 1]
    Interrupted.is_away = False
    two = here.prepare_run(view("two", f"{__name__}:Interrupted", ORDERS[0]))
    assert here.count_classes(two, None) == [3, 2]
    assert here.count_classes(one, None) == [3, 1]  # a run's own data stay as they were loaded for it


def swap(one: Path, two: Path) -> None:
    """Exchange two files as `mv` does: sizes and times of modification stay."""
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


@pytest.mark.parametrize("how", ["swapped", "added"])
def test_data_that_changed_count_from_the_next_run_on(folder: Path, how: str) -> None:
    here = site(folder, "imagefolder")
    train = folder / "data" / "train"
    dark, light = train / "dark" / "0.png", train / "light" / "0.png"
    for path in (dark, light):
        os.utime(path, (1, 1))
    assert dark.stat().st_size == light.stat().st_size

    def shades(run: LocalRun) -> list[int]:
        found: list[int] = here.training_examples(run, None).inputs[:, 0, 0, 0].tolist()
        return found

    before = here.prepare_run(view("before", "imagefolder", ORDERS[0], task_options={"size": 8}))
    assert shades(before) == [20, 20, 20, 230, 230]
    if how == "swapped":
        swap(dark, light)
    else:
        (train / "light" / "2.png").write_bytes(light.read_bytes())
    after = here.prepare_run(view("after", "imagefolder", ORDERS[0], task_options={"size": 8}))
    assert shades(after) == ([230, 20, 20, 20, 230] if how == "swapped" else [20, 20, 20, 230, 230, 230])
    assert shades(before) == [20, 20, 20, 230, 230]  # what the run enrolled with


def touch(folder: Path, how: str) -> Path:
    """Do to the data at ``folder / "data"`` what changes no example; returns where ``folder`` is then."""
    table = folder / "data" / "train.csv"
    if how == "chmod":
        table.chmod(0o640)
    elif how == "linked":
        os.link(table, folder / "backup")
    else:
        return folder.rename(folder.with_name("moved"))
    return folder


@pytest.mark.parametrize("how", ["chmod", "linked", "moved"])
def test_labels_of_touched_files_are_summed_over_the_same_sites_only(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    """Four sites and then three of them: the difference would be the labels of the fourth."""
    state = tmp_path_factory.mktemp("state")
    config = {"task_options": COLUMNS, "secure": {}, "weighting": {"kind": "disco", "target": "global"}}

    def add(folder: Path, run: str, members: tuple[int, ...], **site_options: Any) -> None:
        here = site(folder, "csv", state=state, **site_options)
        local = here.prepare_run(view(run, "csv", ORDERS[0], **{**config, "min_clients": 3}))
        step = SimpleNamespace(round=0, index=0)
        client = SimpleNamespace(identities={i: bytes([i]) for i in range(4)}, survivors=members)
        work = SecureWork(Any, here, Any, b"", Any)  # type: ignore[arg-type]
        work._check_label_sums(step, local, client)  # type: ignore[arg-type]

    add(folder, "first", (0, 1, 2, 3))
    now = touch(folder, how)
    for options in ({}, {"task_options": {"length": 100}}):
        with pytest.raises(ProtocolRefused, match="summed with those of other sites before"):
            add(now, "fewer", (0, 1, 2), **options)
        add(now, "same", (0, 1, 2, 3), **options)
    with (now / "data" / "train.csv").open("a") as table:
        table.write("\n230,light")
    add(now, "more", (0, 1, 2))


def test_another_run_of_the_same_name_gets_nothing_of_the_first(folder: Path) -> None:
    here = site(folder, "imagefolder", partition="run")
    for classes, counts in zip(ORDERS, ([3, 2], [2, 3]), strict=True):
        local = here.prepare_run(
            view("demo", "imagefolder", classes, task_options={"size": 8}, partition="iid:1")
        )
        assert here.count_classes(local, 0) == counts
        assert here.test_examples(local).targets.bincount().tolist() == counts


def test_a_forgotten_run_leaves_the_others_what_they_share(folder: Path) -> None:
    here = site(folder, "imagefolder")
    one, two = (
        here.prepare_run(view(run, "imagefolder", ORDERS[0], task_options={"size": 8}))
        for run in ("one", "two")
    )
    assert is_shared(here, one, two)
    shared = here.training_examples(one, None).inputs.data_ptr()
    here.forget("one")
    assert here.find_run("one") is None
    assert here.training_examples(two, None).inputs.data_ptr() == shared
    here.forget("two")
    assert not here._splits

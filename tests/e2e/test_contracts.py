"""Runs of one task with other class contracts, at one worker: each trains on its own labels, or declines."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from feddisco.models import fetch_model
from shared import wire
from shared.config import RunConfig
from shared.faults import Fault, FaultCode
from shared.schemas import EnrolmentStatus, EnrolmentView, RunStatus
from shared.tasks import task_of
from shared.wire.tensors import load_into, manifest_of
from tests.helpers.processes import Deployment, deployment
from tests.helpers.worker_crew import ALONE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SHADES = {"dark": 20, "light": 230}
WORKER = ("--task", "imagefolder", "--policy", str(ALONE))
DARK_FIRST, LIGHT_FIRST = ("dark", "light"), ("light", "dark")


def config(name: str, *classes: str, autostart: bool = False) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": name,
            "task": "imagefolder",
            "classes": classes,
            "task_options": {"size": 8, "crop_padding": 0},
            "model": "mlp",
            "rounds": 2,
            "min_clients": 1,
            "autostart": autostart,
            "local": {"steps": 20, "batch_size": 8, "learning_rate": 0.05},
            "evaluate_every": 0,
        }
    )


def write_images(folder: Path, shades: Mapping[str, int] = SHADES) -> None:
    random = np.random.default_rng(0)
    for name, shade in shades.items():
        for number in range(6):
            path = folder / "train" / name / f"patient-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = shade + random.integers(-20, 20, (8, 8, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)


def enrolment(made: Deployment, run: str) -> EnrolmentView | None:
    return next(iter(made.admin.run(run).enrolments), None)


def is_ready(made: Deployment, run: str) -> bool:
    row = enrolment(made, run)
    return row is not None and row.status is EnrolmentStatus.READY


def has_ended(made: Deployment, run: str) -> bool:
    return made.status(run).is_terminal


def wait_until_ready(made: Deployment, *runs: str) -> None:
    for run in runs:
        made.wait_for(
            partial(is_ready, made, run),
            f"the worker is ready for {run}",
        )


def start(made: Deployment, *runs: str) -> None:
    for run in runs:
        made.admin.control(run, "start")
    for run in runs:
        made.wait_for(partial(has_ended, made, run), f"{run} ends")
        assert made.status(run) is RunStatus.COMPLETED, made.logs()


def answers(made: Deployment, given: RunConfig) -> dict[str, str]:
    """The class by which the run's last model calls a wholly dark and a wholly light image."""
    task = task_of(given)
    model = task.build_model(given.model, given.seed).eval()
    out = made.folder / f"{given.name}.safetensors"
    fetch_model(made.admin, given.name, out)
    with wire.opened(out) as file:
        load_into(model, {spec.name: file.tensor(wire.MODEL, spec.name) for spec in manifest_of(model)})
    images = torch.stack([torch.full((3, 8, 8), shade, dtype=torch.uint8) for shade in SHADES.values()])
    with torch.inference_mode():
        places = model(task.prepare(images, None)).argmax(dim=1).tolist()
    return {name: task.classes[place] for name, place in zip(SHADES, places, strict=True)}


def test_each_run_trains_on_the_labels_of_its_own_contract(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    before = [config("dark-1", *DARK_FIRST), config("light-1", *LIGHT_FIRST)]
    after = [config("light-2", *LIGHT_FIRST), config("dark-2", *DARK_FIRST)]
    misspelt = config("misspelt", "dark", "lihgt", autostart=True)
    with deployment(tmp_path / "made") as made:
        made.start_coordinator()
        made.start_worker("north", *WORKER, "--data", str(tmp_path / "images"))
        for given in (*before, misspelt):
            made.create(given)
        wait_until_ready(made, "dark-1", "light-1")
        row = made.wait_for(lambda: enrolment(made, "misspelt"), "the misspelt run is answered")
        assert row.status is EnrolmentStatus.DECLINED
        assert row.reason == Fault(FaultCode.DATA_UNFIT).sentence
        start(made, "dark-1", "light-1")

        for given in after:
            made.create(given)
        wait_until_ready(made, "light-2", "dark-2")
        made.kill("north")
        made.start_again("north")
        start(made, "light-2", "dark-2")

        assert [answers(made, given) for given in before + after] == [{"dark": "dark", "light": "light"}] * 4
        assert made.processes.running["north"].poll() is None
        told = enrolment(made, "misspelt")
        assert told is not None
        assert told.status is EnrolmentStatus.DECLINED
        assert "patient" not in str(told)
        assert made.log("north").count("misspelt: not taking part, data: train/light/patient-0.png") == 2


@pytest.mark.slow
def test_projects_of_other_classes_share_a_coordinator(tmp_path: Path) -> None:
    """Two projects of other classes complete; each site declines the other's, and a misspelt third."""
    sites = {"north": SHADES, "south": SHADES, "west": {"round": 60, "square": 160}}
    for site, shades in sites.items():
        write_images(tmp_path / site, shades)
    with deployment(tmp_path / "made") as made:
        made.start_coordinator()
        for site in sites:
            made.start_worker(site, *WORKER, "--data", str(tmp_path / site))
        misspelt = config("misspelt", "dark", "lihgt")
        for given in (config("shades", *DARK_FIRST), config("shapes", "round", "square"), misspelt):
            made.create(given)
        wanted = {
            "shades": {"north": "ready", "south": "ready", "west": "declined"},
            "shapes": {"north": "declined", "south": "declined", "west": "ready"},
            "misspelt": dict.fromkeys(sites, "declined"),
        }
        made.wait_for(
            lambda: all(
                {row.client: row.status.value for row in made.admin.run(run).enrolments} == rows
                for run, rows in wanted.items()
            ),
            "all sites have answered all runs",
        )
        start(made, "shades", "shapes")
        sentence = Fault(FaultCode.DATA_UNFIT).sentence
        for run, rows in wanted.items():
            page = httpx.get(f"{made.urls['coordinator']}/runs/{run}", timeout=30).text
            assert all(site in page for site in sites)
            # beside each client, and in the list of events
            assert html.unescape(page).count(sentence) == 2 * list(rows.values()).count("declined")
            assert "patient" not in page
        assert all(made.processes.running[site].poll() is None for site in sites)

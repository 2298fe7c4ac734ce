"""A transformer fine-tuned by adapters over three workers: what travels, what comes of it, who is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.config import RunConfig
from simulation.run import simulate
from tests.helpers.processes import Deployment, deployment
from tests.helpers.tiny_transformers import make_text_base, write_texts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,  # each worker imports transformers
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("one_thread"),
]

LORA = {"rank": 4}


def run_config(name: str, lora: dict[str, Any] | None) -> dict[str, Any]:
    options = {"columns": ["said"], "target": "mood", "classes": ["up", "down"], "length": 16, "base": "tiny"}
    return {
        "name": name,
        "task": "hf-text",
        "task_options": options | ({} if lora is None else {"lora": lora}),
        "rounds": 3,
        "partition": "niid1:3:5",
        "weighting": {"kind": "disco"},
        "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.005, "optimizer": "adam"},
        "evaluate_every": 0,
        "round_deadline_seconds": 600,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    make_text_base(made / "models" / "tiny")
    write_texts(made, examples=120)
    return made


@pytest.fixture(scope="module")
def system(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A coordinator without the model, and three workers that have it."""
    with deployment(tmp_path_factory.mktemp("pretrained")) as made:
        made.processes.environment["HF_HUB_CACHE"] = str(folder / "nothing")
        made.start_coordinator()
        made.processes.environment["HF_HUB_CACHE"] = str(folder / "models")
        for index in range(3):
            part = ("--partition", "run", "--index", str(index), "--task", "hf-text", "--data", str(folder))
            made.start_worker(f"site-{index}", *part)
        yield made


def create(system: Deployment, config: dict[str, Any]) -> None:
    path = system.folder / f"{config['name']}.yaml"
    path.write_text(yaml.safe_dump(config))
    system.console("run", "create", str(path), "--url", system.urls["coordinator"])


def simulated(config: dict[str, Any], folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "models"))
    checked = RunConfig.model_validate(config)
    return simulate(checked, source=folder, out=out / f"{checked.name}.jsonl", say=lambda line: None)


def test_adapters_alone_travel_and_the_model_is_the_simulations(
    system: Deployment, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, list[int]] = {}
    for name, lora in (("adapters", LORA), ("whole", None)):
        config = run_config(name, lora)
        create(system, config)
        assert system.digest(name) == simulated(config, folder, tmp_path, monkeypatch)
        rows = [row for round in system.rounds(name) for row in round.ledger]
        sent[name] = [row.bytes for row in rows if row.bytes is not None]
    assert len(sent["adapters"]) == len(sent["whole"]) == 9
    numbers = 2 * (4 * 64 + 2 * 96) * 4 + 64 * 4 + 66  # of adapters and classifier
    assert all(4 * numbers < size < 4 * numbers + 8192 for size in sent["adapters"])
    assert max(sent["adapters"]) < 0.3 * min(sent["whole"])


def test_adapters_are_summed_under_masks_and_the_model_is_the_simulations(
    system: Deployment, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config("masked", LORA) | {"secure": {"bits": 32}, "rounds": 2}
    create(system, config)
    assert system.digest("masked") == simulated(config, folder, tmp_path, monkeypatch)
    rows = [row for round in system.rounds("masked") if round.round for row in round.ledger]
    numbers = 2 * (4 * 64 + 2 * 96) * 4 + 64 * 4 + 66
    assert {row.status for row in rows} == {"aggregated"}
    assert all(row.bytes and 4 * numbers < row.bytes < 4 * numbers + 8192 for row in rows)


def test_a_site_with_another_base_takes_no_part(system: Deployment, folder: Path) -> None:
    other = folder / "other-models"
    shutil.copytree(folder / "models", other)
    make_text_base(other / "tiny", seed=9)
    system.processes.environment["HF_HUB_CACHE"] = str(other)
    config = run_config("refused", LORA) | {"min_clients": 4, "partition": None}
    system.start_worker("stranger", "--task", "hf-text", "--data", str(folder), "--run", "refused")
    system.processes.environment["HF_HUB_CACHE"] = str(folder / "models")
    create(system, config)
    log = system.wait_for(
        lambda: (said := system.log("stranger")) and "not the run's" in said and said, "the stranger declines"
    )
    assert "base_sha256_" in log
    assert "Copy the run's base model 'tiny' here" in log
    system.admin.control("refused", "stop")

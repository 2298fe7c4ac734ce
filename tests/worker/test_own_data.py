"""``docs/your-own-data.md``, followed to the letter: own images, own task, TLS with an own authority."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
import yaml
from PIL import Image

from feddisco.admin import AdminClient, make_run_request
from server.database.migrations import upgrade
from shared.config import LocalTraining, RunConfig
from shared.faults import Fault, FaultCode
from shared.schemas import RunStatus
from tests.helpers.live_coordinator import ADMIN, Live, live
from tests.helpers.worker_crew import worker
from worker.client import load_trust

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "your-own-data.md").read_text()
CLASSES = ("melanoma", "nevus", "keratosis")


def _block(language: str, start: str) -> str:
    """The document's code block in this language that begins with ``start``."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    found = [block for block in blocks if block.startswith(start)]
    assert len(found) == 1
    return found[0]


def _migrated(folder: Path) -> str:
    url = f"sqlite:///{folder / 'coordinator.db'}"
    upgrade(url)
    return url


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Live]:
    with live(_migrated(tmp_path), tmp_path / "coordinator") as found:
        yield found


def _create(at: Live, document: str, **changes: Any) -> None:
    config = RunConfig.model_validate(yaml.safe_load(document) | changes)
    with AdminClient(at.url, token=ADMIN) as admin:
        admin.create(make_run_request(admin, config))


def _images(folder: Path, splits: tuple[str, ...], classes: tuple[str, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    for split in splits:
        for name in classes:
            path = folder / split / name
            path.mkdir(parents=True)
            for number in range(6):
                pixels = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(path / f"{number:04}.png")


def test_own_images(at: Live, tmp_path: Path) -> None:
    _create(at, _block("yaml", "name: skin"), rounds=1, min_clients=2, autostart=False)
    _images(tmp_path / "north", ("train", "test"), CLASSES, 0)
    _images(tmp_path / "south", ("",), CLASSES[:2], 1)  # no level train/, no keratosis
    _images(tmp_path / "judge", ("test",), CLASSES, 2)
    crew = [
        worker(at, tmp_path / "state", name, task="imagefolder", data=tmp_path / name, role=role)
        for name, role in (("judge", "evaluator"), ("north", "trainer"), ("south", "trainer"))
    ]
    at.wait_for(lambda: [row["status"] for row in at.run("skin")["enrolments"]] == ["ready"] * 3)
    assert at.admin.post("/runs/skin/start").status_code == 200
    assert [member.join() for member in crew] == [0, 0, 0]
    run = at.run("skin")
    assert (run["status"], run["classes"]) == ("completed", list(CLASSES))
    assert {row["client"]: row["examples"] for row in run["enrolments"]} == {
        "north": 18,
        "south": 12,
        "judge": 18,
    }


@pytest.mark.parametrize("role", ["trainer", "evaluator"])
def test_a_folder_outside_the_contract_is_named_here_and_the_run_declined(
    at: Live, tmp_path: Path, role: str
) -> None:
    _create(at, _block("yaml", "name: skin"))
    _images(tmp_path / "north", ("",), (*CLASSES, "freckle"), 0)
    member = worker(at, tmp_path / "state", "north", task="imagefolder", data=tmp_path / "north", role=role)
    row = at.wait_for(lambda: next(iter(at.run("skin")["enrolments"]), None))
    assert (row["status"], row["reason"]) == ("declined", Fault(FaultCode.DATA_UNFIT).sentence)
    at.wait_for(lambda: "skin: not taking part, data: freckle/0000.png" in member.log)
    assert member.join() == 4  # a one-shot worker


def test_an_own_task(at: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ourtask.py").write_text(_block("python", "# ourtask.py"))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        _create(at, _block("yaml", "name: readings"), rounds=1, min_clients=1)
        rows = np.random.default_rng(0).normal(size=(20, 12))
        lines = (",".join(map(str, [*row, int(row.sum() > 0)])) for row in rows)
        data = tmp_path / "readings"  # nothing else in it: files that change are changed data
        data.mkdir()
        (data / "train.csv").write_text("\n".join(lines) + "\n")
        member = worker(at, tmp_path / "state", "north", task="ourtask:Readings", data=data)
        assert member.join() == 0
    finally:
        sys.modules.pop("ourtask", None)
    assert at.run("readings")["status"] == "completed"


def test_tls_with_an_own_authority(tmp_path: Path) -> None:
    authority, ca = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    files: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key}
    with live(_migrated(tmp_path), tmp_path / "coordinator", **files) as at:
        url = at.url.replace("http:", "https:")
        with AdminClient(url, token=ADMIN, verify=load_trust(ca)) as admin:
            config = RunConfig(name="demo", rounds=1, min_clients=1, local=LocalTraining(steps=2))
            admin.create(make_run_request(admin, config))
            assert worker(at, tmp_path / "state", "north", url=url, ca_file=ca).join() == 0
            assert admin.run("demo").status is RunStatus.COMPLETED

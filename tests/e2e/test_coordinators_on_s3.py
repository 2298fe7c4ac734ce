"""Four coordinators on one PostgreSQL and one bucket, each with a disk of its own, and one that is killed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from feddisco.console import find_newest
from shared.schemas import RoundStatus
from simulation.run import simulate
from tests.helpers.databases import Postgres
from tests.helpers.processes import Deployment, Settings, deployment, run_config
from tests.helpers.s3_service import SECRET, S3Service

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]

NAMES = ("first", "second", "third", "fourth")
CONFIG = run_config("on-s3", algorithm="feddc", rounds=4)  # state at the clients and at the coordinator


def own_disk(system: Deployment, name: str) -> Settings:
    return {"data_folder": system.folder / name}


@pytest.fixture
def system(postgres: Postgres, s3: S3Service, tmp_path: Path) -> Iterator[Deployment]:
    """Three workers, at the first three coordinators; the fourth only stands by."""
    url = postgres.fresh()
    with deployment(tmp_path / "system", url) as made:
        settings = s3.settings(s3.make_bucket())
        made.processes.environment.update({f"FEDDISCO_{name.upper()}": settings[name] for name in settings})
        for name in NAMES:
            made.start_coordinator(name, settings=own_disk(made, name))
        made.start_workers(3, *NAMES[:3])
        yield made
    postgres.recycle(url)


def test_one_of_four_is_killed_and_loses_its_disk(system: Deployment, tmp_path: Path) -> None:
    system.kill("first")
    system.start_coordinator("first", settings={**own_disk(system, "first"), "hold_aggregation_seconds": 2})
    system.create(CONFIG)
    system.wait_for(
        lambda: (view := system.open_round("on-s3")) and view.status is RoundStatus.AGGREGATING,
        "a round is aggregated",
    )
    system.kill("first")
    shutil.rmtree(system.folder / "first")
    system.start_coordinator("first", settings=own_disk(system, "first"))
    expected = simulate(CONFIG, source=None, out=tmp_path / "result.jsonl", say=lambda line: None)
    assert system.digest("on-s3") == expected

    last = find_newest(system.rounds("on-s3"))
    assert last is not None
    token = {"Authorization": f"Bearer {system.processes.environment['FEDDISCO_ADMIN_TOKEN']}"}
    for url in system.urls.values():
        model = httpx.get(f"{url}/api/v1/blobs/{last.model}", headers=token, timeout=60).raise_for_status()
        assert hashlib.sha256(model.content).hexdigest() == last.model
    said = system.console("verify", settings=own_disk(system, "fourth"))
    assert SECRET not in said + "".join(system.log(name) for name in NAMES)

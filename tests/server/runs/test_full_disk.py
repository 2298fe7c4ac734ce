"""Case N5: the disk is full while the coordinator aggregates. The reason is told; it goes on by itself."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.helpers.live_coordinator import Live, ManualClient, enrolled, file_of, live, sha256

FULL = "No space left on device"


class FullDisk:
    """Refuses what the operating system refuses on a full disk: new files of results, until it has space."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full, self.has_refused = threading.Event(), threading.Event()
        make = tempfile.mkdtemp

        def make_or_refuse(*given: Any, **more: Any) -> Any:
            if self.is_full.is_set() and more.get("suffix") == ".partial":
                self.has_refused.set()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return make(*given, **more)

        monkeypatch.setattr(tempfile, "mkdtemp", make_or_refuse)


def put_on(disk: FullDisk, engine: sa.Engine) -> None:
    """Have the database on the same disk: where no result can be written, SQLite commits nothing either."""

    def begin(connection: sa.Connection) -> None:
        if disk.has_refused.is_set() and not connection.get_execution_options().get("feddisco_read_only"):
            full = sqlite3.OperationalError("database or disk is full")
            raise sa.exc.OperationalError("BEGIN IMMEDIATE", None, full)

    sa.event.listen(engine, "begin", begin)


def last_but_one(at: Live) -> list[ManualClient]:
    """Two updates are needed, and one is here."""
    at.create(min_clients=2, rounds=1, weighting={"kind": "sizes"})
    sites = enrolled(at, (10, 10))
    for site in sites:
        site.until("train")
    assert sites[0].upload("demo", 1, file_of(1.0)).status_code == 200
    return sites


def test_the_reason_is_on_the_page_the_metric_and_readyz(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    with live(database_url, tmp_path / "data") as at:
        _, second = last_but_one(at)
        disk.is_full.set()
        assert second.upload("demo", 1, file_of(3.0)).status_code == 200
        at.wait_for(lambda: "delayed" in at.run()["waiting_for"])
        assert FULL in at.run()["waiting_for"]
        assert FULL in httpx.get(f"{at.url}/runs/demo").text
        told = second.http.get("/runs/demo").json()["waiting_for"]
        assert "which is delayed" in told
        assert FULL not in told, "paths are none of a client's business"
        assert "feddisco_delayed_aggregations 1.0" in httpx.get(f"{at.url}/metrics", timeout=30).text
        ready = httpx.get(f"{at.url}/readyz", timeout=30).json()
        assert ready["status"] == "degraded"
        assert "1 round is waiting to be aggregated" in ready["checks"]["aggregation"]
        disk.is_full.clear()
        at.wait_for(lambda: at.run()["status"] == "completed", seconds=60)
        assert at.run()["model"] == sha256(file_of(2.0))
        assert httpx.get(f"{at.url}/readyz", timeout=30).json()["status"] == "ok"


def test_the_reason_is_told_although_the_database_is_on_the_same_disk(
    migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    url = f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'test.sqlite')}"
    with live(url, tmp_path / "data") as at:
        _, second = last_but_one(at)
        put_on(disk, at.coordinator.store.engine)
        disk.is_full.set()
        assert second.upload("demo", 1, file_of(3.0)).status_code == 200
        at.wait_for(lambda: FULL in at.run()["waiting_for"])
        assert "aggregation_delayed" not in [event["kind"] for event in at.events()]  # it can't be written
        assert FULL in httpx.get(f"{at.url}/runs/demo").text
        assert second.http.get("/runs/demo").json()["waiting_for"].endswith("which is delayed")
        assert httpx.get(f"{at.url}/readyz", timeout=30).json()["status"] == "degraded"
        disk.is_full.clear()
        disk.has_refused.clear()
        at.wait_for(lambda: at.run()["status"] == "completed", seconds=60)
        assert FULL not in httpx.get(f"{at.url}/runs/demo").text

"""``feddisco.Client``: health, metrics, and events as they happen."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

import feddisco
from shared.problems import NotFound, Unauthorised
from tests.helpers.live_coordinator import ADMIN, live


def test_health_and_metrics(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at, feddisco.Client(at.url, token=ADMIN) as client:
        at.create(rounds=7)
        assert client.health().status == "ok"
        assert client.health().checks["database"] == "ok"
        assert client.gauges()['feddisco_run_rounds{run="demo"}'] == 7


def test_events_come_as_they_happen(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at, feddisco.Client(at.url, token=ADMIN) as client:
        at.create()
        stream = client.events("demo")
        first = next(stream)
        assert (first.kind, first.run) == ("run_created", "demo")
        later = threading.Timer(0.5, at.admin.post, ["/runs/demo/stop"], {"json": {"reason": "enough"}})
        later.start()
        found = next(stream)
        assert (found.kind, found.detail["reason"]) == ("run_stopped", "enough")
        later.join()
        stream.close()
        again = list(itertools.islice(client.events(after=first.id), 1))
        assert again == [found]


def test_refusals_are_raised(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        with feddisco.Client(at.url, token=ADMIN) as client, pytest.raises(NotFound, match="nobody"):
            next(client.events("nobody"))
        with feddisco.Client(at.url, token="wrong") as client, pytest.raises(Unauthorised):
            next(client.events())

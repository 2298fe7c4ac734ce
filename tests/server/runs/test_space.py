"""Quotas of a run and of all: warned of before they are reached, and kept when they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import make_coordinator
from server.coordinator import Coordinator
from server.runs.space import Space, Usage
from shared.problems import QuotaExceeded
from tests.helpers.live_coordinator import (
    Live,
    ManualClient,
    enrolled,
    file_of,
    live,
    settings_for,
    sha256,
    upload_headers,
)

SIZE = len(file_of(1.0))


def ready(at: Live) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{at.url}/readyz", timeout=30).json()
    return found


def begun(at: Live, **run: Any) -> list[ManualClient]:
    at.create(min_clients=2, weighting={"kind": "sizes"}, **run)
    sites = enrolled(at, (10, 10))
    for site in sites:
        site.until("train")
    return sites


def test_an_update_beyond_the_runs_quota_waits_and_others_do_not(database_url: str, tmp_path: Path) -> None:
    """Room for the initial model and one update."""
    with live(database_url, tmp_path / "data", max_run_bytes=2 * SIZE + SIZE // 2) as at:
        first, second = begun(at)
        at.coordinator.space.measure()
        assert ready(at)["checks"]["space"] == "ok"
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        refused = second.upload("demo", 1, file_of(3.0))
        assert (refused.status_code, refused.json()["code"]) == (503, "quota-exceeded")
        assert refused.json()["limit"] == "max_run_bytes"
        at.create("other", value=5.0)  # has a quota of its own
        at.coordinator.space.measure()
        for said in (ready(at)["checks"]["space"], httpx.get(f"{at.url}/runs/demo").text):
            assert "he files of run demo: " in said
            assert "FEDDISCO_MAX_RUN_BYTES" in said
            assert "run other" not in said
        assert ready(at)["status"] == "degraded"
        assert "feddisco_space_warnings 1.0" in httpx.get(f"{at.url}/metrics", timeout=30).text


def test_new_runs_and_files_beyond_the_quota_of_all_are_refused(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data", max_stored_bytes=2 * SIZE, quota_alarm=0.5) as at:
        first, second = begun(at)
        at.coordinator.space.measure()
        assert "FEDDISCO_MAX_STORED_BYTES" in ready(at)["checks"]["space"]  # half is used: still taken
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        assert second.upload("demo", 1, file_of(3.0)).json()["limit"] == "max_stored_bytes"
        body = file_of(7.0)
        put = at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
        assert put.json()["code"] == "quota-exceeded"
        assert httpx.get(f"{at.url}/readyz", timeout=30).status_code == 200  # clients can be served


def test_what_is_stored_is_counted_by_run_and_once_in_all(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        first, second = begun(at, rounds=1)
        at.create("twin")  # from the same initial model
        assert first.upload("demo", 1, file_of(1.0)).status_code == 200
        assert second.upload("demo", 1, file_of(3.0)).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        by_run, total = at.coordinator.store.stored_bytes()
        assert by_run == {"demo": 4 * SIZE, "twin": SIZE}  # initial, two updates, the model
        assert total == 4 * SIZE


@pytest.fixture
def space_with(tmp_path: Path, database_url: str) -> Iterator[Callable[..., Space]]:
    """A coordinator's own, by its settings, as if that were what it has measured."""
    made: list[Coordinator] = []

    def make(usage: Usage | None, **settings: Any) -> Space:
        made.append(make_coordinator(settings_for(database_url, tmp_path, **settings)))
        made[-1].space.usage = usage
        return made[-1].space

    yield make
    for coordinator in made:
        coordinator.close()


def test_a_disk_that_is_nearly_full_takes_no_more_updates(space_with: Callable[..., Space]) -> None:
    gigabyte = 10**9
    roomy = space_with(Usage(disk=100 * gigabyte, free=gigabyte))
    assert roomy.find_warnings() == []
    roomy.check("demo", 10**6)
    with pytest.raises(QuotaExceeded) as caught:
        roomy.check("demo", gigabyte)
    assert caught.value.extra == {"limit": "min_free_bytes"}
    nearly = space_with(Usage(disk=100 * gigabyte, free=2 * 10**8))
    assert (
        "the disk: 99.8 GB of 99.9 GB are used. The limit is FEDDISCO_MIN_FREE_BYTES."
        in nearly.find_warnings()
    )
    full = space_with(Usage(disk=100 * gigabyte, free=0))
    assert "and updates are refused" in full.find_warnings()[0]
    small = space_with(Usage(disk=8 * 10**6, free=10**6))
    small.check("demo", 500_000)  # 2 % of a small disk is enough to leave


def test_before_the_first_measurement_nothing_is_refused(space_with: Callable[..., Space]) -> None:
    unknown = space_with(None, max_run_bytes=1)
    unknown.check("demo", 10**9)
    assert unknown.find_warnings() == []


def test_what_comes_between_two_measurements_counts(space_with: Callable[..., Space]) -> None:
    usage = Usage(by_run={"demo": 50}, stored=50, disk=10**12, free=10**11)
    space = space_with(usage, max_run_bytes=100)
    for _ in range(5):
        space.check("demo", 10)
        space.note("demo", 10)
    with pytest.raises(QuotaExceeded, match="the files of run demo: 100 B of 100 B are used"):
        space.check("demo", 10)
    space.check("other", 10)

"""Chromium without a network of its own, and a coordinator with runs in every state."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import seed
from tests.browser.serving import Served, prepared, serving

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (pip install .[dev])"
)

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIVE_RUNS = ("live-pause", "live-heartbeat", "live-stop")
NOW = seed.FIRST_MOMENT + dt.timedelta(hours=1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, or the test is skipped. Each context is a new user data folder.

    Not for the session: while Playwright runs, its event loop runs too, and no other test could start one.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Served]:
    """A finished, a running and an enrolling run, and one for each test that changes its run.

    The clock stands still: what is seeded stays as it is, whatever the day of the test.
    """
    coordinator = prepared(tmp_path_factory.mktemp("coordinator"), migrated_sqlite, lambda: NOW)
    store = coordinator.store
    seed.finished_run(store, rounds=3)
    recent = NOW - dt.timedelta(minutes=5)
    seed.running_run(store, rounds_done=1, started=recent)
    seed.enrolling_run(store)
    for name in LIVE_RUNS:
        seed.running_run(store, name, rounds_done=0, started=recent)
    with serving(coordinator) as found:
        yield found

"""Chromium without a network of its own, and a coordinator with runs in every state."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browsers import find_chromium
from tests.browser import seed
from tests.browser.fonts import FONTS, write_fontconfig
from tests.browser.serving import Served, prepare_coordinator, serve

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
def browsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """A browser by the name of its font in ``FONTS``, or the test is skipped. Each context is a new user.

    Not for the session: while Playwright runs, its event loop runs too, and no other test could start one.
    """
    path = find_chromium()
    if path is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright, ExitStack() as stack:

        @cache
        def launch(font: str) -> Any:
            config = write_fontconfig(FONTS[font], tmp_path_factory.mktemp(font))
            environment = os.environ | {"FONTCONFIG_FILE": str(config)}
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, env=environment)
            stack.callback(browser.close)
            return browser

        yield launch


@pytest.fixture(scope="module")
def chromium(browsers: Callable[[str], Any]) -> Any:
    """The browser with the wide font: where that fits, the others do."""
    return browsers("wide")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Served]:
    """A finished, a running and an enrolling run, and one for each test that changes its run.

    The clock stands still: what is seeded stays as it is, whatever the day of the test.
    """
    coordinator = prepare_coordinator(tmp_path_factory.mktemp("coordinator"), migrated_sqlite, lambda: NOW)
    store = coordinator.store
    seed.finished_run(store, rounds=3)
    recent = NOW - dt.timedelta(minutes=5)
    seed.running_run(store, rounds_done=1, started=recent)
    seed.enrolling_run(store)
    seed.waiting_run(store, started=recent - dt.timedelta(minutes=10))
    seed.long_names_run(store)
    for name in LIVE_RUNS:
        seed.running_run(store, name, rounds_done=0, started=recent)
    with serve(coordinator) as found:
        yield found

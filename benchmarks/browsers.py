"""Pages that are open in Chromium, each for a user of its own, as a load of ``benchmarks.load``.

Chromium and its pages run on the cores that are measured: their CPU time is told. The pages run their own
script, so that streams, fetches and the pace of both are what a viewer causes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from typing import Final

import psutil

__all__ = ["find_chromium", "open_pages"]

ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
SHORT: Final = "/tmp"
"""Its path, in a socket's 108 characters: a benchmark's folder may be too long for it."""
PATIENCE_MILLISECONDS: Final = 120_000


def find_chromium() -> str | None:
    """Its path; none where it, or Playwright, is missing."""
    if find_spec("playwright") is None:
        return None
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextlib.asynccontextmanager
async def open_pages(address: str, many: int, counts: Counter[str]) -> AsyncIterator[Callable[[], float]]:
    """``many`` pages at ``address``; inside the block, ask for the CPU seconds that Chromium has used.

    ``counts`` has the answers by status, ``failed`` requests and ``errors`` of the page's script.
    """
    from playwright.async_api import async_playwright

    open_still = True

    def count(what: str) -> None:
        if open_still:  # a stream that ends because its page is closed is no failure
            counts[what] += 1

    async with async_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, "TMPDIR": SHORT}
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=ARGUMENTS, env=environment
        )
        for _ in range(many):
            page = await (await browser.new_context()).new_page()
            page.on("response", lambda answer: count(str(answer.status)))
            page.on("requestfailed", lambda _: count("failed"))
            page.on("pageerror", lambda _: count("errors"))
            await page.goto(address, timeout=PATIENCE_MILLISECONDS, wait_until="domcontentloaded")
        try:
            yield _cpu_seconds_of_children
        finally:
            open_still = False
            await browser.close()


def _cpu_seconds_of_children() -> float:
    total = 0.0
    for child in psutil.Process(os.getpid()).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return total

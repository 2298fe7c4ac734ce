"""What axe-core says of every page: nothing serious, in light and dark, on a screen and on a phone.

The library (Mozilla Public License) comes with a package that the tests install; AXE_CORE=path/to/axe.min.js
tries another version of it.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.browser.serving import Served
from tests.browser.test_pages_in_browser import PAGES, page_of

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

LOOKS: dict[str, tuple[dict[str, Any], Any]] = {
    "screen": ({"width": 1280, "height": 900}, "light"),
    "dark phone": ({"width": 390, "height": 800}, "dark"),
}
RULES = "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}"


@pytest.fixture(scope="module")
def axe() -> str:
    if other := os.environ.get("AXE_CORE"):
        return Path(other).read_text(encoding="utf-8")
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious(served: Served, chromium: Any, axe: str, name: str) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES[name])
        page.evaluate(axe)
        told = []
        for look, (size, scheme) in LOOKS.items():
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate(f"async () => (await axe.run(document, {RULES})).violations")
            told += [
                f"{look}: {fault['id']} ({fault['impact']}): {fault['nodes'][0]['html'][:160]}"
                for fault in found
                if fault["impact"] in ("serious", "critical")
            ]
        assert told == []


def test_it_finds_what_is_wrong(served: Served, chromium: Any, axe: str) -> None:
    """A picture without words and a field without a label, put into a page."""
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["runs"])
        page.evaluate("document.querySelector('main').append(new Image(), document.createElement('input'))")
        page.evaluate(axe)
        found = page.evaluate(f"async () => (await axe.run(document, {RULES})).violations.map(v => v.id)")
        assert {"image-alt", "label"} <= set(found)

"""What axe-core says of every page: nothing serious, in light and dark, on a screen and on a phone.

The library (Mozilla Public License) is not part of this repository: ``npm install axe-core`` in its root, or
AXE_CORE=path/to/axe.min.js.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser.serving import Served
from tests.browser.test_pages_in_browser import PAGES, page_of

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("AXE_CORE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
LOOKS: dict[str, dict[str, Any]] = {
    "screen": {"viewport": {"width": 1280, "height": 900}},
    "dark phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"},
}
RULES = "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}"


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip(f"axe-core is not at {AXE} (npm install axe-core, or set AXE_CORE)")
    return AXE.read_text(encoding="utf-8")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious(served: Served, chromium: Any, axe: str, name: str, look: str) -> None:
    with page_of(chromium, **LOOKS[look]) as page:
        page.goto(served.base + PAGES[name])
        page.evaluate(axe)
        found = page.evaluate(f"async () => (await axe.run(document, {RULES})).violations")
        told = [
            f"{fault['id']} ({fault['impact']}): {fault['nodes'][0]['html'][:160]}"
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

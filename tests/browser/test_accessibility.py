"""What axe-core says of every page: nothing serious, in light and dark, on a screen and on a phone.

The library (Mozilla Public License) comes with a package that the tests install; AXE_CORE=path/to/axe.min.js
tries another version of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.browser import seed
from tests.browser.conftest import NOW
from tests.browser.serving import Served, prepare_coordinator, serve
from tests.browser.test_acting_in_browser import FORMS, sign_in
from tests.browser.test_pages_in_browser import PAGES, page_of

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.xdist_group("browser")]

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


def find_serious(page: Any, axe: str) -> list[str]:
    """What is wrong with the page that is open, in each of the looks."""
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
    return told


@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious(served: Served, chromium: Any, axe: str, name: str) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES[name])
        assert find_serious(page, axe) == []


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Served]:
    """A coordinator of its own: what is done here is not undone."""
    coordinator = prepare_coordinator(tmp_path_factory.mktemp("seen"), migrated_sqlite, lambda: NOW)
    seed.running_run(coordinator.store, rounds_done=1, started=NOW)
    with serve(coordinator) as found:
        yield found


def test_nothing_serious_in_the_forms(acting: Served, chromium: Any, axe: str) -> None:
    told = {}
    with page_of(chromium) as page:
        sign_in(page, acting)
        for name, path in FORMS.items():
            page.goto(acting.base + path)
            told[name] = find_serious(page, axe)
    assert {name: faults for name, faults in told.items() if faults} == {}


def test_nothing_serious_in_what_forms_answer(acting: Served, chromium: Any, axe: str) -> None:
    """The faults of a configuration; a join code with its picture; a token that is shown once."""
    with page_of(chromium) as page:
        sign_in(page, acting)
        page.goto(f"{acting.base}/create")
        page.get_by_label("Configuration (YAML)").fill("name: some\ntask: digits\nrounds: 0")
        page.get_by_role("button", name="Create").click()
        page.locator("#answer .fault").first.wait_for()
        assert find_serious(page, axe) == []
        page.goto(f"{acting.base}/clients")
        page.get_by_label("Name, kept for it").fill("ward-seven")
        page.get_by_role("button", name="Make a join code").click()
        page.locator("#join-code").wait_for()
        assert find_serious(page, axe) == []
        page.goto(f"{acting.base}/users")
        page.get_by_label("Name, as the logs").fill("ada")
        page.get_by_role("button", name="Make a token").click()
        page.locator("#made-token").wait_for()
        assert find_serious(page, axe) == []


def test_it_finds_what_is_wrong(served: Served, chromium: Any, axe: str) -> None:
    """A picture without words and a field without a label, put into a page."""
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["runs"])
        page.evaluate("document.querySelector('main').append(new Image(), document.createElement('input'))")
        page.evaluate(axe)
        found = page.evaluate(f"async () => (await axe.run(document, {RULES})).violations.map(v => v.id)")
        assert {"image-alt", "label"} <= set(found)

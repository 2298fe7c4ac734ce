"""Charts read out by pointer and keyboard, and saved as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.serving import Served
from tests.browser.test_pages_in_browser import PAGES, page_of

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def test_the_arrow_keys_read_round_after_round(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["finished"])
        page.locator(".plot").first.focus()
        reading = page.locator(".reading").first
        page.keyboard.press("End")
        assert reading.inner_text().startswith("Round 3: ")
        assert "since 2)" in reading.inner_text()
        page.keyboard.press("ArrowLeft")
        assert reading.inner_text().startswith("Round 2: ")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowLeft")
        assert reading.inner_text().startswith("Round 0: ")
        assert "since" not in reading.inner_text()
        page.keyboard.press("Escape")
        assert reading.inner_text() == ""
        assert page.said == []


def test_the_pointer_reads_the_nearest_round(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["finished"])
        plot = page.locator(".plot").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 0.68 * box["width"], box["y"] + box["height"] / 2)
        assert page.locator(".reading").first.inner_text().startswith("Round 2: ")
        assert page.locator(".cursor").first.get_attribute("visibility") == "visible"
        page.mouse.move(1, 1)
        assert page.locator(".reading").first.inner_text() == ""


def test_a_chart_is_saved_as_a_picture(served: Served, chromium: Any, tmp_path: Path) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["finished"])
        with page.expect_download() as saved:
            page.locator("button[data-png]").first.click()
        assert saved.value.suggested_filename == "accuracy.png"
        saved.value.save_as(tmp_path / "accuracy.png")
        from PIL import Image

        with Image.open(tmp_path / "accuracy.png") as picture:
            assert picture.width == 2 * 760
            assert len(picture.convert("RGB").getcolors(1_000_000) or ()) > 10, "something is drawn"
            colours = {colour for _, colour in picture.convert("RGB").getcolors(1_000_000) or ()}
        assert (0x0B, 0x66, 0x61) in colours, "in the curve's own colour"
        assert page.said == []


def test_without_a_script_there_are_curves_values_and_files(served: Served, chromium: Any) -> None:
    with page_of(chromium, java_script_enabled=False) as page:
        page.goto(served.base + PAGES["finished"])
        assert not page.locator("button[data-png]").first.is_visible()
        page.get_by_role("link", name="Scale from zero").first.click()
        assert page.get_by_role("link", name="Scale to the data").first.is_visible()
        with page.expect_download() as saved:
            page.get_by_role("link", name="CSV").first.click()
        assert saved.value.suggested_filename.endswith("accuracy.csv")

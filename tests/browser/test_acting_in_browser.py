"""Acting from the pages in a browser, from signing in to signing out; with and without script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shared.join_codes import read_join_code
from tests.browser import seed
from tests.browser.conftest import NOW
from tests.browser.serving import ADMIN_TOKEN, Served, prepare_coordinator, serve
from tests.browser.test_pages_in_browser import page_of, sticking_out

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.xdist_group("browser")]

FORMS = {
    "sign in": "/sign-in",
    "create": "/create?template=digits-niid1",
    "clients": "/clients",
    "users": "/users",
    "stop": "/runs/digits-niid1/do/stop",
    "change": "/runs/digits-niid1/do/change",
    "run": "/runs/digits-niid1",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Served]:
    """A coordinator of its own: what is done here changes its runs."""
    coordinator = prepare_coordinator(tmp_path_factory.mktemp("acting"), migrated_sqlite, lambda: NOW)
    seed.running_run(coordinator.store, rounds_done=1, started=NOW)
    with serve(coordinator) as found:
        yield found


def sign_in(page: Any, here: Served) -> None:
    """By keyboard alone: the field has the focus."""
    page.goto(f"{here.base}/sign-in?next=/")
    page.locator("input:focus").wait_for()  # a moment after the page is there
    page.keyboard.type(ADMIN_TOKEN)
    page.keyboard.press("Enter")
    page.get_by_text("Signed in as").wait_for()


@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without"])
def test_from_signing_in_to_signing_out(here: Served, chromium: Any, script: bool) -> None:
    name = f"made-{'with' if script else 'without'}"
    with page_of(chromium, java_script_enabled=script) as page:
        sign_in(page, here)
        page.get_by_role("link", name="Create a run").click()
        page.get_by_label("Configuration (YAML)").fill(f"name: {name}\ntask: digits\nrounds: 0")
        if script:
            page.locator("#answer .fault", has_text="rounds: Input should be greater").wait_for()
        page.get_by_role("button", name="Create").click()
        page.locator("#answer .fault", has_text="rounds: Input should be greater").wait_for()
        page.get_by_label("Configuration (YAML)").fill(f"name: {name}\ntask: digits\nrounds: 3")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("heading", level=1, name=name).wait_for()
        page.goto(f"{here.base}/clients")
        page.get_by_label("Name, kept for it").fill(name)
        page.get_by_role("button", name="Make a join code").click()
        code = page.locator("#join-code").inner_text()
        assert read_join_code(code).address == here.base
        assert page.get_by_role("img", name="The join code as a QR code").bounding_box()["width"] > 150
        page.goto(f"{here.base}/users")
        page.get_by_label("Name, as the logs").fill(name)
        page.get_by_role("button", name="Make a token").click()
        assert len(page.locator("#made-token").inner_text()) > 40
        page.goto(f"{here.base}/users/{name}/do/revoke")
        page.get_by_label("I am sure").check()
        page.get_by_role("button", name="Revoke").click()
        page.get_by_role("row", name=name).get_by_text("revoked").wait_for()
        page.goto(f"{here.base}/runs/digits-niid1/do/change")
        page.get_by_label("Rounds in all").fill("30" if script else "40")
        page.get_by_role("button", name="Change").click()
        page.get_by_text("of 30" if script else "of 40").first.wait_for()
        page.goto(f"{here.base}/runs/digits-niid1")
        page.get_by_role("link", name="Pause", exact=True).click()
        page.get_by_label("Reason").fill("the power is cut")
        page.keyboard.press("Enter")
        page.locator(".headline .state", has_text="paused").wait_for()
        page.get_by_role("link", name="Resume", exact=True).click()
        page.get_by_role("button", name="Resume").click()
        page.locator(".headline .state", has_text="running").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", level=1, name="Sign in").wait_for()
        page.goto(f"{here.base}/runs/digits-niid1")
        assert page.get_by_role("link", name="Pause", exact=True).count() == 0
        assert [word for word in page.said if "400" not in word and "422" not in word] == []
        assert {f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" for url in page.asked} == {here.base}


@pytest.mark.parametrize("name", FORMS)
def test_forms_fit_a_phone_and_keep_still(here: Served, chromium: Any, name: str) -> None:
    with page_of(chromium) as page:
        sign_in(page, here)
        page.goto(here.base + FORMS[name])
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert sticking_out(page, width) == []
        assert page.said == []

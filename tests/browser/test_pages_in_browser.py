"""The status pages as people meet them: in a browser, on a wall, on a phone, without a mouse or a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.fonts import FONTS
from tests.browser.seed import EVALUATOR, LESIONS, SITES, enrolling_run, lengthen, token_of
from tests.browser.serving import Served, free_port, prepare_coordinator, serve

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.xdist_group("browser")]

PAGES = {
    "runs": "/",
    "running": "/runs/digits-niid1",
    "finished": "/runs/skin-lesions-2026",
    "enrolling": "/runs/waiting-for-three",
    "waiting": "/runs/waiting-for-sites",
    "round": "/runs/skin-lesions-2026/rounds/2",
    "open round": "/runs/digits-niid1/rounds/2",
    "long names": f"/runs/{lengthen('melanoma-against-nevus')}",
    "round with long names": f"/runs/{lengthen('melanoma-against-nevus')}/rounds/1",
    "compare": "/compare?runs=*&round=1",
    "problems": "/problems",
    "reference": "/docs",
}
WAIT_MS = 30_000


@contextmanager
def page_of(browser: Any, **options: Any) -> Iterator[Any]:
    """A page of a new context; what its console says and whom it asks is collected on it."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
    page.on("request", lambda request: page.asked.append(request.url))
    try:
        yield page
    finally:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_and_asks_nobody_else(served: Served, chromium: Any, name: str) -> None:
    """No word on the console (the policy would complain there), no request to another origin."""
    with page_of(chromium) as page:
        page.goto(served.base + PAGES[name], wait_until="load")
        page.wait_for_timeout(200)
        assert page.said == []
        assert len(page.asked) >= 2, "the page and its style sheet"
        assert {f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" for url in page.asked} == {served.base}


@pytest.mark.parametrize("font", FONTS)
def test_the_font_is_the_chosen_one(served: Served, browsers: Any, font: str) -> None:
    """What Chromium draws with, asked of Chromium: no font of the machine takes part."""
    with page_of(browsers(font)) as page:
        page.goto(served.base + PAGES["round"])
        session = page.context.new_cdp_session(page)
        session.send("DOM.enable")
        session.send("CSS.enable")
        root = session.send("DOM.getDocument")["root"]["nodeId"]
        drawn = set()
        for node in session.send("DOM.querySelectorAll", {"nodeId": root, "selector": "body *"})["nodeIds"]:
            found = session.send("CSS.getPlatformFontsForNode", {"nodeId": node})
            drawn |= {used["familyName"] for used in found["fonts"]}
        assert drawn == {FONTS[font].family, FONTS[font].fixed_width}


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("name", PAGES)
def test_on_a_phone_only_tables_scroll_sideways(served: Served, browsers: Any, name: str, font: str) -> None:
    with page_of(browsers(font)) as page:
        page.goto(served.base + PAGES[name])
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert sticking_out(page, width) == []
        page.evaluate(SPACE_THE_TEXT)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert sticking_out(page, width) == []


SPACE_THE_TEXT = """() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(`* {
        letter-spacing: 0.12em !important; word-spacing: 0.16em !important; line-height: 1.5 !important
    }`);
    document.adoptedStyleSheets = [sheet];
}"""  # what a reader may ask for without losing anything: WCAG 2.2, 1.4.12


def sticking_out(page: Any, width: int) -> Any:
    """What reaches beyond the right edge though it is in no box that scrolls."""
    return page.evaluate(
        """width => [...document.querySelectorAll("main *")]
            .filter(e => !e.closest(".scroll, pre, .unseen, svg"))
            .filter(e => e.getBoundingClientRect().right > width + 1)
            .map(e => e.outerHTML.slice(0, 120))""",
        width,
    )


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize(
    ("name", "many"), [("finished", len(LESIONS)), ("round with long names", len(SITES))]
)
def test_a_name_beside_its_bar_is_not_broken_letter_by_letter(
    served: Served, browsers: Any, name: str, many: int, font: str
) -> None:
    """A name of 30 letters takes at most five lines, one of four takes one; the bar has its room."""
    with page_of(browsers(font)) as page:
        page.goto(served.base + PAGES[name])
        for width in (1200, 390, 320):
            page.set_viewport_size({"width": width, "height": 700})
            found = page.evaluate(LABELS)
            assert len(found) == many
            for label, lines, bar in found:
                assert lines <= 1 + len(label) // 7, f"{label!r} takes {lines} lines at {width} px"
                assert bar >= 64, f"the bar of {label!r} is {bar} px long at {width} px"


LABELS = """() => [...document.querySelectorAll(".labelled")].map(e => {
    const [name, bar] = [e.querySelector("span"), e.querySelector("svg")];
    const text = document.createRange();
    text.selectNodeContents(name);
    const lines = new Set([...text.getClientRects()].map(line => line.top));
    return [name.textContent, lines.size, bar.getBoundingClientRect().width];
})"""


def test_dark_and_light_follow_the_system(served: Served, chromium: Any) -> None:
    def brightness(scheme: str) -> tuple[float, float]:
        with page_of(chromium, color_scheme=scheme) as page:
            page.goto(served.base + PAGES["running"])
            return tuple(
                page.evaluate(
                    """() => ["backgroundColor", "color"].map(name => {
                        const values = getComputedStyle(document.body)[name].match(/\\d+/g);
                        return values.slice(0, 3).map(Number).reduce((a, b) => a + b) / 765;
                    })"""
                )
            )

    paper, ink = brightness("light")
    assert paper > 0.9
    assert ink < 0.2
    paper, ink = brightness("dark")
    assert paper < 0.15
    assert ink > 0.8


def test_the_keyboard_reaches_the_content_and_shows_where_it_is(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["round"])
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert page.evaluate("document.activeElement.getBoundingClientRect().top >= 0"), "shown when focused"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        stops = []
        for _ in range(4):
            page.keyboard.press("Tab")
            stops.append(
                page.evaluate(
                    "document.activeElement.getAttribute('rel') || document.activeElement.className"
                )
            )
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert stops[:3] == ["prev", "next", "scroll"], (
            "in the order of reading; scrolling tables are stops too"
        )


def test_without_javascript_nothing_is_missing(served: Served, chromium: Any) -> None:
    with page_of(chromium, java_script_enabled=False) as page:
        page.goto(served.base + PAGES["running"])
        assert page.locator(".plot").count() == 2
        assert page.locator(".plot").first.bounding_box()["height"] > 100
        assert (
            "waiting for karolinska" in page.locator(".lead").inner_text()
            or page.locator(".lead").inner_text()
        )
        assert page.locator(".participants li").count() == 6
        page.locator("#course-numbers summary").click()
        assert page.locator("#course-numbers table").is_visible()
        assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "10"
        for of_the_past in ("runs", "round"):
            page.goto(served.base + PAGES[of_the_past])
            assert page.locator("meta[http-equiv=refresh]").count() == 0
        page.goto(served.base + PAGES["runs"])
        page.get_by_label("Compare live-pause", exact=True).check()
        page.get_by_role("link", name="Load again").click()


def test_with_javascript_the_page_is_not_reloaded_by_the_fallback(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["running"])
        assert page.locator("meta[http-equiv=refresh]").count() == 0


def test_a_change_appears_without_a_reload_and_disturbs_nothing(served: Served, chromium: Any) -> None:
    with page_of(chromium, viewport={"width": 1000, "height": 600}) as page:
        page.goto(f"{served.base}/runs/live-pause")
        page.get_by_text("Live", exact=True).wait_for()
        page.locator("#course-numbers summary").click()
        page.locator("#configuration-file summary").focus()
        page.evaluate("window.scrollTo(0, 300); window.untouched = document.getElementById('course-numbers')")
        height_of = "document.getElementById('course').getBoundingClientRect().top"
        before = page.evaluate(height_of)
        served.post("/runs/live-pause/pause", {"reason": "the power is cut at noon"})
        page.locator(".headline .state", has_text="paused").wait_for()
        assert "the power is cut at noon" in page.locator(".lead").inner_text()
        assert "power is cut" in page.locator("table.log tbody tr").first.inner_text()
        assert page.evaluate("window.untouched === document.getElementById('course-numbers')"), "no reload"
        assert page.evaluate("window.untouched.open"), "open details stay open"
        assert page.evaluate("document.activeElement.parentElement.id") == "configuration-file"
        assert page.evaluate(height_of) == pytest.approx(before, abs=2), "what is read stays where it is"
        served.post("/runs/live-pause/resume", {})
        page.locator(".headline .state", has_text="running").wait_for()
        assert page.said == []


def test_a_heartbeat_moves_the_bar(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served.base}/runs/live-heartbeat")
        page.get_by_text("Live", exact=True).wait_for()
        line = page.locator(".participants li", has_text="gothenburg")
        assert "step 8 of 12" in line.inner_text()
        before = line.locator(".fill").bounding_box()["width"]
        body = {"attempt": 1, "epoch": 2, "epochs": 2, "step": 11, "steps": 12, "loss": 0.25}
        served.post("/runs/live-heartbeat/rounds/1/progress", body, token_of("gothenburg"))
        line.get_by_text("step 11 of 12, loss 0.250").wait_for()
        page.wait_for_timeout(500)  # the bar glides
        assert line.locator(".fill").bounding_box()["width"] == pytest.approx(before * 11 / 8, rel=0.01)


def test_the_page_of_an_ended_run_is_live_until_everybody_has_left(served: Served, chromium: Any) -> None:
    """The last model is scored after the run's end; then the page says that it is final, and asks no more."""
    with page_of(chromium) as page:
        page.goto(f"{served.base}/runs/live-stop")
        page.get_by_text("Live", exact=True).wait_for()
        served.post("/runs/live-stop/stop", {"reason": "enough"})
        page.locator(".headline .state", has_text="stopped").wait_for()
        assert page.locator("#connection").get_attribute("data-state") == "live"
        for client in (EVALUATOR, *(site.name for site in SITES)):
            served.leave("live-stop", token_of(client))
        page.locator("#connection[data-state=final]").wait_for()
        page.wait_for_load_state("networkidle")
        asked = len(page.asked)
        page.wait_for_timeout(1200)
        assert page.asked[asked:] == []


def test_the_list_of_runs_is_live_too(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base)
        page.get_by_text("Live", exact=True).wait_for()
        row = page.get_by_role("row", name="live-pause")
        served.post("/runs/live-pause/pause", {"reason": "seen from the list"})
        row.get_by_text("seen from the list").wait_for()
        served.post("/runs/live-pause/resume", {})
        row.get_by_text("running").wait_for()


def test_a_coordinator_that_goes_away_is_said_and_found_again(
    served: Served, chromium: Any, tmp_path: Any, migrated_sqlite: Any
) -> None:
    port, clock = free_port(), served.coordinator.clock
    with page_of(chromium) as page:
        first = prepare_coordinator(tmp_path / "data", migrated_sqlite, clock)
        enrolling_run(first.store, "moves-house")
        with serve(first, port) as one:
            page.goto(f"{one.base}/runs/moves-house")
            page.get_by_text("Live", exact=True).wait_for()
        page.get_by_text("Connection lost, reconnecting…").wait_for()
        with serve(prepare_coordinator(tmp_path / "data", migrated_sqlite, clock), port) as two:
            two.post("/runs/moves-house/stop", {"reason": "stopped by the second process"})
            page.locator(".lead", has_text="Stopped by the second process.").wait_for()


def test_a_page_that_could_not_be_fetched_is_not_called_live(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served.base}/runs/live-pause")
        page.get_by_text("Live", exact=True).wait_for()
        refused: list[str] = []

        def refuse(route: Any) -> None:
            """The first two times; what a proxy says while it restarts, and a connection that is cut."""
            refused.append(route.request.url)
            if len(refused) == 1:
                route.fulfill(status=503, body="busy", headers={"Retry-After": "1"})
            elif len(refused) == 2:
                route.abort()
            else:
                route.continue_()

        page.route("**/runs/live-pause", refuse)
        served.post("/runs/live-pause/pause", {"reason": "nobody fetches this"})
        page.get_by_text("This page is not up to date, trying again…").wait_for()
        page.locator(".headline .state", has_text="paused").wait_for()
        page.get_by_text("Live", exact=True).wait_for()
        assert len(refused) >= 3
        served.post("/runs/live-pause/resume", {})
        page.locator(".headline .state", has_text="running").wait_for()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "This page is no longer there"),
        (410, "no longer there"),
        (403, "You may no longer see this page"),
    ],
)
def test_a_page_that_is_gone_says_so_and_asks_no_more(
    served: Served, chromium: Any, status: int, words: str
) -> None:
    with page_of(chromium) as page:
        page.goto(f"{served.base}/runs/live-pause")
        page.get_by_text("Live", exact=True).wait_for()
        page.route("**/runs/live-pause", lambda route: route.fulfill(status=status, body="gone"))
        served.post("/runs/live-pause/pause", {"reason": "before it goes"})
        page.locator("#connection[data-state=final]", has_text=words).wait_for()
        asked = len(page.asked)
        served.post("/runs/live-pause/resume", {})
        page.wait_for_timeout(1200)
        assert page.asked[asked:] == []
        assert page.locator("h1", has_text="live-pause").count() == 1, "what was shown stays"


HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_pages_that_nobody_sees_leave_the_connections_to_the_others(served: Served, chromium: Any) -> None:
    """A browser holds six connections to a coordinator, and each page that follows needs one."""
    with page_of(chromium) as first:
        hidden = [first, *(first.context.new_page() for _ in range(6))]
        for page in hidden:
            page.goto(f"{served.base}/runs/live-pause")
            page.get_by_text("Live", exact=True).wait_for()
            page.evaluate(HIDE, True)
        last = first.context.new_page()
        last.goto(f"{served.base}/runs/live-pause", timeout=5000)
        last.get_by_text("Live", exact=True).wait_for()
        served.post("/runs/live-pause/pause", {"reason": "nobody looks"})
        last.locator(".headline .state", has_text="paused").wait_for()
        assert "running" in first.locator(".headline .state").inner_text()
        assert first.locator("#connection").get_attribute("data-state") == "waiting"
        first.evaluate(HIDE, False)
        first.locator(".headline .state", has_text="paused").wait_for()
        first.get_by_text("Live", exact=True).wait_for()
        served.post("/runs/live-pause/resume", {})
        first.locator(".headline .state", has_text="running").wait_for()


def test_a_page_whose_answer_does_not_come_says_so_and_asks_again(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.clock.install()
        page.goto(f"{served.base}/runs/live-pause")
        page.get_by_text("Live", exact=True).wait_for()
        lost: list[Any] = []
        page.route("**/runs/live-pause", lambda route: lost.append(route) if not lost else route.continue_())
        served.post("/runs/live-pause/pause", {"reason": "the answer is lost"})
        page.wait_for_timeout(500)
        page.clock.fast_forward(2000)  # the page waits a little before it asks
        wait_until(page, lambda: lost)
        page.clock.fast_forward(6000)
        page.locator("#connection[data-state=waiting]", has_text="not up to date").wait_for()
        page.clock.fast_forward(30_000)
        page.clock.fast_forward(30_000)
        page.locator(".headline .state", has_text="paused").wait_for()
        page.get_by_text("Live", exact=True).wait_for()
        served.post("/runs/live-pause/resume", {})


def wait_until(page: Any, holds: Callable[[], object]) -> None:
    for _ in range(WAIT_MS // 50):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it does not come")


def test_a_verdict_on_another_text_does_not_stay(served: Served, chromium: Any) -> None:
    """While it is typed the coordinator goes, or the session ends."""
    with page_of(chromium) as page:
        page.goto(f"{served.base}/create")
        text = page.locator("#text")
        text.fill(EXAMPLE_RUN)
        page.locator("#answer .right").wait_for()
        page.route("**/create", lambda route: route.abort())
        text.fill(EXAMPLE_RUN + "rounds: -3\n")
        page.locator("#answer", has_text="Not checked").wait_for()
        assert page.locator("#answer .right").count() == 0
        page.unroute("**/create")
        page.route("**/create", lambda route: route.fulfill(status=401, body="<p>Sign in</p>"))
        text.fill(EXAMPLE_RUN + "\n")
        page.locator("#answer", has_text="Not checked").wait_for()
        page.unroute("**/create")
        text.fill(EXAMPLE_RUN)
        page.locator("#answer .right").wait_for()


EXAMPLE_RUN = "name: typed\ntask: digits\n"


def test_choices_that_were_made_outlast_a_change(served: Served, chromium: Any) -> None:
    """The list of states loses one, or gains one, above the one that is chosen."""
    with page_of(chromium) as page:
        page.goto(served.base)
        page.get_by_text("Live", exact=True).wait_for()
        page.select_option("#state", "running")
        box = page.get_by_label("Compare live-pause", exact=True)
        box.check()
        served.post("/runs/live-pause/pause", {"reason": "seen from the list"})
        page.get_by_role("row", name="live-pause").get_by_text("seen from the list").wait_for()
        assert page.locator("#state").input_value() == "running"
        assert box.is_checked()
        served.post("/runs/live-pause/resume", {})
        page.get_by_role("row", name="live-pause").get_by_text("running").wait_for()
        assert page.locator("#state").input_value() == "running"


def test_a_page_with_an_old_style_reloads_at_the_next_change(served: Served, chromium: Any) -> None:
    """As after an upgrade of the coordinator: the page that hangs there names an address of former times."""
    with page_of(chromium) as page:
        page.goto(f"{served.base}/runs/live-pause")
        page.get_by_text("Live", exact=True).wait_for()
        page.evaluate(
            "window.shown = 'before'; document.head.querySelector('link[rel=stylesheet]').href += '0'"
        )
        served.post("/runs/live-pause/pause", {"reason": "upgrade"})
        page.wait_for_function("() => window.shown === undefined")
        page.get_by_text("Live", exact=True).wait_for()
        page.evaluate("window.shown = 'after'")
        served.post("/runs/live-pause/resume", {})
        page.locator(".headline .state", has_text="running").wait_for()
        assert page.evaluate("window.shown") == "after", "once, not at every change"


def test_the_countdown_counts(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["running"])
        deadline = page.locator(".deadline time")
        first = deadline.inner_text()
        assert first.startswith("in ")
        page.wait_for_function(
            "text => document.querySelector('.deadline time').textContent !== text", arg=first
        )


def test_print_and_reduced_motion(served: Served, chromium: Any) -> None:
    with page_of(chromium, reduced_motion="reduce") as page:
        page.goto(served.base + PAGES["running"])
        moving = "getComputedStyle(document.querySelector('.meter .fill')).transitionDuration"
        assert page.evaluate(moving) == "0s"
        page.emulate_media(media="print", reduced_motion="no-preference")
        assert not page.locator("#connection").is_visible()
        assert page.locator("h1").is_visible()


def test_a_missing_page_is_a_page(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        answer = page.goto(f"{served.base}/runs/never-heard-of")
        assert answer.status == 404
        assert page.locator("h1").inner_text() == "No such thing"
        assert "never-heard-of" in page.locator(".lead").inner_text()


def test_evaluators_are_named_beside_their_curve(served: Served, chromium: Any) -> None:
    with page_of(chromium) as page:
        page.goto(served.base + PAGES["finished"])
        assert EVALUATOR in page.locator(".chart .legend").first.inner_text()
        described = page.locator(".plot").first.get_attribute("aria-labelledby").split()
        assert "at round 0" in page.locator(f"#{described[1]}").text_content()

"""Reading with a browser: signing in without a script, what a session may, and what nobody may make of it."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.clock import utc_now
from server.web.security import CACHE_SECONDS, hash_token
from tests.helpers.clocks import clock_by
from tests.helpers.live_coordinator import ADMIN, Live, live

VIEWER = "viewer-token-of-the-tests"
PAGE = {"Accept": "text/html"}


class Turned:
    """The time, and how far it was turned."""

    def __init__(self) -> None:
        self.by = dt.timedelta()

    def __call__(self) -> dt.datetime:
        return utc_now() + self.by


@pytest.fixture
def turned() -> Turned:
    return Turned()


@pytest.fixture
def at(database_url: str, tmp_path: Path, turned: Turned) -> Iterator[Live]:
    with live(database_url, tmp_path / "data", clock_by(turned), viewer_token=VIEWER) as opened:
        opened.create()
        yield opened


@pytest.fixture
def browser(at: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=at.url, headers=PAGE, timeout=30) as opened:
        yield opened


def fields_of(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of the page's form."""
    return dict(re.findall(r'<input name="(\w+)" type="hidden" value="([^"]*)">', page.text))


def sign_in(browser: httpx.Client, token: str, path: str = "/runs/demo") -> httpx.Response:
    asked = browser.get(path)
    assert (asked.status_code, asked.headers["cache-control"]) == (401, "no-store")
    assert "<h1>Sign in</h1>" in asked.text
    assert "<script" not in asked.text
    return browser.post("/sign-in", data={**fields_of(asked), "token": token})


def test_a_browser_signs_in_and_reads(at: Live, browser: httpx.Client) -> None:
    answer = sign_in(browser, VIEWER, "/runs/demo?show=everything")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/demo?show=everything")
    cookie = next(text for text in answer.headers.get_list("set-cookie") if "-session=" in text)
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert VIEWER not in cookie
    page = browser.get(answer.headers["location"])
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    assert "demo" in page.text
    for address in ("/", "/docs", "/metrics", "/api/v1/runs/demo/rounds"):
        assert browser.get(address).status_code == 200, address
    with browser.stream("GET", "/api/v1/runs/demo/events") as stream:
        assert stream.status_code == 200


def test_a_session_only_reads(at: Live, browser: httpx.Client) -> None:
    """So that no form of another site can do anything with it, the operator's neither."""
    assert sign_in(browser, ADMIN).status_code == 303
    assert browser.get("/runs/demo").status_code == 200
    for method, address in (("POST", "/runs/demo/stop"), ("GET", "/clients"), ("GET", "/join-tokens")):
        assert browser.request(method, f"/api/v1{address}").status_code == 401, address
    assert at.run()["status"] == "enrolling"


def test_signing_out(at: Live, browser: httpx.Client) -> None:
    sign_in(browser, VIEWER)
    page = browser.get("/runs/demo")
    assert browser.post("/sign-out", data={"seal": "0" * 64}).status_code == 303
    assert browser.get("/runs/demo").status_code == 200, "another site's form ends no session"
    assert browser.post("/sign-out", data=fields_of(page)).headers["location"] == "/sign-in"
    assert browser.get("/runs/demo").status_code == 401
    assert "/sign-out" not in browser.get("/sign-in").text


@pytest.mark.parametrize(("token", "status"), [("nobody-has-this-token", 401), ("", 401), ("ümläut", 401)])
def test_a_wrong_token_is_told(at: Live, browser: httpx.Client, token: str, status: int) -> None:
    answer = sign_in(browser, token)
    assert answer.status_code == status
    assert "not known here" in answer.text
    assert not any("-session=" in text for text in answer.headers.get_list("set-cookie"))
    assert 'feddisco_problems_total{code="wrong-token"}' in at.admin.get(f"{at.url}/metrics").text


def test_a_workers_token_opens_no_page(at: Live, browser: httpx.Client) -> None:
    site = at.site("anna")
    token = site.http.headers["Authorization"].removeprefix("Bearer ")
    answer = sign_in(browser, token)
    assert answer.status_code == 403
    assert "a worker&#39;s token" in answer.text
    assert site.http.get(f"{at.url}/runs/demo").status_code == 403


def test_forms_of_others_are_refused(at: Live, browser: httpx.Client) -> None:
    """Login forgery: another site's form would sign somebody in as another."""
    asked = browser.get("/sign-in")
    good = {**fields_of(asked), "token": VIEWER}
    with httpx.Client(base_url=at.url, headers=PAGE) as another:  # the same form without the cookie
        assert another.post("/sign-in", data=good).status_code == 403
        other = {**fields_of(another.get("/sign-in")), "token": VIEWER}
    for form in (other, {**good, "seal": ""}, {**good, "seal": "é"}, {"token": VIEWER}):
        assert browser.post("/sign-in", data=form).status_code == 403, form
    as_text = {"Content-Type": "text/plain"}
    body = f"token={VIEWER}&seal={good['seal']}"
    assert browser.post("/sign-in", content=body, headers=as_text).status_code == 403
    many = "&".join(f"a{number}=1" for number in range(1000))
    as_form = {"Content-Type": "application/x-www-form-urlencoded"}
    for content in (b"\xff\xfe=%ff", b""):
        assert browser.post("/sign-in", content=content, headers=as_form).status_code == 403
    refused = browser.post("/sign-in", content=f"{body}&{many}", headers=as_form)
    assert (refused.status_code, "more than 30 fields" in refused.text) == (422, True)
    assert browser.get("/").status_code == 401
    assert browser.post("/sign-in", data=good).status_code == 303, "the form itself was good"


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\n/evil", ""],
)
def test_nobody_is_led_elsewhere(at: Live, browser: httpx.Client, wanted: str) -> None:
    form = {**fields_of(browser.get("/sign-in", params={"next": wanted})), "token": VIEWER}
    assert form["next"] == "/"
    answer = browser.post("/sign-in", data={**form, "next": wanted})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def cookie_of(browser: httpx.Client) -> tuple[str, str]:
    """Name and value of the session's cookie."""
    (name,) = (name for name in browser.cookies if name.endswith("-session"))
    return name, browser.cookies[name]


def test_a_session_ends_and_cannot_be_made(at: Live, browser: httpx.Client, turned: Turned) -> None:
    sign_in(browser, VIEWER)
    name, value = cookie_of(browser)

    def status(cookie: str) -> int:
        pair = {b"Cookie": f"{name}={cookie}".encode("latin-1")}
        return httpx.get(f"{at.url}/runs/demo", headers=pair).status_code

    assert status(value) == 200
    for forged in (
        "A" * 43,
        value[:-1],
        f"{value}A",
        hash_token(value),  # what the coordinator keeps
        hash_token(VIEWER),
        VIEWER,
        "9" * 5000,
        "\u00e9",
        "",
    ):
        assert status(forged) == 401, forged
    turned.by = dt.timedelta(hours=12, minutes=1)
    time.sleep(CACHE_SECONDS + 0.1)  # what was right a moment ago is not looked up again
    assert status(value) == 401


def test_a_stream_ends_with_its_session(at: Live, browser: httpx.Client, turned: Turned) -> None:
    """It told what happened for as long as the browser kept it open."""
    sign_in(browser, VIEWER)
    turned.by = dt.timedelta(hours=12, seconds=-5)
    with (
        browser.stream("GET", "/api/v1/events") as by_session,
        at.http(VIEWER).stream("GET", "/events") as by_token,
    ):
        assert (by_session.status_code, by_token.status_code) == (200, 200)
        at.wait_for(lambda: at.coordinator.hub.open_streams == 2)
        assert b"".join(by_session.iter_raw()).endswith(b"\n\n"), "a clean end"
        at.wait_for(lambda: at.coordinator.hub.open_streams == 1)
    assert browser.get("/api/v1/runs").status_code == 401


def test_a_copied_cookie_is_worth_nothing_after_signing_out(at: Live, browser: httpx.Client) -> None:
    sign_in(browser, VIEWER)
    name, value = cookie_of(browser)
    with httpx.Client(base_url=at.url, headers=PAGE, cookies={name: value}) as thief:
        assert thief.get("/runs/demo").status_code == 200
        browser.post("/sign-out", data=fields_of(browser.get("/runs/demo")))
        assert thief.get("/runs/demo").status_code == 401
        assert thief.get("/api/v1/runs").status_code == 401


def test_a_seal_fits_one_session(at: Live, browser: httpx.Client) -> None:
    """A form made for another session of the same browser is another site's."""
    sign_in(browser, VIEWER)
    seal = fields_of(browser.get("/runs/demo"))
    browser.post("/sign-out", data=seal)
    sign_in(browser, VIEWER)
    browser.post("/sign-out", data=seal)
    assert browser.get("/runs/demo").status_code == 200
    foreign = {"Sec-Fetch-Site": "cross-site"}
    browser.post("/sign-out", data=fields_of(browser.get("/runs/demo")), headers=foreign)
    assert browser.get("/runs/demo").status_code == 200, "a browser says that another site has caused it"


def test_people_sign_in_and_their_sessions_end_with_their_token(at: Live, browser: httpx.Client) -> None:
    made = at.admin.post("/users", json={"name": "vera", "role": "viewer", "runs": ["demo"]}).json()
    assert sign_in(browser, made["token"]).status_code == 303
    page = browser.get("/runs/demo")
    assert "Signed in as <b>vera</b>" in page.text
    assert browser.get("/runs/other").status_code == 403
    assert at.admin.delete("/users/vera").status_code == 204
    assert browser.get("/runs/demo").status_code == 401
    names = [json.loads(line)["action"] for line in at.admin.get("/audit").text.splitlines()]
    assert names.count("signed_in") == 1


def test_another_viewer_token_ends_the_sessions(database_url: str, tmp_path: Path) -> None:
    with httpx.Client(headers=PAGE) as browser:
        for token, status in ((VIEWER, 200), (f"another-{VIEWER}", 401)):
            with live(database_url, tmp_path / "data", viewer_token=token) as at:
                browser.base_url = httpx.URL(at.url)
                if status == 200:
                    sign_in(browser, VIEWER, "/")
                assert browser.get("/").status_code == status


def test_behind_tls_the_cookies_are_for_tls_only(at: Live) -> None:
    passed_on = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1", **PAGE}
    with httpx.Client(base_url=at.url, headers=passed_on) as browser:
        asked = browser.get("/")
        (cookie,) = asked.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-")
        assert "Secure" in cookie.split("; ")
        pair = {"Cookie": cookie.partition(";")[0]}  # httpx keeps it back, as the connection is in clear
        answer = browser.post("/sign-in", data={**fields_of(asked), "token": VIEWER}, headers=pair)
        cookie = next(text for text in answer.headers.get_list("set-cookie") if "-session=" in text)
        assert cookie.startswith("__Host-")
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


ELSEWHERE = [
    {"Host": "coordinator.example"},
    {"Host": "192.0.2.1:8000"},
    {"Host": "localhost.evil.example"},
    {"Host": "["},
    {"X-Forwarded-For": "127.0.0.1"},
    {"Forwarded": "for=127.0.0.1"},
    {"X-Real-IP": "127.0.0.1"},
    {"Via": "1.1 proxy"},
]


def test_reading_is_open_on_this_machine_only(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        token = (tmp_path / "data" / "viewer-token").read_text().strip()
        here = at.http()
        for headers in ({}, {"Host": "localhost:1"}, {"Host": "[::1]"}, {"Authorization": "Basic YTpi"}):
            assert here.get(f"{at.url}/", headers=headers).status_code == 200, headers
        assert at.http("not-a-token").get("/runs").status_code == 401
        for headers in ELSEWHERE:
            for address in ("/", "/metrics", "/api/v1/runs", "/api/v1/events"):
                assert here.get(at.url + address, headers=headers).status_code == 401, (headers, address)
            assert at.http(token).get("/runs", headers=headers).status_code == 200
    with live(database_url, tmp_path / "data", open_pages=True) as at:
        for headers in ELSEWHERE:
            assert at.http().get(f"{at.url}/", headers=headers).status_code == 200, headers
    with live(database_url, tmp_path / "data", open_pages=False) as at:
        assert at.http().get(f"{at.url}/").status_code == 401
        assert at.http(token).get(f"{at.url}/").status_code == 200, "the token of before"

"""Signing in through an identity provider, a process of its own with real keys; and what must not sign in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from tests.helpers.live_coordinator import Live, live
from tests.helpers.oidc_provider import CLIENT, CLIENT_SECRET, Provider, oidc_provider

PAGE = {"Accept": "text/html"}
PUBLIC = "http://127.0.0.1:1"
"""What the coordinator believes its address to be: the tests follow no redirect there."""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with oidc_provider(tmp_path_factory.mktemp("oidc")) as started:
        yield started


@pytest.fixture
def at(database_url: str, tmp_path: Path, provider: Provider) -> Iterator[Live]:
    settings: dict[str, Any] = {
        "open_pages": False,
        "public_url": PUBLIC,
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": CLIENT_SECRET,
    }
    with live(database_url, tmp_path / "data", **settings) as opened:
        opened.create()
        body = {"name": "maria", "role": "operator"}
        opened.admin.post("/users", json=body).raise_for_status()
        yield opened


@pytest.fixture
def browser(at: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=at.url, headers=PAGE, timeout=30) as opened:
        yield opened


def go_to_provider(browser: httpx.Client, wanted: str = "/runs/demo") -> dict[str, str]:
    """Through the provider, which knows who comes; what it sends back with the browser."""
    asked = browser.get("/sign-in/oidc", params={"next": wanted})
    assert asked.status_code == 303, asked.text
    back = httpx.get(asked.headers["location"])
    assert back.headers["location"].startswith(f"{PUBLIC}/sign-in/oidc/callback?")
    return {name: values[0] for name, values in parse_qs(urlsplit(back.headers["location"]).query).items()}


def come_back(browser: httpx.Client, answer: dict[str, str]) -> httpx.Response:
    return browser.get(
        f"/sign-in/oidc/callback?{urlencode(answer)}", headers={"Sec-Fetch-Site": "cross-site"}
    )


def test_a_person_signs_in_and_acts_under_the_own_name(
    at: Live, browser: httpx.Client, provider: Provider
) -> None:
    provider.be("maria")
    asked = browser.get("/runs/demo?show=everything")
    assert (asked.status_code, "/sign-in/oidc?next=" in asked.text) == (401, True)
    answer = come_back(browser, go_to_provider(browser, "/runs/demo?show=everything"))
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert 'http-equiv="refresh" content="0; url=/runs/demo?show=everything"' in answer.text
    cookie = next(text for text in answer.headers.get_list("set-cookie") if "-session=" in text)
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    assert browser.get("/runs/demo").status_code == 200
    entries = [json.loads(line) for line in at.admin.get("/audit").text.splitlines()]
    assert "user:maria" in [entry["actor"] for entry in entries if entry["action"] == "signed_in"]

    at.admin.delete("/users/maria").raise_for_status()
    assert browser.get("/runs/demo").status_code == 401, "what is revoked here is out here"


LATE = int(time.time()) - 3600
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": ({"claims": {"iss": "https://other.example"}}, "of another identity provider (iss)"),
    "audience": ({"claims": {"aud": "other"}}, "meant for another application (aud)"),
    "party": ({"claims": {"azp": "other"}}, "meant for another application (aud)"),
    "nonce": ({"claims": {"nonce": "other"}}, "belongs to another attempt (nonce)"),
    "expired": ({"claims": {"exp": LATE, "iat": LATE - 300}}, "has expired (exp)"),
    "foreign key": ({"key": "foreign", "kid": "old"}, "not one that the identity provider has signed"),
    "unknown key": ({"key": "foreign"}, "not one that the identity provider has signed"),
    "no name": ({"claims": {"preferred_username": None}}, "says no preferred_username"),
    "denied": ({"denied": True}, "has not let you in: &#39;access_denied&#39;"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_right_signs_nobody_in(
    at: Live, browser: httpx.Client, provider: Provider, case: str
) -> None:
    wrong, sentence = REFUSED[case]
    provider.be("maria", **wrong)
    assert_refused(browser, come_back(browser, go_to_provider(browser)), sentence)


def assert_refused(browser: httpx.Client, answer: httpx.Response, sentence: str) -> None:
    assert answer.status_code == 403, answer.text
    assert sentence in answer.text
    assert not any("-session=" in text for text in answer.headers.get_list("set-cookie"))
    assert browser.get("/runs/demo").status_code == 401


@pytest.mark.parametrize("name", ["nobody", "admin", "viewer", "Maria", "maria "])
def test_who_is_not_known_here_is_refused(
    at: Live, browser: httpx.Client, provider: Provider, name: str
) -> None:
    provider.be(name)
    answer = come_back(browser, go_to_provider(browser))
    assert_refused(browser, answer, "is not known here, or has been revoked")


def test_an_answer_belongs_to_one_attempt_of_one_browser(
    at: Live, browser: httpx.Client, provider: Provider
) -> None:
    provider.be("maria")
    answer = go_to_provider(browser)
    with httpx.Client(base_url=at.url, headers=PAGE, timeout=30) as other:
        assert_refused(other, come_back(other, answer), "was not begun here, or too long ago")
        go_to_provider(other)
        assert_refused(other, come_back(other, answer), "belongs to another attempt (state)")
    assert_refused(browser, come_back(browser, {**answer, "state": "x"}), "another attempt (state)")
    # an attempt is for one answer
    assert_refused(browser, come_back(browser, answer), "was not begun here")


def test_a_code_is_worth_nothing_twice_or_without_its_verifier(
    at: Live, browser: httpx.Client, provider: Provider
) -> None:
    provider.be("maria")
    stolen = go_to_provider(browser)
    with httpx.Client(base_url=at.url, headers=PAGE, timeout=30) as thief:
        own = go_to_provider(thief)
        answer = come_back(thief, {"state": own["state"], "code": stolen["code"]})
        assert_refused(thief, answer, "refuses the code: &#39;invalid_grant&#39;")


def test_a_new_key_of_the_provider_is_fetched(at: Live, browser: httpx.Client, provider: Provider) -> None:
    provider.be("maria")
    go_to_provider(browser)  # the old ones are known now
    provider.be("maria", key="new", published=["old", "new"])
    assert come_back(browser, go_to_provider(browser)).status_code == 200


@pytest.mark.parametrize("wanted", ["//evil.example/x", "https://evil.example", "/\\evil.example"])
def test_it_leads_nowhere_else(at: Live, browser: httpx.Client, provider: Provider, wanted: str) -> None:
    provider.be("maria")
    assert "evil" not in come_back(browser, go_to_provider(browser, wanted)).text

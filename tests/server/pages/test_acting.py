"""Acting from the pages: forms without a script, who may send them, and what nobody may make of them."""

from __future__ import annotations

import hashlib
import html
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.pages.clients_page import draw_code, read_invitation, write_command
from server.pages.create_page import LONGEST, next_name, write_short
from server.pages.offers import ACTIONS, run_command, show_command
from shared.config import RunConfig
from shared.fingerprints import format_fingerprint
from shared.join_codes import read_join_code
from shared.problems import InvalidRequest
from shared.run_files import read_config, write_config
from shared.schemas import Role
from shared.secure.keys import identity_of, make_identity
from tests.helpers.live_coordinator import ADMIN, JOIN, TASK, Live, ManualClient, file_of, live, sha256
from tests.helpers.page_reading import Html

VIEWER = "viewer-token-of-the-tests"
PAGE = {"Accept": "text/html"}


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as opened:
        opened.create()
        yield opened


def fields_of(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of the page's forms, the last of each name."""
    found = re.findall(r'<input name="(\w+)" type="hidden" value="([^"]*)">', page.text)
    return {name: html.unescape(value) for name, value in found}


def inputs_of(page: httpx.Response) -> dict[str, str]:
    """What a browser sends if nothing is typed."""
    inputs = (element.attributes for element in Html(page.text).all("input"))
    return {found["name"]: found.get("value", "") for found in inputs if found.get("type") != "checkbox"}


class Browser:
    """Who has signed in, in a browser without script; with the right kind of each form by default."""

    def __init__(self, at: Live, token: str) -> None:
        self.http = httpx.Client(base_url=at.url, headers=PAGE, timeout=30)
        at._open.append(self.http)
        asked = self.http.get("/sign-in")
        answer = self.http.post("/sign-in", data={**fields_of(asked), "token": token})
        assert answer.status_code == 303, answer.text

    def get(self, address: str) -> httpx.Response:
        return self.http.get(address)

    def send(self, address: str, /, form: str | None = None, **fields: str) -> httpx.Response:
        """Fill in the form on the page ``form`` (the address itself) and send it."""
        page = self.http.get(form or address)
        return self.http.post(address, data={**fields_of(page), **fields})


def add(at: Live, name: str, role: str, *runs: str) -> Browser:
    answer = at.admin.post("/users", json={"name": name, "role": role, "runs": list(runs) or None})
    return Browser(at, answer.json()["token"])


def started(at: Live) -> None:
    for name in ("anna", "otto"):
        site = at.site(name)
        assert site.enrol("demo", 10).status_code == 200
        assert site.submit("demo", 0.5).status_code == 204
    at.wait_for(lambda: at.run()["status"] == "running")


def test_an_operator_pauses_resumes_and_stops(at: Live) -> None:
    olga = add(at, "olga", "operator")
    started(at)
    page = olga.get("/runs/demo")
    words = ("Start now", "Pause", "Resume", "Go back", "Stop")
    assert [word for word in words if f'">{word}</a>' in page.text] == ["Pause", "Go back", "Stop"]
    asked = olga.get("/runs/demo/do/pause")
    assert "feddisco run pause demo --reason WHY" in asked.text
    assert "<script" not in asked.text
    answer = olga.send("/runs/demo/do/pause", reason="the power is cut <b>at noon</b>")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/demo")
    assert (at.run()["status"], at.events()[-1]["actor"]) == ("paused", "user:olga")
    assert "the power is cut &lt;b&gt;at noon&lt;/b&gt;" in olga.get("/runs/demo").text
    assert olga.send("/runs/demo/do/resume").status_code == 303
    assert at.run()["status"] == "running"
    untold = olga.send("/runs/demo/do/stop", reason="enough")
    assert (untold.status_code, "tick the box" in untold.text) == (422, True)
    assert at.run()["status"] == "running"
    assert olga.send("/runs/demo/do/stop", reason="enough", sure="yes").status_code == 303
    assert (at.run()["status"], at.run()["reason"]) == ("stopped", "enough")
    refused = olga.send("/runs/demo/do/pause")
    assert (refused.status_code, "not possible with a run that is stopped" in refused.text) == (409, True)
    assert olga.send("/runs/demo/do/stop", reason="x" * 2001, sure="yes").status_code == 422
    for nothing in ("/runs/demo/do/explode", "/runs/nothing/do/pause", "/runs/demo/clients/anna/do/love"):
        assert olga.get(nothing).status_code == 404, nothing


def test_an_operator_goes_back_to_a_round(at: Live) -> None:
    olga = add(at, "olga", "operator")
    at.create("back", weighting={"kind": "sizes"}, rounds=3)
    sites = [at.site(name) for name in ("anna", "otto")]
    for site in sites:
        assert site.enrol("back", 10).status_code == 200
    for site in sites:
        assert site.until("train")["round"] == 1
        assert site.upload("back", 1, file_of(1.0)).status_code == 200
    at.wait_for(lambda: at.run("back")["completed_rounds"] == 1)
    assert "feddisco run rewind back --round N --reason WHY" in olga.get("/runs/back/do/rewind").text
    for wrong, status in (("2", 409), ("x", 422), ("", 422), ("-1", 422)):
        assert olga.send("/runs/back/do/rewind", round=wrong, sure="yes").status_code == status, wrong
    assert olga.send("/runs/back/do/rewind", round="0", reason="a liar", sure="yes").status_code == 303
    assert at.run("back")["completed_rounds"] == 0
    assert [event["actor"] for event in at.events("back") if event["kind"] == "run_rewound"] == ["user:olga"]


def test_an_operator_lets_in_keeps_out_and_revokes(at: Live) -> None:
    olga = add(at, "olga", "operator")
    at.create("asks", approve="sizes")
    anna, otto = at.site("anna"), at.site("otto")
    for site in (anna, otto):
        assert site.enrol("asks", 40).json()["status"] == "awaiting_approval"
    assert "/runs/asks/clients/anna/do/approve" in olga.get("/runs/asks").text
    assert "--examples 40" in olga.get("/runs/asks/clients/anna/do/approve").text
    wrong = olga.send("/runs/asks/clients/anna/do/approve", examples="41")
    assert wrong.status_code == 409, "another size than the one that was looked at"
    assert olga.send("/runs/asks/clients/anna/do/approve").status_code == 303
    assert olga.send("/runs/asks/clients/otto/do/refuse", reason="not invited").status_code == 303
    statuses = {row["client"]: row["status"] for row in at.run("asks")["enrolments"]}
    assert statuses == {"anna": "awaiting_discrepancy", "otto": "refused"}
    assert olga.send("/clients/otto/do/revoke").status_code == 422
    assert olga.send("/clients/otto/do/revoke", sure="yes").headers["location"] == "/clients"
    assert otto.http.get("/work").status_code == 401


def test_an_operator_lets_in_a_trainer_of_a_secure_run(at: Live) -> None:
    """It declares no size; what the form approves is 0."""
    olga = add(at, "olga", "operator")
    at.create("sums", secure={}, min_clients=3, weighting={"kind": "sizes"})
    registered = at.http(JOIN).post("/clients", json={"name": "dora", "identity": "ab" * 32})
    dora = ManualClient(at.http(registered.json()["token"]), "dora")
    dora.enrol("sums", 0)
    assert olga.send("/runs/sums/clients/dora/do/refuse", reason="no contract yet").status_code == 303
    assert dora.enrol("sums", 0).json()["status"] == "awaiting_approval"
    asked = olga.get("/runs/sums/clients/dora/do/approve").text
    assert "dora takes part as trainer. The run is secure: no size is declared." in asked
    assert "--examples 0" in asked
    assert olga.send("/runs/sums/clients/dora/do/approve").status_code == 303
    assert [row["status"] for row in at.run("sums")["enrolments"]] == ["ready"]


def test_an_operator_changes_a_run(at: Live) -> None:
    """What differs from what the form showed, and nothing that somebody else has changed meanwhile."""
    olga = add(at, "olga", "operator")
    asked = olga.get("/runs/demo/do/change")
    assert "feddisco run change demo --deadline SECONDS" in asked.text
    shown = inputs_of(asked)
    assert shown["rounds"] == shown["was_rounds"] == "2"
    assert at.admin.patch("/runs/demo", json={"keep_updates": 3}).status_code == 200
    filled = {**shown, "rounds": "7", "round_deadline_seconds": "90.5", "quorum": "2"}
    assert olga.http.post("/runs/demo/do/change", data=filled).headers["location"] == "/runs/demo"
    now = at.run()["config"]
    names = ("rounds", "round_deadline_seconds", "quorum", "keep_updates")
    assert [now[name] for name in names] == [7, 90.5, 2, 3]
    assert at.events()[-1]["actor"] == "user:olga"
    shown = inputs_of(olga.get("/runs/demo/do/change"))
    assert shown["round_deadline_seconds"] == "90.5"

    def send(**changed: str) -> httpx.Response:
        return olga.http.post("/runs/demo/do/change", data={**shown, **changed})

    assert send(quorum="").status_code == 303
    assert at.run()["config"]["quorum"] is None
    same = send()
    assert (same.status_code, "nothing is changed" in same.text) == (422, True)
    for wrong in ("x", "0", "1e99", ""):
        answer = send(rounds=wrong)
        assert (answer.status_code, "rounds" in answer.text) == (422, True), answer.text
    assert at.run()["rounds"] == 7


def test_a_refused_form_keeps_what_was_typed(at: Live) -> None:
    olga = add(at, "olga", "operator")
    started(at)
    shown = inputs_of(olga.get("/runs/demo/do/change"))
    again = olga.http.post("/runs/demo/do/change", data={**shown, "rounds": "7", "quorum": "<x>"})
    assert again.status_code == 422
    kept = inputs_of(again)
    assert (kept["rounds"], kept["quorum"], kept["was_rounds"]) == ("7", "<x>", shown["rounds"])
    unsure = olga.send("/runs/demo/do/stop", reason="the power is cut")
    assert (unsure.status_code, inputs_of(unsure)["reason"]) == (422, "the power is cut")
    assert "checked" not in unsure.text


def test_who_may_not_is_told_what_the_token_is_for(at: Live) -> None:
    vera, olga = add(at, "vera", "viewer", "demo"), add(at, "olga", "operator", "demo")
    assert "Your token is for reading only." in vera.get("/runs/demo/do/stop").text
    for address in ("/create", "/clients"):
        assert "Your token is for demo only; this concerns all runs." in olga.get(address).text
    page = olga.get("/runs/demo").text
    assert ('">Stop</a>' in page, '">New run from this one</a>' in page) == (True, False)
    assert '">New run from this one</a>' in add(at, "otto", "operator").get("/runs/demo").text


def test_who_waits_for_approval_is_not_let_into_an_ended_run(at: Live) -> None:
    at.create(name="careful", approve="sizes", min_clients=1)
    olga = add(at, "olga", "operator")
    assert at.site("xena").enrol("careful", 10).json()["status"] == "awaiting_approval"
    command = "feddisco run approve careful xena"
    assert at.admin.post("/runs/careful/pause", json={}).status_code in (200, 204, 409)
    at.admin.post("/runs/careful/stop", json={})
    at.wait_for(lambda: at.run("careful")["status"] == "stopped")
    assert command not in olga.get("/runs/careful").text


def test_a_run_that_is_not_scored_says_so(at: Live) -> None:
    at.create(name="unscored", evaluate_every=0)
    page = add(at, "olga", "operator").get("/runs/unscored").text
    assert "This run&#39;s models are not scored" in page or "This run's models are not scored" in page
    assert ("not evaluated yet" in page, "An evaluator scores" in page) == (False, False)


def test_a_run_is_put_away_listed_again_and_deleted(at: Live) -> None:
    """The last by an admin only, with the box ticked; the reason is in the record."""
    olga, admin = add(at, "olga", "operator"), Browser(at, ADMIN)
    for early in ("archive", "delete"):
        refused = admin.send(f"/runs/demo/do/{early}", sure="yes")
        assert (refused.status_code, "is enrolling" in refused.text) == (409, True)
    assert olga.send("/runs/demo/do/stop", reason="enough", sure="yes").status_code == 303
    words = ("Archive", "List again", "Delete", "Change")

    def offered(person: Browser) -> list[str]:
        page = person.get("/runs/demo").text
        return [word for word in words if f'">{word}</a>' in page]

    assert (offered(olga), offered(admin)) == (["Archive"], ["Archive", "Delete"])
    assert olga.send("/runs/demo/do/archive").headers["location"] == "/runs/demo"
    assert at.admin.get("/runs").json() == []
    assert offered(olga) == ["List again"]
    assert "feddisco run archive demo --undo" in olga.get("/runs/demo/do/unarchive").text
    assert olga.send("/runs/demo/do/unarchive").status_code == 303
    assert [run["run"] for run in at.admin.get("/runs").json()] == ["demo"]
    assert "This is for admins" in olga.get("/runs/demo/do/delete").text
    assert olga.send("/runs/demo/do/delete", form="/", sure="yes").status_code == 403
    assert admin.send("/runs/demo/do/delete", reason="a trial").status_code == 422
    answer = admin.send("/runs/demo/do/delete", reason="a trial <b>", sure="yes")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "a trial &lt;b&gt;" in admin.get("/").text
    assert at.admin.get("/deletions/demo").json()["actor"] == "admin"
    assert admin.get("/runs/demo").status_code == 404


def test_an_admin_gives_a_token_renews_and_revokes_it(at: Live) -> None:
    olga, admin = add(at, "olga", "operator"), Browser(at, ADMIN)
    assert "This is for admins" in olga.get("/users").text
    assert Html(olga.get("/users").text).tables == []
    assert '"/users"' not in olga.get("/").text
    assert '"/users"' in admin.get("/").text
    page = admin.send("/users/add", form="/users", name="vera", role="viewer", runs="demo")
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    assert "feddisco users add vera --role viewer --run demo" in page.text
    token = made_token(page)
    vera = Browser(at, token)
    assert "user:vera" in vera.get("/").text or "vera" in vera.get("/").text
    assert token not in admin.get("/users").text
    for wrong, said in (
        ({"name": "vera"}, "there is a user &#39;vera&#39; already"),
        ({"name": "A b"}, "name"),
        ({"name": "a", "role": "king"}, "role"),
        ({"name": "a", "role": "admin", "runs": "demo"}, "an admin is one for all runs"),
    ):
        answer = admin.send("/users/add", form="/users", **{"role": "viewer", **wrong})
        assert answer.status_code in (409, 422), answer.text
        assert said in answer.text
    assert admin.send("/users/vera/do/renew").status_code == 422
    renewed = made_token(admin.send("/users/vera/do/renew", sure="yes"))
    assert renewed != token
    assert vera.get("/").status_code == 401
    assert Browser(at, renewed).get("/runs/demo").status_code == 200
    assert admin.send("/users/vera/do/revoke", sure="yes").headers["location"] == "/users"
    assert "Let vera in again" in admin.get("/users").text
    assert at.http(renewed).get("/runs/demo").status_code == 401
    nobody = admin.send("/users/nobody/do/renew", sure="yes")
    assert (nobody.status_code, "there is no user" in nobody.text) == (404, True)
    noted = [json.loads(line) for line in at.admin.get("/audit").text.splitlines()]
    mine = [entry["action"] for entry in noted if entry["detail"].get("user") == "vera"]
    assert mine == ["user_added", "user_renewed", "user_revoked"]
    assert {token, renewed} & set(re.findall("[A-Za-z0-9_-]{43}", json.dumps(noted))) == set()


def made_token(page: httpx.Response) -> str:
    (text,) = [e.text for e in Html(page.text).all("code") if e.attributes.get("id") == "made-token"]
    return text


def test_the_list_of_who_reads_some_runs_is_live(at: Live) -> None:
    """It follows the events of these runs, and hears of no others."""
    at.create("other")
    vera = add(at, "vera", "viewer", "demo")
    (address,) = re.findall('data-events="([^"]+)"', vera.get("/").text)
    with vera.http.stream("GET", html.unescape(address)) as stream:
        heard = stream.iter_lines()
        assert next(heard).startswith(":")
        for run in ("other", "demo"):
            assert at.admin.post(f"/runs/{run}/stop", json={"reason": run}).status_code == 200
        data = next(line for line in heard if line.startswith("data:"))
    assert json.loads(data.removeprefix("data:"))["run"] == "demo"
    assert {event["run"] for event in at.admin.get("/log").json() if event["run"]} == {"demo", "other"}


FORMS = [
    ("/runs/demo/do/start", {}),
    ("/runs/demo/do/pause", {"reason": "x"}),
    ("/runs/demo/do/resume", {}),
    ("/runs/demo/do/stop", {"sure": "yes"}),
    ("/runs/demo/clients/anna/do/approve", {"examples": "10"}),
    ("/runs/demo/clients/anna/do/refuse", {}),
    ("/clients/anna/do/revoke", {"sure": "yes"}),
    ("/clients/invite", {"name": "eve"}),
    ("/join-tokens/1/revoke", {}),
    ("/runs/demo/do/change", {"rounds": "7", "was_rounds": "2"}),
    ("/runs/demo/do/delete", {"sure": "yes"}),
    ("/users/add", {"name": "eve", "role": "admin"}),
    ("/users/vera/do/renew", {"sure": "yes"}),
    ("/users/vera/do/revoke", {"sure": "yes"}),
    ("/create", {"do": "create", "text": "name: eve"}),
]


def test_a_form_of_a_session_that_is_over_asks_to_sign_in(at: Live) -> None:
    """However often it is sent: no token was guessed."""
    site = at.site("anna")
    assert site.enrol("demo", 10).status_code == 200
    before = at.run()
    admin = Browser(at, ADMIN)
    add(at, "vera", "viewer")
    seal = fields_of(admin.get("/runs/demo"))["seal"]
    with httpx.Client(base_url=at.url, headers=PAGE, timeout=30) as over:
        for address, filled in FORMS * 5:
            answer = over.post(address, data={**filled, "seal": seal})
            assert (answer.status_code, "Bearer" in answer.text) == (401, False), (address, answer.text)
            assert "Sign in, then send the form again" in answer.text
            wanted = fields_of(answer)["next"]
            assert wanted == ("/" if address.startswith("/join-tokens") else address)
            assert admin.get(wanted).status_code in (200, 303, 404), wanted
    assert at.run() == before


def test_guesses_at_the_sign_in_are_limited(at: Live) -> None:
    with httpx.Client(base_url=at.url, headers=PAGE, timeout=30) as guesser:
        form = fields_of(guesser.get("/sign-in"))
        answers = {
            guesser.post("/sign-in", data={**form, "token": f"guess-{n}"}).status_code for n in range(80)
        }
    assert answers == {401, 429}


def test_nobody_acts_with_a_form_of_another_or_without_the_right(at: Live) -> None:
    """Every form, by a viewer, an operator of another run, nobody, and from another site."""
    at.create("other")
    site = at.site("anna")
    assert site.enrol("demo", 10).status_code == 200
    admin, vera, oskar = Browser(at, ADMIN), add(at, "vera", "viewer"), add(at, "oskar", "operator", "other")
    seal = fields_of(admin.get("/runs/demo"))["seal"]
    before = at.events(None), at.run(), at.admin.get("/join-tokens").json(), at.admin.get("/users").json()
    for address, filled in FORMS:
        for person in (vera, oskar):
            own = fields_of(person.get("/"))["seal"]
            answer = person.http.post(address, data={**filled, "seal": own})
            assert answer.status_code == 403, (address, answer.text)
        for wrong in ({}, {"seal": ""}, {"seal": "0" * 64}, {"seal": fields_of(vera.get("/"))["seal"]}):
            assert admin.http.post(address, data={**filled, **wrong}).status_code == 403, (address, wrong)
        foreign = {"Sec-Fetch-Site": "cross-site"}
        answer = admin.http.post(address, data={**filled, "seal": seal}, headers=foreign)
        assert answer.status_code == 403, address
        bearer = {"Authorization": f"Bearer {ADMIN}", **PAGE}
        with httpx.Client(base_url=at.url) as another:  # a token without a session sends no form
            answer = another.post(address, data={**filled, "seal": seal}, headers=bearer)
            assert answer.status_code == 403, address
            assert another.post(address, data={**filled, "seal": seal}).status_code == 401, address
        as_json = admin.http.post(address, json={**filled, "seal": seal})
        assert as_json.status_code in (403, 422), "no form: nothing is done"
    after = at.events(None), at.run(), at.admin.get("/join-tokens").json(), at.admin.get("/users").json()
    assert after == before
    noted = [json.loads(line) for line in at.admin.get("/audit").text.splitlines()]
    refused = {
        (entry["actor"], entry["detail"]["address"]) for entry in noted if entry["action"] == "refused"
    }
    assert ("user:vera", "POST /runs/{run}/do/{action}") in refused


def test_after_signing_out_a_form_does_nothing(at: Live) -> None:
    admin = Browser(at, ADMIN)
    kept, cookies = fields_of(admin.get("/runs/demo/do/stop")), dict(admin.http.cookies)
    admin.send("/sign-out", form="/")
    with httpx.Client(base_url=at.url, headers=PAGE, cookies=cookies) as replayed:
        assert replayed.post("/runs/demo/do/stop", data={**kept, "sure": "yes"}).status_code == 401
    assert at.run()["status"] == "enrolling"


def test_who_has_not_signed_in_sees_the_commands(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create()
        with httpx.Client(base_url=at.url, headers=PAGE) as anybody:
            page = anybody.get("/runs/demo").text
            assert "feddisco run stop demo" in page
            assert "/runs/demo/do/" not in page
            assert "feddisco run stop demo --reason WHY" in anybody.get("/runs/demo/do/stop").text
            for address in ("/runs/demo/do/stop", "/clients", "/create"):
                found = anybody.get(address)
                assert (found.status_code, "Sign in to do it here." in found.text) == (200, True), address
            assert "registered" not in anybody.get("/clients").text.lower().replace("who is registered", "")
            answer = anybody.post("/runs/demo/do/stop", data={"sure": "yes"})
            assert (answer.status_code, "nobody has signed in" in answer.text) == (403, True)
        assert at.run()["status"] == "enrolling"


def test_every_action_has_its_command(at: Live) -> None:
    from typer.testing import CliRunner

    from feddisco.main import app

    for name in ACTIONS:
        words = show_command(name, "demo", reason=True).split()[1:]
        told = CliRunner().invoke(app, [*words[:2], "--help"])
        assert told.exit_code == 0, name
        assert {word for word in words if word.startswith("--")} <= set(re.findall("--[a-z-]+", told.output))
    assert run_command("stop", "demo", reason="it's over; rm -rf /") == (
        "feddisco run stop demo --reason 'it'\"'\"'s over; rm -rf /'"
    )


# -------------------------------------------------------------------- creating


def test_a_run_is_checked_and_created(at: Live) -> None:
    olga = add(at, "olga", "operator")
    first = olga.get("/create")
    text = html.unescape(first.text.partition("required>")[2].partition("</textarea>")[0])
    assert read_config(text, "the example").name == "first-run"
    found = olga.send("/create", text="name: five\ntask: digits\nrounds: 5\nmin_clients: 3", do="check")
    assert "five: 5 rounds of fedavg on digits" in found.text
    assert "five" not in [run["run"] for run in at.admin.get("/runs").json()]
    answer = olga.send("/create", text="name: five\r\ntask: digits\r\nrounds: 5", do="create")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/five")
    made = at.run("five")
    assert (made["rounds"], made["config"]["task"]) == (5, "digits")
    assert next(event["actor"] for event in at.events("five")) == "user:olga"
    taken = olga.send("/create", text="name: five", do="create")
    assert (taken.status_code, "there is a run &#39;five&#39; already" in taken.text) == (409, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("- a", "is not a mapping"),
        ("name: a\nname: b", "on line 1 and again on line 2"),
        ("name: [", "is not YAML"),
        ("name: a\nrounds: many", "rounds: Input should be a valid integer"),
        ("name: a\nbatch: 3", "batch: there is no such key (received 3)"),
        ("name: A b", "name:"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("name: a\ntask: our.own:Task", "is not built in"),
        ("name: a\ntask: hf-text\ntask_options: {base: theirs}", "hf:theirs lies at the sites"),
        ("name: a\ntask: digits\nalgorithm: fedbest", "algorithm &#39;fedbest&#39; is not known"),
        ('name: "a\\0"', "name"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said_beside_it(at: Live, text: str, said: str) -> None:
    answer = Browser(at, ADMIN).send("/create", text=text, do="create")
    assert answer.status_code == 422, answer.text
    fault = re.search(r'<p class="fault">(.*?)</p>', answer.text, re.DOTALL)
    assert fault is not None
    assert said in fault[1], fault[1]
    assert html.escape(text, quote=False)[:4] in answer.text, "what was typed is still there"


@pytest.mark.parametrize("do", ["check", "create"])
def test_a_configuration_that_is_too_long_is_refused_whole(at: Live, do: str) -> None:
    """A part of it would be valid, too, and say less: what comes last may be what protects the sites."""
    olga = add(at, "olga", "operator")
    head = "name: long\nlocal: {clip_norm: 1.0}\n"
    text = f"{head}#{'é' + 'e' * (LONGEST - len(head) - 3)}\ndp: {{noise_multiplier: 1.0}}\n"
    assert text[LONGEST:].startswith("dp:")
    answer = olga.send("/create", text=text.replace("\n", "\r\n"), do=do)
    assert answer.status_code == 422
    fault = re.search(r'<p class="fault">(.*?)</p>', answer.text, re.DOTALL)
    assert fault is not None
    assert f"has {len(text):,} characters, and this form takes at most 40,000" in fault[1]
    assert "feddisco run create FILE" in fault[1]
    (area,) = Html(answer.text).all("textarea")
    assert area.text == text, "nothing of it is lost"
    assert [run["run"] for run in at.admin.get("/runs").json()] == ["demo"]


def test_a_configuration_may_be_as_long_as_the_form_takes(at: Live) -> None:
    """The ends of lines count once, though a browser sends two characters for each."""
    first, last = "name: long\ntask: digits\n" + "\n" * 500, "\nrounds: 7\n"
    text = f"{first}#{'e' * (LONGEST - len(first) - len(last) - 1)}{last}"
    assert len(text) == LONGEST
    answer = add(at, "olga", "operator").send("/create", text=text.replace("\n", "\r\n"), do="create")
    assert answer.headers.get("location") == "/runs/long", answer.text
    assert at.run("long")["rounds"] == 7


def test_others_are_answered_while_a_configuration_is_checked(at: Live) -> None:
    """Anybody who reads may check, and one that is long and all wrong takes a second or more to read."""
    wrong = "name: a\n" + "".join(f"r{number:x}: 1\n" for number in range(4_000))
    vera = add(at, "vera", "viewer")
    form = {**fields_of(vera.get("/create")), "text": wrong, "do": "check"}
    answers: list[httpx.Response] = []

    def check() -> None:
        answers.append(httpx.post(f"{at.url}/create", data=form, headers=PAGE, cookies=cookies, timeout=60))

    cookies = dict(vera.http.cookies)
    checks = [threading.Thread(target=check) for _ in range(4)]
    for thread in checks:
        thread.start()
    answered = 0
    while any(thread.is_alive() for thread in checks):
        assert at.admin.get("/runs").status_code == 200
        answered += 1
    assert answered > len(checks) + 1, "read on the event loop, each would be waited for"
    assert [answer.status_code for answer in answers] == [422] * 4
    assert "there is no such key (received 1); and 3,980 more." in answers[0].text


def test_a_form_of_too_many_fields_is_refused_in_words(at: Live) -> None:
    olga = add(at, "olga", "operator")
    many = {f"a{number}": "1" for number in range(31)}
    for address in ("/create", "/runs/demo/do/pause", "/clients/invite", "/users/add"):
        answer = olga.send(address, form="/create", text="name: a", do="create", **many)
        assert (answer.status_code, "more than 30 fields" in answer.text) == (422, True), address
    assert at.run()["status"] == "enrolling"


def test_a_new_run_from_another(at: Live) -> None:
    """With its configuration, and where its task is nobody's but the sites', with its initial weights."""
    olga = add(at, "olga", "operator")
    page = olga.get("/create?template=demo")
    text = html.unescape(page.text.partition("required>")[2].partition("</textarea>")[0])
    config = read_config(text, "the copy")
    assert (config.name, config.task, config.rounds) == ("demo-2", TASK, 2)
    answer = olga.send("/create", form="/create?template=demo", text=text, do="create")
    assert answer.headers["location"] == "/runs/demo-2"
    assert at.run("demo-2")["initial_model"] == at.run()["initial_model"] == sha256(file_of(0.0))
    assert "demo-3" in olga.get("/create?template=demo").text
    other = olga.send("/create", form="/create?template=demo", text="name: x\ntask: a.b:C", do="create")
    assert (other.status_code, "another task" in other.text) == (422, True)
    assert olga.get("/create?template=nothing").status_code == 404
    oskar = add(at, "oskar", "operator", "demo-2")
    assert oskar.get("/create?template=demo").status_code == 403


def test_a_new_run_from_one_that_fine_tunes(at: Live) -> None:
    """The coordinator cannot build its model: the copy begins with the run's weights, on the same base."""
    options = {"base": "owner/theirs", "lora": {"rank": 4}, "columns": ["said"], "target": "mood"}
    at.create("fine", task="hf-text", task_options=options | {"classes": ["up", "down"]})
    olga = add(at, "olga", "operator")
    text = html.unescape(
        olga.get("/create?template=fine").text.partition("required>")[2].partition("</textarea>")[0]
    )
    answer = olga.send("/create", form="/create?template=fine", text=text, do="create", template="fine")
    assert answer.headers["location"] == "/runs/fine-2"
    copy, first = at.run("fine-2"), at.run("fine")
    assert copy["initial_model"] == first["initial_model"]
    assert copy["config"]["task_options"] == first["config"]["task_options"]
    other = text.replace("owner/theirs", "owner/others").replace("fine-2", "fine-3")
    refused = olga.send("/create", form="/create?template=fine", text=other, do="create", template="fine")
    assert (refused.status_code, "another task or model" in refused.text) == (422, True)


def test_a_few_fields_write_the_configuration(at: Live) -> None:
    vera = add(at, "vera", "viewer")
    page = vera.get("/create?name=a&task=digits&algorithm=fedprox&weighting=sizes&rounds=7&epochs=2")
    text = html.unescape(page.text.partition("required>")[2].partition("</textarea>")[0])
    config = read_config(text, "it")
    assert (config.algorithm.name, config.weighting.kind, config.rounds, config.local.epochs) == (
        "fedprox",
        "sizes",
        7,
        2,
    )
    assert "Your token is for reading" in page.text
    assert (
        "rounds: Input should be" in vera.send("/create", text=write_short({"name": "a", "rounds": "x"})).text
    )


@given(st.builds(RunConfig, name=st.from_regex("[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)))
def test_a_configuration_survives_its_yaml(config: RunConfig) -> None:
    assert read_config(write_config(config), "it") == config


@given(
    st.sets(st.integers(1, 40).map(lambda n: f"run-{n}") | st.just("run")), st.sampled_from(("run", "run-1"))
)
def test_the_next_name_is_free(taken: set[str], name: str) -> None:
    found = next_name(name, taken | {name})
    assert found not in taken | {name}
    assert RunConfig(name=found).name == found
    assert len(next_name("a" * 63, {"a" * 63})) <= 63


# -------------------------------------------------------------------- inviting


def test_a_site_is_invited_with_one_string(at: Live) -> None:
    olga = add(at, "olga", "operator")
    page = olga.send(
        "/clients/invite",
        form="/clients",
        name="anna",
        role="trainer",
        days="1",
        address="https://c.example:8000",
    )
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    code = Html(page.text)
    (text,) = [element.text for element in code.all("code") if element.attributes.get("id") == "join-code"]
    read = read_join_code(text)
    assert read.address == "https://c.example:8000"
    assert f"export FEDDISCO_JOIN={text}" in page.text
    assert f"feddisco worker --task {TASK} --data FOLDER" in page.text
    assert "feddisco clients invite --days 1 --role trainer --name anna" in page.text
    assert at.http(read.token).post("/clients", json={}).json()["client"] == "anna"
    listed = olga.get("/clients")
    assert "anna" in listed.text
    assert read.token not in listed.text
    near = olga.send("/clients/invite", form="/clients")
    assert "this machine to every worker" in near.text
    number = at.admin.get("/join-tokens").json()[-1]["id"]
    assert olga.send(f"/join-tokens/{number}/revoke", form="/clients").status_code == 303
    assert at.admin.get("/join-tokens").json()[-1]["revoked_at"] is not None


def test_the_clients_page_has_fingerprints_to_compare_by_telephone(at: Live) -> None:
    olga, key = add(at, "olga", "operator"), identity_of(make_identity()).hex()
    at.site("otto")
    assert at.http(JOIN).post("/clients", json={"name": "anna", "identity": key}).status_code == 201
    rows = {row[0]: row[-1] for row in Html(olga.get("/clients").text).tables[0]}
    assert rows["anna"] == format_fingerprint(hashlib.sha256(bytes.fromhex(key)).hexdigest())
    assert rows["otto"] == "none"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "A b"}, "name"),
        ({"days": "-1"}, "days"),
        ({"days": "nan"}, "days"),
        ({"days": "x"}, "are numbers"),
        ({"uses": "-1"}, "uses"),
        ({"name": "a", "uses": "2"}, "is for one use"),
        ({"role": "king"}, "role"),
    ],
)
def test_a_wrong_invitation_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_invitation(given)


def test_an_invitation_is_the_command_s() -> None:
    assert write_command(read_invitation({})) == "feddisco clients invite"
    found = read_invitation({"uses": "0", "days": "0", "role": "evaluator", "group": "g"})
    assert (found.uses, found.valid_seconds, found.role) == (None, None, Role.EVALUATOR)
    assert write_command(found) == "feddisco clients invite --uses 0 --days 0 --role evaluator --group g"


def test_a_qr_code_holds_the_join_code() -> None:
    """Read back from the path: every dark module of the symbol, and nothing else."""
    import segno

    text = "fdj1." + "A1_-" * 40
    drawn, symbol = draw_code(text), segno.make(text, error="m", micro=False).matrix
    dark = set()
    for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", drawn.path):
        dark |= {(int(x) + step, int(y)) for step in range(int(length))}
    assert dark == {(x + 4, y + 4) for y, row in enumerate(symbol) for x, value in enumerate(row) if value}
    assert drawn.size == len(symbol) + 8

"""People with roles: what each may, on which runs, and how it ends; with attacks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from server.app import create_app
from server.wakeups.hub import Hub
from server.web.security import hash_token
from tests.helpers.live_coordinator import ADMIN, Live, file_of, live, sha256, upload_headers

VIEWER = "viewer-token-of-the-tests"
CLIENTS_OWN = {
    "step",
    "enrolments",
    "discrepancy",
    "decline",
    "me",
    "progress",
    "failure",
    "metrics",
    "update",
    "assistance",
}
"""Ends of the addresses at which workers change something."""


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as opened:
        opened.create("demo")
        opened.create("other")
        yield opened


def add(at: Live, name: str, role: str, *runs: str) -> httpx.Client:
    """Whoever has the new token."""
    answer = at.admin.post("/users", json={"name": name, "role": role, "runs": list(runs) or None})
    assert answer.status_code == 201, answer.text
    return at.http(answer.json()["token"])


def token_of(http: httpx.Client) -> str:
    return http.headers["Authorization"].removeprefix("Bearer ")


def mutating(at: Live) -> list[tuple[str, str]]:
    """Every call that changes something, from the application: a new one is covered by being there."""
    given = {"run": "demo", "n": "1", "client": "anna", "token": "1", "sha256": "0" * 64, "name": "maria"}
    found = [
        (method, context.path.removeprefix("/api/v1").format(**given))
        for context in iter_route_contexts(create_app(at.coordinator).routes)
        for method in (context.methods or set()) - {"GET", "HEAD"}
        if context.path is not None and context.path.startswith("/api/v1/")
    ]
    assert len(found) >= 20, found
    return sorted(found)


def test_a_viewer_changes_nothing(at: Live) -> None:
    everybody = (add(at, "vera", "viewer"), add(at, "vito", "viewer", "demo"), at.http(VIEWER))
    before = at.events(None), at.admin.get("/users").json()
    for method, address in mutating(at):
        for person in everybody:
            answer = person.request(method, address, json={})
            is_clients = address.rpartition("/")[2] in CLIENTS_OWN or address == "/clients"
            assert answer.status_code == (401 if is_clients else 403), (method, address, answer.text)
    assert (at.events(None), at.admin.get("/users").json()) == before
    for person in everybody:
        assert person.get("/runs/demo").status_code == 200
        for address in ("/clients", "/join-tokens", "/users", "/audit", f"/blobs/{sha256(file_of(0.0))}"):
            assert person.get(address).status_code == 403, address


def test_an_operator_of_one_run_does_nothing_to_another(at: Live) -> None:
    oskar = add(at, "oskar", "operator", "demo")
    for method, address in mutating(at):
        if "/runs/demo" not in address or address.rpartition("/")[2] in CLIENTS_OWN:
            continue
        other = address.replace("demo", "other")
        assert oskar.request(method, other, json={"examples": 1}).status_code == 403, other
    for method, address in (("POST", "/runs"), ("POST", "/join-tokens"), ("DELETE", "/clients/anna")):
        assert oskar.request(method, address, json={}).status_code == 403, address
    for address in ("/runs/other", "/runs/other/rounds", "/runs/other/events", "/clients"):
        assert oskar.get(address).status_code == 403, address
    assert at.run("other")["status"] == "enrolling"
    assert [run["run"] for run in oskar.get("/runs").json()] == ["demo"]
    assert {event["run"] for event in oskar.get("/log").json()} == {"demo"}
    page = oskar.get(f"{at.url}/")
    assert ("demo" in page.text, "other" in page.text) == (True, False)
    assert oskar.get(f"{at.url}/runs/other").status_code == 403
    compared = oskar.get(f"{at.url}/compare", params={"runs": "*"})
    assert ("demo" in compared.text, "other" in compared.text) == (True, False)
    assert oskar.get(f"{at.url}/compare", params={"runs": "other"}).status_code == 404
    assert oskar.get(f"{at.url}/metrics").status_code == 403

    assert oskar.post("/runs/demo/stop", json={"reason": "enough"}).status_code == 200
    stopped = at.events()[-1]
    assert (stopped["kind"], stopped["actor"]) == ("run_stopped", "user:oskar")


def test_an_operator_gets_the_models_of_its_runs(at: Live) -> None:
    at.create("third", value=3.0)
    oskar, olga = add(at, "oskar", "operator", "third"), add(at, "olga", "operator")
    ours, others = sha256(file_of(3.0)), sha256(file_of(0.0))
    assert (oskar.get(f"/blobs/{ours}").status_code, oskar.get(f"/blobs/{others}").status_code) == (200, 403)
    assert {olga.get(f"/blobs/{digest}").status_code for digest in (ours, others)} == {200}


def test_an_operator_of_all_runs_everything_but_people(at: Live) -> None:
    olga = add(at, "olga", "operator")
    body = file_of(7.0)
    assert olga.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body)).status_code == 204
    made = olga.post("/join-tokens", json={"name": "anna"})
    assert made.status_code == 201
    assert at.http(made.json()["token"]).post("/clients", json={}).json()["client"] == "anna"
    assert olga.delete("/clients/anna").status_code == 204
    for method, address in (
        ("GET", "/users"),
        ("POST", "/users"),
        ("GET", "/audit"),
        ("DELETE", "/users/olga"),
    ):
        assert olga.request(method, address, json={"name": "eve", "role": "admin"}).status_code == 403, (
            address
        )
    assert "eve" not in at.admin.get("/users").text


def test_an_admin_may_all_and_gives_tokens(at: Live) -> None:
    ada = add(at, "ada", "admin")
    made = ada.post("/users", json={"name": "vera", "role": "viewer"}).json()
    assert at.http(made["token"]).get("/runs").status_code == 200
    assert ada.post("/users", json={"name": "vera", "role": "admin"}).json()["code"] == "name-taken"
    wrong = ada.post("/users", json={"name": "x", "role": "admin", "runs": ["demo"]})
    assert (wrong.status_code, "an admin is one for all runs" in wrong.text) == (422, True)
    assert ada.post("/users", json={"name": "user:x", "role": "viewer"}).status_code == 422
    listed = {row["name"]: (row["role"], row["runs"]) for row in ada.get("/users").json()}
    assert listed == {"ada": ("admin", None), "vera": ("viewer", None)}


def test_no_token_of_a_person_is_stored(at: Live, tmp_path: Path) -> None:
    ada = add(at, "ada", "admin")
    token = token_of(ada)
    row = at.coordinator.store.user("ada")
    assert row is not None
    assert row.token_hash == hash_token(token)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path


def test_a_revoked_and_a_replaced_token(at: Live, tmp_path: Path) -> None:
    vera = add(at, "vera", "viewer")
    assert vera.get("/runs").status_code == 200
    renewed = at.admin.post("/users/vera/token").json()
    assert renewed["role"] == "viewer"
    assert vera.get("/runs").status_code == 401
    again = at.http(renewed["token"])
    assert again.get("/runs").status_code == 200
    assert at.admin.delete("/users/vera").status_code == 204
    assert at.admin.delete("/users/vera").status_code == 204
    assert again.get("/runs").json()["code"] == "revoked-token"
    for method, address in (
        ("DELETE", "/users/nobody"),
        ("POST", "/users/nobody/token"),
    ):
        assert at.admin.request(method, address).status_code == 404, address
    assert at.admin.post("/users", json={"name": "vera", "role": "viewer"}).status_code == 409
    noted = [json.loads(line) for line in (tmp_path / "data" / "revocations.jsonl").read_text().splitlines()]
    let_in_again = at.http(at.admin.post("/users/vera/token").json()["token"])
    assert let_in_again.get("/runs").status_code == 200
    assert again.get("/runs").status_code == 401
    assert {hash_token(token_of(vera)), hash_token(renewed["token"])} == {
        line["token_hash"] for line in noted
    }


def test_who_had_a_new_token_since_a_backup_gets_another(database_url: str, tmp_path: Path) -> None:
    """The database knows the one before, which the list beside it revokes."""
    with live(database_url, tmp_path / "data") as at:
        vera = add(at, "vera", "viewer")
        revocations, now = at.coordinator.people.revocations, at.coordinator.clock()
        revocations.add(hash_token(token_of(vera)), "user, renewed", now)
    with live(database_url, tmp_path / "data") as at:
        refused = at.admin.post("/users", json={"name": "vera", "role": "viewer"})
        assert "users renew" in refused.json()["hint"]
        token = at.admin.post("/users/vera/token").json()["token"]
        assert at.http(token).get("/runs").status_code == 200
        (entry,) = [
            json.loads(line) for line in at.admin.get("/audit").text.splitlines() if '"user_renewed"' in line
        ]
        assert entry["detail"] == {"user": "vera", "was_revoked": True}
    with live(database_url, tmp_path / "data") as at:
        assert at.http(token).get("/runs").status_code == 200


def test_a_restored_database_revives_no_token(database_url: str, tmp_path: Path) -> None:
    """The list beside the database is applied at the start, whatever the database says."""
    with live(database_url, tmp_path / "data") as at:
        vera = add(at, "vera", "viewer")
        at.coordinator.people.revocations.add(hash_token(token_of(vera)), "user", at.coordinator.clock())
        assert at.http(token_of(vera)).get("/runs").status_code == 200
    with live(database_url, tmp_path / "data") as at:
        assert at.http(token_of(vera)).get("/runs").json()["code"] == "revoked-token"


@pytest.mark.parametrize("name", ["admin", "viewer", "coordinator", "anybody", "erased-1"])
def test_no_client_is_taken_for_somebody_else_in_the_log(at: Live, name: str) -> None:
    join = at.admin.post("/join-tokens", json={"uses": 1}).json()["token"]
    answer = at.http(join).post("/clients", json={"name": name})
    assert (answer.status_code, answer.json()["code"]) == (409, "name-taken")
    assert at.admin.post("/join-tokens", json={"name": name}).status_code == 409
    assert at.http(join).post("/clients", json={"name": f"user:{name}"}).status_code == 422


class Listener:
    """An open stream or poll in a thread: its status, and how long it took to end."""

    def __init__(self, http: httpx.Client, address: str, stack: ExitStack) -> None:
        self.status = 0
        self.ended_at: float | None = None
        self._request = (http, address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        stack.callback(self._thread.join, 30)

    def _listen(self) -> None:
        http, address = self._request
        with http.stream("GET", address, timeout=30) as answer:
            self.status = answer.status_code
            for _ in answer.iter_bytes():
                pass
        self.ended_at = time.monotonic()


def is_open(hub: Hub, streams: int, polls: int) -> bool:
    return (hub.open_streams, hub.waiting_polls) == (streams, polls)


def have_ended(listeners: list[Listener]) -> bool:
    return all(one.ended_at is not None for one in listeners)


def test_a_revocation_ends_open_streams_and_polls(at: Live, database_url: str, tmp_path: Path) -> None:
    """Here at once; at another coordinator of the database within two seconds."""
    with ExitStack() as stack:
        places = [at]
        if database_url.startswith("postgresql"):
            places.append(stack.enter_context(live(database_url, tmp_path / "data", viewer_token=VIEWER)))
        asking = {name: add(at, name, "viewer") for name in ("vera", "vito")}
        for name in ("anna", "bert"):
            asking[name] = at.site(name).http
            for run in ("demo", "other"):  # so that there is nothing to do
                assert asking[name].post(f"/runs/{run}/decline", json={"reason": "no"}).status_code == 204
        opened: dict[str, list[Listener]] = {name: [] for name in asking}
        for place in places:
            for name, http in asking.items():
                base = str(place.url)
                here = stack.enter_context(httpx.Client(base_url=f"{base}/api/v1", headers=http.headers))
                opened[name].append(Listener(here, "/runs/demo/events", stack))
                if name in ("anna", "bert"):
                    opened[name].append(Listener(here, "/work?wait=25", stack))
            hub = place.coordinator.hub
            at.wait_for(partial(is_open, hub, streams=4, polls=2))
        calls = {
            "vera": ("DELETE", "/users/vera"),
            "anna": ("DELETE", "/clients/anna"),
            "bert": ("POST", "/clients/bert/erase"),
        }
        for name, call in calls.items():
            before = time.monotonic()
            assert at.admin.request(*call).is_success
            at.wait_for(partial(have_ended, opened[name]), 5)
            took = max((one.ended_at or 0) - before for one in opened[name])
            assert took < 2, f"{name}: {took} s"
        for name in ("anna", "bert"):
            assert [one.status for one in opened[name]] == [200, 401] * len(places)
        assert [one.ended_at for one in opened["vito"]] == [None] * len(places)
        at.admin.delete("/users/vito")
        at.wait_for(partial(have_ended, opened["vito"]), 5)


def entries(at: Live) -> list[dict[str, Any]]:
    return [json.loads(line) for line in at.admin.get("/audit").text.splitlines()]


def test_refused_attempts_are_in_the_audit_log(at: Live) -> None:
    vera = add(at, "vera", "viewer")
    for _ in range(3):
        vera.post("/runs/demo/stop")
    refused = [entry for entry in entries(at) if entry["action"] == "refused"]
    assert [(entry["actor"], entry["run"]) for entry in refused] == [("user:vera", "demo")], "once an hour"
    assert refused[0]["detail"] == {"address": "POST /api/v1/runs/{run}/stop"}
    assert ADMIN not in at.admin.get("/audit").text

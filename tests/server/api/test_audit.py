"""The audit log: what is in it, and what of an attack on it can be found."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from feddisco.audit import verify_audit_file
from server.database.audit_log import FIRST, check_chain, hash_entry
from server.database.session import make_engine
from server.database.tables import audit_log
from server.web.read_notes import Note, ReadNotes
from shared.problems import StorageUnavailable
from tests.helpers.live_coordinator import Live, enrolled, file_of, live

VIEWER = "viewer-token-of-the-tests"


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as opened:
        yield opened


def lines(at: Live, **params: int) -> list[str]:
    answer = at.admin.get("/audit", params=params)
    assert answer.headers["content-type"] == "application/x-ndjson"
    return answer.text.splitlines()


def entries(at: Live) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(at)]


def test_who_did_what_and_who_read_what_of_whom(at: Live) -> None:
    token = at.admin.post("/users", json={"name": "olga", "role": "operator"}).json()["token"]
    olga = at.http(token)
    at.create()
    site = at.site("anna")
    assert site.enrol("demo", 10).status_code == 200
    assert olga.post("/runs/demo/stop", json={"reason": "enough"}).status_code == 200
    for _ in range(3):
        assert at.http(VIEWER).get("/runs/demo/rounds").status_code == 200
    assert site.http.get("/runs/demo").status_code == 200
    found = [(entry["actor"], entry["action"], entry["run"], entry["client"]) for entry in entries(at)]
    told = [
        ("admin", "user_added", None, None),
        ("admin", "run_created", "demo", None),
        ("anna", "client_registered", None, "anna"),
        ("anna", "client_enrolled", "demo", "anna"),
        ("user:olga", "run_stopped", "demo", None),
        ("viewer", "read", "demo", None),
    ]
    assert [entry for entry in found if entry in told] == told
    assert found.count(("viewer", "read", "demo", None)) == 1, "once an hour"
    assert not any(actor == "anna" and action == "read" for actor, action, *_ in found), "its own rows"
    stopped = next(entry for entry in entries(at) if entry["action"] == "run_stopped")
    event = next(event for event in at.events() if event["kind"] == "run_stopped")
    assert (stopped["event"], stopped["detail"]) == (event["id"], event["detail"])


@pytest.mark.parametrize(
    "error", [StorageUnavailable("the disk is full"), RuntimeError("unexpected"), asyncio.CancelledError()]
)
def test_a_read_that_could_not_be_noted_is_noted_by_the_next(error: BaseException) -> None:
    faults, written = [error], list[Note]()

    async def write(note: Note) -> None:
        if faults:
            raise faults.pop()
        written.append(note)

    async def add_thrice() -> None:
        notes, note = ReadNotes(write), Note("read", "viewer", "/runs/{run}", run="demo")
        with suppress(RuntimeError, asyncio.CancelledError):
            await notes.add(note)
        await notes.add(note)
        await notes.add(note)

    asyncio.run(add_thrice())
    assert len(written) == 1


def test_lines_are_a_chain_that_any_program_can_check(at: Live) -> None:
    at.create()
    for number in range(3):
        at.admin.post("/users", json={"name": f"user-{number}", "role": "viewer"})
    whole = lines(at)
    previous = "0" * 64
    for number, line in enumerate(whole, 1):
        entry = json.loads(line)
        assert (entry["number"], entry["previous"]) == (number, previous)
        previous = hashlib.sha256(line.encode()).hexdigest()
    assert lines(at, after=2) == whole[2:]
    assert lines(at, after=1, limit=2) == whole[1:3]
    assert at.coordinator.store.find_audit_faults() == []
    assert at.coordinator.store.find_audit_faults(previous) == []


def test_what_was_done_to_the_rows_is_found(at: Live, database_url: str) -> None:
    at.create()
    for number in range(3):
        at.admin.post("/users", json={"name": f"user-{number}", "role": "viewer"})
    at.admin.post("/runs/demo/stop")
    store, engine = at.coordinator.store, make_engine(database_url)
    with engine.connect() as connection:
        good = [
            dict(row._mapping)
            for row in connection.execute(sa.select(audit_log).order_by(audit_log.c.number))
        ]
    head = good[-1]["hash"]

    def faults(rows: list[dict[str, Any]], head: str | None = None) -> str:
        with engine.begin() as connection:
            connection.execute(audit_log.delete())
            if rows:
                connection.execute(audit_log.insert(), rows)
        return "; ".join(store.find_audit_faults(head))

    def forged(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
        entry = json.dumps({**json.loads(row["entry"]), **changes}, separators=(",", ":"))
        return row | {"entry": entry, "hash": hash_entry(entry)}

    assert faults(good, head) == ""
    changed = good[2] | {"entry": good[2]["entry"].replace("user-", "usex-")}
    assert "entry 3 was changed" in faults([*good[:2], changed, *good[3:]])
    assert "entry 4 does not follow" in faults([*good[:2], forged(good[2], actor="eve"), *good[3:]])
    assert "where entry 2 should be is entry 3" in faults([good[0], *good[2:]])
    assert "where entry 1 should be is entry 2" in faults(good[1:])
    assert "cannot be read" in faults([*good[:-1], good[-1] | {"entry": "{"}])
    # the newest are missing: the event log knows of what was done
    assert "run_stopped by admin) has no entry" in faults(good[:-1])
    assert "run_created by admin) has no entry" in faults([])
    # what no event says (people, reading) is missed only by a hash that was noted elsewhere
    kept = good[:-1]
    whole = [*kept, forged(good[-1], actor="admin", previous=kept[-1]["hash"])]
    assert faults(whole) == "", "a chain that was written anew from here on is a good one"
    assert f"no entry has the hash {head}" in faults([*good[:-1], forged(good[-1], actor="eve")], head)
    engine.dispose()


@given(
    st.integers(2, 8),
    st.data(),
)
def test_any_change_in_an_exported_file_but_at_its_end_is_found(many: int, data: st.DataObject) -> None:
    chain, previous = list[str](), FIRST
    for number in range(1, many + 1):
        chain.append(json.dumps({"number": number, "actor": f"a{number}", "previous": previous}))
        previous = hash_entry(chain[-1])
    assert list(check_chain((line, None) for line in chain)) == []
    place = data.draw(st.integers(0, many - 2))
    match data.draw(st.sampled_from(("change", "remove", "repeat", "swap"))):
        case "change":
            spot = data.draw(st.integers(0, len(chain[place]) - 1))
            letter = data.draw(st.characters(codec="ascii", exclude_characters=chain[place][spot]))
            chain[place] = chain[place][:spot] + letter + chain[place][spot + 1 :]
        case "remove":
            del chain[place]
        case "repeat":
            chain.insert(place, chain[place])
        case _:
            chain[place], chain[place + 1] = chain[place + 1], chain[place]
    assert list(check_chain((line, None) for line in chain)) != []
    assert list(check_chain(((line, None) for line in chain), previous)) != []


def test_an_exported_file_is_verified(at: Live, tmp_path: Path) -> None:
    at.create()
    at.admin.post("/users", json={"name": "vera", "role": "viewer"})
    file, whole = tmp_path / "audit.jsonl", lines(at)
    file.write_text("".join(f"{line}\n" for line in whole))
    faults, said = verify_audit_file(file, hash_entry(whole[-1]))
    assert (faults, said) == ([], f"{len(whole)} entries; the newest has the hash {hash_entry(whole[-1])}")
    file.write_text("".join(f"{line}\n" for line in whole[:-1]))
    assert verify_audit_file(file, None)[0] == [], "that the newest is missing, a chain cannot tell"
    (fault,) = verify_audit_file(file, hash_entry(whole[-1]))[0]
    assert "the newest are missing" in fault


def test_whoever_reads_of_clients_is_entered_by_each_way_and_so_is_who_was_refused(at: Live) -> None:
    """The lists of clients and of join codes name them, too; a refusal is one at every door."""
    at.create(min_clients=1, rounds=1, weighting={"kind": "sizes"})
    (site,) = enrolled(at, [10])
    assert site.upload("demo", 1, file_of(1.0)).status_code == 200
    update = at.admin.get("/runs/demo/rounds/1").json()["ledger"][0]["update"]

    def person(name: str, **more: Any) -> httpx.Client:
        return at.http(at.admin.post("/users", json={"name": name, **more}).json()["token"])

    olga, vera = person("olga", role="operator"), person("vera", role="viewer")
    lisa = person("lisa", role="operator", runs=["other"])
    known = len(lines(at))
    tried = (
        (olga, ("/clients", "/join-tokens", f"/blobs/{update}"), 200),
        (vera, ("/clients", "/join-tokens", f"/blobs/{update}"), 403),
        (lisa, ("/deletions", "/runs/demo", f"/blobs/{update}", f"{at.url}/metrics"), 403),
        (site.http, ("/deletions", "/clients", f"{at.url}/clients", f"{at.url}/runs/demo"), 403),
    )
    for http, paths, status in tried:
        assert [http.get(path).status_code for path in paths] == [status] * len(paths)
    found = [
        (entry["actor"], entry["action"], entry["detail"]["address"], entry["run"], entry["client"])
        for entry in entries(at)[known:]
    ]
    api, blob = "/api/v1", "/api/v1/blobs/{sha256}"
    assert found == [
        ("user:olga", "read", f"{api}/clients", None, None),
        ("user:olga", "read", f"{api}/join-tokens", None, None),
        ("user:olga", "read", blob, "demo", "site-0"),
        ("user:vera", "refused", f"GET {api}/clients", None, None),
        ("user:vera", "refused", f"GET {api}/join-tokens", None, None),
        ("user:vera", "refused", f"GET {blob}", None, None),
        ("user:lisa", "refused", f"GET {api}/deletions", None, None),
        ("user:lisa", "refused", f"GET {api}/runs/{{run}}", "demo", None),
        ("user:lisa", "refused", f"GET {blob}", None, None),
        ("user:lisa", "refused", "GET /metrics", None, None),
        ("site-0", "refused", f"GET {api}/deletions", None, None),
        ("site-0", "refused", f"GET {api}/clients", None, None),
        ("site-0", "refused", "GET /clients", None, None),
        ("site-0", "refused", "GET /runs/{run}", "demo", None),
    ]

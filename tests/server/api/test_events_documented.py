"""docs/events.md against the log: every kind is described, with exactly the details that it carries."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from server.database.assistances import Asked
from server.database.events import KINDS
from server.database.join_tokens import ClientGrant
from server.database.step.facts import AggregationFacts, AssistanceFacts, FailureFacts
from server.database.store import Store
from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFailed,
    AggregationFinished,
    ClientDeclined,
    ClientLeft,
    CoordinatorReturned,
    EnrolmentApproved,
    EnrolmentRefused,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    RewindRequested,
    StopRequested,
)
from shared.schemas import Role
from shared.weightings import Contribution, ledger
from tests.browser import seed
from tests.helpers.page_reading import client_on
from tests.helpers.secure_play import SecurePlay
from tests.server.api.test_documentation import described

SITES = seed.SITES


def test_every_kind_of_event_is_described_with_its_details(tmp_path: Path, migrated_sqlite: Path) -> None:
    """All kinds are made to happen, through the store and the API; what they carry is compared."""
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    run_into_trouble(store)
    stop_early(store)
    assist(store)
    finished = seed.finished_run(store, "finished", rounds=1)
    finished.apply(ClientLeft(SITES[0].name, "seen"), SITES[0].name)
    changed = seed.Course(store, seed.config("changed")).create().enrol()
    changes = {"round_deadline_seconds": 9000.0, "keep_updates": 3}
    store.change_run("changed", changes, actor="admin", now=changed.now)
    for archived in (True, False):
        store.archive_run("finished", archived, actor="admin", now=finished.now)
    seed.finished_run(store, "deleted", rounds=1)
    store.delete_run("deleted", reason="a mistake", actor="admin", now=finished.now)
    grant = ClientGrant("trainer", "clinics", "north")
    token = store.add_join_token("hash", 1, None, seed.FIRST_MOMENT, grant=grant)
    store.register("north", "hash-of-north", "0.1.0", finished.now, join_hash="hash")
    store.revoke_join_token(token, "admin", finished.now)
    send_refused_uploads(client)
    send_refused_discrepancy(client)
    store.revoke(SITES[1].name, "admin", finished.now)
    store.register("withdrawn", "hash-of-withdrawn", "0.1.0", finished.now)
    assert store.erase_client("withdrawn", "admin", finished.now) == "erased-1"
    SecurePlay(store.engine).take_all(1)
    store.pin_identity("oak", "0" * 64, "admin", finished.now)

    happened: dict[str, set[str]] = {}
    for event in store.events(0, None, 10_000):
        happened.setdefault(event.kind, set()).update(event.detail)
    store.engine.dispose()
    found = described("events.md")
    assert set(happened) == KINDS, "each kind happens here"
    assert set(found) == KINDS
    assert all(text and not text.startswith("-") for text in found.values()), "a sentence first"
    assert {
        kind: set(re.findall(r"^- `(\w+)`: .", text, re.MULTILINE)) for kind, text in found.items()
    } == happened


def run_into_trouble(store: Store) -> None:
    """One run in which everything goes wrong that can."""
    run = seed.Course(store, seed.config("troubled", max_attempts=5)).create()
    store.register("unwilling", "hash-of-unwilling", "0.1.0", run.now)
    run.apply(ClientDeclined("unwilling", "other task"), "unwilling", FailureFacts("other-task"))
    run.enrol()
    run.enrol_one("no-data", Role.TRAINER, 0, "cpu")
    run.apply(EnrolmentRefused("no-data", "no data"), "admin")
    run.enrol_one("no-data", Role.TRAINER, 5, "cpu")
    run.apply(EnrolmentApproved("no-data", 5), "admin")
    run.apply(ClientLeft("no-data", "moved"), "no-data")
    run.enrol_one("no-data", Role.TRAINER, 6, "cpu")
    run.apply(ClientLeft("no-data", "moved"), "no-data")
    run.apply(PauseRequested("noon"), "admin")
    run.apply(ResumeRequested(), "admin")
    run.apply(CoordinatorReturned(dt.timedelta(minutes=10)), "coordinator")
    run.take(0, 1)
    run.deliver(0)
    report = FailureReported(SITES[1].name, 1, 1, "out of memory")
    run.apply(report, SITES[1].name, FailureFacts("out-of-memory"))
    run.pass_time(600)
    run.deadline()
    run.draw_again()
    run.come_back(2, 3, 4, 5)
    invited = run.invited()
    run.deliver(*invited)
    aggregate(run, invited, excluded=((SITES[invited[0]].name, "not finite"),))
    run.completed, run.attempt = 1, 1
    run.deliver(*run.invited())
    aggregate(run, run.invited(), weightless="no score is above zero")
    run.draw_again()
    run.deliver(*run.invited())
    update = store.round_view("troubled", 2, 2).ledger[0].update or ""
    assert store.note_blob_fault(update, "is missing", run.now)
    assert store.note_blob_fault(update, None, run.now)
    run.apply(AggregationDelayed(2, 2, "disk full"), "coordinator")
    run.apply(AggregationFailed(2, 2, "a mistake"), "coordinator")
    run.apply(ClientLeft(SITES[0].name, "enough"), SITES[0].name)
    run.apply(RewindRequested(0, "spoilt"), "admin")
    run.apply(StopRequested("enough"), "admin")


def stop_early(store: Store) -> None:
    """A run whose second round is not better by as much as is asked for."""
    stop_when = {"patience": 1, "min_change": 1.0}
    run = seed.Course(store, seed.config("early", stop_when=stop_when, keep="best")).create().enrol()
    for _ in range(2):
        run.play()
        run.evaluate()


def assist(store: Store) -> None:
    """An assistant that answers in the first round, and in the second says that it cannot."""
    fields = {"distillation": {}, "assistant": seed.EVALUATOR}
    run = seed.Course(store, seed.config("assisted", **fields)).create().enrol()
    for number in (1, 2):
        run.take(*run.invited())
        run.deliver(*run.invited())
        key = ("assisted", number, 1)
        assert store.ask_assistant(key, Asked("distil", ()), 0, run.now + dt.timedelta(hours=1), run.now)
        if number == 1:
            digest = seed.digest("answer", number)
            assert store.add_assistance(key, seed.EVALUATOR, digest, 9, {"steps": 1, "chosen": 1}, run.now)
            run.aggregate(run.invited())
    store.add_assistance_fault(key, seed.EVALUATOR, "no examples", "no-examples", run.now)
    missed = AggregationFacts(None, None, None, None, (), assistance=AssistanceFacts("no examples"))
    run.apply(AggregationFinished(2, 1, weightless="nothing counts"), "coordinator", missed)


def aggregate(
    run: seed.Course,
    arrived: list[int],
    excluded: tuple[tuple[str, str], ...] = (),
    weightless: str | None = None,
) -> None:
    rows = ledger(run.config.weighting, [Contribution(i, SITES[i].examples, 0.5) for i in arrived], [])
    model = None if weightless else seed.digest("model", run.number)
    facts = AggregationFacts(model, model, None, None, rows, {model: 1} if model else {})
    event = AggregationFinished(run.number, run.attempt, excluded, weightless)
    run.apply(event, "coordinator", facts)


def send_refused_uploads(client: TestClient) -> None:
    """To a run that has ended, and one without the digest that is asked for."""
    path = "/api/v1/runs/finished/rounds/1/update?attempt=1&examples=412&steps=1&loss=0.5&seconds=1"
    name = SITES[0].name
    headers = {
        "Authorization": f"Bearer {seed.token_of(name)}",
        "Content-Type": "application/vnd.safetensors",
    }
    assert client.put(path, headers=headers, content=b"x").status_code == 422
    digest = {"Content-Digest": "sha-256=:LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE=:"}
    assert client.put(path, headers=headers | digest, content=b"x").status_code == 409


def send_refused_discrepancy(client: TestClient) -> None:
    """No labels are so far from any target."""
    headers = {"Authorization": f"Bearer {seed.token_of(SITES[0].name)}"}
    body = {"metric": "kl", "value": 1e308}
    assert client.put("/api/v1/runs/finished/discrepancy", headers=headers, json=body).status_code == 422


def test_an_undeclared_kind_is_not_written(tmp_path: Path, migrated_sqlite: Path) -> None:
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    _, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    with pytest.raises(RuntimeError, match=r"docs/events\.md"):
        store.record("something_new", actor="admin", now=seed.FIRST_MOMENT)
    store.engine.dispose()

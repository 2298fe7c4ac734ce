"""Summed while they came or afterwards: the same bits, whoever comes first, is missing or is sent again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from server.app import make_coordinator
from server.coordinator import Coordinator
from server.runs.aggregation import Aggregation, close_stored
from server.runs.intake import Offer
from server.runs.layout import layout_of
from shared.config import RunConfig
from shared.schemas import EnrolmentRequest, Failure, InitialBlob, RunRequest, UpdateReport
from tests.helpers.live_coordinator import (
    CLASSES,
    MANIFEST,
    SHAPES,
    TASK,
    ManualClient,
    live,
    settings_for,
    sha256,
)

CLIENTS = "abcd"


def make_file(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return save({name: np.asarray(rng.normal(size=shape), "<f4") for name, shape in SHAPES.items()})


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Coordinator]:
    coordinator = make_coordinator(settings_for(database_url, tmp_path / "data"))
    for client in CLIENTS:
        coordinator.store.register(client, client * 64, "test", coordinator.clock())
    yield coordinator
    coordinator.close()


def create(at: Coordinator, name: str = "demo", **config: Any) -> None:
    """A run in which the four clients, of other sizes each, are asked to train."""
    model = make_file(0)
    at.blobs.keep(at.blobs.take(model, max_bytes=10_000, expected=sha256(model), announced_bytes=len(model)))
    given: dict[str, Any] = {"rounds": 1, "min_clients": 4, "quorum": 2, "weighting": {"kind": "sizes"}}
    whole = RunConfig.model_validate({"name": name, "task": TASK, "classes": CLASSES, **given, **config})
    initial = InitialBlob.model_validate({"digest": sha256(model), "manifest": MANIFEST})
    at.control.create(RunRequest(config=whole, initial=initial), "admin")
    layout = layout_of(at.store.run_view(name, at.clock()))
    for client in CLIENTS:
        size = size_of(client)
        at.enrolments.enrol(name, client, EnrolmentRequest(task=TASK, examples=size, classes=CLASSES), layout)


def size_of(client: str) -> int:
    return 7 + 3 * CLIENTS.index(client)


def upload(at: Coordinator, client: str, name: str = "demo", seed: int = 0) -> str:
    body = make_file(seed or 1 + CLIENTS.index(client))
    report = UpdateReport(attempt=1, steps=1, examples=size_of(client), start_loss=1.0, end_loss=0.5)
    layout = layout_of(at.store.run_view(name, at.clock()))
    at.intake.accept_small(Offer(name, 1, client, report, sha256(body), layout), body, len(body))
    return sha256(body)


def count_summed(at: Coordinator, name: str = "demo") -> int:
    """How many updates are in the sum; it is taken, and so is summed anew afterwards."""
    return len(begun[0].terms) if (begun := at.runner.early.take(name, 1, 1)) else 0


def close(at: Coordinator, name: str = "demo") -> str | None:
    """The model's digest, as the coordinator makes it."""
    work = Aggregation(
        store=at.store,
        blobs=at.blobs,
        integrity=at.integrity,
        faults=at.faults,
        moves=at.intake.moves,
        telemetry=at.telemetry,
        patience=0.0,
        hold=0.0,
        clock=at.clock,
        early=at.runner.early,
    )
    _, facts = work.compute(name, 1, 1)
    return facts.model


def close_anew(at: Coordinator, folder: Path, name: str = "demo") -> str:
    """The same from the stored rows and files alone."""
    given = at.store.aggregation_input(name, 1, 1)
    files = close_stored(given, given.updates, at.blobs.path, folder).result.files
    assert files is not None
    return files.model.digest


def test_whatever_comes_when_the_model_has_the_same_bits(at: Coordinator, tmp_path: Path) -> None:
    drawn = random.Random(1)
    summed, models = [], set()
    for number in range(7):
        name, order = f"run-{number}", drawn.sample(CLIENTS, 4)
        create(at, name)
        missing = drawn.choice(CLIENTS) if number % 3 == 2 else None
        for client in order:
            if client == missing:
                at.intake.report_failure(name, 1, client, Failure(attempt=1, code="other", reason="no"))
            else:
                upload(at, client, name)
            if drawn.random() < 0.9:
                at.runner.early.advance(name, 1, 1)
        held = at.runner.early._begun.get(name)
        summed.append(0 if held is None else held.added)
        model = close(at, name)
        assert model == close_anew(at, tmp_path, name)
        if missing is None:
            models.add(model)
    assert len(models) == 1
    assert {0, 1, 2, 3} <= set(summed), "the orders drawn leave nothing to be summed early"


def test_scaffold_sums_both_of_its_groups_early(at: Coordinator, tmp_path: Path) -> None:
    create(at, algorithm="scaffold")
    wanted = layout_of(at.store.run_view("demo", at.clock())).tensors
    for place, client in enumerate(CLIENTS):
        rng = np.random.default_rng(place)
        body = save({n: np.asarray(rng.normal(size=spec.shape), "<f4") for n, spec in wanted.items()})
        report = UpdateReport(attempt=1, steps=3 + place, examples=size_of(client))
        layout = layout_of(at.store.run_view("demo", at.clock()))
        at.intake.accept_small(Offer("demo", 1, client, report, sha256(body), layout), body, len(body))
        at.runner.early.advance("demo", 1, 1)
    held = at.runner.early._begun["demo"]
    assert [(one.group, len(one.terms)) for one in held.sums] == [("model", 3), ("control_delta", 3)]
    given = at.store.aggregation_input("demo", 1, 1)
    begun = at.runner.early.take("demo", 1, 1)
    early = close_stored(given, given.updates, at.blobs.path, tmp_path, begun=begun).result.files
    assert [len(one.terms) for one in begun] == [4, 4], "both were gone on with"
    anew = close_stored(given, given.updates, at.blobs.path, tmp_path).result.files
    assert early is not None
    assert anew is not None
    assert (early.model.digest, early.broadcast) == (anew.model.digest, anew.broadcast)


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": "fednova"},
        {"aggregation": {"kind": "median"}},
        {"weighting": {"kind": "qfedavg"}},
        {"weighting": {"kind": "fedadp"}},
    ],
)
def test_what_is_not_known_beforehand_is_not_summed_early(at: Coordinator, config: dict[str, Any]) -> None:
    create(at, **config)
    upload(at, "a")
    at.runner.early.advance("demo", 1, 1)
    assert count_summed(at) == 0


def test_who_is_missing_is_in_no_sum(at: Coordinator) -> None:
    create(at)
    upload(at, "a")
    at.runner.early.advance("demo", 1, 1)
    at.intake.report_failure("demo", 1, "d", Failure(attempt=1, code="other", reason="no"))
    at.runner.early.advance("demo", 1, 1)
    assert count_summed(at) == 0


def test_a_file_that_is_lost_after_it_was_summed_is_summed_anew(at: Coordinator, tmp_path: Path) -> None:
    create(at)
    digest = upload(at, "a")
    upload(at, "b")
    at.runner.early.advance("demo", 1, 1)
    stored = at.blobs.path(digest)
    whole = stored.read_bytes()
    stored.unlink()
    assert at.faults.find(digest) is not None
    upload(at, "a")  # the same again, as it is asked for
    assert stored.read_bytes() == whole
    assert count_summed(at) == 0
    at.runner.early.advance("demo", 1, 1)
    for client in "cd":
        upload(at, client)
    assert close(at) == close_anew(at, tmp_path)


def test_a_sum_of_other_files_is_not_used(at: Coordinator, tmp_path: Path) -> None:
    """Whatever led to it: what counts are the files and the coefficients of the round's end."""
    create(at)
    upload(at, "a")
    at.runner.early.advance("demo", 1, 1)
    begun = at.runner.early.take("demo", 1, 1)
    begun[0].terms[0] = ("0" * 64, begun[0].terms[0][1])
    for client in "bcd":
        upload(at, client)
    given = at.store.aggregation_input("demo", 1, 1)
    files = close_stored(given, given.updates, at.blobs.path, tmp_path, begun=begun).result.files
    assert files is not None
    assert files.model.digest == close_anew(at, tmp_path)
    assert len(begun[0].terms) == 1


def test_its_memory_is_bounded_and_ends_with_the_attempt(database_url: str, tmp_path: Path) -> None:
    one_model = 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())
    settings = settings_for(database_url, tmp_path / "data", early_sum_bytes=one_model)
    at = make_coordinator(settings)
    try:
        for client in CLIENTS:
            at.store.register(client, client * 64, "test", at.clock())
        for name in ("first", "second"):
            create(at, name)
            upload(at, "a", name)
            at.runner.early.advance(name, 1, 1)
        assert count_summed(at, "second") == 0, "there was room for one"
        at.control.stop("first", "", "admin")
        at.runner.early.follow(at.store.run_state("first"))
        at.runner.early.advance("second", 1, 1)
        assert count_summed(at, "first") == 0
        assert count_summed(at, "second") == 1
        for name in ("third", "fourth"):  # which are closed by another coordinator: nobody says so here
            create(at, name)
            upload(at, "a", name)
            at.runner.early.advance(name, 1, 1)
            at.control.stop(name, "", "admin")
        assert list(at.runner.early._begun) == ["fourth"]
    finally:
        at.close()


def test_a_restart_between_two_updates_gives_the_same_model(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.coordinator.runner.early.least_bytes = 0
        sites = [at.site(f"site-{place}") for place in range(3)]
        for name in ("whole", "cut"):
            at.create(name, min_clients=3, rounds=1, weighting={"kind": "sizes"})
            for place, site in enumerate(sites):
                assert site.enrol(name, 10 + place, index=place).status_code == 200
            for place, site in enumerate(sites[:2]):
                assert site.upload(name, 1, make_file(place)).status_code == 200
        begun = at.coordinator.runner.early._begun
        at.wait_for(lambda: [one.added for one in begun.values()] == [2, 2])
        assert sites[2].upload("whole", 1, make_file(2)).status_code == 200
        at.wait_for(lambda: at.run("whole")["status"] == "completed")
        assert list(begun) == ["cut"]
        model, token = at.run("whole")["model"], sites[2].http.headers["authorization"]
    with live(database_url, tmp_path / "data") as at:
        last = at.http(token.removeprefix("Bearer "))
        assert ManualClient(last, "site-2", 12).upload("cut", 1, make_file(2)).status_code == 200
        at.wait_for(lambda: at.run("cut")["status"] == "completed")
        assert at.run("cut")["model"] == model

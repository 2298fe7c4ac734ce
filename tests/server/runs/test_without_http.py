"""The application layer by calls alone: no HTTP, no event loop; a run from its creation to a closed round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.app import make_coordinator
from server.coordinator import Coordinator
from server.runs.enrolment import check_protocol
from server.runs.intake import Offer
from server.runs.layout import RunLayout, layout_of
from shared.config import RunConfig
from shared.problems import (
    ClassContractMismatch,
    IncompatibleVersion,
    InvalidRequest,
    NameTaken,
    TooLarge,
    UpdateAlreadyReceived,
    UpdateInvalid,
)
from shared.schemas import (
    PROTOCOL,
    EnrolmentRequest,
    Failure,
    InitialBlob,
    ParticipantStatus,
    Registration,
    RunRequest,
    Train,
    UpdateReport,
)
from tests.helpers.live_coordinator import CLASSES, MANIFEST, TASK, file_of, settings_for, sha256


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Coordinator]:
    """A coordinator with the run "demo", in which "a" and "b" are enrolled with 10 examples each."""
    coordinator = make_coordinator(settings_for(database_url, tmp_path / "data"))
    create(coordinator)
    for client in "ab":
        coordinator.store.register(client, client * 64, "test", coordinator.clock())
        coordinator.enrolments.enrol("demo", client, enrolment(), layout(coordinator))
    yield coordinator
    coordinator.close()


def create(at: Coordinator) -> None:
    model = file_of(0.0)
    incoming = at.blobs.take(model, max_bytes=10_000, expected=sha256(model), announced_bytes=len(model))
    at.blobs.keep(incoming)
    config = RunConfig(
        name="demo", task=TASK, classes=CLASSES, rounds=1, min_clients=2, weighting={"kind": "sizes"}
    )
    initial = InitialBlob.model_validate({"digest": sha256(model), "manifest": MANIFEST})
    at.control.create(RunRequest(config=config, initial=initial), "admin")


def enrolment(classes: tuple[str, ...] = CLASSES) -> EnrolmentRequest:
    return EnrolmentRequest(task=TASK, examples=10, classes=classes)


def layout(at: Coordinator) -> RunLayout:
    return layout_of(at.store.run_view("demo", at.clock()))


def offer(at: Coordinator, client: str, body: bytes, examples: int = 10) -> Offer:
    report = UpdateReport(attempt=1, steps=3, examples=examples)
    return Offer("demo", 1, client, report, sha256(body), layout(at))


def statuses(at: Coordinator) -> list[ParticipantStatus]:
    return [row.status for row in at.store.round_view("demo", 1).ledger]


def test_an_assignment_is_taken_before_it_is_given(at: Coordinator) -> None:
    first = at.assignments.take_next("a")
    assert isinstance(first, Train)
    assert statuses(at) == [ParticipantStatus.TRAINING, ParticipantStatus.INVITED]
    assert at.assignments.take_next("a") == first, "and given again until it is done"


def test_an_update_is_kept_once_and_answered_the_same_again(at: Coordinator) -> None:
    body = file_of(1.0)
    receipt = at.intake.accept_small(offer(at, "a", body), body, len(body))
    assert at.blobs.path(sha256(body)).read_bytes() == body
    assert at.intake.check(offer(at, "a", body)) == at.intake.accept_small(
        offer(at, "a", body), body, len(body)
    )
    assert (receipt.digest, receipt.round) == (sha256(body), 1)
    with pytest.raises(UpdateAlreadyReceived):
        at.intake.check(offer(at, "a", file_of(2.0)))
    assert at.assignments.take_next("a") is None
    assert at.assignments.explain_wait("a").startswith("demo: round 1: waiting for 1 client until ")


def test_what_is_refused_leaves_no_file_and_no_row(at: Coordinator) -> None:
    body, foreign, large = file_of(1.0), b"\x08\0\0\0\0\0\0\0{}      ", b"x" * 2_000_000
    with pytest.raises(InvalidRequest, match="trained on 11 examples, but a is enrolled with 10"):
        at.intake.accept_small(offer(at, "a", body, examples=11), body, len(body))
    with pytest.raises(UpdateInvalid):
        at.intake.accept_small(offer(at, "a", foreign), foreign, len(foreign))
    with pytest.raises(TooLarge):
        at.intake.accept_small(offer(at, "a", large), large, len(large))
    assert list((at.blobs.folder / "incoming").iterdir()) == []
    assert statuses(at) == [ParticipantStatus.INVITED, ParticipantStatus.INVITED]


def test_who_gives_up_is_not_waited_for(at: Coordinator) -> None:
    at.intake.report_failure("demo", 1, "b", Failure(attempt=1, code="out_of_memory", reason="too large"))
    body = file_of(1.0)
    at.intake.accept_small(offer(at, "a", body), body, len(body))
    assert at.store.round_view("demo", 1).status == "aggregating"


def test_names_classes_and_protocols_must_agree(at: Coordinator) -> None:
    with pytest.raises(NameTaken):
        create(at)
    with pytest.raises(ClassContractMismatch, match="class 2 of run 'demo' is 'owl', received 'fox'"):
        at.enrolments.enrol("demo", "c", enrolment(("cat", "dog", "fox")), layout(at))
    check_protocol(Registration(protocol=PROTOCOL))
    with pytest.raises(IncompatibleVersion, match=f"speaks protocol 1, this coordinator .* {PROTOCOL}"):
        check_protocol(Registration(protocol=1))


def test_an_update_of_a_secure_run_is_one_vector_and_comes_with_no_numbers(at: Coordinator) -> None:
    model = file_of(0.0)
    config = RunConfig.model_validate(
        {"name": "secret", "task": TASK, "classes": CLASSES, "min_clients": 3, "secure": {"bits": 32}}
    )
    initial = InitialBlob.model_validate({"digest": sha256(model), "manifest": MANIFEST})
    at.control.create(RunRequest(config=config, initial=initial), "admin")
    wanted = layout_of(at.store.run_view("secret", at.clock()))
    shapes = [[(spec.shape, spec.dtype) for spec in wanted.tensors_of(n).values()] for n in (0, 1)]
    assert shapes == [[((8,), "I32")], [((12 + 12 + 4 + 1,), "I32")]]
    report = UpdateReport(attempt=1, steps=70, examples=33, loss=0.5, seconds=2.0)
    assert Offer("secret", 1, "a", report, "0" * 64, wanted).kept == UpdateReport(
        attempt=1, steps=0, examples=0
    )

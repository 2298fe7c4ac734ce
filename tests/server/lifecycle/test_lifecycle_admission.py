"""Who a run admits, as what, when and with which size; what the operator approves and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from server.lifecycle.effects import Record
from server.lifecycle.events import (
    ClientDeclined,
    ClientEnrolled,
    ClientLeft,
    DiscrepancyReceived,
    EnrolmentApproved,
    EnrolmentRefused,
    Event,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Run
from server.lifecycle.views import relative_sizes, waiting_for
from shared.config import Participants, SecureSums
from shared.problems import IllegalTransition
from shared.schemas import Role
from tests.helpers.lifecycle_story import (
    NOW,
    collecting,
    enrolment,
    evaluator,
    indexes,
    kinds,
    new_run,
    participants,
    play,
    record,
    trainer,
    uploaded,
    woken,
)

SITES = Participants(trainers=("north", "group:clinics"), evaluators=("tests",))
MOST = 2**53


def refusal(run: Run, event: ClientEnrolled) -> str:
    """The reason that is shown; the client has no part in the run."""
    decision = decide(run, event, NOW)
    refused = enrolment(decision.run, event.client)
    assert (refused.status, refused.index) == ("refused", None)
    assert refused.reason is not None
    assert record(decision, "client_refused").detail["reason"] == refused.reason
    assert event.client not in relative_sizes(decision.run)
    assert decide(decision.run, event, NOW) == Decision(decision.run, ())  # asked again, nothing is written
    return refused.reason


# -------------------------------------------------------------------- by name, group and role


@pytest.mark.parametrize(
    "event",
    [trainer("north"), trainer("west", group="clinics"), evaluator("tests")],
)
def test_who_is_named_gets_in(event: ClientEnrolled) -> None:
    assert enrolment(decide(new_run(participants=SITES), event, NOW).run, event.client).status == "ready"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (trainer("west"), "the run's participants name not it as trainer"),
        (
            trainer("west", group="banks"),
            "the run's participants name neither it nor its group banks as trainer",
        ),
        (trainer("clinics"), "the run's participants name not it as trainer"),  # a name is no group
        (evaluator("north"), "the run's participants name not it as evaluator"),
        (trainer("tests"), "the run's participants name not it as trainer"),
    ],
)
def test_who_is_not_named_is_refused_and_shown(event: ClientEnrolled, reason: str) -> None:
    assert refusal(new_run(participants=SITES), event) == reason


def test_a_join_token_binds_its_client_to_a_role() -> None:
    bound = ClientEnrolled("north", Role.TRAINER, 10, bound_to=Role.EVALUATOR)
    reason = "its join token lets it take part as evaluator only, not as trainer"
    assert refusal(new_run(), bound) == reason


def test_a_refused_client_may_ask_for_what_it_is_admitted_as() -> None:
    run = play(new_run(participants=SITES), evaluator("north"), trainer("north")).run
    assert (enrolment(run, "north").role, enrolment(run, "north").status) == ("trainer", "ready")


def test_a_refused_client_does_not_keep_the_index_it_asked_for() -> None:
    run = play(new_run(max_examples=10), trainer("x", 11, index=0)).run
    assert indexes(play(run, trainer("a", index=0)).run) == {"x": None, "a": 0}


def test_the_reason_of_a_refusal_stands() -> None:
    """A worker that is refused declines, too; what it says of it tells nothing more."""
    run = play(new_run(max_examples=10), trainer("a", 11)).run
    assert decide(run, ClientDeclined("a", "the coordinator refused"), NOW) == Decision(run, ())


# -------------------------------------------------------------------- late


def test_a_run_may_take_nobody_after_its_start() -> None:
    run = collecting("abc", join="before_start")
    for event in (trainer("d"), evaluator("e")):
        assert refusal(run, event) == "the run takes nobody in after its start (join: before_start)"


def test_who_was_in_may_come_back_after_the_start() -> None:
    run = play(collecting("abc", join="before_start"), ClientLeft("b", "power cut"), trainer("b")).run
    assert enrolment(run, "b").status == "ready"


KEY = "ab" * 32
ASKS = ClientEnrolled("judge", Role.EVALUATOR, 50, identity=KEY)


@pytest.mark.parametrize(
    "events",
    [
        (ClientDeclined("judge", "out of memory"),),
        (ClientLeft("judge", "restart"), ClientDeclined("judge", "cannot read")),
        (ClientLeft("judge", "restart"), ClientEnrolled("judge", Role.EVALUATOR, 0, identity=KEY)),
        (
            ClientDeclined("judge", "out of memory"),
            ClientEnrolled("judge", Role.EVALUATOR, 0, identity=KEY),
            ClientDeclined("judge", "it was refused"),
        ),
    ],
    ids=["declined", "left and declined", "left and refused", "declined and refused"],
)
def test_an_evaluator_that_was_in_comes_back_however_it_went(events: tuple[Event, ...]) -> None:
    run = play(new_run(join="before_start", min_clients=2), ASKS, trainer("a"), trainer("b")).run
    assert run.status == "running"
    assert enrolment(play(run, *events, ASKS).run, "judge").status == "ready"


def test_a_trainer_that_was_in_and_declined_before_the_start_comes_back_after_it() -> None:
    run = play(new_run(join="before_start"), trainer("d"), ClientDeclined("d", "out of memory")).run
    run = play(run, *map(trainer, "abc")).run
    assert (run.status, enrolment(run, "d").index) == ("running", None)
    assert enrolment(play(run, trainer("d")).run, "d").status == "ready"


def test_who_was_refused_before_the_start_has_not_been_in() -> None:
    late = trainer("z", 9, identity=KEY)
    run = play(new_run(join="before_start", max_examples=20), trainer("z", 21, identity=KEY)).run
    run = play(run, *map(trainer, "abc")).run
    assert refusal(run, late) == "the run takes nobody in after its start (join: before_start)"


def test_who_declined_before_the_start_has_not_been_in() -> None:
    run = play(new_run(join="before_start"), ClientDeclined("z", "no data")).run
    run = play(run, *map(trainer, "abc")).run
    assert play(run, trainer("z")).run.enrolment("z").status == "refused"  # type: ignore[union-attr]


# -------------------------------------------------------------------- sizes


@pytest.mark.parametrize("event", [trainer("a", 0), ClientEnrolled("a", Role.EVALUATOR, 0)])
def test_no_examples_are_refused(event: ClientEnrolled) -> None:
    assert refusal(new_run(), event) == "it declares 0 examples; a size is 1 or more"


def test_c5_a_trainer_without_examples_does_not_count_for_min_clients() -> None:
    run = play(new_run(min_clients=2), trainer("a"), trainer("empty", 0)).run
    assert run.status == "enrolling"
    assert waiting_for(run, NOW) == "1 of 2 trainers is ready; the run starts with 2"
    assert participants(play(run, trainer("b")).run) == {"a": "invited", "b": "invited"}


@pytest.mark.parametrize("event", [trainer("a", MOST), ClientEnrolled("a", Role.EVALUATOR, MOST)])
def test_c1_more_examples_than_the_run_takes_are_refused(event: ClientEnrolled) -> None:
    reason = f"it declares {MOST} examples, the run takes at most 5000 from a client (max_examples)"
    assert refusal(new_run(max_examples=5000), event) == reason
    assert play(new_run(max_examples=MOST), event).run.enrolments[0].status == "ready"


def test_another_size_than_before_is_in_the_log() -> None:
    decision = play(collecting("abc"), ClientLeft("b", "new data"), trainer("b", 25))
    assert record(decision, "client_enrolled").detail["were"] == 10


# -------------------------------------------------------------------- approval


def asking(**policy: Any) -> Run:
    return play(new_run(approve="sizes", **policy), trainer("a"), trainer("b", 20)).run


def test_sizes_wait_for_the_operator() -> None:
    run = asking(min_clients=2)
    assert run.status == "enrolling"
    assert {e.client: (e.status, e.reason) for e in run.enrolments} == {
        "a": ("awaiting_approval", "its size of 10 examples waits for the operator's approval"),
        "b": ("awaiting_approval", "its size of 20 examples waits for the operator's approval"),
    }
    assert waiting_for(run, NOW).endswith("; not approved yet: a, b")
    assert relative_sizes(run) == {}


def test_who_is_approved_goes_on() -> None:
    run = asking(min_clients=2)
    decision = decide(run, EnrolmentApproved("b", 20), NOW)
    assert (record(decision, "client_approved").detail, woken(decision)) == ({"examples": 20}, ("b",))
    assert (enrolment(decision.run, "b").status, enrolment(decision.run, "b").reason) == ("ready", None)
    started = play(decision.run, EnrolmentApproved("a", 10))
    assert started.run.status == "running"
    assert indexes(started.run) == {"a": 0, "b": 1}


def test_who_is_approved_is_asked_for_its_discrepancy() -> None:
    run = asking(needs_discrepancy=True)
    with pytest.raises(IllegalTransition, match="'a' is not approved"):
        decide(run, DiscrepancyReceived("a"), NOW)
    assert enrolment(play(run, EnrolmentApproved("a", 10)).run, "a").status == "awaiting_discrepancy"


def test_another_size_than_the_operator_saw_is_not_approved() -> None:
    with pytest.raises(IllegalTransition, match="'a' declares 10 examples in run 'r', not 12"):
        decide(asking(), EnrolmentApproved("a", 12), NOW)


def test_approved_twice_nothing_happens_and_nobody_else_can_be_approved() -> None:
    run = play(asking(), EnrolmentApproved("a", 10)).run
    assert decide(run, EnrolmentApproved("a", 10), NOW) == Decision(run, ())
    with pytest.raises(IllegalTransition, match="does not wait for approval"):
        decide(run, EnrolmentApproved("a", 11), NOW)
    with pytest.raises(IllegalTransition, match="'z' is not enrolled"):
        decide(run, EnrolmentApproved("z", 1), NOW)


def test_a_changed_size_waits_again_and_the_same_one_does_not() -> None:
    run = play(asking(), EnrolmentApproved("a", 10), ClientLeft("a", "restart")).run
    assert enrolment(play(run, trainer("a")).run, "a").status == "ready"
    changed = enrolment(play(run, trainer("a", 30)).run, "a")
    reason = "its size of 30 examples, not the 10 that were approved, waits for the operator's approval"
    assert (changed.status, changed.reason) == ("awaiting_approval", reason)


def test_an_evaluators_size_waits_too() -> None:
    run = play(new_run(approve="sizes"), evaluator("e")).run
    assert enrolment(run, "e").status == "awaiting_approval"
    assert enrolment(play(run, EnrolmentApproved("e", 50)).run, "e").status == "ready"


def test_who_is_approved_after_the_start_gets_the_next_index() -> None:
    run = play(asking(min_clients=1), EnrolmentApproved("b", 20)).run
    assert indexes(run) == {"a": None, "b": 0}
    assert indexes(play(run, EnrolmentApproved("a", 10)).run) == {"a": 1, "b": 0}


# -------------------------------------------------------------------- refused by the operator


def test_the_operator_refuses_who_waits() -> None:
    decision = play(asking(), EnrolmentRefused("a", "unknown site"))
    refused = enrolment(decision.run, "a")
    assert (refused.status, refused.reason) == ("refused", "refused by the operator: unknown site")
    assert decide(decision.run, EnrolmentRefused("a", "unknown site"), NOW) == Decision(decision.run, ())


def test_the_operator_takes_a_trainer_out_and_the_round_goes_on_without_it() -> None:
    run = play(collecting("abc"), uploaded("a"), uploaded("c")).run
    decision = decide(run, EnrolmentRefused("b", ""), NOW)
    assert participants(decision.run) == {"a": "uploaded", "b": "failed", "c": "uploaded"}
    assert kinds(decision) == ["client_refused", "round_closed"]
    assert enrolment(decision.run, "b").index == 1


def test_who_was_refused_by_the_operator_comes_back_with_approval_only() -> None:
    run = play(collecting("abc"), EnrolmentRefused("b", "a liar")).run
    decision = play(run, trainer("b"))
    waits = enrolment(decision.run, "b")
    assert (waits.status, waits.index) == ("awaiting_approval", 1)
    assert waits.reason == "the operator refused it, so it waits for the operator's approval"
    assert enrolment(play(decision.run, EnrolmentApproved("b", 10)).run, "b").status == "ready"


def test_a_refused_trainer_of_a_secure_run_comes_back_with_approval() -> None:
    """It declares no size, so none can be approved: the approval takes the refusal back."""
    dora = trainer("dora", 0, identity="ab" * 32)
    run = play(new_run(secure=SecureSums()), dora, EnrolmentRefused("dora", "no contract yet")).run
    with pytest.raises(IllegalTransition, match="does not wait for approval in run 'r': it is refused"):
        decide(run, EnrolmentApproved("dora", 0), NOW)
    run = play(run, dora).run
    assert enrolment(run, "dora").status == "awaiting_approval"
    with pytest.raises(IllegalTransition, match="declares 0 examples in run 'r', not 1"):
        decide(run, EnrolmentApproved("dora", 1), NOW)
    decision = decide(run, EnrolmentApproved("dora", 0), NOW)
    assert record(decision, "client_approved").detail == {"examples": 0}
    assert enrolment(decision.run, "dora").status == "ready"
    again = play(decision.run, ClientLeft("dora", "restart"), dora).run
    assert (enrolment(again, "dora").status, enrolment(again, "dora").reason) == ("ready", None)
    refused = play(again, EnrolmentRefused("dora", "after all"), dora).run
    assert enrolment(refused, "dora").status == "awaiting_approval"


def test_only_who_is_enrolled_can_be_refused() -> None:
    with pytest.raises(IllegalTransition, match="'z' is not enrolled"):
        decide(asking(), EnrolmentRefused("z", ""), NOW)


def test_every_record_names_the_client() -> None:
    decision = play(asking(), EnrolmentRefused("a", "x"))
    assert {effect.client for effect in decision.effects if isinstance(effect, Record)} == {"a"}

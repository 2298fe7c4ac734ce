"""Coming and going of clients, and how runs start."""

from __future__ import annotations

from typing import Any

import pytest

from server.lifecycle.effects import Record, Wake
from server.lifecycle.events import (
    ClientDeclined,
    ClientEnrolled,
    ClientLeft,
    ClientSeen,
    DiscrepancyReceived,
    StartRequested,
)
from server.lifecycle.machine import Decision, decide
from shared.problems import (
    AlreadyEnrolled,
    DiscrepancyAlreadySubmitted,
    IllegalTransition,
    IndexTaken,
    RunOver,
)
from shared.schemas import EnrolmentStatus, Role
from tests.helpers.lifecycle_story import (
    NOW,
    after_deadline,
    attempt_of,
    collecting,
    completed,
    enrolled,
    enrolment,
    evaluator,
    failed,
    indexes,
    kinds,
    new_run,
    participant,
    participants,
    paused,
    play,
    record,
    stopped,
    trainer,
    uploaded,
    woken,
)


def test_a_trainer_enrols_and_is_asked_for_its_discrepancy_only_where_a_weight_depends_on_it() -> None:
    asked = play(new_run(needs_discrepancy=True), trainer("a"))
    assert enrolment(asked.run, "a").status == EnrolmentStatus.AWAITING_DISCREPANCY
    assert asked.effects == (
        Record("client_enrolled", "a", detail={"role": "trainer", "examples": 10, "index": None}),
        Wake(("a",)),
    )
    plain = play(new_run(), trainer("a"))
    assert enrolment(plain.run, "a").status == EnrolmentStatus.READY
    assert woken(plain) == ()


def test_evaluators_are_ready_at_once_and_have_no_index() -> None:
    run = play(new_run(needs_discrepancy=True), ClientEnrolled("e", Role.EVALUATOR, 5, index=3)).run
    assert (enrolment(run, "e").status, enrolment(run, "e").index) == (EnrolmentStatus.READY, None)


def test_enrolling_twice_with_the_same_particulars_changes_nothing() -> None:
    run = play(new_run(), trainer("a", index=4)).run
    assert decide(run, trainer("a", index=4), NOW) == Decision(run, ())
    assert decide(run, trainer("a"), NOW) == Decision(run, ())


@pytest.mark.parametrize("other", [trainer("a", 11), trainer("a", index=5), evaluator("a")])
def test_enrolling_twice_with_other_particulars_is_refused(other: ClientEnrolled) -> None:
    run = play(new_run(), trainer("a", index=4)).run
    with pytest.raises(AlreadyEnrolled, match="role=trainer, examples=10, index=4"):
        decide(run, other, NOW)


# -------------------------------------------------------------------- indexes


def test_indexes_are_given_as_asked_then_at_the_start_by_name_lowest_free_first() -> None:
    run = play(
        new_run(autostart=False),
        trainer("d", index=1),
        trainer("c"),
        trainer("b", index=0),
        trainer("a"),
    ).run
    assert indexes(run) == {"d": 1, "c": None, "b": 0, "a": None}
    run = play(run, StartRequested()).run
    assert indexes(run) == {"d": 1, "c": 3, "b": 0, "a": 2}
    assert list(participants(run)) == ["b", "d", "a", "c"]  # in index order


def test_who_left_or_declined_before_the_start_uses_up_no_index() -> None:
    run = play(enrolled("abc"), ClientLeft("a", "moved"), ClientDeclined("aa", "no"), StartRequested()).run
    assert indexes(run) == {"a": None, "b": 0, "c": 1, "aa": None}


def test_who_comes_late_gets_the_next_index_after_the_highest() -> None:
    run = play(collecting("ab"), trainer("c", index=7)).run
    assert indexes(play(run, trainer("d")).run)["d"] == 8
    assert indexes(play(run, trainer("d", index=2)).run)["d"] == 2
    assert indexes(play(paused(run), trainer("d")).run)["d"] == 8
    assert indexes(play(run, evaluator("e")).run)["e"] is None


def test_an_index_stays_with_its_client_even_after_it_left() -> None:
    run = play(new_run(), trainer("a", index=2), ClientLeft("a", "moved")).run
    with pytest.raises(IndexTaken, match="index 2 of run 'r' belongs to another client") as refusal:
        decide(run, trainer("b", index=2), NOW)
    assert refusal.value.extra["lowest_free"] == 0
    assert indexes(play(run, trainer("a", 99)).run) == {"a": 2}
    with pytest.raises(AlreadyEnrolled, match="returns does so as trainer 2"):
        decide(run, trainer("a", index=3), NOW)
    with pytest.raises(AlreadyEnrolled):
        decide(run, evaluator("a"), NOW)


# -------------------------------------------------------------------- declining, leaving, returning


def test_declining() -> None:
    decision = play(new_run(), ClientDeclined("a", "no such task here"))
    assert enrolment(decision.run, "a").status == EnrolmentStatus.DECLINED
    assert enrolment(decision.run, "a").reason == "no such task here"
    assert decision.effects == (Record("client_declined", "a", detail={"reason": "no such task here"}),)
    assert play(decision.run, ClientDeclined("a", "no such task here")) == Decision(decision.run, ())
    other = play(decision.run, ClientDeclined("a", "too many rounds"))
    assert enrolment(other.run, "a").reason == "too many rounds"
    assert other.effects == (Record("client_declined", "a", detail={"reason": "too many rounds"}),)
    assert enrolment(play(decision.run, trainer("a")).run, "a").status == EnrolmentStatus.READY


def test_an_evaluator_that_declines_before_it_enrols_is_none_of_the_trainers() -> None:
    run = play(new_run(), ClientDeclined("a", "no test data", Role.EVALUATOR)).run
    assert enrolment(run, "a").role is Role.EVALUATOR
    enrolled = play(new_run(), evaluator("a"), ClientDeclined("a", "no test data")).run
    assert enrolment(enrolled, "a").role is Role.EVALUATOR, "what it enrolled as counts"


@pytest.mark.parametrize("discrepancy", [True, False])
def test_who_is_enrolled_may_decline_later_and_come_back(discrepancy: bool) -> None:
    run = play(new_run(needs_discrepancy=discrepancy), trainer("a", index=4)).run
    decision = play(run, ClientDeclined("a", "other classes"))
    gone = enrolment(decision.run, "a")
    assert (gone.status, gone.reason, gone.index) == (EnrolmentStatus.DECLINED, "other classes", 4)
    assert kinds(decision) == ["client_declined"]
    back = enrolment(play(decision.run, trainer("a")).run, "a")
    assert (back.status.is_present, back.reason, back.index) == (True, None, 4)
    left = play(run, ClientLeft("a", "moved"), ClientDeclined("a", "no")).run
    assert enrolment(left, "a").status == EnrolmentStatus.DECLINED


def test_declining_while_the_round_waits_counts_as_failure_with_the_reason() -> None:
    decision = play(collecting("abc"), ClientDeclined("b", "other classes"))
    assert participants(decision.run) == {"a": "invited", "b": "failed", "c": "invited"}
    assert participant(decision.run, "b").reason == "other classes"
    last = play(decision.run, uploaded("a"), uploaded("c"))
    assert attempt_of(last.run) == (1, 1, "aggregating")
    closing = play(collecting("ab"), uploaded("a"), ClientDeclined("b", "no"))
    assert attempt_of(closing.run) == (1, 1, "aggregating")


def test_leaving_while_the_round_waits_counts_as_failure_and_does_not_end_it_for_others() -> None:
    decision = play(collecting("abc"), ClientLeft("b", "token revoked"))
    assert participants(decision.run) == {"a": "invited", "b": "failed", "c": "invited"}
    assert participant(decision.run, "b").reason == "token revoked"
    assert enrolment(decision.run, "b").status == EnrolmentStatus.LEFT
    assert kinds(decision) == ["client_left"]
    assert play(decision.run, ClientLeft("b", "again")) == Decision(decision.run, ())


def test_the_last_one_waited_for_closes_the_round_by_leaving() -> None:
    decision = play(collecting("ab"), uploaded("a"), ClientLeft("b", "moved"))
    assert attempt_of(decision.run) == (1, 1, "aggregating")
    assert kinds(decision) == ["client_left", "round_closed"]


def test_an_update_stays_in_when_its_client_leaves() -> None:
    run = play(collecting("ab"), uploaded("a"), ClientLeft("a", "moved"), uploaded("b")).run
    assert participants(run) == {"a": "uploaded", "b": "uploaded"}
    assert play(run, ClientLeft("b", "moved")).run.round == run.round


def test_leaving_a_run_one_is_not_in() -> None:
    with pytest.raises(IllegalTransition, match="'x' is not enrolled"):
        decide(new_run(), ClientLeft("x", ""), NOW)


@pytest.mark.parametrize("end", [stopped, completed])
def test_after_the_end_leaving_confirms_it_and_nothing_else_is_taken(end: Any) -> None:
    run = end(collecting("ab", rounds=1))
    for going in (ClientLeft("a", "run finished"), ClientDeclined("a", "the model cannot be scored")):
        decision = play(run, going)
        assert enrolment(decision.run, "a").status == EnrolmentStatus.FINISHED
        assert (decision.run.status, decision.run.round) == (run.status, run.round)
        assert play(decision.run, going) == Decision(decision.run, ())
    with pytest.raises(IllegalTransition, match="'z' is not enrolled"):
        decide(run, ClientDeclined("z", ""), NOW)
    assert decide(run, ClientSeen("a"), NOW) == Decision(run, ())
    for event in (
        trainer("z"),
        DiscrepancyReceived("a"),
        uploaded("a"),
        failed("a"),
    ):
        with pytest.raises(RunOver, match=f"run 'r' is {run.status}"):
            decide(run, event, NOW)


def test_who_was_away_comes_back() -> None:
    run = after_deadline(play(collecting("ab"), uploaded("a")).run).run
    assert enrolment(run, "b").status == EnrolmentStatus.AWAY
    decision = play(run, ClientSeen("b"))
    assert enrolment(decision.run, "b").status == EnrolmentStatus.READY
    assert decision.effects == (Record("client_returned", "b"),)
    assert play(decision.run, ClientSeen("b"), ClientSeen("stranger")) == Decision(decision.run, ())


def test_who_was_away_at_the_end_stays_so() -> None:
    run = stopped(after_deadline(collecting("ab")).run)
    assert enrolment(run, "a").status == EnrolmentStatus.AWAY
    assert decide(run, ClientSeen("a"), NOW) == Decision(run, ())


# -------------------------------------------------------------------- the discrepancy


def test_the_discrepancy_makes_ready_and_comes_once() -> None:
    run = play(new_run(needs_discrepancy=True), trainer("a")).run
    decision = play(run, DiscrepancyReceived("a"))
    assert enrolment(decision.run, "a").status == EnrolmentStatus.READY
    assert decision.effects == (Record("discrepancy_received", "a"),)
    with pytest.raises(DiscrepancyAlreadySubmitted, match="of 'a' is not possible"):
        decide(decision.run, DiscrepancyReceived("a"), NOW)


@pytest.mark.parametrize("client", ["e", "z", "stranger", "gone"])
def test_discrepancies_nobody_asked_for_are_refused(client: str) -> None:
    run = play(
        new_run(needs_discrepancy=True),
        evaluator("e"),
        trainer("z", 0),
        trainer("gone"),
        ClientLeft("gone", ""),
    ).run
    with pytest.raises(IllegalTransition, match=client):
        decide(run, DiscrepancyReceived(client), NOW)
    with pytest.raises(IllegalTransition, match="does not ask 'a' for a discrepancy"):
        decide(enrolled("a"), DiscrepancyReceived("a"), NOW)


# -------------------------------------------------------------------- starting


def test_a_run_starts_by_itself_when_enough_trainers_are_ready() -> None:
    run = play(new_run(min_clients=2, needs_discrepancy=True), trainer("a"), trainer("b"), trainer("c")).run
    run = play(run, evaluator("e"), DiscrepancyReceived("a")).run
    assert run.status == "enrolling"
    decision = play(run, DiscrepancyReceived("c"))
    assert decision.run.status == "running"
    assert kinds(decision) == ["discrepancy_received", "run_started", "round_opened"]
    assert woken(decision) == ("e", "a", "c")
    assert indexes(decision.run) == {"a": 0, "b": 1, "c": 2, "e": None}
    assert participants(decision.run) == {"a": "invited", "c": "invited"}


def test_a_run_without_autostart_waits_to_be_asked() -> None:
    run = enrolled("abc")
    assert run.status == "enrolling"
    decision = play(run, StartRequested())
    assert kinds(decision) == ["run_started", "round_opened"]
    assert record(decision, "run_started").detail == {"reason": "asked for", "trainers": 3}


@pytest.mark.parametrize("policy", [{"quorum": 3}, {"clients_per_round": 3}])
def test_a_start_with_too_few_says_how_many_are_missing(policy: dict[str, int]) -> None:
    run = play(enrolled("ab", **policy), trainer("z", 0)).run
    with pytest.raises(IllegalTransition, match="needs 3 ready trainers and has 2") as refusal:
        decide(run, StartRequested(), NOW)
    assert refusal.value.hint.startswith("Let 1 more enrol")


def test_a_start_with_nobody_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="needs 1 ready trainers and has 0"):
        decide(new_run(), StartRequested(), NOW)

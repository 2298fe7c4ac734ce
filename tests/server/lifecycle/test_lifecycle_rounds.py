"""Rounds: opened, delivered to, closed, aggregated, abandoned, drawn anew."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import pytest

from server.lifecycle.effects import Aggregate, Record, Wake
from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFailed,
    AggregationFinished,
    ClientLeft,
    ClientSeen,
    CoordinatorReturned,
    DiscrepancyReceived,
    Event,
    ResumeRequested,
    TimePassed,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Run
from server.lifecycle.views import waiting_for
from server.lifecycle.waiting import GRACE
from shared.problems import (
    Conflict,
    IllegalTransition,
    NotAParticipant,
    UpdateAlreadyReceived,
    UpdateLate,
    UpdateStale,
)
from shared.schemas import EnrolmentStatus
from tests.helpers.lifecycle_story import (
    HOUR,
    NOW,
    after_deadline,
    aggregating,
    attempt_of,
    collecting,
    current_round,
    enrolled,
    enrolment,
    evaluator,
    failed,
    kinds,
    participant,
    participants,
    paused,
    play,
    record,
    stopped,
    taken,
    trainer,
    uploaded,
    woken,
)


def test_an_opened_round_has_a_deadline_and_wakes_who_takes_part() -> None:
    decision = play(aggregating("ab"), AggregationFinished(1, 1))
    assert attempt_of(decision.run) == (2, 1, "collecting")
    assert current_round(decision.run).deadline_at == NOW + HOUR
    assert decision.effects == (
        Record("round_completed", round=1, detail={"attempt": 1, "aggregated": 2, "participants": 2}),
        Record(
            "round_opened",
            round=2,
            detail={"attempt": 1, "participants": ["a", "b"], "deadline_at": "2026-03-01T13:00:00+00:00"},
        ),
        Wake(("a", "b")),
    )


# -------------------------------------------------------------------- what participants do


def test_a_participant_takes_its_assignment_trains_and_delivers() -> None:
    decision = play(collecting("ab"), taken("a"))
    assert participants(decision.run) == {"a": "training", "b": "invited"}
    assert decision.effects == (Record("assignment_taken", "a", 1, {"attempt": 1}),)
    assert play(decision.run, taken("a")) == Decision(decision.run, ())  # the worker was started again
    decision = play(decision.run, uploaded("a"))
    assert participants(decision.run) == {"a": "uploaded", "b": "invited"}
    assert decision.effects == (Record("update_received", "a", 1, {"attempt": 1}),)


def test_an_update_that_was_finished_before_a_crash_comes_without_a_taken_assignment() -> None:
    assert participants(play(collecting("ab"), uploaded("a")).run)["a"] == "uploaded"


def test_a_failure_never_ends_the_round_for_the_others() -> None:
    decision = play(collecting("abc"), taken("a"), failed("a", reason="disk full"))
    assert participants(decision.run) == {"a": "failed", "b": "invited", "c": "invited"}
    assert participant(decision.run, "a").reason == "disk full"
    assert enrolment(decision.run, "a").status == EnrolmentStatus.READY  # invited again next time
    assert decision.effects == (Record("failure_reported", "a", 1, {"attempt": 1, "reason": "disk full"}),)
    assert play(decision.run, failed("a", reason="again")) == Decision(decision.run, ())
    assert attempt_of(play(decision.run, uploaded("b"), uploaded("c")).run) == (1, 1, "aggregating")


def _timed_out(run: Run) -> Run:
    return after_deadline(run).run


@pytest.mark.parametrize("kind", [taken, uploaded, failed])
@pytest.mark.parametrize(
    ("run", "refusal", "said"),
    [
        (play(collecting("ab"), uploaded("a")).run, UpdateAlreadyReceived, "in the round already"),
        (play(aggregating("ab"), AggregationFinished(1, 1)).run, UpdateStale, "round 2, attempt 1"),
        (play(collecting("ab"), trainer("a2")).run, NotAParticipant, "'a2' was not invited"),
        (_timed_out(play(collecting("ab"), uploaded("b")).run), UpdateLate, "'a' is timed_out"),
        (aggregating("ab"), UpdateAlreadyReceived, "in the round already"),
        (_timed_out(collecting("ab")), UpdateLate, "nothing came until the deadline"),
        (play(aggregating("ab", rounds=2), AggregationFailed(1, 1, "x")).run, UpdateStale, "attempt 2"),
    ],
)
def test_what_does_not_belong_to_the_open_round_is_refused(
    run: Run, kind: Callable[[str], Event], refusal: type[Conflict], said: str
) -> None:
    event = kind("a2" if refusal is NotAParticipant else "a")
    with pytest.raises(refusal, match=said) as caught:
        decide(run, event, NOW)
    assert caught.value.extra["event"] == type(event).__name__
    assert caught.value.extra["state"] == run.status
    assert caught.value.extra["current_round"] == current_round(run).number


def test_after_a_failure_neither_an_update_nor_a_new_start_is_taken() -> None:
    run = play(collecting("ab"), failed("a")).run
    for event in (uploaded("a"), taken("a")):
        with pytest.raises(UpdateLate, match=r"'a' is failed \(out of memory\)"):
            decide(run, event, NOW)


def test_updates_while_no_round_is_open() -> None:
    with pytest.raises(IllegalTransition, match="UpdateReceived is not possible: run 'r' is enrolling"):
        decide(enrolled("ab"), uploaded("a"), NOW)
    waiting = play(collecting("ab", quorum=2), failed("a"), ClientLeft("b", "moved")).run
    assert attempt_of(waiting) == (1, 1, "abandoned")
    with pytest.raises(UpdateLate, match=r"'b' is failed \(moved\)"):
        decide(waiting, uploaded("b"), NOW)
    with pytest.raises(UpdateStale, match="no round has been opened yet"):
        decide(replace(waiting, round=None), uploaded("b"), NOW)


# -------------------------------------------------------------------- closing


def test_the_last_delivery_closes_the_round() -> None:
    decision = play(collecting("ab"), uploaded("b"), uploaded("a"))
    assert decision.effects == (
        Record("update_received", "a", 1, {"attempt": 1}),
        Record("round_closed", round=1, detail={"attempt": 1, "updates": 2, "participants": 2}),
        Aggregate(1, 1),
    )
    assert attempt_of(decision.run) == (1, 1, "aggregating")


def test_nothing_happens_before_the_deadline() -> None:
    run = collecting("ab")
    assert decide(run, TimePassed(), NOW + HOUR - dt.timedelta(microseconds=1)) == Decision(run, ())


def test_at_the_deadline_the_quorum_is_enough() -> None:
    decision = after_deadline(play(collecting("abc", quorum=2), uploaded("c"), taken("a"), uploaded("b")).run)
    assert participants(decision.run) == {"a": "timed_out", "b": "uploaded", "c": "uploaded"}
    assert enrolment(decision.run, "a").status == EnrolmentStatus.AWAY
    assert kinds(decision) == ["participant_timed_out", "client_away", "round_closed"]
    assert record(decision, "participant_timed_out").detail == {"attempt": 1, "was": "training"}
    assert decision.effects[-1] == Aggregate(1, 1)
    assert decide(decision.run, TimePassed(), NOW + 9 * HOUR) == Decision(decision.run, ())


@pytest.mark.parametrize(
    ("returned", "absence", "deadline"),
    [
        (HOUR / 2, HOUR / 4, HOUR * 5 / 4),  # by as long as it was away
        (HOUR * 3, HOUR * 2.5, HOUR * 3.5),  # also if it was over in between
        (HOUR, dt.timedelta(0), HOUR + GRACE),  # and never before clients could come back
    ],
)
def test_the_time_without_a_coordinator_does_not_count(
    returned: dt.timedelta, absence: dt.timedelta, deadline: dt.timedelta
) -> None:
    run = play(collecting("ab"), uploaded("a")).run
    decision = decide(run, CoordinatorReturned(absence), NOW + returned)
    assert current_round(decision.run).deadline_at == NOW + deadline
    assert kinds(decision) == ["deadline_moved"]
    assert record(decision, "deadline_moved").detail == {
        "attempt": 1,
        "absence_seconds": absence.total_seconds(),
        "deadline_at": (NOW + deadline).isoformat(),
    }
    assert decide(decision.run, TimePassed(), NOW + deadline - dt.timedelta(seconds=1)).effects == ()
    assert attempt_of(play(decision.run, uploaded("b")).run) == (1, 1, "aggregating")


def test_a_return_without_absence_or_without_an_open_round_changes_nothing() -> None:
    for run in (collecting("ab"), aggregating("ab"), enrolled("ab"), stopped(collecting("ab"))):
        assert decide(run, CoordinatorReturned(dt.timedelta(0)), NOW) == Decision(run, ())
    for run in (aggregating("ab"), enrolled("ab"), stopped(collecting("ab"))):
        assert decide(run, CoordinatorReturned(HOUR), NOW + HOUR) == Decision(run, ())


def test_a_short_deadline_gives_no_longer_grace() -> None:
    run = collecting("ab", deadline=dt.timedelta(seconds=5))
    moved = decide(run, CoordinatorReturned(dt.timedelta(0)), NOW + HOUR).run
    assert current_round(moved).deadline_at == NOW + HOUR + dt.timedelta(seconds=5)


def test_who_is_away_is_not_invited() -> None:
    run = after_deadline(play(collecting("abc"), uploaded("a"), uploaded("c")).run).run
    run = play(run, AggregationFinished(1, 1)).run
    assert participants(run) == {"a": "invited", "c": "invited"}


def test_below_the_quorum_the_round_is_abandoned_and_drawn_anew() -> None:
    decision = play(collecting("abc", quorum=3), uploaded("a"), failed("b"), uploaded("c"))
    assert attempt_of(decision.run) == (1, 2, "collecting")
    assert participants(decision.run) == dict.fromkeys("abc", "invited")
    assert kinds(decision) == ["update_received", "round_abandoned", "round_opened"]
    why = "2 of 3 needed updates came (b failed: out of memory)"
    assert record(decision, "round_abandoned") == Record(
        "round_abandoned", round=1, detail={"attempt": 1, "reason": why}
    )
    assert record(decision, "round_opened").detail["attempt"] == 2


def _fail_all(run: Run) -> Decision:
    current = current_round(run)
    return play(run, *(failed(p.client, current.number, current.attempt) for p in current.participants))


def test_after_the_last_attempt_the_run_pauses_and_says_why_and_resuming_gives_a_fresh_allowance() -> None:
    run = _fail_all(collecting("ab", max_attempts=2)).run
    decision = _fail_all(run)
    assert decision.run.status == "paused"
    why = "0 of 1 needed updates came (all 2 clients failed: out of memory)"
    assert decision.run.reason == f"round 1 was abandoned in attempt 2: {why}"
    assert kinds(decision) == ["failure_reported", "round_abandoned", "run_paused"]
    run = play(decision.run, ResumeRequested()).run
    assert (run.status, run.reason, attempt_of(run)) == ("running", None, (1, 3, "collecting"))
    run = _fail_all(run).run
    assert (run.status, attempt_of(run)) == ("running", (1, 4, "collecting"))
    assert _fail_all(run).run.status == "paused"


def test_a_round_abandoned_during_a_pause_is_drawn_when_the_run_resumes() -> None:
    run = _fail_all(paused(collecting("ab"))).run
    assert (run.status, run.reason, attempt_of(run)) == ("paused", "lunch", (1, 1, "abandoned"))
    assert attempt_of(play(run, ResumeRequested()).run) == (1, 2, "collecting")


# -------------------------------------------------------------------- waiting for clients


def test_with_too_few_ready_trainers_the_run_waits_and_goes_on_when_one_returns() -> None:
    decision = after_deadline(collecting("ab", quorum=2))
    assert (decision.run.status, attempt_of(decision.run)) == ("waiting", (1, 1, "abandoned"))
    assert record(decision, "run_waiting") == Record(
        "run_waiting",
        detail={
            "reason": "round 1: 0 trainers are ready, 2 needed; away: a, b",
            "until": (NOW + HOUR + decision.run.policy.waiting_deadline).isoformat(),
        },
    )
    decision = play(decision.run, ClientSeen("b"))
    assert kinds(decision) == ["client_returned"]  # still too few: said once
    decision = play(decision.run, ClientSeen("a"))
    assert kinds(decision) == ["client_returned", "round_opened"]
    assert attempt_of(decision.run) == (1, 2, "collecting")


def test_a_new_client_opens_the_round_that_waited() -> None:
    run = after_deadline(collecting("ab", quorum=2)).run
    run = play(run, ClientSeen("a"), trainer("c")).run
    assert participants(run) == {"a": "invited", "c": "invited"}
    run = after_deadline(collecting("ab", quorum=2, needs_discrepancy=True)).run
    run = play(run, ClientSeen("a"), trainer("c")).run
    assert attempt_of(run) == (1, 1, "abandoned")
    assert attempt_of(play(run, DiscrepancyReceived("c")).run) == (1, 2, "collecting")


def test_a_run_can_wait_between_rounds_and_after_resuming() -> None:
    run = play(aggregating("ab", quorum=2), ClientLeft("a", "moved")).run
    decision = play(run, AggregationFinished(1, 1))
    assert kinds(decision) == ["round_completed", "run_waiting"]
    decision = play(paused(decision.run), ResumeRequested())
    assert kinds(decision) == ["run_resumed", "run_waiting"]
    assert attempt_of(play(decision.run, trainer("c")).run) == (2, 1, "collecting")


# -------------------------------------------------------------------- aggregation


def test_updates_are_aggregated_or_rejected_and_the_next_round_opens() -> None:
    decision = play(aggregating("abc"), AggregationFinished(1, 1, excluded=(("b", "no examples"),)))
    assert kinds(decision) == ["update_rejected", "round_completed", "round_opened"]
    assert record(decision, "update_rejected") == Record(
        "update_rejected", "b", 1, {"attempt": 1, "reason": "no examples"}
    )
    assert record(decision, "round_completed").detail["aggregated"] == 2
    assert (decision.run.completed_rounds, attempt_of(decision.run)) == (1, (2, 1, "collecting"))


def test_a_last_round_that_calibrates_is_over_all_clients() -> None:
    decision = play(collecting("abc", rounds=2, clients_per_round=1, calibrates=True))
    (drawn,) = participants(decision.run)
    decision = play(decision.run, uploaded(drawn), AggregationFinished(1, 1))
    assert set(participants(decision.run)) == set("abc")


def test_the_last_round_keeps_its_ledger_and_ends_the_run() -> None:
    run = play(aggregating("abc", rounds=1), evaluator("e")).run
    decision = play(run, AggregationFinished(1, 1, excluded=(("b", "no examples"),)))
    assert participants(decision.run) == {"a": "aggregated", "b": "rejected", "c": "aggregated"}
    assert participant(decision.run, "b").reason == "no examples"
    assert (decision.run.status, attempt_of(decision.run)) == ("completed", (1, 1, "completed"))
    assert kinds(decision) == ["update_rejected", "round_completed", "run_completed"]
    assert woken(decision) == ("e", "a", "b", "c")


def test_a_round_without_weight_fails_visibly_and_counts_as_an_attempt() -> None:
    run = aggregating("ab", max_attempts=1)
    decision = play(run, AggregationFinished(1, 1, (("a", "no examples"),), "nobody has examples"))
    assert participants(decision.run) == {"a": "rejected", "b": "uploaded"}
    assert (decision.run.status, decision.run.completed_rounds) == ("paused", 0)
    assert kinds(decision) == ["update_rejected", "round_without_weight", "round_abandoned", "run_paused"]
    reason = "no update had weight, the old model is kept: nobody has examples"
    assert current_round(decision.run).reason == reason
    again = play(aggregating("ab"), AggregationFinished(1, 1, weightless="all weights are zero"))
    assert attempt_of(again.run) == (1, 2, "collecting")


def test_a_delayed_aggregation_says_why_until_it_succeeds() -> None:
    run = aggregating("ab")
    delayed = play(run, AggregationDelayed(1, 1, "the disk is full"))
    assert kinds(delayed) == ["aggregation_delayed", "run_waiting"]
    waits = "; since 12:00 UTC, pauses at 2026-03-02 12:00 UTC"
    said = f"round 1: 2 updates are being aggregated; delayed: the disk is full{waits}"
    assert waiting_for(delayed.run, NOW) == said
    told = f"round 1: 2 updates are being aggregated, which is delayed{waits}"
    assert waiting_for(delayed.run, NOW, reader="a") == told
    assert decide(delayed.run, AggregationDelayed(1, 1, "the disk is full"), NOW).effects == ()
    other = play(delayed.run, AggregationDelayed(1, 1, "an update is missing"))
    assert current_round(other.run).reason == "an update is missing"
    (done,) = play(other.run, AggregationFinished(1, 1)).ended
    assert (done.status, done.reason) == ("completed", None)


def test_a_failed_aggregation_is_drawn_anew_up_to_the_limit() -> None:
    decision = play(aggregating("ab", max_attempts=2), AggregationFailed(1, 1, "disk full"))
    assert kinds(decision) == ["aggregation_failed", "round_abandoned", "round_opened"]
    run = play(decision.run, uploaded("a", 1, 2), uploaded("b", 1, 2)).run
    run = play(run, AggregationFailed(1, 2, "disk full")).run
    assert run.status == "paused"
    assert run.reason == "round 1 was abandoned in attempt 2: the aggregation failed: disk full"


@pytest.mark.parametrize(
    "event", [AggregationFinished(1, 1), AggregationDelayed(1, 1, "x"), AggregationFailed(1, 1, "x")]
)
@pytest.mark.parametrize(
    "run",
    [
        collecting("ab"),
        play(aggregating("ab"), AggregationFinished(1, 1)).run,
        play(aggregating("ab"), AggregationFailed(1, 1, "y")).run,
        stopped(aggregating("ab")),
    ],
)
def test_an_aggregation_that_is_not_awaited_is_refused(run: Run, event: Event) -> None:
    with pytest.raises(IllegalTransition, match=type(event).__name__):
        decide(run, event, NOW)


def test_an_aggregation_cannot_exclude_who_delivered_nothing() -> None:
    run = play(collecting("ab"), failed("a"), uploaded("b")).run
    with pytest.raises(IllegalTransition, match="a excluded without an update"):
        decide(run, AggregationFinished(1, 1, excluded=(("a", "?"),)), NOW)

"""A run that cannot go on is waiting: it says why, goes on when it can, and pauses after a while."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFinished,
    ClientLeft,
    ClientSeen,
    CoordinatorReturned,
    EvaluationReceived,
    PauseRequested,
    ResumeRequested,
    Sighting,
    TimePassed,
)
from server.lifecycle.machine import decide
from server.lifecycle.state import Run, Wait
from server.lifecycle.views import reason_for_clients, waiting_for
from shared.config import StopWhen
from tests.helpers.lifecycle_story import (
    HOUR,
    NOW,
    after_deadline,
    aggregating,
    attempt_of,
    collecting,
    current_round,
    evaluator,
    failed,
    kinds,
    new_run,
    participant,
    paused,
    play,
    record,
    taken,
    trainer,
    uploaded,
)

DAY = dt.timedelta(days=1)
LACKS_TRAINERS = "round 1: 0 trainers are ready, 2 needed; away: a, b"


def lacking_trainers(**policy: Any) -> Run:
    """Both missed the deadline of the first round, an hour from ``NOW``."""
    return after_deadline(collecting("ab", quorum=2, **policy)).run


def lacking_scores() -> Run:
    """Its first round is completed, and its evaluator says nothing of it."""
    run = new_run(min_clients=2, rounds=3, quorum=2, stop_when=StopWhen(patience=5))
    run = play(run, evaluator("j"), trainer("a"), trainer("b"), uploaded("a"), uploaded("b")).run
    return play(run, AggregationFinished(1, 1)).run


# -------------------------------------------------------------------- why a run waits


def test_too_few_trainers_are_ready() -> None:
    run = lacking_trainers()
    begun = NOW + HOUR
    assert (run.status, run.reason, run.wait) == ("waiting", LACKS_TRAINERS, Wait(begun, begun + DAY))
    told = "; since 13:00 UTC, pauses at 2026-03-02 13:00 UTC"
    assert waiting_for(run, begun) == LACKS_TRAINERS + told
    assert waiting_for(run, begun, reader="a") == (
        "round 1: 0 trainers are ready, 2 needed; away: this client and 1 other" + told
    )


def test_a_round_that_misses_its_quorum_says_so_before_its_deadline() -> None:
    run = play(collecting("abc", quorum=3), uploaded("a"), failed("b")).run
    assert (run.status, attempt_of(run)) == ("waiting", (1, 1, "collecting"))
    assert run.reason == ("round 1: of 3 needed updates 2 can still come, none from b; drawn again after c")
    assert waiting_for(run, NOW) == f"{run.reason}, at 13:00 UTC at the latest"
    decision = play(run, uploaded("c"))
    assert (decision.run.status, attempt_of(decision.run)) == ("running", (1, 2, "collecting"))
    assert decision.run.wait is None
    decision = after_deadline(run)
    assert kinds(decision)[-2:] == ["round_abandoned", "run_waiting"], "c is away now, and three are needed"


def test_an_aggregation_that_is_delayed() -> None:
    decision = play(aggregating("ab"), AggregationDelayed(1, 1, "the disk is full"))
    assert kinds(decision) == ["aggregation_delayed", "run_waiting"]
    run = decision.run
    assert run.reason == "round 1: 2 updates are being aggregated; delayed: the disk is full"
    assert "disk" not in waiting_for(run, NOW, reader="a")
    run = play(run, AggregationDelayed(1, 1, "an update is missing")).run
    assert run.reason == "round 1: 2 updates are being aggregated; delayed: an update is missing"
    assert play(run, AggregationFinished(1, 1)).run.status == "running"


def test_scoring_is_work_until_it_takes_longer_than_a_round_may() -> None:
    run = lacking_scores()
    assert (run.status, run.wait) == ("running", Wait(NOW, NOW + HOUR))
    assert decide(run, TimePassed(), NOW + HOUR / 2).run == run
    decision = decide(run, TimePassed(), NOW + HOUR)
    assert kinds(decision) == ["run_waiting"]
    run = decision.run
    assert (run.status, run.reason) == ("waiting", "round 1: waiting for j to score its model")
    assert run.wait == Wait(NOW, NOW + HOUR + DAY)
    scored = play(run, EvaluationReceived("j", 1, "accuracy", 0.5, 50)).run
    assert (scored.status, scored.wait, attempt_of(scored)) == ("running", None, (2, 1, "collecting"))
    gone = play(run, ClientLeft("j", "moved")).run
    assert (gone.status, attempt_of(gone)) == ("running", (2, 1, "collecting"))


# -------------------------------------------------------------------- how it ends


def test_it_goes_on_as_soon_as_it_can_and_says_no_word_twice() -> None:
    decision = play(lacking_trainers(), ClientSeen("b"))
    assert (decision.run.status, kinds(decision)) == ("waiting", ["client_returned"])
    assert decision.run.reason == "round 1: 1 trainer is ready, 2 needed; away: a"
    assert decision.run.wait == lacking_trainers().wait, "it waits since the same time"
    decision = play(decision.run, ClientSeen("a"))
    assert kinds(decision) == ["client_returned", "round_opened"]
    assert (decision.run.status, decision.run.reason, decision.run.wait) == ("running", None, None)


def test_it_pauses_after_its_limit_and_waits_anew_when_it_is_resumed() -> None:
    run = lacking_trainers(waiting_deadline=2 * HOUR)
    assert decide(run, TimePassed(), NOW + 2.9 * HOUR).run == run
    decision = decide(run, TimePassed(), NOW + 3 * HOUR)
    assert kinds(decision) == ["run_paused"]
    run = decision.run
    assert (run.status, run.wait) == ("paused", None)
    assert run.reason == f"it could not go on since 2026-03-01 13:00 UTC: {LACKS_TRAINERS}"
    assert reason_for_clients(run.reason) == "it could not go on since 2026-03-01 13:00 UTC"
    decision = decide(run, ResumeRequested(), NOW + 9 * HOUR)
    assert kinds(decision) == ["run_resumed", "run_waiting"]
    assert decision.run.wait == Wait(NOW + 9 * HOUR, NOW + 11 * HOUR)


def test_a_paused_run_is_not_waiting() -> None:
    run = play(lacking_trainers(), PauseRequested("lunch")).run
    assert (run.status, run.reason, run.wait) == ("paused", "lunch", None)
    run = play(paused(collecting("ab", quorum=2)), failed("a")).run
    assert (run.status, run.wait) == ("paused", None)


# -------------------------------------------------------------------- what counts for no wait


def test_time_without_a_coordinator_does_not_count() -> None:
    run = lacking_trainers()
    assert run.wait is not None
    decision = decide(run, CoordinatorReturned(5 * HOUR), NOW + 6 * HOUR)
    assert decision.run.wait == Wait(run.wait.since, run.wait.until + 5 * HOUR)
    assert record(decision, "deadline_moved").detail["absence_seconds"] == 5 * 3600
    late = decide(run, CoordinatorReturned(dt.timedelta(0)), NOW + 9 * DAY).run
    assert late.wait is not None
    assert late.wait.until > NOW + 9 * DAY, "sites have a minute to come back"


# -------------------------------------------------------------------- who missed a deadline


@pytest.mark.parametrize(
    ("silent", "done", "expected"),
    [
        (dt.timedelta(seconds=1), 0.4, "was training, 40 %"),
        (dt.timedelta(seconds=1), None, "was at work, and did not say how far it was"),
        (HOUR / 2, 0.4, "silent since 2026-03-01 12:30:00 UTC, when it was at 40 %"),
        (HOUR / 2, None, "silent since 2026-03-01 12:30:00 UTC"),
    ],
)
def test_who_was_training_is_told_apart_from_who_was_silent(
    silent: dt.timedelta, done: float | None, expected: str
) -> None:
    run = play(collecting("ab"), taken("a")).run
    deadline = current_round(run).deadline_at
    sightings = (Sighting("a", deadline - silent, done),)
    decision = decide(run, TimePassed(sightings), deadline)
    found = participant(decision.run, "a")
    assert found.reason == f"{expected}; nothing came until the deadline {deadline.isoformat()}"


def test_who_did_not_begin_was_heard_of_or_never() -> None:
    run = collecting("ab", quorum=2, max_attempts=1)
    deadline = current_round(run).deadline_at
    decision = decide(run, TimePassed((Sighting("a", deadline), Sighting("b", None))), deadline)
    reasons = [p.reason or "" for p in current_round(decision.run).participants]
    assert reasons[0].startswith("heard of at 2026-03-01 13:00:00 UTC, but it did not begin; nothing came")
    assert reasons[1].startswith("never heard of; nothing came")

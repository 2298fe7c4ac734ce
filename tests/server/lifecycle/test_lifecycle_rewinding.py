"""A run goes back to an earlier round, and on as if the later ones had never been."""

from __future__ import annotations

import pytest

from server.lifecycle.events import (
    AggregationFailed,
    AggregationFinished,
    FailureReported,
    RewindRequested,
    UpdateReceived,
)
from server.lifecycle.machine import decide
from server.lifecycle.state import Run
from server.lifecycle.views import next_attempt
from shared.problems import IllegalTransition, UpdateStale
from tests.helpers.lifecycle_story import (
    NOW,
    attempt_of,
    collecting,
    completed,
    current_round,
    enrolled,
    kinds,
    paused,
    play,
    record,
    stopped,
    uploaded,
)


def trained(run: Run, rounds: int = 1) -> Run:
    for _ in range(rounds):
        current = current_round(run)
        at = (current.number, current.attempt)
        delivered = (UpdateReceived(p.client, *at) for p in current.participants)
        run = play(run, *delivered, AggregationFinished(*at)).run
    return run


def drawn(run: Run, rounds: int) -> list[list[str]]:
    """Who takes part in so many rounds."""
    found = []
    for _ in range(rounds):
        found.append([p.client for p in current_round(run).participants])
        run = trained(run)
    return found


def test_the_open_attempt_is_abandoned_and_the_next_round_drawn_anew() -> None:
    run = trained(collecting("ab", rounds=9), 4)
    decision = decide(run, RewindRequested(2, "a liar"), NOW)
    assert kinds(decision) == ["round_abandoned", "run_rewound", "round_opened"]
    told = record(decision, "run_rewound")
    assert (told.round, told.detail) == (2, {"completed": 4, "reason": "a liar"})
    assert (decision.run.completed_rounds, attempt_of(decision.run)) == (2, (3, 2, "collecting"))
    (ended,) = decision.ended
    assert (ended.number, ended.attempt, ended.status) == (5, 1, "abandoned")


def test_a_paused_run_stays_paused() -> None:
    run = paused(trained(collecting("ab", rounds=9), 3))
    decision = decide(run, RewindRequested(0), NOW)
    assert kinds(decision) == ["round_abandoned", "run_rewound"]
    assert (decision.run.status, decision.run.completed_rounds, decision.run.round) == ("paused", 0, None)
    assert next_attempt(decision.run) == (1, 2)


def test_what_follows_draws_the_same_clients_as_before() -> None:
    run = collecting("abcdefgh", rounds=9, clients_per_round=3)
    first = drawn(run, 6)
    again = decide(trained(run, 6), RewindRequested(2), NOW).run
    assert drawn(again, 4) == first[2:]
    twice = decide(trained(again, 3), RewindRequested(1), NOW).run
    assert drawn(twice, 5) == first[1:]


def test_no_attempt_of_a_round_is_named_twice() -> None:
    run = collecting("ab", rounds=9, max_attempts=9)
    seen = {attempt_of(run)[:2]}
    for number in (3, 1, 2, 0, 1):
        while run.completed_rounds < 4:
            current = current_round(run)
            failed = (
                FailureReported(p.client, current.number, current.attempt, "x") for p in current.participants
            )
            run = trained(play(run, *failed).run)
            seen.add(attempt_of(run)[:2])
        run = decide(run, RewindRequested(number), NOW).run
        assert attempt_of(run)[:2] not in seen
        seen.add(attempt_of(run)[:2])


def test_attempts_until_a_pause_are_counted_anew() -> None:
    run = decide(trained(collecting("ab", rounds=9, max_attempts=2), 3), RewindRequested(1), NOW).run
    for attempt in (2, 3):
        assert (run.status, attempt_of(run)[:2]) == ("running", (2, attempt))
        current = current_round(run)
        run = play(
            run, *(FailureReported(p.client, 2, current.attempt, "x") for p in current.participants)
        ).run
    assert run.status == "paused"


def test_updates_and_aggregations_of_before_are_stale() -> None:
    run = trained(collecting("ab", rounds=9), 2)
    aggregating = play(run, uploaded("a", 3), uploaded("b", 3)).run
    back = decide(aggregating, RewindRequested(1), NOW).run
    with pytest.raises(UpdateStale):
        decide(back, uploaded("a", 3), NOW)
    for event in (AggregationFinished(3, 1), AggregationFailed(3, 1, "disk full")):
        with pytest.raises(IllegalTransition):
            decide(back, event, NOW)


def test_going_back_to_the_newest_round_draws_the_open_one_anew() -> None:
    run = decide(trained(collecting("ab", rounds=9), 2), RewindRequested(2), NOW).run
    assert attempt_of(run) == (3, 2, "collecting")


@pytest.mark.parametrize(
    ("run", "number"),
    [
        (trained(collecting("ab", rounds=9), 2), 3),
        (collecting("ab"), 1),
        (completed(collecting("ab")), 1),
        (stopped(trained(collecting("ab", rounds=9), 2)), 1),
        (enrolled("ab"), 0),
    ],
)
def test_a_run_goes_back_only_to_what_it_has_and_while_it_is_at_work(run: Run, number: int) -> None:
    with pytest.raises(IllegalTransition):
        decide(run, RewindRequested(number), NOW)

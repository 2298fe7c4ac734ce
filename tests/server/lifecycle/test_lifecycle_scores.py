"""Runs that go by their evaluators' scores: they wait for them, and end when nothing becomes better."""

from __future__ import annotations

from typing import Any

import pytest

from server.lifecycle.events import (
    AggregationFinished,
    ClientDeclined,
    ClientLeft,
    EnrolmentRefused,
    EvaluationReceived,
    PauseRequested,
    ResumeRequested,
    StartRequested,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Run
from server.lifecycle.views import find_standing, find_unscored, waiting_for
from shared.config import StopWhen
from tests.helpers.lifecycle_story import (
    NOW,
    attempt_of,
    evaluator,
    kinds,
    new_run,
    play,
    record,
    trainer,
    uploaded,
    woken,
)

PATIENT = StopWhen(metric="accuracy", patience=2)


def started(judges: str = "j", **policy: Any) -> Run:
    settings: dict[str, Any] = {"rounds": 9, "min_clients": 2, "stop_when": PATIENT}
    return play(new_run(**settings | policy), *map(evaluator, judges), *map(trainer, "ab")).run


def trained(run: Run) -> Decision:
    """The open round is completed."""
    number = run.completed_rounds + 1
    return play(run, uploaded("a", number), uploaded("b", number), AggregationFinished(number, 1))


def scored(run: Run, value: float | None, client: str = "j", examples: int = 50) -> Decision:
    return decide(run, EvaluationReceived(client, run.completed_rounds, "accuracy", value, examples), NOW)


def test_the_next_round_opens_with_the_score_of_the_last() -> None:
    after = trained(started())
    assert attempt_of(after.run) == (1, 1, "completed")
    assert woken(after) == ("j",)
    assert waiting_for(after.run, NOW) == "round 1: waiting for j to score its model"
    decision = scored(after.run, 0.5)
    assert kinds(decision) == ["round_opened"]
    assert attempt_of(decision.run) == (2, 1, "collecting")


def test_it_ends_when_nothing_becomes_better_for_as_long_as_it_is_patient() -> None:
    run = started()
    for value in (0.5, 0.7, 0.6):
        run = scored(trained(run).run, value).run
    decision = scored(trained(run).run, 0.7)
    assert (decision.run.status, decision.run.completed_rounds) == ("completed", 4)
    assert kinds(decision) == ["run_stopped_early", "run_completed"]
    assert record(decision, "run_stopped_early").detail == {
        "metric": "accuracy",
        "best_round": 2,
        "best": 0.7,
        "since": 2,
    }
    assert record(decision, "run_stopped_early").round == 4
    assert record(decision, "run_completed").detail == {"rounds": 4}
    assert woken(decision) == ("a", "b", "j")


def test_better_by_too_little_is_not_better() -> None:
    run = started(stop_when=StopWhen(patience=1, min_change=0.05))
    run = scored(trained(run).run, 0.5).run
    assert scored(trained(run).run, 0.54).run.status == "completed"
    assert scored(trained(run).run, 0.56).run.status == "running"


def test_a_score_that_is_no_number_is_not_better_and_none_at_all_never_stops() -> None:
    run = started(stop_when=StopWhen(patience=1))
    for _ in range(3):
        run = scored(trained(run).run, None).run
    assert run.status == "running"
    assert find_standing(run) is None
    run = scored(trained(run).run, 0.1).run
    assert scored(trained(run).run, None).run.status == "completed"


def test_keep_best_waits_at_the_end_only() -> None:
    run = trained(started(stop_when=None, keep="best", rounds=2)).run
    assert attempt_of(run) == (2, 1, "collecting")
    run = trained(run).run
    assert (run.status, find_unscored(run)) == ("running", 1)
    late = decide(run, EvaluationReceived("j", 1, "accuracy", 0.9, 50), NOW)
    assert (late.run.status, find_unscored(late.run)) == ("running", 2)
    decision = scored(late.run, 0.8)
    assert decision.run.status == "completed"
    assert record(decision, "run_completed").detail == {"rounds": 2, "kept_round": 1}


def test_rounds_that_are_not_evaluated_are_not_waited_for() -> None:
    run = trained(started(evaluate_every=2, rounds=3)).run
    assert attempt_of(run) == (2, 1, "collecting")
    run = trained(run).run
    assert attempt_of(run) == (2, 1, "completed")
    run = trained(scored(run, 0.5).run).run
    assert (run.status, find_unscored(run)) == ("running", 3), "the last one always is"


@pytest.mark.parametrize(("rule", "score"), [("weighted", 0.5), ("median", 0.6)])
def test_several_evaluators_are_one_by_the_runs_rule(rule: str, score: float) -> None:
    run = trained(started("jk", combine_scores=rule)).run
    half = scored(run, 0.4, "j", 30)
    assert kinds(half) == []
    both = scored(half.run, 0.8, "k", 10)
    assert kinds(both) == ["round_opened"]
    found = find_standing(both.run)
    assert found is not None
    assert found.best == pytest.approx(score)


def test_c4_an_evaluator_that_was_refused_decides_nothing() -> None:
    run = scored(trained(started("jk")).run, 1.0, "j", 2**53).run
    decision = decide(run, EnrolmentRefused("j", "a liar"), NOW)
    found = find_standing(scored(decision.run, 0.11, "k", 10).run)
    assert found is not None
    assert found.best == 0.11


@pytest.mark.parametrize("event", [ClientLeft("k", "enough"), ClientDeclined("k", "no test data")])
def test_an_evaluator_that_goes_is_not_waited_for(event: ClientLeft | ClientDeclined) -> None:
    run = scored(trained(started("jk")).run, 0.4).run
    assert attempt_of(run) == (1, 1, "completed")
    assert attempt_of(decide(run, event, NOW).run) == (2, 1, "collecting")


def test_with_the_only_evaluator_gone_the_run_goes_on_to_its_last_round() -> None:
    run = decide(trained(started(rounds=2)).run, ClientLeft("j", "enough"), NOW).run
    assert attempt_of(run) == (2, 1, "collecting")
    assert trained(run).run.status == "completed"


def test_it_starts_by_itself_with_an_evaluator_only() -> None:
    run = play(new_run(min_clients=2, stop_when=PATIENT), *map(trainer, "ab")).run
    assert run.status == "enrolling"
    assert "no evaluator yet" in waiting_for(run, NOW)
    assert decide(run, evaluator("j"), NOW).run.status == "running"
    assert decide(run, StartRequested(), NOW).run.status == "running"


def test_a_paused_run_opens_nothing_but_may_end() -> None:
    run = decide(trained(started(stop_when=StopWhen(patience=1))).run, PauseRequested(), NOW).run
    run = scored(run, 0.5).run
    assert attempt_of(run) == (1, 1, "completed")
    run = trained(decide(run, ResumeRequested(), NOW).run).run
    run = decide(run, PauseRequested(), NOW).run
    assert scored(run, 0.5).run.status == "completed"


def test_the_first_score_stands_and_a_run_that_is_over_takes_none() -> None:
    run = trained(started("jk")).run
    once = scored(run, 0.4).run
    assert scored(once, 0.9).run == once
    over = trained(started(stop_when=None, rounds=1)).run
    assert scored(over, 0.9) == Decision(over, ())


def test_what_a_trainer_says_of_its_own_model_decides_nothing() -> None:
    run = trained(started()).run
    assert scored(run, 0.9, "a") == Decision(run, ())


def test_the_initial_models_score_decides_nothing() -> None:
    run = decide(started(), EvaluationReceived("j", 0, "accuracy", 0.99, 50), NOW).run
    run = scored(trained(run).run, 0.5).run
    found = find_standing(run)
    assert found is not None
    assert found.best_round == 1

"""Pausing, resuming, stopping; which event is possible when; the draw; what the page says."""

from __future__ import annotations

import datetime as dt
import random
from typing import get_args

import pytest
from pydantic import ValidationError

from server.lifecycle.draft import Draft
from server.lifecycle.effects import KINDS, Record, Wake
from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFailed,
    AggregationFinished,
    AssignmentTaken,
    ChangeRequested,
    ClientDeclined,
    ClientLeft,
    ClientSeen,
    CoordinatorReturned,
    DiscrepancyReceived,
    EnrolmentApproved,
    EnrolmentRefused,
    EvaluationReceived,
    Event,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    RewindRequested,
    StartRequested,
    StepAnswered,
    StopRequested,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import decide
from server.lifecycle.sampling import draw
from server.lifecycle.state import Policy, Run
from server.lifecycle.tables import ALLOWED
from server.lifecycle.views import relative_sizes, waiting_for
from shared.config import RunConfig
from shared.problems import Conflict, IllegalTransition
from shared.schemas import RunStatus
from shared.secure.messages import Agreement
from tests.helpers.lifecycle_story import (
    HOUR,
    NOW,
    after_deadline,
    aggregating,
    attempt_of,
    collecting,
    completed,
    current_round,
    enrolled,
    evaluator,
    failed,
    kinds,
    new_run,
    participants,
    paused,
    play,
    stopped,
    trainer,
    uploaded,
    woken,
)


def test_pausing_leaves_the_open_round_alone_and_opens_no_new_one() -> None:
    decision = play(collecting("ab"), PauseRequested("lunch"))
    assert (decision.run.status, decision.run.reason) == ("paused", "lunch")
    assert decision.effects == (Record("run_paused", detail={"reason": "lunch"}),)
    run = play(decision.run, uploaded("a"), uploaded("b")).run
    assert attempt_of(run) == (1, 1, "aggregating")
    decision = play(run, AggregationFinished(1, 1))
    assert kinds(decision) == ["round_completed"]
    assert (decision.run.status, attempt_of(decision.run)) == ("paused", (1, 1, "completed"))
    decision = play(decision.run, ResumeRequested())
    assert kinds(decision) == ["run_resumed", "round_opened"]
    assert (decision.run.status, decision.run.reason) == ("running", None)
    assert attempt_of(decision.run) == (2, 1, "collecting")


@pytest.mark.parametrize("run", [collecting("ab"), aggregating("ab")])
def test_resuming_leaves_an_open_round_alone(run: Run) -> None:
    decision = play(paused(run), ResumeRequested())
    assert decision.run == run
    assert kinds(decision) == ["run_resumed"]


def test_the_last_round_ends_a_paused_run() -> None:
    decision = play(paused(aggregating("ab", rounds=1)), AggregationFinished(1, 1))
    assert (decision.run.status, decision.run.reason) == ("completed", None)


@pytest.mark.parametrize("run", [collecting("ab"), aggregating("ab"), paused(collecting("ab"))])
def test_stopping_abandons_the_open_round_and_tells_everybody(run: Run) -> None:
    run = play(run, evaluator("e"), trainer("late"), ClientLeft("late", "moved")).run
    before = participants(run)
    decision = play(run, StopRequested("enough"))
    assert (decision.run.status, decision.run.reason) == ("stopped", "enough")
    assert attempt_of(decision.run) == (1, 1, "abandoned")
    assert current_round(decision.run).reason == "run stopped"
    assert participants(decision.run) == before
    assert kinds(decision) == ["run_stopped", "round_abandoned"]
    assert woken(decision) == ("a", "b", "e")


def test_stopping_between_rounds_and_before_the_start() -> None:
    between = play(paused(aggregating("ab")), AggregationFinished(1, 1), StopRequested()).run
    assert (between.status, between.reason, attempt_of(between)) == ("stopped", None, (1, 1, "completed"))
    decision = play(enrolled("ab"), StopRequested(""))
    assert decision.run.status == "stopped"
    assert decision.effects == (Record("run_stopped", detail={"reason": ""}), Wake(("a", "b")))


# -------------------------------------------------------------------- which event when

RUNS = {
    "E": enrolled("ab"),
    "R": collecting("ab"),
    "P": paused(collecting("ab")),
    "C": completed(collecting("ab")),
    "S": stopped(collecting("ab")),
}
POSSIBLE: list[tuple[Event, str]] = [
    (trainer("z"), "ERP"),
    (EnrolmentApproved("a", 10), "ERP"),
    (EnrolmentRefused("a", "unknown"), "ERP"),
    (ClientDeclined("a", "no"), "ERPCS"),
    (ClientLeft("a", "moved"), "ERPCS"),
    (ClientSeen("a"), "ERPCS"),
    (DiscrepancyReceived("a"), "ERP"),
    (StartRequested(), "E"),
    (PauseRequested(), "R"),
    (ResumeRequested(), "P"),
    (StopRequested(), "ERP"),
    (RewindRequested(0), "RP"),
    (ChangeRequested(collecting("ab").policy, ()), "ERPCS"),
    (AssignmentTaken("a", 1, 1), "RP"),
    (UpdateReceived("a", 1, 1), "RP"),
    (StepAnswered("a", 1, 1, Agreement(index=0, signature=bytes(64))), "RP"),
    (FailureReported("a", 1, 1, "x"), "RP"),
    (TimePassed(), "ERPCS"),
    (CoordinatorReturned(dt.timedelta(hours=1)), "ERPCS"),
    (EvaluationReceived("e", 1, "accuracy", 0.5, 10), "ERPCS"),
    (AggregationFinished(1, 1), "RP"),
    (AggregationDelayed(1, 1, "x"), "RP"),
    (AggregationFailed(1, 1, "x"), "RP"),
]


def test_every_event_has_its_row() -> None:
    assert [type(event) for event, _ in POSSIBLE] == list(get_args(Event)) == list(ALLOWED)


@pytest.mark.parametrize(("event", "statuses"), POSSIBLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("status", RUNS)
def test_events_are_possible_in_these_statuses_only(event: Event, statuses: str, status: str) -> None:
    run = RUNS[status]
    assert (run.status in ALLOWED[type(event)]) == (status in statuses)
    if status in statuses:
        return
    with pytest.raises(Conflict) as refusal:
        decide(run, event, NOW)
    extra = refusal.value.extra
    assert (extra["event"], extra["state"]) == (type(event).__name__, run.status)
    assert extra["event"] not in extra["allowed"]
    assert "is not possible" in refusal.value.detail
    assert "Requested" not in refusal.value.detail, "people read it"
    assert str(run.status) in refusal.value.detail
    assert refusal.value.hint


def test_a_refused_control_request_says_what_would_be_possible() -> None:
    with pytest.raises(IllegalTransition) as refusal:
        decide(collecting("ab"), StartRequested(), NOW)
    assert refusal.value.detail == "Starting is not possible: run 'r' is running."
    assert refusal.value.hint.startswith("Possible while the run is running: pausing, stopping, ")
    assert "PauseRequested" in refusal.value.extra["allowed"], "for programs"


def test_a_move_outside_the_tables_is_a_bug_and_stops() -> None:
    with pytest.raises(RuntimeError, match="TimePassed must not lead from"):
        Draft(collecting("ab"), TimePassed(), NOW).move_run(RunStatus.STOPPED)
    with pytest.raises(RuntimeError, match="has no round"):
        Draft(enrolled("ab"), TimePassed(), NOW).complete_round()


def test_the_kinds_of_records_are_distinct_words() -> None:
    assert len(set(KINDS)) == len(KINDS)
    assert all(kind.replace("_", "").isalpha() and kind.islower() for kind in KINDS)


# -------------------------------------------------------------------- the draw


def test_the_draw_depends_on_seed_round_and_attempt_alone() -> None:
    def drawn(seed: int = 5, number: int = 1, attempt: int = 1) -> tuple[int, ...]:
        return draw(range(50), 10, seed=seed, number=number, attempt=attempt)

    assert drawn() == draw(reversed(range(50)), 10, seed=5, number=1, attempt=1)
    assert len({drawn(), drawn(seed=6), drawn(number=2), drawn(attempt=2)}) == 4
    assert list(drawn()) == sorted(set(drawn()))
    assert len(drawn()) == 10


def test_the_draw_is_pinned() -> None:
    # written down from the first run: a change here changes every experiment with clients_per_round
    assert draw(range(10), 3, seed=0, number=1, attempt=1) == (0, 3, 7)


def test_the_draws_of_the_release() -> None:
    def drawn(number: int, attempt: int = 1, ready: range = range(50)) -> tuple[int, ...]:
        return draw(ready, 10, seed=0, number=number, attempt=attempt, draws="feddisco-release")

    # all published counts of rounds to 55 % with Disco are 20, 24 or 27: the rounds (from 0) whose draw has
    # 5, 4 and 4 of the ten unbiased clients, which are numbered last
    assert [sum(index >= 40 for index in drawn(number + 1)) for number in (20, 24, 27)] == [5, 4, 4]
    generator = random.Random(0)
    assert [drawn(number) for number in range(1, 101)] == [
        tuple(sorted(generator.sample(range(50), 10))) for _ in range(100)
    ]
    assert drawn(7, attempt=2) == draw(range(50), 10, seed=0, number=7, attempt=2)
    moved = range(100, 150)  # positions among those ready are drawn
    assert [index - 100 for index in drawn(3, ready=moved)] == list(drawn(3))
    assert draw(range(9), 10, seed=0, number=1, attempt=1, draws="feddisco-release") == tuple(range(9))


def test_a_run_draws_as_its_configuration_says() -> None:
    config = RunConfig(name="r", min_clients=6, clients_per_round=2, draws="feddisco-release")
    run = collecting("abcdef", clients_per_round=2, draws=Policy.of(config).draws)
    expected = draw(range(6), 2, seed=0, number=1, attempt=1, draws="feddisco-release")
    assert tuple(participant.index for participant in current_round(run).participants) == expected
    assert expected != draw(range(6), 2, seed=0, number=1, attempt=1)
    with pytest.raises(ValidationError, match="10000 rounds at most, received 10001"):
        RunConfig(name="r", rounds=10_001, draws="feddisco-release")


def test_a_round_takes_as_many_as_it_draws_and_all_if_fewer_are_ready() -> None:
    run = collecting("abcdef", clients_per_round=2, seed=3)
    expected = draw(range(6), 2, seed=3, number=1, attempt=1)
    assert [p.index for p in current_round(run).participants] == list(expected)
    run = play(run, *(ClientLeft(c, "moved") for c in "bcdef" if c not in participants(run))).run
    names = list(participants(run))
    assert len(names) == 2
    run = play(run, uploaded(names[0]), ClientLeft(names[1], ""), AggregationFinished(1, 1)).run
    assert attempt_of(run)[0] == 2
    assert len(participants(run)) <= 2


def test_everybody_is_drawn_in_the_long_run() -> None:
    counts = [0] * 10
    for number in range(1, 1001):
        for index in draw(range(10), 3, seed=1, number=number, attempt=1):
            counts[index] += 1
    # binomial(1000, 0.3): standard deviation 14.5; five of them
    assert all(abs(count - 300) < 73 for count in counts)


# -------------------------------------------------------------------- what can be read off a run


def test_the_policy_comes_from_the_configuration() -> None:
    policy = Policy.of(RunConfig(name="r", rounds=7, quorum=2, round_deadline_seconds=90, seed=4))
    assert (policy.rounds, policy.quorum, policy.seed) == (7, 2, 4)
    assert policy.deadline == dt.timedelta(seconds=90)
    assert policy.needs_discrepancy  # Disco weighting is the default


def test_relative_sizes_have_mean_one_over_the_trainers_present() -> None:
    events = (trainer("a", 10), trainer("b", 30), trainer("z", 0), trainer("left", 99), evaluator("e"))
    run = play(new_run(min_clients=9), *events, ClientLeft("left", "")).run
    assert relative_sizes(run) == {"a": 0.5, "b": 1.5}  # N n_k / sum: 2 * 10 / 40 and 2 * 30 / 40
    assert relative_sizes(new_run()) == {}
    away = after_deadline(play(collecting("ab"), uploaded("a")).run).run
    assert relative_sizes(away) == {"a": 1.0, "b": 1.0}


_LATE = play(new_run(needs_discrepancy=True), trainer("a"), trainer("b"), DiscrepancyReceived("a")).run
_MANY = collecting("abcdefgh")
_TOO_FEW = after_deadline(collecting("ab", quorum=2)).run
_WAITS = "; since 13:00 UTC, pauses at 2026-03-02 13:00 UTC"


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (new_run(), "0 of 3 trainers are ready; the run starts with 3"),
        (_LATE, "1 of 3 trainers is ready; the run starts with 3; no discrepancy yet from b"),
        (enrolled("ab"), "2 trainers are ready; the run waits to be started"),
        (
            play(new_run(min_clients=1), trainer("a", 0)).run,
            "0 of 1 trainer are ready; the run starts with 1",
        ),
        (collecting("ab"), "round 1: waiting for a, b until 13:00 UTC"),
        (play(collecting("ab"), failed("a")).run, "round 1: waiting for b until 13:00 UTC"),
        (_MANY, "round 1: waiting for a, b, c, d, e and 3 more until 13:00 UTC"),
        (collecting("a", deadline=24 * HOUR), "round 1: waiting for a until 2026-03-02 12:00 UTC"),
        (aggregating("a"), "round 1: 1 update is being aggregated"),
        (aggregating("ab"), "round 1: 2 updates are being aggregated"),
        (_TOO_FEW, "round 1: 0 trainers are ready, 2 needed; away: a, b" + _WAITS),
        (play(_TOO_FEW, ClientSeen("b")).run, "round 1: 1 trainer is ready, 2 needed; away: a" + _WAITS),
        (paused(collecting("a")), "paused: lunch; round 1: waiting for a until 13:00 UTC"),
        (play(_TOO_FEW, PauseRequested()).run, "paused until it is resumed"),
        (stopped(enrolled("a")), "stopped: enough"),
        (completed(collecting("a")), "nothing, the run is completed"),
    ],
)
def test_one_sentence_says_what_the_run_waits_for(run: Run, sentence: str) -> None:
    assert waiting_for(run, NOW) == sentence


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (_LATE, "1 of 3 trainers is ready; the run starts with 3; no discrepancy yet from 1 client"),
        (collecting("ab"), "round 1: waiting for this client and 1 other until 13:00 UTC"),
        (play(collecting("ab"), failed("b")).run, "round 1: waiting for this client until 13:00 UTC"),
        (_MANY, "round 1: waiting for this client and 7 others until 13:00 UTC"),
        (_TOO_FEW, "round 1: 0 trainers are ready, 2 needed; away: this client and 1 other" + _WAITS),
        (paused(collecting("a")), "paused: lunch; round 1: waiting for this client until 13:00 UTC"),
        (stopped(enrolled("a")), "stopped: enough"),
    ],
)
def test_a_client_reads_how_many_are_waited_for_and_not_who(run: Run, sentence: str) -> None:
    assert waiting_for(run, NOW, reader="a") == sentence


def test_the_sentence_names_who_has_not_sent_its_discrepancy() -> None:
    run = after_deadline(collecting("ab", quorum=2, needs_discrepancy=True)).run
    run = play(run, trainer("c"), ClientSeen("a")).run
    said = "round 1: 1 trainer is ready, 2 needed; away: b; no discrepancy yet: c"
    assert waiting_for(run, NOW) == said + _WAITS

"""Secure rounds in the state machine: steps, drop-outs at each of them, and what is below the threshold."""

from __future__ import annotations

import itertools

import pytest

from server.lifecycle.effects import Aggregate, Record, Wake
from server.lifecycle.events import (
    AggregationFailed,
    AggregationFinished,
    ClientEnrolled,
    ClientLeft,
    ClientSeen,
    FailureReported,
    StepAnswered,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import decide
from server.lifecycle.views import unfinished_participants, waiting_for
from shared.problems import IllegalTransition, NotAParticipant, UpdateLate, UpdateStale
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus, SumTotals
from shared.secure.coordinator import Phase
from tests.helpers.lifecycle_story import NOW, kinds
from tests.helpers.secure_story import NAMES, SecureStory

PHASES = list(Phase)


def status(story: SecureStory, name: str) -> ParticipantStatus:
    found = story.round.participant(name)
    assert found is not None
    return found.status


def test_a_secure_run_begins_with_the_sum_over_all_trainers() -> None:
    story = SecureStory(clients_per_round=3)
    assert (story.run.status, story.round.number, story.secure.phase) == (RunStatus.RUNNING, 0, "advertise")
    assert [p.client for p in story.round.participants] == list(NAMES)
    assert waiting_for(story.run, NOW).startswith(
        "the sum over all trainers: waiting for the public keys of a"
    )
    story.sum_up()
    assert (story.run.completed_rounds, story.round.number) == (0, 1)
    assert story.run.totals == SumTotals(clients=5, examples=100, discrepancy=1.5)
    assert len(story.round.participants) == 3
    assert story.secure.attempt.round == 1


def test_every_step_is_recorded_wakes_those_who_are_asked_and_has_a_deadline() -> None:
    story = SecureStory()
    for phase, after in itertools.pairwise(PHASES):
        assert story.secure.phase is phase
        for name in NAMES[:-1]:
            story.send(name)
        decision = story.send(NAMES[-1])
        opened = next(e for e in decision.effects if isinstance(e, Record) and e.kind == "step_opened")
        assert (opened.detail["step"], opened.detail["clients"]) == (after, 5)
        assert Wake(tuple(NAMES)) in decision.effects
        assert story.round.status is RoundStatus.COLLECTING
        limit = story.run.policy.deadline if after is Phase.UPLOAD else story.run.policy.step_deadline
        assert story.round.deadline_at == NOW + limit
    for name in NAMES[:-1]:
        assert not any(isinstance(e, Aggregate) for e in story.send(name).effects)
    assert Aggregate(0, 1) in story.send(NAMES[-1]).effects
    assert story.round.status is RoundStatus.AGGREGATING


@pytest.mark.parametrize("phase", PHASES)
def test_one_of_five_may_be_gone_from_any_step_on(phase: Phase) -> None:
    story = SecureStory()
    story.to(phase)
    story.step(NAMES[1:], late=True)
    for _ in PHASES[PHASES.index(phase) + 1 :]:
        story.step(NAMES[1:])
    assert story.round.status is RoundStatus.AGGREGATING
    is_in_sum = phase in (Phase.AGREE, Phase.UNMASK)
    assert status(story, "a") is (ParticipantStatus.UPLOADED if is_in_sum else ParticipantStatus.TIMED_OUT)
    assert (0 in story.secure.uploaded) == is_in_sum
    gone = story.run.enrolment("a")
    assert gone is not None
    assert gone.status is EnrolmentStatus.AWAY


@pytest.mark.parametrize("phase", PHASES)
def test_below_the_threshold_nothing_is_unmasked_and_fresh_keys_are_asked_for(phase: Phase) -> None:
    story = SecureStory("abcd")
    story.to(phase, "abcd")
    before = story.secure
    story.step("ab", late=True)  # three of four are needed
    assert (story.run.round, story.run.status) == (story.round, RunStatus.WAITING)
    assert story.round.status is RoundStatus.ABANDONED
    assert "needed" in (story.round.reason or "")
    assert len(story.secure.disclosures) <= 2
    story.do(ClientSeen("c"), ClientSeen("d"))
    assert (story.round.number, story.round.attempt, story.secure.phase) == (0, 2, Phase.ADVERTISE)
    assert story.secure.attempt != before.attempt
    assert not story.secure.advertisements


@pytest.mark.parametrize("phase", [Phase.AGREE, Phase.UNMASK])
def test_who_refuses_after_its_upload_stays_in_the_sum_and_is_not_waited_for(phase: Phase) -> None:
    story = SecureStory()
    story.to(phase)
    decision = story.do(FailureReported("b", 0, 1, "the coordinator names another set"))
    assert kinds(decision) == ["failure_reported"]
    assert status(story, "b") is ParticipantStatus.UPLOADED
    assert "b" not in [p.client for p in unfinished_participants(story.round)]
    story.do(ClientLeft("c", "left"))
    assert [p.client for p in unfinished_participants(story.round)] == ["a", "d", "e"]
    assert 1 in story.secure.uploaded


def test_who_leaves_before_its_upload_drops_out() -> None:
    story = SecureStory()
    story.to(Phase.UPLOAD)
    story.do(ClientLeft("a", "left"))
    assert status(story, "a") is ParticipantStatus.FAILED
    story.step(NAMES[1:])
    assert story.secure.phase is Phase.AGREE
    assert story.secure.uploaded == (1, 2, 3, 4)


def test_the_same_answer_again_changes_nothing_and_another_is_refused() -> None:
    story = SecureStory()
    answer = story.answer("a")
    story.do(StepAnswered("a", 0, 1, answer))
    assert story.do(StepAnswered("a", 0, 1, answer)).effects == ()
    with pytest.raises(IllegalTransition, match="has sent something else for this step before"):
        story.send("a")  # begins anew, with other keys
    with pytest.raises(IllegalTransition, match="in another client's name"):
        story.do(StepAnswered("b", 0, 1, answer))
    with pytest.raises(UpdateStale):
        story.do(StepAnswered("a", 0, 2, answer))
    with pytest.raises(NotAParticipant):
        story.do(StepAnswered("z", 0, 1, answer))


def test_an_answer_after_its_step_is_taken_for_known_or_late() -> None:
    story = SecureStory()
    answer = story.answer("a")
    story.do(StepAnswered("a", 0, 1, answer))
    story.step(NAMES[2:], late=True)  # b is late
    assert story.secure.phase is Phase.SHARE
    assert story.do(StepAnswered("a", 0, 1, answer)).effects == (), "its answer was lost"
    with pytest.raises(UpdateLate):
        story.do(StepAnswered("b", 0, 1, answer.model_copy(update={"index": 1})))
    with pytest.raises(IllegalTransition, match="not waited for"):
        story.do(UpdateReceived("a", 0, 1))


def test_trainers_tell_no_sizes_and_have_a_key() -> None:
    story = SecureStory("abc", autostart=False)
    sized = ClientEnrolled("x", Role.TRAINER, 10, identity="ab" * 32)
    keyless = ClientEnrolled("y", Role.TRAINER, 0)
    for event, why in ((sized, "only the sum"), (keyless, "without an identity key")):
        story.do(event)
        found = story.run.enrolment(event.client)
        assert found is not None
        assert found.status is EnrolmentStatus.REFUSED
        assert why in (found.reason or "")


def test_a_sum_that_cannot_be_unmasked_is_drawn_anew() -> None:
    story = SecureStory()
    story.to(Phase.UNMASK)
    story.step(NAMES)
    decision = story.do(AggregationFailed(0, 1, "the shares of client 2's seed do not give the seed"))
    assert "round_abandoned" in kinds(decision)
    assert (story.round.number, story.round.attempt, story.secure.phase) == (0, 2, Phase.ADVERTISE)


def test_two_trainers_are_too_few_for_any_sum() -> None:
    story = SecureStory("abc", quorum=1)
    story.step("ab", late=True)
    assert story.round.status is RoundStatus.ABANDONED
    assert waiting_for(story.run, NOW).startswith("the sum over all trainers: 2 trainers are ready, 3 needed")


def test_the_deadline_of_a_step_is_looked_at_like_any_other() -> None:
    story = SecureStory()
    assert decide(story.run, TimePassed(), NOW).run == story.run
    story.sum_up()
    story.to(Phase.UNMASK)
    story.step(NAMES)
    story.do(AggregationFinished(1, 1))
    assert (story.run.completed_rounds, story.round.number) == (1, 2)

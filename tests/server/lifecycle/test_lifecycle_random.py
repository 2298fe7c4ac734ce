"""Random events: whatever happens in whatever order, the rules hold and the run can end."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.lifecycle.effects import KINDS, Aggregate, Record, Wake
from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFailed,
    AggregationFinished,
    AssignmentTaken,
    ChangeRequested,
    ClientDeclined,
    ClientEnrolled,
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
    StopRequested,
    TimePassed,
    UpdateReceived,
)
from server.lifecycle.machine import Decision, decide
from server.lifecycle.state import Enrolment, Round, Run
from server.lifecycle.views import (
    evaluators,
    find_standing,
    find_unscored,
    is_best_reached,
    ready_trainers,
    relative_sizes,
    waiting_for,
)
from shared.config import Participants, StopWhen
from shared.problems import Conflict
from shared.schemas import Role
from tests.helpers.lifecycle_story import NOW, collecting, new_run, play, trainer

# DESIGN section 5, written down a second time: the machine's own tables are not asked
RUN_GRAPH = {
    "enrolling": {"running", "stopped"},
    "running": {"waiting", "paused", "completed", "stopped"},
    "waiting": {"running", "paused", "completed", "stopped"},
    "paused": {"running", "waiting", "completed", "stopped"},
    "completed": set[str](),
    "stopped": set[str](),
}
ROUND_GRAPH = {
    "collecting": {"aggregating", "abandoned"},
    "aggregating": {"completed", "abandoned"},
    "completed": set[str](),
    "abandoned": set[str](),
}
PARTICIPANT_GRAPH = {
    "invited": {"training", "uploaded", "failed", "timed_out"},
    "training": {"uploaded", "failed", "timed_out"},
    "uploaded": {"aggregated", "rejected"},
    "aggregated": set[str](),
    "failed": set[str](),
    "timed_out": set[str](),
    "rejected": set[str](),
}
CLIENTS = st.sampled_from(["a", "b", "c", "d", "e"])
SHIFTS = st.sampled_from([0, 0, 0, 0, 0, 1, -1])


class AnyOrder(RuleBasedStateMachine):
    """Holds a run, gives it events that may or may not be possible, and looks at what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.run = self.first()
        self.now = NOW

    def first(self) -> Run:
        """In its first round: three of four trainers are drawn, two have to deliver."""
        return collecting("abcd", rounds=3, quorum=2, max_attempts=2, clients_per_round=3)

    # ------------------------------------------------------------ the shell

    def give(self, event: Event) -> Decision | None:
        before = self.run
        try:
            decision = decide(before, event, self.now)
        except Conflict as refusal:
            check_refusal(before, event, refusal)
            return None
        check_step(before, event, decision)
        assert decide(before, event, self.now) == decision
        self.run = decision.run
        return decision

    def aim(self, number_shift: int, attempt_shift: int) -> tuple[int, int]:
        """(round, attempt), mostly the current one."""
        current = self.run.round
        number, attempt = (current.number, current.attempt) if current else (1, 1)
        return number + number_shift, attempt + attempt_shift

    # ------------------------------------------------------------ events

    @rule(
        client=CLIENTS,
        examples=st.sampled_from([0, 5, 5, 5]),
        role=st.sampled_from([Role.TRAINER, Role.TRAINER, Role.TRAINER, Role.EVALUATOR]),
        index=st.sampled_from([None, None, 0, 1, 6]),
    )
    def enrol(self, client: str, examples: int, role: Role, index: int | None) -> None:
        self.give(ClientEnrolled(client, role, examples, index))

    @rule(client=CLIENTS, examples=st.sampled_from([5, 5, 6]))
    def approve(self, client: str, examples: int) -> None:
        self.give(EnrolmentApproved(client, examples))

    @rule(client=CLIENTS)
    def refuse(self, client: str) -> None:
        self.give(EnrolmentRefused(client, "not from here"))

    @rule(client=CLIENTS, kind=st.sampled_from([DiscrepancyReceived, ClientSeen]))
    def show_up(self, client: str, kind: type[DiscrepancyReceived | ClientSeen]) -> None:
        self.give(kind(client))

    @rule(client=CLIENTS, kind=st.sampled_from([ClientDeclined, ClientLeft]))
    def go(self, client: str, kind: type[ClientDeclined | ClientLeft]) -> None:
        self.give(kind(client, "had enough"))

    @rule(kind=st.sampled_from([StartRequested, PauseRequested, ResumeRequested, ResumeRequested]))
    def control(self, kind: type[StartRequested | PauseRequested | ResumeRequested]) -> None:
        self.give(kind())

    @precondition(lambda self: self.run.completed_rounds > 0)
    @rule()
    def stop(self) -> None:
        self.give(StopRequested("enough"))

    @precondition(lambda self: self.run.completed_rounds > 0)
    @rule(back=st.integers(0, 3))
    def go_back(self, back: int) -> None:
        self.give(RewindRequested(max(self.run.completed_rounds - back, 0), "spoilt"))

    @rule(more=st.integers(-1, 1), quorum=st.integers(1, 3), minutes=st.sampled_from([1, 60, 90]))
    def change(self, more: int, quorum: int, minutes: int) -> None:
        old, current = self.run.policy, self.run.round
        is_closed = current is not None and current.status == "aggregating"  # by the quorum it had then
        policy = replace(
            old,
            rounds=max(old.rounds + more, 1),
            quorum=old.quorum if is_closed else quorum,
            deadline=dt.timedelta(minutes=minutes),
        )
        self.give(ChangeRequested(policy, (("rounds", old.rounds, policy.rounds),)))

    @rule(client=CLIENTS, number=SHIFTS, attempt=SHIFTS)
    def take(self, client: str, number: int, attempt: int) -> None:
        self.give(AssignmentTaken(client, *self.aim(number, attempt)))

    @rule(client=CLIENTS, number=SHIFTS, attempt=SHIFTS)
    def upload(self, client: str, number: int, attempt: int) -> None:
        self.give(UpdateReceived(client, *self.aim(number, attempt)))

    @rule(client=CLIENTS, number=SHIFTS, attempt=SHIFTS)
    def fail(self, client: str, number: int, attempt: int) -> None:
        self.give(FailureReported(client, *self.aim(number, attempt), "out of memory"))

    @rule(how_many=st.integers(0, 3))
    def deliver(self, how_many: int) -> None:
        """Some that take part do what they are asked for (random uploads alone rarely fill a round)."""
        if self.run.round is not None:
            for participant in waited_for(self.run.round)[:how_many]:
                self.give(UpdateReceived(participant, *self.aim(0, 0)))

    @rule(minutes=st.sampled_from([1, 30, 61]))
    def wait(self, minutes: int) -> None:
        self.now += dt.timedelta(minutes=minutes)
        self.give(TimePassed())

    @rule(minutes=st.sampled_from([0, 1, 61]))
    def be_away(self, minutes: int) -> None:
        absence = dt.timedelta(minutes=minutes)
        self.now += absence
        self.give(CoordinatorReturned(absence))
        if self.run.round is not None and self.run.round.status == "collecting":
            assert self.run.round.deadline_at > self.now

    @rule(attempt=SHIFTS, excluded=st.sampled_from([(), ("a",), ("b", "c")]), weightless=st.booleans())
    def aggregate(self, attempt: int, excluded: tuple[str, ...], weightless: bool) -> None:
        reasons = tuple((client, "no examples") for client in excluded)
        self.give(AggregationFinished(*self.aim(0, attempt), reasons, "all zero" if weightless else None))

    @rule(reason=st.sampled_from(["disk full", "an update is missing"]))
    def delay(self, reason: str) -> None:
        self.give(AggregationDelayed(*self.aim(0, 0), reason))

    @precondition(lambda self: self.run.round is not None and self.run.round.status == "aggregating")
    @rule(well=st.booleans())
    def finish(self, well: bool) -> None:
        finished = AggregationFinished(*self.aim(0, 0))
        self.give(finished if well else AggregationFailed(*self.aim(0, 0), "disk full"))

    # ------------------------------------------------------------ what always holds

    @invariant()
    def a_running_run_works_and_one_that_cannot_is_waiting(self) -> None:
        run = self.run
        if run.status == "running" and not is_open(run.round):
            assert find_unscored(run) is not None
        if run.status == "running" and is_open(run.round):
            assert not is_stuck(run)
        if run.status == "waiting":
            unscored = find_unscored(run) is not None
            few = len(ready_trainers(run)) < run.policy.quorum
            assert is_stuck(run) if is_open(run.round) else unscored or few
            assert run.reason
        is_to_end = run.status == "waiting" or (run.status == "running" and not is_open(run.round))
        assert (run.wait is not None) == is_to_end
        if run.status == "enrolling":
            assert run.round is None
        if run.status in ("completed", "stopped"):
            assert not is_open(run.round)

    @invariant()
    def an_open_round_can_still_go_on(self) -> None:
        current = self.run.round
        if current is not None and current.status == "collecting":
            assert waited_for(current)
        if current is not None and current.status == "aggregating":
            assert not waited_for(current)
            uploads = sum(p.status == "uploaded" for p in current.participants)
            assert uploads >= self.run.policy.quorum

    @invariant()
    def indexes_are_unique_and_every_trainer_of_a_started_run_has_one(self) -> None:
        indexes = [e.index for e in self.run.enrolments if e.index is not None]
        assert len(set(indexes)) == len(indexes)
        if self.run.status in ("running", "waiting", "paused"):
            assert all(e.index is not None for e in self.run.enrolments if is_present(e, Role.TRAINER))
        if self.run.round is not None:
            order = [p.index for p in self.run.round.participants]
            assert order == sorted(order)

    @invariant()
    def who_is_not_admitted_has_no_part(self) -> None:
        out = {e.client for e in self.run.enrolments if e.status in ("refused", "awaiting_approval")}
        assert out.isdisjoint(relative_sizes(self.run))
        assert all(e.examples > 0 for e in self.run.enrolments if is_present(e, Role.TRAINER))
        if self.run.round is not None and self.run.round.status == "collecting":
            assert out.isdisjoint(waited_for(self.run.round))

    @invariant()
    def what_is_read_off_a_run_makes_sense(self) -> None:
        assert waiting_for(self.run, self.now)
        sizes = relative_sizes(self.run).values()
        assert not sizes or abs(sum(sizes) / len(sizes) - 1) < 1e-12

    def teardown(self) -> None:
        """From wherever we are: if enough trainers come and answer, the run ends."""
        if not self.run.status.is_terminal:
            self.run_to_the_end()
            assert self.run.status == "completed"
            assert self.run.completed_rounds == self.run.policy.rounds or is_best_reached(
                self.run, find_standing(self.run)
            )

    def run_to_the_end(self) -> None:
        for client in ("x", "y", "z"):
            self.give(ClientEnrolled(client, Role.TRAINER, 5))
        for client, examples in [(e.client, e.examples) for e in self.run.enrolments]:
            self.give(EnrolmentApproved(client, examples))
            self.give(DiscrepancyReceived(client))
            self.give(ClientSeen(client))
        self.give(StartRequested())
        for _ in range(self.run.policy.rounds + 1):  # one attempt may have failed beforehand
            self.give(ResumeRequested())
            self.deliver(9)
            self.give(AggregationFinished(*self.aim(0, 0)))
            self.score_all(0.5)
            if self.run.status.is_terminal:
                return

    def score_all(self, value: float | None) -> None:
        """The evaluators catch up."""
        for number in range(1, self.run.completed_rounds + 1):
            for client in evaluators(self.run):
                self.give(EvaluationReceived(client, number, "accuracy", value, 50))


# -------------------------------------------------------------------- one step


def check_step(before: Run, event: Event, decision: Decision) -> None:
    """The graphs are respected, and every change leaves a record."""
    after = decision.run
    assert after.status == before.status or after.status in RUN_GRAPH[before.status]
    assert after.policy == (event.policy if isinstance(event, ChangeRequested) else before.policy)
    if isinstance(event, RewindRequested):
        assert after.completed_rounds == event.round <= before.completed_rounds
    else:
        assert after.completed_rounds - before.completed_rounds in (0, 1)
    assert {e.client for e in before.enrolments} <= {e.client for e in after.enrolments}
    if isinstance(event, EvaluationReceived):  # its record is its own row, for what it ends as well
        after, before = (replace(run, scores=(), wait=None) for run in (after, before))
        if (before.status, after.status) == ("waiting", "running"):
            before = replace(before, status=after.status, reason=None)
    changed = after != before
    check_effects(decision, changed=changed or isinstance(event, ChangeRequested))
    if before.status.is_terminal:
        assert isinstance(event, ClientDeclined | ClientLeft) or after == before
        assert (after.status, after.round) == (before.status, before.round)
    if after.round is not None and before.round is not None and not isinstance(event, RewindRequested):
        check_round(before.round, after.round)
    if isinstance(event, FailureReported) and before.round is not None and after.round is not None:
        others = [p for p in before.round.participants if p.client != event.client]
        if same_attempt(before.round, after.round):
            assert others == [p for p in after.round.participants if p.client != event.client]
        else:  # drawn anew: then nobody was waited for any more
            assert waited_for(before.round) == [event.client]


def check_refusal(run: Run, event: Event, refusal: Conflict) -> None:
    assert refusal.detail
    assert (refusal.extra["event"], refusal.extra["state"]) == (type(event).__name__, run.status)


def check_effects(decision: Decision, changed: bool) -> None:
    order = {Record: 0, Aggregate: 1, Wake: 2}
    positions = [order[type(effect)] for effect in decision.effects]
    assert positions == sorted(positions)
    assert positions.count(1) <= 1
    assert positions.count(2) <= 1
    records = [effect for effect in decision.effects if isinstance(effect, Record)]
    assert all(record.kind in KINDS for record in records)
    assert bool(records) == changed


def check_round(before: Round, after: Round) -> None:
    if same_attempt(before, after):
        assert after.status == before.status or after.status in ROUND_GRAPH[before.status]
        for old, new in zip(before.participants, after.participants, strict=True):
            assert (old.client, old.index) == (new.client, new.index)
            assert new.status == old.status or new.status in PARTICIPANT_GRAPH[old.status]
    else:  # a new attempt of the same round, or the first of the next
        same = after.number == before.number and after.attempt == before.attempt + 1
        assert same or after.number == before.number + 1
        assert after.status == "collecting"
        assert all(p.status == "invited" for p in after.participants)


def same_attempt(before: Round, after: Round) -> bool:
    return (before.number, before.attempt) == (after.number, after.attempt)


def is_stuck(run: Run) -> bool:
    """The open round is delayed, or has lost so many that it can only be drawn again."""
    assert run.round is not None
    if run.round.status == "aggregating":
        return run.round.reason is not None
    hoped_for = [p for p in run.round.participants if p.status in ("invited", "training", "uploaded")]
    return len(hoped_for) < run.policy.quorum


def is_open(current: Round | None) -> bool:
    return current is not None and current.status in ("collecting", "aggregating")


def is_present(enrolment: Enrolment, role: Role) -> bool:
    takes_part = enrolment.status in ("awaiting_discrepancy", "ready", "away")
    return enrolment.role is role and takes_part


def waited_for(current: Round) -> list[str]:
    return [p.client for p in current.participants if p.status in ("invited", "training")]


class AnyOrderWithDiscrepancies(AnyOrder):
    """With Disco weighting, a start on request, and everybody in every round."""

    def first(self) -> Run:
        run = new_run(rounds=2, autostart=False, needs_discrepancy=True)
        return play(run, trainer("a"), trainer("b")).run


class AnyOrderWithApproval(AnyOrder):
    """Sizes wait for the operator; some names and sizes are not admitted at all."""

    def first(self) -> Run:
        admitted = Participants(trainers=(*"abcxyz",), evaluators=("e",))
        return new_run(rounds=2, quorum=2, approve="sizes", participants=admitted, max_examples=5)


class AnyOrderWithScores(AnyOrder):
    """The run goes by what its evaluators say, and they may come late, leave, or have no number."""

    def first(self) -> Run:
        policy = {"stop_when": StopWhen(patience=2), "keep": "best", "clients_per_round": 3, "quorum": 2}
        fresh = new_run(min_clients=4, rounds=4, max_attempts=2, **policy)
        return play(fresh, ClientEnrolled("j", Role.EVALUATOR, 50), *map(trainer, "abcd")).run

    @rule(client=st.sampled_from(["e", "j", "j", "j"]), shift=SHIFTS, value=st.sampled_from([0.5, 0.6, None]))
    def score(self, client: str, shift: int, value: float | None) -> None:
        number = max(0, self.run.completed_rounds + shift)
        self.give(EvaluationReceived(client, number, "accuracy", value, 50))

    @rule(client=st.sampled_from(["j", "e"]), kind=st.sampled_from([ClientDeclined, ClientLeft]))
    def go_as_evaluator(self, client: str, kind: type[ClientDeclined | ClientLeft]) -> None:
        self.give(kind(client, "had enough"))

    @invariant()
    def the_best_round_is_one_that_is_completed(self) -> None:
        found = find_standing(self.run)
        assert found is None or 1 <= found.best_round <= self.run.completed_rounds


class AnyOrderFromNothing(AnyOrder):
    """The same from the very beginning, started by itself."""

    def first(self) -> Run:
        return new_run(rounds=1, min_clients=2, quorum=2)


_EFFORT = settings(max_examples=30, stateful_step_count=50, deadline=None)
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = _EFFORT
TestAnyOrderWithDiscrepancies = AnyOrderWithDiscrepancies.TestCase
TestAnyOrderWithDiscrepancies.settings = _EFFORT
TestAnyOrderWithApproval = AnyOrderWithApproval.TestCase
TestAnyOrderWithApproval.settings = _EFFORT
TestAnyOrderWithScores = AnyOrderWithScores.TestCase
TestAnyOrderWithScores.settings = TestAnyOrder.settings
TestAnyOrderFromNothing = AnyOrderFromNothing.TestCase
TestAnyOrderFromNothing.settings = _EFFORT

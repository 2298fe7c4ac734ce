"""Every step is one transaction: what is written, what a repetition does, what a refusal leaves behind."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.database.session import reading
from server.database.step.facts import FailureFacts
from server.database.tables import participants, rounds, runs
from server.lifecycle.effects import Aggregate
from server.lifecycle.events import (
    AggregationFailed,
    AggregationFinished,
    ClientLeft,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    StopRequested,
    TimePassed,
)
from shared.problems import (
    Conflict,
    DiscrepancyAlreadySubmitted,
    IllegalTransition,
    NameTaken,
    NotFound,
    RunOver,
    UpdateAlreadyReceived,
    UpdateStale,
)
from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus
from tests.helpers.store_play import INITIAL, MANIFEST, NOW, RUN, Story, digest, later


@pytest.fixture
def story(engine: sa.Engine) -> Story:
    return Story(engine)


def version(story: Story) -> int:
    with reading(story.store.engine) as connection:
        return int(connection.select(sa.select(runs.c.version).where(runs.c.run == RUN)).scalar_one())


def test_a_whole_run(story: Story) -> None:
    story.begin("a", "b")
    story.play(1, ["a", "b"])
    story.play(2, ["b", "a"])
    state = story.store.run_state(RUN)
    assert state.status is RunStatus.COMPLETED
    assert state.completed_rounds == 2
    first, second = story.store.rounds(RUN)
    assert [r.status for r in (first, second)] == [RoundStatus.COMPLETED] * 2
    assert [row.client for row in second.ledger] == ["a", "b"]
    assert {row.status for row in second.ledger} == {ParticipantStatus.AGGREGATED}
    assert (first.model, second.model) == (digest("model", 1), digest("model", 2))
    view = story.store.run_view(RUN, later(9))
    assert (view.model, view.finished_at) == (digest("model", 2), later(3))
    assert story.kinds()[:2] == ["run_created", "client_enrolled"]
    assert story.kinds()[-2:] == ["round_completed", "run_completed"]


def test_a_round_starts_from_the_newest_result_and_knows_who_counts(story: Story) -> None:
    story.begin("a", "b")
    first = story.store.aggregation_input(RUN, 1, 1)
    assert (first.start_model, first.start_broadcast, first.start_private) == (INITIAL, None, None)
    assert first.updates == ()
    story.play(1, ["a", "b"])
    second = story.store.aggregation_input(RUN, 2, 1)
    assert (second.start_model, second.start_broadcast) == (digest("model", 1), digest("broadcast", 1))
    assert second.start_private == digest("private", 1)
    assert second.manifest == MANIFEST
    assert second.clients == 2
    assert [(t.index, t.examples, t.discrepancy) for t in second.trainers] == [(0, 10, 0.25), (1, 20, 0.5)]


def test_aggregation_input_is_in_index_order_and_a_replay_finds_the_same(story: Story) -> None:
    story.begin("a", "b", "c")
    story.submit("a", 0.25)
    for client in ("c", "a", "b"):
        story.upload(client, steps=ord(client))
    before = story.store.aggregation_input(RUN, 1, 1)
    assert [(u.index, u.client, u.steps) for u in before.updates] == [
        (0, "a", 97),
        (1, "b", 98),
        (2, "c", 99),
    ]
    assert [u.relative_size for u in before.updates] == [3 * n / 60 for n in (10, 20, 30)]
    assert [u.discrepancy for u in before.updates] == [0.25, 0.5, 0.75]
    story.aggregate()
    story.store.apply(RUN, ClientLeft("b", "moved house"), actor="b", now=later(4))
    assert story.store.aggregation_input(RUN, 1, 1) == before


def test_an_infinite_discrepancy_survives_both_databases(story: Story) -> None:
    story.register("a", "b")
    story.create()
    story.enrol("a")
    story.enrol("b")
    story.submit("a", float("inf"))
    story.submit("b", 1 / 3)
    assert [t.discrepancy for t in story.store.aggregation_input(RUN, 1, 1).trainers] == [float("inf"), 1 / 3]
    assert story.store.run_view(RUN, NOW).enrolments[0].discrepancy == float("inf")


def test_an_update_is_stored_with_its_numbers_and_its_blob(story: Story) -> None:
    story.begin("a", "b")
    story.take("a")
    decision = story.upload("a")
    assert decision.effects != ()
    row = story.store.round_view(RUN, 1).ledger[0]
    assert (row.status, row.update, row.bytes) == (ParticipantStatus.UPLOADED, digest("update", 1, "a"), 50)
    assert (row.steps, row.loss, row.seconds, row.uploaded_at) == (7, 0.5, 1.5, later(2))
    assert digest("update", 1, "a") in story.store.referenced_blobs()
    event = story.store.events(run=RUN)[-1]
    assert (event.kind, event.client, event.round, event.actor) == ("update_received", "a", 1, "a")
    assert event.detail["update"] == digest("update", 1, "a")


def test_the_last_update_closes_the_round_once(story: Story) -> None:
    story.begin("a", "b")
    story.upload("b")
    decision = story.upload("a")
    assert Aggregate(1, 1) in decision.effects
    (open_,) = story.store.aggregating()
    assert (open_.run, open_.round, open_.attempt, open_.since) == (RUN, 1, 1, later(2))
    assert story.store.round_view(RUN, 1).closed_at == later(2)


def test_the_same_update_again_is_no_step(story: Story) -> None:
    story.begin("a", "b")
    story.upload("a")
    before, events = version(story), story.kinds()
    assert story.upload("a").effects == ()
    assert (version(story), story.kinds()) == (before, events)
    with pytest.raises(UpdateAlreadyReceived):
        story.upload("a", digest="f" * 64)
    story.upload("b")
    assert story.upload("b").effects == ()  # aggregating meanwhile
    story.aggregate()
    assert story.upload("a").effects == ()  # round 2 meanwhile
    with pytest.raises(UpdateStale):
        story.upload("a", digest="f" * 64)
    story.play(2, ["a", "b"])
    assert story.upload("a", 2).effects == ()  # the run is over
    with pytest.raises(RunOver):
        story.upload("a", 2, digest="f" * 64)


def test_a_refused_event_writes_nothing(story: Story) -> None:
    story.begin("a", "b")
    before, events = version(story), story.kinds()
    with pytest.raises(UpdateStale):
        story.upload("a", 1, attempt=2)
    with pytest.raises(IllegalTransition):
        story.store.apply(RUN, AggregationFinished(1, 1), actor="coordinator", now=NOW)
    assert (version(story), story.kinds()) == (before, events)
    assert digest("update", 1, "a") not in story.store.referenced_blobs()


def test_a_discrepancy_is_taken_once(story: Story) -> None:
    story.register("a")
    story.create()
    story.enrol("a")
    assert story.submit("a", 0.125).run.enrolments[0].status is EnrolmentStatus.READY
    before = version(story)
    assert story.submit("a", 0.125).effects == ()
    assert version(story) == before
    with pytest.raises(DiscrepancyAlreadySubmitted, match=r"0\.125 \(kl\).* 0\.5 \(kl\)"):
        story.submit("a", 0.5)
    assert story.store.run_view(RUN, NOW).enrolments[0].discrepancy == 0.125


def test_who_comes_back_with_the_same_data_keeps_its_discrepancy(story: Story) -> None:
    story.register("a")
    story.create()
    story.enrol("a", examples=10)
    story.submit("a", 0.125)
    story.store.apply(RUN, ClientLeft("a", "lunch"), actor="a", now=NOW)
    story.enrol("a", examples=10)
    with pytest.raises(DiscrepancyAlreadySubmitted):
        story.submit("a", 0.5)
    assert story.submit("a", 0.125).run.enrolments[0].status is EnrolmentStatus.READY


def test_who_comes_back_with_other_data_submits_anew(story: Story) -> None:
    story.register("a")
    story.create()
    story.enrol("a", examples=10)
    story.submit("a", 0.125)
    story.store.apply(RUN, ClientLeft("a", "new scanner"), actor="a", now=NOW)
    story.enrol("a", examples=99)
    assert story.store.run_view(RUN, NOW).enrolments[0].discrepancy is None
    story.submit("a", 0.5)
    assert story.store.run_view(RUN, NOW).enrolments[0].discrepancy == 0.5


def test_the_same_enrolment_again_is_no_step(story: Story) -> None:
    story.register("a")
    story.create()
    story.enrol("a", index=3)
    before = version(story)
    assert story.enrol("a", index=3).effects == ()
    assert version(story) == before
    (enrolment,) = story.store.run_view(RUN, NOW).enrolments
    assert (enrolment.index, enrolment.device, enrolment.examples) == (3, "cuda:0", 10)


def test_the_ledger_is_stored_with_its_reasons(story: Story) -> None:
    story.begin("a", "b", "c")
    for client in "abc":
        story.upload(client)
    story.aggregate(excluded=(("c", "the file is gone"),))
    a, b, c = story.store.round_view(RUN, 1).ledger
    assert (a.included, a.weight, a.size_share, a.score, a.discrepancy, a.reason) == (
        True,
        1 / 3,
        1 / 3,
        0.5,
        0.25,
        None,
    )
    assert (b.status, b.reason) == (ParticipantStatus.AGGREGATED, "score below zero")
    assert (c.status, c.reason) == (ParticipantStatus.REJECTED, "the file is gone")


def test_a_round_without_weight_keeps_its_ledger_and_the_old_model(story: Story) -> None:
    story.begin("a", "b")
    story.upload("a")
    story.upload("b")
    story.aggregate(weightless="every score is below zero")
    first, second = story.store.rounds(RUN)
    assert (first.attempt, first.status, first.model) == (1, RoundStatus.ABANDONED, None)
    assert "every score is below zero" in (first.reason or "")
    assert [row.weight for row in first.ledger] == [0.5, 0.5]
    assert (second.round, second.attempt, second.status) == (1, 2, RoundStatus.COLLECTING)
    assert story.store.aggregation_input(RUN, 1, 2).start_model == INITIAL


def test_an_abandoned_attempt_ends_with_who_timed_out_and_the_next_is_drawn(story: Story) -> None:
    story.begin("a", "b", "c", quorum=2)
    story.upload("a")
    story.store.apply(
        RUN,
        FailureReported("b", 1, 1, "no memory"),
        actor="b",
        now=later(3),
        facts=FailureFacts("out_of_memory"),
    )
    assert story.store.overdue(later(59)) == []
    assert story.store.overdue(later(60)) == [RUN]
    story.store.apply(RUN, TimePassed(), actor="coordinator", now=later(60))
    first, second = story.store.rounds(RUN)
    assert first.status is RoundStatus.ABANDONED
    assert first.closed_at == later(60)
    assert [row.status for row in first.ledger] == [
        ParticipantStatus.UPLOADED,
        ParticipantStatus.FAILED,
        ParticipantStatus.TIMED_OUT,
    ]
    assert [row.client for row in second.ledger] == ["a", "b"]
    assert (second.attempt, second.deadline_at) == (2, later(120))
    _, b, c = story.store.run_view(RUN, NOW).enrolments
    assert (b.last_error, c.status) == ("out_of_memory: no memory", EnrolmentStatus.AWAY)
    story.upload("b", attempt=2)
    assert story.store.run_view(RUN, NOW).enrolments[1].last_error is None


def test_a_failed_aggregation_is_drawn_again_and_then_pauses(story: Story) -> None:
    story.begin("a", "b", max_attempts=2)
    for attempt in (1, 2):
        story.upload("a", attempt=attempt)
        story.upload("b", attempt=attempt)
        event = AggregationFailed(1, attempt, "disk full\x00\ud800")
        story.store.apply(RUN, event, actor="coordinator", now=later(3))
    state = story.store.run_state(RUN)
    assert state.status is RunStatus.PAUSED
    assert "disk full\ufffd?" in (state.reason or "")
    story.store.apply(RUN, ResumeRequested(), actor="admin", now=later(4))
    assert story.store.round_view(RUN, 1).attempt == 3


def test_control_is_recorded_with_who_and_why(story: Story) -> None:
    story.begin("a", "b")
    story.store.apply(RUN, PauseRequested("audit"), actor="admin", now=later(5))
    story.store.apply(RUN, StopRequested("wrong labels"), actor="admin", now=later(6))
    paused, stopped = (e for e in story.store.events(run=RUN) if e.kind in ("run_paused", "run_stopped"))
    assert (paused.actor, paused.detail["reason"], paused.at) == ("admin", "audit", later(5))
    assert stopped.detail["reason"] == "wrong labels"
    (summary,) = story.store.runs()
    assert (summary.status, summary.reason, summary.finished_at) == (
        RunStatus.STOPPED,
        "wrong labels",
        later(6),
    )
    with pytest.raises(IllegalTransition):
        story.store.apply(RUN, ResumeRequested(), actor="admin", now=later(7))


def test_runs_have_names_of_their_own(story: Story) -> None:
    story.create()
    with pytest.raises(NameTaken, match="a run named 'hospitals' already"):
        story.create()
    with pytest.raises(NotFound, match="there is no run 'banks'"):
        story.store.apply("banks", PauseRequested(), actor="admin", now=NOW)
    assert story.kinds() == ["run_created"]


def test_an_index_belongs_to_one_client(story: Story) -> None:
    story.register("a", "b")
    story.create()
    story.enrol("a", index=0)
    with pytest.raises(Conflict):
        story.enrol("b", index=0)
    assert story.enrol("b", index=1).run.enrolments[1].index == 1


def test_only_changed_rows_are_written(story: Story) -> None:
    story.begin("a", "b", "c")
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement.split()[0] + " " + " ".join(statement.split()[1:3]))

    sa.event.listen(story.store.engine, "before_cursor_execute", note)
    story.upload("a")
    sa.event.remove(story.store.engine, "before_cursor_execute", note)
    writes = [s for s in statements if s.startswith(("UPDATE", "INSERT", "DELETE"))]
    assert writes == ["UPDATE runs SET", "UPDATE participants SET", "INSERT INTO blobs", "INSERT INTO events"]
    assert len([s for s in statements if s.startswith("SELECT")]) <= 4


def test_evaluators_are_no_trainers(story: Story) -> None:
    story.register("a", "b", "judge")
    story.create()
    story.enrol("judge", role=Role.EVALUATOR, examples=5)
    for client in ("a", "b"):
        story.enrol(client)
        story.submit(client)
    with reading(story.store.engine) as connection:
        drawn = connection.select(sa.select(participants.c.client).order_by(participants.c.client)).scalars()
        assert list(drawn) == ["a", "b"]
        assert connection.select(sa.select(sa.func.count()).select_from(rounds)).scalar_one() == 1

"""What a client is asked, in which order, and what it may read."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.database.join_tokens import ClientGrant
from server.lifecycle.effects import Record
from server.lifecycle.events import ClientDeclined, ClientLeft, ClientSeen, StopRequested, TimePassed
from server.lifecycle.machine import Decision
from shared.problems import Conflict, Forbidden, NotFound
from shared.schemas import (
    Assignment,
    Enrol,
    Evaluate,
    Finished,
    Metrics,
    Progress,
    Role,
    RunStatus,
    SubmitDiscrepancy,
    Train,
)
from tests.helpers.store_play import INITIAL, NOW, RUN, Story, digest, later

METRICS = Metrics(loss=0.5, accuracy=0.75, examples=40, per_category={"cat": 1.0}, extra={"auc": 0.9})


@pytest.fixture
def story(engine: sa.Engine) -> Story:
    return Story(engine)


def work(story: Story, client: str) -> Assignment | None:
    return story.store.work_for(client)


def test_from_enrolment_to_the_end(story: Story) -> None:
    story.register("a", "b")
    assert work(story, "a") is None
    assert story.store.waiting_for("a", NOW) == "no run on this coordinator is open to this client"
    story.create()
    assert work(story, "a") == Enrol(run=RUN)
    story.enrol("a")
    assert work(story, "a") == SubmitDiscrepancy(run=RUN, metric="kl", target="uniform")
    story.submit("a")
    assert work(story, "a") is None
    assert story.store.waiting_for("a", NOW).startswith("hospitals: 1 of 2 ")
    story.enrol("b")
    story.submit("b")
    assert work(story, "a") == Train(
        run=RUN,
        round=1,
        attempt=1,
        index=0,
        model=INITIAL,
        broadcast=None,
        relative_size=1.0,
        deadline_at=later(60),
    )
    story.take("a")
    assert isinstance(work(story, "a"), Train)  # a restarted worker is told again
    story.upload("a")
    assert work(story, "a") is None
    assert "waiting for 1 client until" in story.store.waiting_for("a", NOW)
    story.upload("b")
    story.aggregate()
    train = work(story, "a")
    assert isinstance(train, Train)
    assert (train.round, train.last_aggregated_round) == (2, 1)
    assert (train.model, train.broadcast) == (digest("model", 1), digest("broadcast", 1))
    story.play(2, ["a", "b"])
    end = Finished(run=RUN, status=RunStatus.COMPLETED, reason=None, model=digest("model", 2))
    assert work(story, "a") == end
    assert work(story, "a") == end
    story.store.apply(RUN, ClientLeft("a", "heard it"), actor="a", now=later(9))
    assert work(story, "a") is None


def test_training_comes_before_everything_else(story: Story) -> None:
    story.begin("a", "b")
    story.create("another")
    assert isinstance(work(story, "a"), Train)
    story.upload("a")
    assert work(story, "a") == Enrol(run="another")


def test_a_rejected_update_is_not_the_last_aggregated_one(story: Story) -> None:
    story.begin("a", "b")
    story.upload("a")
    story.upload("b")
    story.aggregate(excluded=(("b", "its file is gone"),))
    a, b = work(story, "a"), work(story, "b")
    assert isinstance(a, Train)
    assert isinstance(b, Train)
    assert (a.last_aggregated_round, b.last_aggregated_round) == (1, 0)


def test_who_declined_or_was_revoked_is_not_asked_again(story: Story) -> None:
    story.register("a", "b")
    story.create()
    story.store.apply(RUN, ClientDeclined("a", "other classes"), actor="a", now=NOW)
    assert work(story, "a") is None
    assert work(story, "b") == Enrol(run=RUN)
    story.store.revoke("b", "admin", NOW)
    assert work(story, "b") is None


def test_a_stopped_run_tells_its_clients(story: Story) -> None:
    story.begin("a", "b")
    story.take("a")
    story.store.apply(RUN, StopRequested("wrong labels"), actor="admin", now=later(5))
    assert work(story, "a") == Finished(
        run=RUN, status=RunStatus.STOPPED, reason="wrong labels", model=INITIAL
    )


def test_evaluators_score_the_initial_model_and_every_nth_and_the_last(story: Story) -> None:
    story.register("judge")
    story.begin("a", "b", rounds=3, evaluate_every=2)
    story.enrol("judge", role=Role.EVALUATOR, examples=40)
    assert work(story, "judge") == Evaluate(run=RUN, round=0, model=INITIAL)
    story.store.add_evaluation(RUN, 0, "judge", METRICS, "judge", NOW)
    assert work(story, "judge") is None
    story.play(1, ["a", "b"])
    assert work(story, "judge") is None
    story.play(2, ["a", "b"])
    story.play(3, ["a", "b"])
    assert work(story, "judge") == Evaluate(run=RUN, round=2, model=digest("model", 2))
    story.store.add_evaluation(RUN, 2, "judge", METRICS, "judge", NOW)
    assert work(story, "judge") == Evaluate(run=RUN, round=3, model=digest("model", 3))
    story.store.add_evaluation(RUN, 3, "judge", METRICS, "judge", NOW)
    assert isinstance(work(story, "judge"), Finished)


def test_nothing_is_evaluated_if_the_run_says_never(story: Story) -> None:
    story.register("judge")
    story.begin("a", "b", evaluate_every=0)
    story.enrol("judge", role=Role.EVALUATOR, examples=40)
    assert work(story, "judge") is None


def test_an_evaluation_is_taken_once(story: Story) -> None:
    story.register("judge", "stranger")
    story.begin("a", "b")
    story.enrol("judge", role=Role.EVALUATOR, examples=40)
    story.play(1, ["a", "b"])
    assert story.store.add_evaluation(RUN, 1, "judge", METRICS, "judge", later(4)).is_new
    assert not story.store.add_evaluation(RUN, 1, "judge", METRICS, "judge", later(5)).is_new
    with pytest.raises(Conflict, match=r"with other values of loss \(loss 0\.5\)"):
        story.store.add_evaluation(RUN, 1, "judge", METRICS.model_copy(update={"loss": 0.25}), "judge", NOW)
    assert story.store.add_evaluation(RUN, 1, "a", METRICS, "a", NOW).is_new  # a participant may as well
    with pytest.raises(Forbidden, match="'stranger' is neither an evaluator"):
        story.store.add_evaluation(RUN, 1, "stranger", METRICS, "stranger", NOW)
    with pytest.raises(Conflict, match="round 2 of run 'hospitals' is not completed"):
        story.store.add_evaluation(RUN, 2, "judge", METRICS, "judge", NOW)
    first, second = story.store.evaluations(RUN)
    assert (first.client, second.client, second.at) == ("a", "judge", later(4))
    assert second.model_dump(include=set(Metrics.model_fields)) == METRICS.model_dump()
    assert story.store.round_view(RUN, 1).evaluations == (first, second)
    assert story.kinds().count("evaluation_received") == 2


def test_heartbeats_answer_whether_to_go_on(story: Story) -> None:
    story.begin("a", "b")
    beat = Progress(attempt=1, epoch=1, epochs=2, step=3, steps=9, loss=0.5)
    assert story.store.progress(RUN, 1, "a", beat, later(7))
    row = story.store.round_view(RUN, 1).ledger[0]
    assert (row.progress, row.heartbeat_at) == (beat, later(7))
    assert not story.store.progress(RUN, 1, "a", beat.model_copy(update={"attempt": 2}), later(7))
    assert not story.store.progress(RUN, 2, "a", beat, later(7))
    assert not story.store.progress(RUN, 1, "stranger", beat, later(7))
    story.upload("a")
    assert not story.store.progress(RUN, 1, "a", beat, later(8))
    story.store.apply(RUN, StopRequested(), actor="admin", now=later(9))
    assert not story.store.progress(RUN, 1, "b", beat, later(10))


def test_who_missed_a_deadline_is_away_until_it_polls(story: Story) -> None:
    story.begin("a", "b")
    story.upload("a")
    story.store.apply(RUN, TimePassed(), actor="coordinator", now=later(100))
    assert story.store.away_in("b") == [RUN]
    assert story.store.away_in("a") == []
    story.store.apply(RUN, ClientSeen("b"), actor="b", now=later(101))
    assert story.store.away_in("b") == []


def test_a_client_reads_models_of_its_runs_and_nothing_else(story: Story) -> None:
    story.register("stranger")
    story.begin("a", "b")
    story.play(1, ["a", "b"])
    for name in (INITIAL, digest("model", 1), digest("broadcast", 1)):
        assert story.store.blob_readable("a", name)
        assert not story.store.blob_readable("stranger", name)
    for name in (digest("private", 1), digest("update", 1, "a"), digest("update", 1, "b"), "f" * 64):
        assert not story.store.blob_readable("a", name)
    story.store.apply(RUN, ClientLeft("a", "enough"), actor="a", now=NOW)
    assert not story.store.blob_readable("a", INITIAL)


def test_a_receipt_has_its_row_of_the_ledger_after_the_round(story: Story) -> None:
    story.begin("a", "b")
    story.upload("a")
    before = story.store.receipt(RUN, 1, "a")
    assert (before.digest, before.bytes, before.received_at) == (digest("update", 1, "a"), 50, later(2))
    assert before.row is None
    story.upload("b")
    story.aggregate()
    after = story.store.receipt(RUN, 1, "a")
    assert after.row is not None
    assert after.row.weight == 0.5
    with pytest.raises(NotFound, match="'a' has no update in round 2"):
        story.store.receipt(RUN, 2, "a")


def effects(decision: Decision | None) -> list[str]:
    assert decision is not None
    return [effect.kind for effect in decision.effects if isinstance(effect, Record)]


def test_a_run_that_goes_by_scores_moves_with_them_in_one_transaction(story: Story) -> None:
    story.register("a", "b", "judge")
    stop_when = {"metric": "loss", "patience": 1}
    story.create(rounds=5, weighting={"kind": "sizes"}, stop_when=stop_when, keep="best")
    story.enrol("judge", role=Role.EVALUATOR, examples=40)
    for client in ("a", "b"):
        story.enrol(client)
    story.play(1, ["a", "b"])
    assert [one.round for one in story.store.rounds(RUN)] == [1]
    good, bad = METRICS.model_copy(update={"loss": 0.5}), METRICS.model_copy(update={"loss": 0.75})
    assert effects(story.store.add_evaluation(RUN, 1, "a", bad, "a", NOW).decision) == []
    opened = story.store.add_evaluation(RUN, 1, "judge", good, "judge", NOW)
    assert effects(opened.decision) == ["round_opened"]
    assert story.store.add_evaluation(RUN, 1, "judge", good, "judge", NOW) == (False, None)
    story.play(2, ["a", "b"])
    with pytest.raises(Conflict):
        story.store.add_evaluation(RUN, 1, "judge", bad, "judge", NOW)
    story.store.add_evaluation(RUN, 2, "judge", bad, "judge", NOW)
    state = story.store.run_state(RUN)
    assert (state.status, state.completed_rounds) == (RunStatus.COMPLETED, 2)
    assert story.kinds()[-4:] == [
        "round_completed",
        "evaluation_received",
        "run_stopped_early",
        "run_completed",
    ]
    told = work(story, "a")
    assert isinstance(told, Finished)
    assert told.model == story.store.run_view(RUN, NOW).model == digest("model", 1)


def test_clients_that_ask_together_are_told_what_each_would_be_told(story: Story) -> None:
    """Those who never enrolled are answered by a few statements for all of them."""
    story.register("a", "b", "c", "gone")
    for name, grant in (("ward", ClientGrant(group="clinics")), ("desk", ClientGrant(role="evaluator"))):
        story.store.add_join_token(digest("join", name), 1, None, NOW, grant=grant)
        story.store.register(name, digest("token", name), "0.1.0", NOW, join_hash=digest("join", name))
    story.store.revoke("gone", "admin", NOW)
    story.create(
        participants={"trainers": ["a", "c", "gone", "desk", "group:clinics"], "evaluators": ["desk"]}
    )
    story.create("closed")
    story.store.apply("closed", StopRequested(""), actor="admin", now=NOW)
    story.enrol("a")
    names = ["a", "b", "c", "gone", "ward", "desk"]
    together = story.store.work_for_each(dict.fromkeys(names, True))
    assert together == {name: story.store.work_for_each({name: True})[name] for name in names}
    assert {name for name, asked in together.items() if asked.assignment == Enrol(run=RUN)} == {
        "c",
        "ward",
        "desk",
    }

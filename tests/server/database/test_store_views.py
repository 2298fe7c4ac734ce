"""What the pages and the API show."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.lifecycle.events import PauseRequested
from shared.problems import NotFound
from shared.schemas import Metrics, Role, RunStatus
from tests.helpers.store_play import INITIAL, MANIFEST, NOW, RUN, Story, digest, later


@pytest.fixture
def story(engine: sa.Engine) -> Story:
    return Story(engine)


def test_a_run_shows_its_configuration_as_it_was_given(story: Story) -> None:
    story.create(weighting={"kind": "disco", "a": 1e-05, "b": 0.1, "target": [0.25, 0.75]}, seed=2**63 - 1)
    view = story.store.run_view(RUN, NOW)
    assert view.config.seed == 2**63 - 1
    assert view.config.model_dump()["weighting"]["a"] == 1e-05
    assert view.config.model_dump()["weighting"]["target"] == (0.25, 0.75)
    assert (view.classes, view.manifest) == (("cat", "dog"), MANIFEST)
    assert (view.initial_model, view.model, view.current_round) == (INITIAL, INITIAL, None)
    assert (view.status, view.created_at, view.algorithm, view.weighting) == (
        RunStatus.ENROLLING,
        NOW,
        "fedavg",
        "disco",
    )
    assert view.waiting_for != ""


def test_runs_are_listed_newest_first_with_the_newest_accuracy(story: Story) -> None:
    story.register("judge", "jury")
    story.begin("a", "b", combine_scores="weighted")
    story.create("another")
    for client, examples in (("judge", 30), ("jury", 10)):
        story.enrol(client, role=Role.EVALUATOR, examples=examples)
    story.play(1, ["a", "b"])
    for number, client, accuracy, examples in (
        (0, "judge", 0.1, 30),
        (1, "judge", 0.5, 30),
        (1, "jury", 0.9, 10),
    ):
        metrics = Metrics(loss=1.0, accuracy=accuracy, examples=examples)
        story.store.add_evaluation(RUN, number, client, metrics, client, NOW)
    another, hospitals = story.store.runs()
    assert (another.run, another.accuracy) == ("another", None)
    # (0.5 * 30 + 0.9 * 10) / 40
    assert hospitals.accuracy == pytest.approx(0.6, abs=1e-12)
    assert story.store.run_view(RUN, NOW).accuracy == hospitals.accuracy


def test_rounds_and_their_evaluations(story: Story) -> None:
    story.register("judge")
    story.begin("a", "b")
    story.enrol("judge", role=Role.EVALUATOR)
    story.play(1, ["a", "b"])
    story.store.add_evaluation(RUN, 1, "judge", Metrics(loss=1.0, examples=10), "judge", NOW)
    first, second = story.store.rounds(RUN)
    assert (first.round, second.round) == (1, 2)
    assert [e.client for e in first.evaluations] == ["judge"]
    assert second.evaluations == ()
    assert story.store.rounds(RUN, since=2) == [second]
    assert story.store.round_view(RUN, 1) == first
    assert story.store.round_view(RUN, 1, 1) == first
    assert story.store.run_view(RUN, NOW).current_round == second
    with pytest.raises(NotFound, match="run 'hospitals' has no attempt 2 of round 1"):
        story.store.round_view(RUN, 1, 2)
    with pytest.raises(NotFound, match="run 'hospitals' has no round 3"):
        story.store.round_view(RUN, 3)


def test_what_is_not_there_is_named(story: Story) -> None:
    for ask in (
        lambda: story.store.run_view("banks", NOW),
        lambda: story.store.run_state("banks"),
        lambda: story.store.rounds("banks"),
        lambda: story.store.round_view("banks", 1),
    ):
        with pytest.raises(NotFound, match="there is no run 'banks'"):
            ask()


def test_enrolments_are_shown_trainers_by_index_first(story: Story) -> None:
    story.register("z", "a", "judge")
    story.create(min_clients=3)
    story.enrol("judge", role=Role.EVALUATOR)
    story.enrol("z", index=0)
    story.enrol("a", index=1)
    story.store.mark_seen({"z": later(3)})
    shown = story.store.run_view(RUN, NOW).enrolments
    assert [(e.client, e.index) for e in shown] == [("z", 0), ("a", 1), ("judge", None)]
    assert [e.last_seen_at for e in shown] == [later(3), None, None]


def test_events_come_in_pages_and_by_run(story: Story) -> None:
    assert story.store.latest_event_id() == 0
    story.register("a")
    story.create()
    story.create("another")
    newest = story.store.latest_event_id()
    everything = story.store.events()
    assert [e.kind for e in everything] == ["client_registered", "run_created", "run_created"]
    assert everything[-1].id == newest
    assert story.store.events(limit=1) == everything[:1]
    assert story.store.events(everything[0].id) == everything[1:]
    assert story.store.events(run="another") == everything[2:]
    assert story.store.latest_event_id(RUN) == everything[1].id


def test_a_recorded_refusal_holds_what_a_database_can_hold(story: Story) -> None:
    story.create()
    detail = {
        "tensor": "a\x00b\ud800",
        "value": float("nan"),
        "shape": (2, 3),
        "long": "x" * 5000,
        "n\x00": {"deep": [float("inf")]},
    }
    story.store.record("update_refused", run=RUN, round=1, client="a", actor="a", detail=detail, now=later(1))
    event = story.store.events()[-1]
    assert (event.kind, event.run, event.round, event.client) == ("update_refused", RUN, 1, "a")
    assert event.detail == {
        "tensor": "a\ufffdb?",
        "value": "nan",
        "shape": [2, 3],
        "long": "x" * 2000,
        "n\ufffd": {"deep": ["inf"]},
    }
    with pytest.raises(NotFound):
        story.store.record("update_refused", run="banks", actor="a", now=NOW)


def test_updates_past_keep_updates_are_referenced_no_more_but_those_of_an_open_round_are(
    story: Story,
) -> None:
    story.begin("a", "b", rounds=3, keep_updates=1)
    story.play(1, ["a", "b"])
    assert digest("update", 1, "a") in story.store.referenced_blobs()
    story.play(2, ["a", "b"])
    story.take("a", 3)
    story.upload("a", 3)
    named = story.store.referenced_blobs()
    assert {digest("model", 1), digest("model", 2)} <= named
    updates = {digest("update", number, client) for number in (1, 2, 3) for client in "ab"}
    assert named & updates == {digest("update", 2, "a"), digest("update", 2, "b"), digest("update", 3, "a")}


def test_keep_updates_zero_keeps_what_a_round_still_needs(story: Story) -> None:
    story.begin("a", "b", rounds=2, keep_updates=0)
    for client in "ab":
        story.take(client)
        story.upload(client)
    assert {digest("update", 1, client) for client in "ab"} <= story.store.referenced_blobs()
    story.aggregate()
    assert not {digest("update", 1, client) for client in "ab"} & story.store.referenced_blobs()


def test_counts_and_referenced_blobs(story: Story) -> None:
    story.begin("a", "b")
    story.play(1, ["a", "b"])
    story.store.revoke("b", "admin", NOW)
    story.store.apply(RUN, PauseRequested(), actor="admin", now=NOW)
    counts = story.store.counts()
    assert counts["runs"] == {"paused": 1}
    assert counts["rounds"]["completed"] == 1
    assert counts["participants"]["aggregated"] == 2
    assert counts["clients"] == {"registered": 1, "revoked": 1}
    assert counts["blobs"] == {"number": 4, "bytes": 100 + 50 + 50 + 60, "faulty": 0}
    assert counts["events"]["number"] == story.store.latest_event_id()
    assert story.store.referenced_blobs() == {
        INITIAL,
        digest("update", 1, "a"),
        digest("update", 1, "b"),
        digest("model", 1),
        digest("broadcast", 1),
        digest("private", 1),
    }

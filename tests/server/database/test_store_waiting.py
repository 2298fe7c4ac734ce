"""A waiting run in the database: status, reason, since and until; and who was heard of when."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.database.step.facts import FailureFacts
from server.lifecycle.events import FailureReported, ResumeRequested, TimePassed
from shared.schemas import Progress, RunStatus
from tests.helpers.store_play import RUN, Story, later


@pytest.fixture
def story(engine: sa.Engine) -> Story:
    return Story(engine)


def pass_time(story: Story, seconds: float) -> None:
    for run in story.store.overdue(later(seconds)):
        story.store.apply(run, TimePassed(), actor="coordinator", now=later(seconds))


def test_a_run_waits_pauses_and_waits_again(story: Story) -> None:
    story.begin("a", "b", quorum=2, waiting_deadline_seconds=100)
    pass_time(story, 60)  # neither delivers
    (listed,) = story.store.runs()
    assert (listed.status, listed.waiting_since, listed.waiting_until) == (
        RunStatus.WAITING,
        later(60),
        later(160),
    )
    assert listed.reason == "round 1: 0 trainers are ready, 2 needed; away: a, b"
    view = story.store.run_view(RUN, later(70))
    assert view.waiting_for == f"{listed.reason}; since 12:01 UTC, pauses at 12:02 UTC"
    assert "a, b" not in story.store.run_view(RUN, later(70), reader="a").waiting_for
    assert story.store.counts()["runs"] == {"waiting": 1}
    assert story.store.waiting_since() == {RUN: later(60)}
    assert story.store.deadlines() == [(RUN, later(60))]
    assert story.store.overdue(later(159)) == []
    pass_time(story, 160)
    (listed,) = story.store.runs()
    assert (listed.status, listed.waiting_since, listed.waiting_until) == (RunStatus.PAUSED, None, None)
    assert story.store.overdue(later(9000)) == []
    story.store.apply(RUN, ResumeRequested(), actor="admin", now=later(200))
    assert story.store.runs()[0].waiting_until == later(300)
    assert story.kinds()[-2:] == ["run_resumed", "run_waiting"]


def test_a_lost_quorum_ends_at_the_deadline(story: Story) -> None:
    story.begin("a", "b", "c", quorum=3)
    facts = FailureFacts("out_of_memory")
    story.store.apply(RUN, FailureReported("b", 1, 1, "no memory"), actor="b", now=later(3), facts=facts)
    (listed,) = story.store.runs()
    assert (listed.status, listed.waiting_since, listed.waiting_until) == (
        RunStatus.WAITING,
        later(3),
        later(60),
    )
    assert story.store.overdue(later(60)) == [RUN], "named once: its round and its wait are over"


def test_the_reason_of_a_timeout_is_what_was_heard(story: Story) -> None:
    story.begin("a", "b", "c", "d", quorum=1, round_deadline_seconds=600)
    for client in ("a", "b", "c"):
        story.take(client)
    story.store.mark_seen({client: later(2) for client in "bd"})
    progress = Progress(attempt=1, epoch=1, epochs=1, step=4, steps=10, loss=0.5)
    assert story.store.progress(RUN, 1, "a", progress, later(599))
    assert story.store.progress(RUN, 1, "c", Progress(attempt=1), later(599))
    pass_time(story, 600)
    first = story.store.round_view(RUN, 1, 1)
    said = [(row.reason or "").partition(";")[0] for row in first.ledger]
    assert said == [
        "was training, 40 %",
        "silent since 2026-03-01 12:00:02 UTC",
        "was at work, and did not say how far it was",
        "silent since 2026-03-01 12:00:02 UTC",
    ]

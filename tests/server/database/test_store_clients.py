"""Registration, join tokens, revocation."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.lifecycle.effects import Record
from shared.problems import NameTaken, NotFound, WrongToken
from shared.schemas import EnrolmentStatus, ParticipantStatus
from tests.helpers.store_play import NOW, RUN, Story, digest, later


@pytest.fixture
def story(engine: sa.Engine) -> Story:
    return Story(engine)


def register(story: Story, name: str | None, join_hash: str | None = None, seconds: float = 0) -> str:
    token = digest("t", len(story.store.clients()), seconds)
    return story.store.register(name, token, "0.1.0", later(seconds), join_hash=join_hash)


def test_names_are_given_or_made(story: Story) -> None:
    assert register(story, "st-mary") == "st-mary"
    assert register(story, None) == "client-1"
    assert register(story, "client-7") == "client-7"
    assert register(story, "client-of-mine") == "client-of-mine"
    assert register(story, None) == "client-8"
    with pytest.raises(NameTaken, match="'st-mary' is registered already"):
        register(story, "st-mary")
    assert [c.client for c in story.store.clients()] == [
        "client-1",
        "client-7",
        "client-8",
        "client-of-mine",
        "st-mary",
    ]


def test_a_client_is_found_by_its_token_also_when_revoked(story: Story) -> None:
    story.register("a")
    found = story.store.client_by_token_hash(digest("token", "a"))
    assert found is not None
    assert (found.client, found.registered_at, found.last_seen_at, found.version) == ("a", NOW, None, "0.1.0")
    story.store.mark_seen({"a": later(5)})
    story.store.revoke("a", "admin", later(6))
    found = story.store.client_by_token_hash(digest("token", "a"))
    assert found is not None
    assert (found.last_seen_at, found.revoked_at) == (later(5), later(6))
    assert story.store.client_by_token_hash(digest("token", "b")) is None


def test_a_join_token_is_used_as_often_as_it_says(story: Story) -> None:
    story.store.add_join_token("a" * 64, 2, None, NOW)
    register(story, "x", "a" * 64)
    with pytest.raises(NameTaken):
        register(story, "x", "a" * 64)  # a refused registration uses nothing up
    register(story, "y", "a" * 64)
    with pytest.raises(WrongToken, match="used up"):
        register(story, "z", "a" * 64)
    assert [c.client for c in story.store.clients()] == ["x", "y"]
    assert [token.uses_left for token in story.store.join_tokens()] == [0]


def test_a_join_token_ends_with_its_time_or_by_revocation(story: Story) -> None:
    number = story.store.add_join_token("a" * 64, None, later(60), NOW)
    register(story, "x", "a" * 64, 59)
    with pytest.raises(WrongToken):
        register(story, "y", "a" * 64, 60)
    story.store.revoke_join_token(number, "admin", later(1))
    story.store.revoke_join_token(number, "admin", later(2))
    with pytest.raises(WrongToken):
        register(story, "y", "a" * 64, 3)
    with pytest.raises(WrongToken):
        register(story, "y", "b" * 64, 3)
    with pytest.raises(NotFound, match="no join token 99"):
        story.store.revoke_join_token(99, "admin", NOW)
    (token,) = story.store.join_tokens()
    assert (token.id, token.uses_left, token.expires_at, token.revoked_at) == (
        number,
        None,
        later(60),
        later(1),
    )


def test_a_token_of_the_settings_is_added_once(story: Story) -> None:
    number = story.store.add_join_token("a" * 64, 1, None, NOW)
    register(story, "x", "a" * 64)
    assert story.store.add_join_token("a" * 64, 1, None, later(9)) == number
    assert story.store.join_tokens()[0].uses_left == 0


def test_revocation_takes_a_client_out_of_its_runs(story: Story) -> None:
    story.begin("a", "b")
    story.create("other", weighting={"kind": "sizes"}, min_clients=5)
    story.enrol("a", run="other")
    decisions = story.store.revoke("a", "admin", later(5))
    assert [run for run, _ in decisions] == [RUN, "other"]
    for _, decision in decisions:
        assert any(isinstance(e, Record) and e.kind == "client_left" for e in decision.effects)
    assert story.store.round_view(RUN, 1).ledger[0].status is ParticipantStatus.FAILED
    assert story.store.run_view("other", NOW).enrolments[0].status is EnrolmentStatus.LEFT
    assert story.store.revoke("a", "admin", later(6)) == []
    assert [e.actor for e in story.store.events(run="other") if e.kind == "client_left"] == ["admin"]
    with pytest.raises(NotFound, match="no client 'nobody'"):
        story.store.revoke("nobody", "admin", NOW)


def test_events_of_accounts_are_recorded(story: Story) -> None:
    number = story.store.add_join_token("a" * 64, None, later(60), NOW)
    register(story, "x", "a" * 64)
    story.store.revoke("x", "admin", later(1))
    story.store.revoke_join_token(number, "admin", later(2))
    found = [(e.kind, e.client, e.actor) for e in story.store.events()]
    assert found == [
        ("join_token_added", None, "admin"),
        ("client_registered", "x", "x"),
        ("client_revoked", "x", "admin"),
        ("join_token_revoked", None, "admin"),
    ]

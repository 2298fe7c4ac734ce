"""Secure rounds in the database: each step survives the process; what clients are asked follows from it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.database.step.facts import AggregationFacts
from server.database.store import Store
from server.lifecycle.events import AggregationFinished
from shared.fingerprints import identity_fingerprint
from shared.problems import OtherIdentity
from shared.schemas import SecureStep, SumTotals, Train
from shared.secure.keys import identity_of, make_identity
from tests.helpers.secure_play import NAMES, SecurePlay
from tests.helpers.store_play import NOW, RUN, Story, digest, later


@pytest.fixture
def play(engine: sa.Engine) -> SecurePlay:
    return SecurePlay(engine)


def test_each_step_is_asked_for_once_and_stored(play: SecurePlay, engine: sa.Engine) -> None:
    for step in ("advertise", "share", "upload", "agree", "unmask"):
        for name in NAMES:
            asked = play.asked(name)
            assert (asked.round, getattr(asked, "step", None)) == (0, step)
            state = Store(engine).run_state(RUN).round  # as a process reads it that has just been started
            assert state is not None
            assert state == play.store.run_state(RUN).round
            play.take_step(name)
            assert play.store.work_for(name) is None or name == NAMES[-1], "it is the others' turn"
    view = play.store.round_view(RUN, 0)
    assert view.status == "aggregating"
    assert view.secure is not None
    assert (view.secure.members, view.secure.survivors, view.secure.awaited) == (3, 3, ())


def test_the_first_sum_is_kept_with_the_run_and_is_no_model(play: SecurePlay) -> None:
    play.sum_up()
    view = play.store.run_view(RUN, NOW)
    assert view.totals == SumTotals(clients=3, examples=60, discrepancy=0.75)
    assert (view.model, view.completed_rounds) == (view.initial_model, 0)
    asked = play.asked("alder")
    assert isinstance(asked, SecureStep)
    assert (asked.round, asked.step, asked.totals) == (1, "advertise", view.totals)
    (stored,) = play.store.audit_runs()
    assert stored.rounds == ()


def test_a_round_keeps_its_sums_and_nobodys_weight(play: SecurePlay) -> None:
    play.sum_up()
    play.take_all(2)
    asked = play.asked("beech")
    assert isinstance(asked, Train)
    assert asked.relative_size == 1.0
    play.take_all(3)
    made = digest("model", 1)
    sums = {"score": 1.25, "steps": 40.0, "clipped": 3}
    facts = AggregationFacts(made, made, None, None, (), blobs={made: 60}, sums=sums)
    play.store.apply(RUN, AggregationFinished(1, 1), actor="coordinator", now=later(3), facts=facts)
    view = play.store.round_view(RUN, 1)
    assert view.secure is not None
    assert (view.secure.score, view.secure.steps, view.secure.clipped) == (1.25, 40.0, 3)
    assert all(row.included and row.weight is None and row.examples == 0 for row in view.ledger)
    asked_next = play.asked("alder")
    assert isinstance(asked_next, SecureStep)
    assert (asked_next.score_sum, asked_next.last_aggregated_round) == (1.25, 1)


def test_a_pinned_name_is_registered_under_its_key_alone(engine: sa.Engine) -> None:
    story, key = Story(engine), identity_of(make_identity()).hex()
    fingerprint = identity_fingerprint(key)
    assert fingerprint is not None
    story.store.pin_identity("alder", "0" * 64, "admin", NOW)
    story.store.pin_identity("alder", fingerprint, "admin", NOW)  # the newest counts
    for other in (None, identity_of(make_identity()).hex()):
        with pytest.raises(OtherIdentity, match="'alder' is pinned to another identity key"):
            story.store.register("alder", digest("t"), "0.1.0", NOW, identity=other)
    story.store.register("alder", digest("t"), "0.1.0", NOW, identity=key)
    (view,) = story.store.clients()
    assert (view.identity, view.fingerprint) == (key, fingerprint)
    with pytest.raises(OtherIdentity, match="registered under another identity key"):
        story.store.pin_identity("alder", "0" * 64, "admin", NOW)


def test_all_who_are_asked_together_read_the_rounds_state_once(play: SecurePlay, engine: sa.Engine) -> None:
    """It grows with the square of the clients: read for each of them, a step of many would not end."""
    play.take_all(1)
    read: list[str] = []

    def note(*given: object) -> None:
        read.append(str(given[2]))

    sa.event.listen(engine, "before_cursor_execute", note)
    found = Store(engine).work_for_each(dict.fromkeys(NAMES, True))
    sa.event.remove(engine, "before_cursor_execute", note)
    assert {getattr(each.assignment, "step", None) for each in found.values()} == {"share"}
    whole = [statement for statement in read if "secure" in statement.split("FROM")[0]]
    assert len(whole) == 1
    assert "participants" not in whole[0]

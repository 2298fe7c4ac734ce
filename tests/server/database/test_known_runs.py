"""What a process knows of a run by heart is what it would read, or it is read."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from server.database.configs import Configs
from server.database.session import Writing, reading, writing
from server.database.step.facts import Facts, FailureFacts, UpdateFacts
from server.database.step.known import KnownRuns
from server.database.step.load import Snapshot, load
from server.database.step.step import take_change, take_step
from server.database.store import Store
from server.lifecycle.events import (
    AssignmentTaken,
    Event,
    FailureReported,
    PauseRequested,
    ResumeRequested,
    TimePassed,
    UpdateReceived,
)
from shared.problems import NotFound
from shared.schemas import ParticipantStatus
from tests.helpers.secure_play import NAMES, SecurePlay
from tests.helpers.store_play import NOW, RUN, Story, digest, later


class Process:
    """One that moves the run of a story, and remembers what it did."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.known = KnownRuns(Configs())

    def step(self, event: Event, facts: Facts | None = None, seconds: float = 1) -> None:
        with writing(self.engine) as connection:
            take_step(connection, RUN, event, facts, self.known, actor="admin", now=later(seconds))
        self.known.publish(connection.pending)
        assert self.known.find(RUN) in (None, self.read())

    def upload(self, client: str, number: int = 1, attempt: int = 1) -> None:
        facts = UpdateFacts(digest("update", number, attempt, client), 50, 7, 0.5, 1.5)
        self.step(UpdateReceived(client, number, attempt), facts, 2)

    def read(self) -> Snapshot:
        with reading(self.engine) as connection:
            return load(connection, RUN, Configs())


def test_the_steps_of_a_round_are_known_without_reading(engine: sa.Engine) -> None:
    story, process = Story(engine), Process(engine)
    story.begin("a", "b", "c", rounds=3)
    for number in (1, 2):
        for client in ("a", "b", "c"):
            process.step(AssignmentTaken(client, number, 1))
            assert process.known.find(RUN) == process.read()
            process.upload(client, number)
            assert process.known.find(RUN) == process.read()
        story.aggregate(number)  # as another process does
        process.step(AssignmentTaken("a", number + 1, 1))
        assert process.known.find(RUN) == process.read()


def test_a_configuration_that_was_not_committed_is_not_known(engine: sa.Engine) -> None:
    """On SQLite others' steps are in the same transaction, and read the run before its commit fails."""
    Story(engine).create()
    known = KnownRuns(Configs(), is_only_writer=True)
    with writing(engine) as connection:
        known.lock(connection, RUN)
    known.publish(connection.pending)

    def change(rounds: int, failure: Exception | None = None) -> None:
        with writing(engine) as connection:
            take_change(connection, RUN, {"rounds": rounds}, known, actor="admin", now=NOW)
            assert known.lock(connection, RUN).config.rounds == rounds
            if failure is not None:
                raise failure
        known.publish(connection.pending)

    with pytest.raises(OSError, match="the disk is full"):
        change(5, OSError("the disk is full"))
    change(7)
    with reading(engine) as later_on:
        assert known.configs.of(later_on, RUN).rounds == 7
        assert known.find(RUN) in (None, load(later_on, RUN, Configs()))


def test_the_steps_of_a_secure_round_are_known_without_reading(engine: sa.Engine) -> None:
    play = SecurePlay(engine)
    process = Process(engine)
    play.store = Store(engine, is_only_writer=True)
    play.store._known = process.known

    def check(steps: int) -> None:
        for _ in range(steps):
            for name in NAMES:
                play.take_step(name)
                assert process.known.find(RUN) == process.read()

    check(5)
    play.end_sum()
    check(5)


def test_the_model_that_a_round_made_starts_the_next(engine: sa.Engine) -> None:
    story = Story(engine)
    story.store = type(story.store)(engine, is_only_writer=True)
    story.begin("a", "b", rounds=3)
    for number in (1, 2):
        story.play(number, ["a", "b"])
        assert story.store.run_state(RUN) == Story(engine).store.run_state(RUN)
        found = story.store.start_model(RUN, number + 1, 1)
        assert found == Story(engine).store.start_model(RUN, number + 1, 1) == digest("model", number)
    assert story.store.start_model(RUN, 9, 1) is None


def test_the_rarer_steps_are_read(engine: sa.Engine) -> None:
    """Every step compares what is known with what is there."""
    story, process = Story(engine), Process(engine)
    story.begin("a", "b", "c", quorum=2, max_attempts=2)
    process.step(AssignmentTaken("a", 1, 1))
    process.step(FailureReported("b", 1, 1, "no space\x00 left"), FailureFacts("disk-full"))
    process.step(PauseRequested("for lunch"))
    process.step(ResumeRequested())
    process.upload("a")
    process.step(TimePassed(), seconds=100)  # c timed out: drawn again
    assert process.read().run.highest_attempt == 2
    process.upload("a", attempt=2)
    process.upload("b", attempt=2)
    assert process.known.find(RUN) == process.read()
    process.step(TimePassed(), seconds=200)


def test_a_step_of_another_process_is_noticed(engine: sa.Engine) -> None:
    story = Story(engine)
    story.begin("a", "b", "c")
    first, second = Process(engine), Process(engine)
    first.upload("a")
    second.upload("b")
    assert first.known.find(RUN) != first.read()
    first.upload("c")  # decided on what is there: the round closes
    assert first.known.find(RUN) == first.read()


def take_and_fail(process: Process, connection: Writing) -> None:
    """The assignment of b, written and then undone."""
    take_step(connection, RUN, AssignmentTaken("b", 1, 1), None, process.known, actor="b", now=NOW)
    assert connection.pending[RUN].run.round.participants[1].status is ParticipantStatus.TRAINING
    raise ZeroDivisionError


def test_what_is_undone_is_not_known(engine: sa.Engine) -> None:
    story, process = Story(engine), Process(engine)
    story.begin("a", "b")
    process.upload("a")
    before = process.known.find(RUN)
    with pytest.raises(ZeroDivisionError), writing(engine) as connection:
        take_and_fail(process, connection)
    assert process.known.find(RUN) == before == process.read()


def test_what_one_of_a_group_undoes_the_next_does_not_see(engine: sa.Engine) -> None:
    story, process = Story(engine), Process(engine)
    story.begin("a", "b")
    with writing(engine) as connection:
        take_step(connection, RUN, AssignmentTaken("a", 1, 1), None, process.known, actor="a", now=NOW)
        with pytest.raises(ZeroDivisionError), connection.savepoint():
            take_and_fail(process, connection)
        state = process.known.lock(connection, RUN).run.round
        assert state is not None
        assert state.participants[1].status is ParticipantStatus.INVITED
    process.known.publish(connection.pending)
    assert process.known.find(RUN) == process.read()


def test_a_run_that_was_deleted_is_not_known(engine: sa.Engine) -> None:
    story, process = Story(engine), Process(engine)
    story.begin("a", "b")
    process.upload("a")
    story.store.delete_run(RUN, reason="", actor="admin", now=NOW, even_open=True)
    with pytest.raises(NotFound):
        process.upload("b")


def test_an_erased_client_is_read_by_its_new_name(engine: sa.Engine) -> None:
    story, process = Story(engine), Process(engine)
    story.begin("a", "b", "c", quorum=1)
    process.step(AssignmentTaken("a", 1, 1))
    story.store.revoke("b", "admin", NOW)
    process.step(AssignmentTaken("c", 1, 1))
    story.store.erase_client("b", "admin", NOW)
    process.upload("a")
    assert [e.client for e in process.read().run.enrolments] != ["a", "b", "c"]

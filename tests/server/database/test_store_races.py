"""Many threads, two coordinators: every step happens once, none is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pytest
import sqlalchemy as sa

from server.database.configs import Configs
from server.database.group_commit import GroupCommit
from server.database.session import Writing, make_engine, writing
from server.database.step.change import Change
from server.database.step.load import load
from server.database.step.write_run import StaleVersion, write
from server.database.tables import clients
from server.lifecycle.effects import Aggregate
from server.lifecycle.events import PauseRequested, TimePassed
from server.lifecycle.machine import Decision, decide
from shared.problems import Conflict, IllegalTransition, NotFound, StorageUnavailable, UpdateLate
from shared.schemas import ParticipantStatus, RunStatus
from tests.helpers.store_play import NOW, RUN, Story, digest, later

T = TypeVar("T")
CLIENTS = [f"c{place:02}" for place in range(20)]


@pytest.fixture
def stories(database_url: str) -> Iterator[tuple[Story, Story]]:
    """Two coordinators on one database."""
    engines = make_engine(database_url), make_engine(database_url)
    yield Story(engines[0]), Story(engines[1])
    for engine in engines:
        engine.dispose()


def race(jobs: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """All at the same moment, each on a thread of its own; results in the order of the jobs."""
    results: list[T | Exception] = [RuntimeError("did not run")] * len(jobs)
    start = threading.Barrier(len(jobs))

    def run(place: int) -> None:
        start.wait()
        try:
            results[place] = jobs[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results


def closings(results: list[Decision | Exception]) -> int:
    decisions = [result for result in results if isinstance(result, Decision)]
    return sum(isinstance(effect, Aggregate) for decision in decisions for effect in decision.effects)


def test_twenty_updates_at_once_are_all_kept_and_close_the_round_once(stories: tuple[Story, Story]) -> None:
    stories[0].begin(*CLIENTS, weighting={"kind": "sizes"})
    results = race(
        [
            lambda story=stories[place % 2], client=client: story.upload(client)  # type: ignore[misc]
            for place, client in enumerate(CLIENTS)
        ]
    )
    assert [r for r in results if not isinstance(r, Decision)] == []
    assert closings(results) == 1
    ledger = stories[0].store.round_view(RUN, 1).ledger
    assert {row.status for row in ledger} == {ParticipantStatus.UPLOADED}
    assert [row.update for row in ledger] == [digest("update", 1, client) for client in CLIENTS]
    assert stories[0].kinds().count("update_received") == 20


def test_an_aggregation_finishes_once(stories: tuple[Story, Story]) -> None:
    stories[0].begin("a", "b")
    stories[0].upload("a")
    stories[0].upload("b")
    results = race([stories[place % 2].aggregate for place in range(20)])
    assert sum(isinstance(result, Decision) for result in results) == 1
    assert sum(isinstance(result, IllegalTransition) for result in results) == 19
    state = stories[1].store.run_state(RUN)
    assert state.completed_rounds == 1
    assert state.round is not None
    assert (state.round.number, state.round.attempt) == (2, 1)
    assert stories[0].kinds().count("round_completed") == 1


def test_the_deadline_and_the_last_update_do_not_both_win(stories: tuple[Story, Story]) -> None:
    stories[0].begin("a", "b")
    stories[0].upload("a")
    first, second = stories

    def deadline() -> Decision:
        return second.store.apply(RUN, TimePassed(), actor="coordinator", now=later(60))

    results = race([lambda: first.upload("b"), *[deadline] * 5])
    assert closings(results) == 1
    b = first.store.round_view(RUN, 1).ledger[1]
    if isinstance(results[0], Decision):
        assert b.status is ParticipantStatus.UPLOADED
    else:
        assert isinstance(results[0], UpdateLate)
        assert b.status is ParticipantStatus.TIMED_OUT


def test_names_are_given_once_to_twenty_who_register_together(stories: tuple[Story, Story]) -> None:
    names: list[str] = []

    def register(place: int) -> None:
        store = stories[place % 2].store
        names.append(store.register(None, digest("token", place), "0.1.0", NOW))

    threads = [threading.Thread(target=register, args=(place,)) for place in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(names) == sorted(f"client-{number}" for number in range(1, 21))


def test_a_join_token_for_one_lets_one_in(stories: tuple[Story, Story]) -> None:
    stories[0].store.add_join_token("a" * 64, 1, None, NOW)
    entered: list[str] = []

    def register(place: int) -> None:
        try:
            token = digest("token", place)
            store = stories[place % 2].store
            entered.append(store.register(None, token, "0.1.0", NOW, join_hash="a" * 64))
        except Exception as error:
            assert "used up" in str(error)  # noqa: PT017 - on a thread, where pytest.raises helps nobody

    threads = [threading.Thread(target=register, args=(place,)) for place in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert entered == ["client-1"]


@pytest.mark.parametrize("name", [None, "a-clinic"])
@pytest.mark.parametrize("uses", [1, 5])
def test_one_client_that_registers_twice_at_once_is_one(
    stories: tuple[Story, Story], name: str | None, uses: int
) -> None:
    """The answer to its first request is late, and it asks another coordinator."""
    for turn in range(10):
        wanted = None if name is None else f"{name}-{turn}"
        join, token = digest("join", turn), digest("token", turn)
        stories[0].store.add_join_token(join, uses, None, NOW)

        def register(place: int, wanted: str | None = wanted, join: str = join, token: str = token) -> str:
            return stories[place].store.register(wanted, token, "0.1.0", NOW, join_hash=join)

        first, second = race([partial(register, 0), partial(register, 1)])
        assert first == second
        assert isinstance(first, str), first
    assert len(stories[0].store.clients()) == 10
    assert {row.uses_left for row in stories[0].store.join_tokens()} == {uses - 1}
    assert stories[0].kinds(None).count("client_registered") == 10


def test_a_deletion_and_refused_uploads_do_not_lock_one_another_out(stories: tuple[Story, Story]) -> None:
    for turn in range(10):
        run = f"run-{turn}"
        stories[0].create(run)

        def delete(run: str = run) -> None:
            stories[0].store.delete_run(run, reason="wrong", actor="admin", now=later(5), even_open=True)

        def record(run: str = run) -> None:
            for _ in range(5):
                stories[1].store.record("update_refused", run=run, actor="a", now=later(5))

        results = race([delete, record])
        assert [r for r in results if r is not None and not isinstance(r, NotFound)] == []


def test_revocations_and_uploads_do_not_lock_one_another_out(stories: tuple[Story, Story]) -> None:
    """A revocation moves several runs in one transaction; uploads move one each, at the same moment."""
    leaving, staying = CLIENTS[:5], CLIENTS[5:]
    stories[0].begin(*CLIENTS, weighting={"kind": "sizes"})
    stories[0].create("another", weighting={"kind": "sizes"}, min_clients=50)
    for client in leaving:
        stories[0].enrol(client, run="another")
    errors: list[Exception] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    jobs: list[Callable[[], object]] = []
    for place, client in enumerate(staying):
        jobs.append(lambda story=stories[place % 2], client=client: story.upload(client))  # type: ignore[misc]
    for place, client in enumerate(leaving):
        store = stories[place % 2].store
        jobs.append(lambda store=store, client=client: store.revoke(client, "admin", later(5)))  # type: ignore[misc]
    threads = [threading.Thread(target=attempt, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    ledger = stories[0].store.round_view(RUN, 1).ledger
    assert [row.status for row in ledger] == [
        *[ParticipantStatus.FAILED] * len(leaving),
        *[ParticipantStatus.UPLOADED] * len(staying),
    ]


def test_coordinators_that_start_together_seed_one_join_token(stories: tuple[Story, Story]) -> None:
    ids: list[int] = []

    def seed(place: int) -> None:
        ids.append(stories[place % 2].store.add_join_token("a" * 64, None, None, NOW))

    threads = [threading.Thread(target=seed, args=(place,)) for place in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert ids == [stories[0].store.join_tokens()[0].id] * 10
    assert stories[0].kinds(None) == ["join_token_added"]


def test_event_ids_become_visible_in_their_order(stories: tuple[Story, Story]) -> None:
    """A reader that asks for "after N" while twenty write must see every event exactly once."""
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = done.is_set()
            seen.extend(e.id for e in stories[1].store.events(seen[-1] if seen else 0))

    reader = threading.Thread(target=follow)
    reader.start()
    writers = [
        threading.Thread(
            target=lambda story=stories[place % 2]: [
                story.store.record("update_refused", actor="a", now=NOW) for _ in range(10)
            ]
        )
        for place in range(10)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    done.set()
    reader.join(timeout=60)
    assert len(seen) == 100
    assert seen == sorted(set(seen))


def test_a_stale_decision_is_not_written(engine: sa.Engine) -> None:
    """The compare-and-swap itself: the version moved between reading and writing."""
    story = Story(engine)
    story.begin("a", "b")
    with writing(engine) as connection:
        before = load(connection, RUN, Configs(), lock=True)
        event = PauseRequested("late")
        stale = Change(before, decide(before.run, event, NOW), event, None, "admin", NOW)
    story.upload("a")
    with pytest.raises(StaleVersion), writing(engine) as connection:
        write(connection, stale)
    assert story.store.run_state(RUN).status is RunStatus.RUNNING
    assert "run_paused" not in story.kinds()


def test_one_writer_that_fails_does_not_disturb_those_it_shares_a_commit_with(engine: sa.Engine) -> None:
    """Twenty wait while one writes; the odd ones raise after they wrote, and only theirs is undone."""
    story = Story(engine)
    writer = GroupCommit(engine, lambda pending, is_news: None)
    entered, go_on = threading.Event(), threading.Event()

    def hold(connection: Writing) -> None:
        entered.set()
        assert go_on.wait(30)

    def add(place: int) -> Callable[[Writing], int]:
        def work(connection: Writing) -> int:
            row = {"client": f"c{place}", "token_hash": digest(place), "version": "", "registered_at": NOW}
            connection.execute(clients.insert(), row)
            if place == 3:
                raise sa.exc.DatabaseError("INSERT", None, Exception("the image is malformed"))
            if place % 2:
                raise Conflict(f"job {place}")
            return place

        return work

    answers: dict[int, object] = {}

    def ask(place: int) -> None:
        try:
            answers[place] = writer.write(add(place))
        except Conflict as conflict:
            answers[place] = conflict.detail
        except StorageUnavailable as fault:  # as it is told to who writes alone
            answers[place] = f"job {place}" if "malformed" in fault.detail else fault

    threads = [threading.Thread(target=writer.write, args=(hold,))]
    threads[0].start()
    assert entered.wait(30)
    for place in range(20):
        threads.append(threading.Thread(target=ask, args=(place,)))
        threads[-1].start()
    go_on.set()
    for thread in threads:
        thread.join(timeout=60)
    assert answers == {place: f"job {place}" if place % 2 else place for place in range(20)}
    assert {c.client for c in story.store.clients()} == {f"c{place}" for place in range(0, 20, 2)}


def test_a_lost_database_is_told_to_every_writer(database_url: str) -> None:
    url = sa.make_url(database_url)
    engine = make_engine(url.set(database=f"{url.database}/missing"))
    with pytest.raises(StorageUnavailable, match="does not answer"):
        Story(engine).upload("a")
    engine.dispose()

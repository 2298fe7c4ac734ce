"""The store: one method, one transaction. Synchronous; the coordinator calls it on threads.

Every question and every change has its name here, so that callers know neither connections nor SQL.

Who writes says who acts (``actor``: admin, a client's id, or coordinator) and when (``now``, aware).
Every method raises :class:`shared.problems.StorageUnavailable` if the database does not answer.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from server.database import (
    aggregations,
    assignments,
    assistances,
    audit,
    audit_log,
    blobs,
    clients,
    comparison,
    counts,
    erasure,
    evaluations,
    events,
    installation,
    integrity,
    join_tokens,
    removal,
    rounds,
    run_figures,
    runs,
    users,
)
from server.database.aggregations import AggregationInput, OpenAggregation
from server.database.audit import StoredRun
from server.database.blobs import WantedUpdate
from server.database.configs import Configs
from server.database.erasure import OpenUpdate
from server.database.group_commit import GroupCommit, News
from server.database.join_tokens import ANY_CLIENT, ClientGrant, JoinTokenRow
from server.database.others import Others, Seen
from server.database.run_figures import RunFigures
from server.database.session import Reading, Writing, describe, reading, writing
from server.database.step.facts import Facts
from server.database.step.known import KnownRuns
from server.database.step.step import Evaluated, take_assignments, take_change, take_evaluation, take_step
from server.database.step.write_run import StaleVersion
from server.database.users import UserRow
from server.lifecycle.events import (
    AssignmentTaken,
    ClientLeft,
    ClientSeen,
    CoordinatorReturned,
    Event,
    UpdateReceived,
)
from server.lifecycle.machine import Decision
from server.lifecycle.state import Run
from shared.config import RunConfig
from shared.problems import Conflict, NameTaken, StorageUnavailable, WrongToken
from shared.schemas import (
    Assignment,
    ClientView,
    ComparedRun,
    DeletedRun,
    Deletion,
    EvaluationView,
    EventView,
    Metrics,
    Progress,
    Receipt,
    RoundStatus,
    RoundView,
    RunSummary,
    RunView,
    TensorSpec,
    UserRequest,
    UserView,
)

__all__ = ["Store"]

TRIES = 10
TURNS = 64
"""Runs of the same turn wait for one another."""
P = ParamSpec("P")
T = TypeVar("T")


log = logging.getLogger("feddisco")


class _Absent(Exception):
    """A note of life that is taken back: what was missed has to be counted with it."""

    def __init__(self, absence: dt.timedelta) -> None:
        super().__init__(absence)
        self.absence = absence


class Store:
    """All that survives the coordinator, over one engine; safe to use from many threads and processes.

    ``is_only_writer``: no other process and no other store moves the runs of this database meanwhile.
    """

    def __init__(self, engine: sa.Engine, *, is_only_writer: bool = False) -> None:
        self.engine = engine
        self._is_only_writer = is_only_writer
        self._configs = Configs()
        self._known = KnownRuns(self._configs, is_only_writer=is_only_writer)
        self._others = Others(self.note_others)
        self._writer = GroupCommit(engine, self._note_commit)
        # on SQLite whoever writes does so for all who wait (`GroupCommit`)
        self._turns = [threading.Lock() for _ in range(TURNS if engine.dialect.name == "postgresql" else 0)]
        self._commits = itertools.count(1)
        self._words = self._work = 0
        self.unwritten_delays: dict[str, str] = {}
        """By run, why its round is not aggregated, where even that cannot be written: the disk is full."""

    def _note_commit(self, connection: Writing, news: News) -> None:
        self._known.publish(connection.pending)
        self._others.note_own(connection)
        if news >= News.WORDS:
            self._words = next(self._commits)
        if news >= News.WORK:
            self._work = self._words

    @property
    def news(self) -> int | None:
        """Another number after every commit that may concern a client; None: others may have committed."""
        return self._words if self.is_watched else None

    @property
    def news_of_work(self) -> int | None:
        """The same, of commits after which a client may have something to do."""
        return self._work if self.is_watched else None

    @property
    def is_watched(self) -> bool:
        """Whether nobody else commits here, or what others commit is found soon (:meth:`look_for_others`)."""
        return self._is_only_writer or self._others.is_watched

    def note_others(self) -> None:
        """Another process has committed something: what is remembered of clients is to be doubted."""
        self._words = self._work = next(self._commits)

    def look_for_others(self, since: dt.datetime) -> Seen:
        """What others have committed since the last look, which is news from now on; for all time.

        ``since``: from when on ended tokens are listed.
        """
        return self._read_once(self._others.look, since)

    def _read(self, query: Callable[Concatenate[Reading, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The query's answer, from one consistent snapshot."""
        with reading(self.engine) as connection:
            return query(connection, *args, **kwargs)

    def _read_once(self, query: Callable[Concatenate[Reading, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, of a query of a single statement."""
        with reading(self.engine, once=True) as connection:
            return query(connection, *args, **kwargs)

    # ---------------------------------------------------------------- transitions

    def apply(
        self, run: str, event: Event, *, actor: str, now: dt.datetime, facts: Facts | None = None
    ) -> Decision:
        """What the event makes of the run, committed; the caller then carries out the effects.

        A repetition that brings nothing new (the same update, discrepancy or enrolment) gives a decision
        without effects. Raises :class:`NotFound` for no such run, and a :class:`Conflict` or
        :class:`InvalidRequest` for what is not possible; nothing is written then.
        """

        def step(connection: Writing) -> Decision:
            return take_step(connection, run, event, facts, self._known, actor=actor, now=now)

        durable = not isinstance(event, AssignmentTaken | ClientSeen)  # they come again by themselves
        return self._move(run, step, durable=durable, news=self._rate(run, event))

    def _rate(self, run: str, event: Event) -> News:
        """An update gives nobody work before the round's end, unless the round has steps (secure sums)."""
        if not isinstance(event, AssignmentTaken | UpdateReceived):
            return News.WORK
        known = self._known.find(run)  # whether its sums are secure is so for ever
        return News.WORDS if known is not None and not known.config.secure else News.WORK

    def take_assignments(
        self, run: str, events: Sequence[AssignmentTaken], now: dt.datetime
    ) -> list[Decision | Conflict]:
        """What each event makes of the run, or why it is refused; one transaction for all.

        Not durable: who took an assignment takes it again.
        """
        news = self._rate(run, events[0])
        try:
            decisions = self._move(
                run,
                lambda connection: take_assignments(connection, run, events, self._known, now=now),
                durable=False,
                news=news,
            )
        except Conflict:  # of one of them: each for itself
            pass
        else:
            return list[Decision | Conflict](decisions)
        decided: list[Decision | Conflict] = []
        for event in events:
            try:
                decided.append(self.apply(run, event, actor=event.client, now=now))
            except Conflict as conflict:
                decided.append(conflict)
        return decided

    def _move(
        self, run: str, step: Callable[[Writing], T], *, durable: bool = True, news: News = News.WORK
    ) -> T:
        """What the step returns, committed; tried again while others move the run meanwhile.

        On PostgreSQL threads take turns with a run here: who waited for its row there would hold a
        connection, and have to read what this process knows.
        """
        for _ in range(TRIES):
            try:
                with self._turns[hash(run) % TURNS] if self._turns else nullcontext():
                    return self._writer.write(step, durable=durable, news=news)
            except StaleVersion:
                self._known.forget(run)
        raise StorageUnavailable(
            f"run {run!r} was moved by others {TRIES} times in a row in {describe(self.engine)}",
            hint="Try again.",
        )

    def change_run(self, run: str, changes: Mapping[str, Any], *, actor: str, now: dt.datetime) -> Decision:
        """Change fields of the run's configuration; the decision is without effects if that is nothing new.

        Raises InvalidConfiguration, NotFound, and IllegalTransition where past rounds would be touched.
        """
        return self._move(
            run,
            lambda connection: take_change(connection, run, changes, self._known, actor=actor, now=now),
        )

    def create_runs(
        self,
        *configs: RunConfig,
        classes: Sequence[str],
        manifest: Sequence[TensorSpec],
        initial_model: str,
        initial_bytes: int,
        actor: str,
        now: dt.datetime,
    ) -> None:
        """Enrolling runs from one initial model, which is stored already: all or none. NameTaken."""
        self._writer.write(
            lambda connection: runs.create_runs(
                connection,
                configs,
                classes=classes,
                manifest=manifest,
                initial_model=initial_model,
                initial_bytes=initial_bytes,
                actor=actor,
                now=now,
            )
        )

    def record(
        self,
        kind: str,
        *,
        run: str | None = None,
        round: int | None = None,
        client: str | None = None,
        actor: str,
        detail: Mapping[str, Any] | None = None,
        now: dt.datetime,
    ) -> None:
        """An event outside the transitions, such as a refused upload; text in it is made storable."""
        self._writer.write(
            lambda connection: events.record(
                connection,
                kind,
                run=run,
                round=round,
                client=client,
                detail=detail or {},
                actor=actor,
                now=now,
            )
        )

    def add_evaluation(
        self,
        run: str,
        round: int,
        client: str,
        metrics: Metrics,
        actor: str,
        now: dt.datetime,
        *,
        model: str | None = None,
    ) -> Evaluated:
        """Whether it is new, and what it decides where the run goes by its scores.

        Raises NotFound, Forbidden, or Conflict for other values, another model, or a round without model.
        """
        return self._move(
            run,
            lambda connection: take_evaluation(
                connection, run, round, client, metrics, model, self._known, actor=actor, now=now
            ),
        )

    def progress(self, run: str, round: int, client: str, progress: Progress, now: dt.datetime) -> bool:
        """Notes a heartbeat; whether the client's update is still wanted."""
        return self._writer.write(
            lambda connection: rounds.note_progress(connection, run, round, client, progress, now),
            durable=False,
            news=News.NONE,
        )

    # ---------------------------------------------------------------- after the end

    def archive_run(self, run: str, archived: bool, *, actor: str, now: dt.datetime) -> bool:
        """Put the run away, or back; whether that is news. Raises as :meth:`find_ended`."""
        return self._writer.write(
            lambda connection: removal.archive_run(connection, run, archived, actor=actor, now=now)
        )

    def find_ended(self, run: str) -> dt.datetime:
        """When the run was created. Raises NotFound, and IllegalTransition for a run that has not ended."""
        return self._read(removal.find_ended, run)

    def run_creation(self, run: str) -> dt.datetime | None:
        """When the run was created; None for no such run."""
        return self._read(removal.find_creation, run)

    def delete_run(
        self, run: str, *, reason: str, actor: str, now: dt.datetime, even_open: bool = False
    ) -> DeletedRun:
        """Delete the run but for a record of it; what only it names can be collected then.

        ``even_open``: also a run that has not ended. Raises as :meth:`find_ended`.
        """
        return self._writer.write(
            lambda connection: removal.delete_run(
                connection, run, self._configs, reason=reason, actor=actor, now=now, even_open=even_open
            )
        )

    def deletions(self) -> list[Deletion]:
        """Of runs, newest first."""
        return self._read(removal.list_deletions)

    def deletion(self, run: str) -> DeletedRun:
        """With the record of the run; NotFound."""
        return self._read(removal.read_deletion, run)

    # ---------------------------------------------------------------- clients and tokens

    def register(
        self,
        name: str | None,
        token_hash: str,
        version: str,
        now: dt.datetime,
        *,
        join_hash: str | None = None,
        identity: str | None = None,
        actor: str | None = None,
    ) -> str:
        """The new client's id, and one use of the join token counted.

        Raises NameTaken, WrongName, WrongToken, OtherIdentity.

        The client that has this token already, if there is one: its answer was lost and it asks again.
        """

        def work(connection: Writing) -> str:
            if known := clients.find_registered(connection, name, token_hash):
                return known
            grant = (
                ANY_CLIENT if join_hash is None else join_tokens.use_join_token(connection, join_hash, now)
            )
            return clients.register(
                connection, name, token_hash, version, grant, identity=identity, actor=actor, now=now
            )

        try:
            return self._writer.write(work)
        except (NameTaken, WrongToken, sa.exc.IntegrityError):
            # at another coordinator the same client may have been faster, with its first request
            if known := self._read(clients.find_registered, name, token_hash):
                return known
            raise

    def client_by_token_hash(self, token_hash: str) -> ClientView | None:
        """Revoked clients too: their token is refused with another reason than an unknown one."""
        return self._read_once(clients.find_by_token_hash, token_hash)

    def clients(self) -> list[ClientView]:
        """All, by name."""
        return self._read(clients.list_clients)

    def mark_seen(self, seen: Mapping[str, dt.datetime]) -> None:
        """Notes when each of these clients was last seen."""
        self._writer.write(
            lambda connection: clients.mark_seen(connection, seen), durable=False, news=News.NONE
        )

    def revoke(self, client: str, actor: str, now: dt.datetime) -> list[tuple[str, Decision]]:
        """Its token is refused from now on, and it leaves every open run; by run, what that decided."""
        event = ClientLeft(client, "its token was revoked")

        def work(connection: Writing) -> list[tuple[str, Decision]]:
            open_runs = clients.lock_open_runs_of(connection, client)
            if not clients.revoke(connection, client, actor, now):
                return []
            return [
                (run, take_step(connection, run, event, None, self._known, actor=actor, now=now))
                for run in open_runs
            ]

        return self._writer.write(work)

    def erase_client(self, client: str, actor: str, now: dt.datetime) -> str | None:
        """The name of no meaning that its rows have now; None while an update of it is open. NotFound."""
        return self._writer.write(lambda connection: erasure.erase(connection, client, actor=actor, now=now))

    def open_updates(self, client: str) -> list[OpenUpdate]:
        """What has to end before the client can be erased."""
        return self._read(erasure.list_open_updates, client)

    def add_join_token(
        self,
        token_hash: str,
        uses: int | None,
        expires_at: dt.datetime | None,
        now: dt.datetime,
        actor: str = "admin",
        grant: ClientGrant = ANY_CLIENT,
    ) -> int:
        """Its id; a token that is known already is left as it is (also if revoked). NameTaken."""
        return self._writer.write(
            lambda connection: join_tokens.add_join_token(
                connection, token_hash, uses, expires_at, grant, actor=actor, now=now
            )
        )

    def grant_of(self, client: str) -> ClientGrant:
        """What the client's join token made of it."""
        return self._read(clients.read_grant, client)

    def identity_of(self, client: str) -> str | None:
        """The client's public key; None: it has none."""
        return self._read(clients.read_identity, client)

    def pin_identity(self, client: str, fingerprint: str, actor: str, now: dt.datetime) -> None:
        """The name is registered under this key only; OtherIdentity if it is under another one."""
        self._writer.write(
            lambda connection: clients.pin_identity(connection, client, fingerprint, actor, now)
        )

    def is_join_token(self, token_hash: str) -> bool:
        """Whether it ever was one, usable or not."""
        return self._read(join_tokens.is_join_token, token_hash)

    def token_hash_of(self, client: str) -> str | None:
        """None for no such client."""
        return self._read(clients.find_token_hash, client)

    def join_hash_of(self, token: int) -> str | None:
        """None for no such join token."""
        return self._read(join_tokens.find_join_hash, token)

    def unrevoked(self, token_hashes: Collection[str]) -> tuple[list[str], list[int], list[str]]:
        """Clients, join tokens and users that are among these and still accepted."""
        return (
            self._read(clients.list_unrevoked, token_hashes),
            self._read(join_tokens.list_unrevoked_tokens, token_hashes),
            self._read(users.list_unrevoked_users, token_hashes),
        )

    def token_hashes(self) -> list[str]:
        """Of all clients, join tokens and users."""
        return [
            *self._read(clients.list_token_hashes),
            *self._read(join_tokens.list_join_hashes),
            *self._read(users.list_user_hashes),
        ]

    def join_tokens(self) -> list[JoinTokenRow]:
        """All, oldest first."""
        return self._read(join_tokens.list_join_tokens)

    def revoke_join_token(self, token: int, actor: str, now: dt.datetime) -> None:
        """NotFound if there is none of this id."""
        self._writer.write(lambda connection: join_tokens.revoke_join_token(connection, token, actor, now))

    def withdraw_join_tokens(self, now: dt.datetime) -> int:
        """Revoke all that could still be used; how many. No event: whoever asks writes the audit log."""
        return self._writer.write(lambda connection: join_tokens.withdraw_join_tokens(connection, now))

    # ---------------------------------------------------------------- people

    def add_user(self, request: UserRequest, token_hash: str, actor: str, now: dt.datetime) -> None:
        """NameTaken, also by one who was revoked."""
        self._writer.write(
            lambda connection: users.add_user(connection, request, token_hash, actor=actor, now=now),
            news=News.NONE,
        )

    def renew_user(self, name: str, token_hash: str, actor: str, now: dt.datetime) -> None:
        """Another token in place of the one before; NotFound."""
        self._writer.write(
            lambda connection: users.renew_user(connection, name, token_hash, actor=actor, now=now),
            news=News.NONE,
        )

    def revoke_user(self, name: str, actor: str, now: dt.datetime) -> None:
        """NotFound if there never was one."""
        self._writer.write(
            lambda connection: users.revoke_user(connection, name, actor=actor, now=now), news=News.NONE
        )

    def users(self) -> list[UserView]:
        """By name, revoked ones, too."""
        return self._read(users.list_users)

    def user(self, name: str) -> UserRow | None:
        return self._read(users.read_user, name)

    def user_by_token_hash(self, token_hash: str) -> UserRow | None:
        """Revoked ones, too."""
        return self._read(users.find_user_by_hash, token_hash)

    def start_session(
        self, session_hash: str, token_hash: str, ends_at: dt.datetime, actor: str, now: dt.datetime
    ) -> None:
        self._writer.write(
            lambda connection: users.start_session(
                connection, session_hash, token_hash, ends_at=ends_at, actor=actor, now=now
            ),
            news=News.NONE,
        )

    def session(self, session_hash: str, now: dt.datetime) -> tuple[str, dt.datetime] | None:
        """The hash of the token that it was begun with, and when it ends; None: no, or it is over."""
        return self._read(users.find_session, session_hash, now)

    def end_session(self, session_hash: str, actor: str, now: dt.datetime) -> None:
        self._writer.write(
            lambda connection: users.end_session(connection, session_hash, actor=actor, now=now),
            news=News.NONE,
        )

    def end_all_sessions(self) -> None:
        self._writer.write(users.end_all_sessions, news=News.NONE)

    # ---------------------------------------------------------------- audit

    def add_audit_entry(
        self,
        action: str,
        *,
        actor: str,
        now: dt.datetime,
        run: str | None = None,
        client: str | None = None,
        detail: Mapping[str, Any] | None = None,
        durable: bool = True,
    ) -> None:
        """What no event says: reading, refused attempts, a restore."""
        self._writer.write(
            lambda connection: audit_log.append(
                connection, action, actor=actor, now=now, run=run, client=client, detail=detail
            ),
            durable=durable,
            news=News.NONE,
        )

    def audit_entries(self, after: int, limit: int) -> list[str]:
        """Lines of JSON with a larger number, oldest first."""
        return self._read(audit_log.list_entries, after, limit)

    def newest_audit_entry(self) -> tuple[int, str | None]:
        """Its number and text; 0 and None if there is none."""
        return self._read(audit_log.read_newest)

    def find_audit_faults(self, head: str | None = None) -> list[str]:
        """What is wrong with the audit log, one sentence each. ``head``: a hash noted elsewhere."""
        return self._read(audit_log.find_faults, head)

    def client_of_update(self, digest: str) -> tuple[str, str] | None:
        """Run and client whose stored update this is."""
        return self._read(blobs.find_client_of_update, digest)

    def is_model_of(self, runs: Collection[str], digest: str) -> bool:
        """Whether it is a model, initial or of a round, of one of these runs."""
        return self._read(blobs.is_model_of, runs, digest)

    # ---------------------------------------------------------------- what a client is asked

    def work_for(self, client: str) -> Assignment | None:
        """The next assignment."""
        return self.work_for_each({client: True})[client].assignment

    def work_for_each(self, clients: Mapping[str, bool]) -> dict[str, assignments.Work]:
        """The next assignment of each; True: also to send an update again that was lost here."""
        return self._read(assignments.next_assignments, clients, self._configs)

    def waiting_for(self, client: str, now: dt.datetime) -> str:
        """Where there is no assignment: a sentence that says what the client waits for."""
        return self._read(assignments.explain_waiting, client, now, self._configs)

    def away_in(self, client: str) -> list[str]:
        """Open runs in which the client counts as away: apply ClientSeen to them when it polls."""
        return self._read_once(assignments.list_away, client)

    def blob_readable(self, client: str, digest: str) -> bool:
        """Whether the client may download it: models and broadcasts of runs to which it is admitted.

        Updates only as an assistant, while it is asked.
        """
        if self._read_once(blobs.is_readable, client, digest):
            return True
        return digest in self._read(assistances.list_readable, client)

    def start_model(self, run: str, round: int, attempt: int, client: str | None = None) -> str | None:
        """Digest of the model that the attempt starts from; None if there is no such attempt.

        With ``client``: what this client starts from, where models travel.
        """
        known = self._known.find(run)  # perhaps of the past, but an attempt starts from one model for ever
        current = None if known is None else known.run.round
        is_current = current is not None and (current.number, current.attempt) == (round, attempt)
        if known and is_current and (client is None or known.config.average_every == 1):
            return known.start_model
        return self._read_once(rounds.find_start_model, run, round, attempt, client)

    def receipt(self, run: str, round: int, client: str) -> Receipt:
        """Of the client's newest update to the round; NotFound if there is none."""
        return self._read(rounds.read_receipt, run, round, client)

    # ---------------------------------------------------------------- what is shown

    def run_state(self, run: str) -> Run:
        """As the state machine sees it; NotFound."""
        known = self._known.find(run)
        if known is not None and (
            self._is_only_writer or self._read_once(runs.read_version, run) == known.version
        ):
            return known.run
        return self._read(runs.read_state, run, self._configs)

    def run_view(self, run: str, now: dt.datetime, reader: str | None = None) -> RunView:
        """``reader``: the client that the sentence on what the run waits for is for; None: the page."""
        view = self._read(runs.read_run, run, now, self._configs, reader)
        reason, current = self.unwritten_delays.get(run), view.current_round
        if reason is None or current is None or current.status is not RoundStatus.AGGREGATING:
            return view
        words = f"; delayed: {reason}" if reader is None else ", which is delayed"
        return view.model_copy(update={"waiting_for": view.waiting_for + words})

    def runs(self, archived: bool = False) -> list[RunSummary]:
        """Newest first; ``archived``: also those that were put away."""
        return self._read(runs.list_runs, self._configs, archived=archived)

    def rounds(self, run: str, since: int = 0, until: int | None = None) -> list[RoundView]:
        """Oldest first, every attempt, from round ``since`` to round ``until``; NotFound for no such run."""
        return self._read(rounds.list_rounds, run, since, until)

    def completed_attempts(self, run: str) -> dict[int, int]:
        """By round that counts, from 1: the attempt that was completed."""
        return self._read(rounds.read_completed_attempts, run)

    def round_view(self, run: str, round: int, attempt: int | None = None) -> RoundView:
        """The newest attempt unless one is named; NotFound."""
        return self._read(rounds.read_round, run, round, attempt)

    def evaluations(self, run: str) -> list[EvaluationView]:
        """By round (0: the initial model), then by client."""
        return self._read(evaluations.list_evaluations, run)

    def compared(self, names: Sequence[str]) -> list[ComparedRun]:
        """Configurations and scores of many runs, in this order; names that no run has are left out."""
        return self._read(comparison.read_compared, names)

    def newest_categories(self, names: Sequence[str]) -> dict[str, list[tuple[int, dict[str, float]]]]:
        """By run: examples and accuracies by category, of each evaluator of its newest evaluated round."""
        return self._read(comparison.newest_categories, names)

    def mean_weights(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """By run and client: its mean weight over the rounds that took its update."""
        return self._read(comparison.mean_weights, names)

    def events(self, after_id: int = 0, run: str | None = None, limit: int = 1000) -> list[EventView]:
        """Events after that one, oldest first."""
        return self._read_once(events.list_events, after_id, run, limit)

    def latest_event_id(self, run: str | None = None) -> int:
        """0 if there is none."""
        return self._read_once(events.newest_event_id, run)

    # ---------------------------------------------------------------- the coordinator's own work

    def overdue(self, now: dt.datetime) -> list[str]:
        """Runs whose collecting round is past its deadline, or that waited long enough: apply TimePassed."""
        return self._read(rounds.list_overdue, now)

    def deadlines(self) -> list[tuple[str, dt.datetime]]:
        """Runs whose round collects updates, or that cannot go on; and since when that is so."""
        return self._read(rounds.list_deadlines)

    def database_id(self, now: dt.datetime) -> str:
        """The same for ever; made when it is first asked for."""
        return self._writer.write(lambda connection: installation.make_id(connection, now), news=News.NONE)

    def note_alive(
        self, now: dt.datetime, find: Callable[[dt.datetime | None], dt.timedelta]
    ) -> dt.timedelta:
        """A coordinator is alive now; what ``find`` makes of when one last was, by the clock of that time.

        Unless that is nothing, it is not noted: see :meth:`count_absence`.
        """

        def work(connection: Writing) -> dt.timedelta:
            if absence := find(installation.note_alive(connection, now)):
                raise _Absent(absence)
            return absence

        try:
            return self._writer.write(work, durable=False, news=News.NONE)
        except _Absent as found:
            return found.absence

    def count_absence(
        self,
        note: dt.datetime,
        find: Callable[[dt.datetime | None], dt.timedelta],
        read_now: Callable[[], dt.datetime],
        *,
        actor: str,
        set_at: dt.datetime | None = None,
    ) -> tuple[dt.timedelta, list[tuple[str, Decision]]]:
        """Note that a coordinator is alive, and move open deadlines by what ``find`` makes of that.

        In one transaction: once the absence is noted as over, nobody would move those that are left. A run
        that cannot be read is passed over.

        Args:
            note: the time of this note.
            find: what counts for no deadline, by when a coordinator last was alive (None: never).
            read_now: the time, once nobody else moves these runs.
            actor: who moves them, for the log.
            set_at: when the clock was set; what began since began by the clock as it is now. None: every
                round gets its minute, whatever was found.

        Returns:
            What counts for no deadline, and by run what that decided.
        """

        def work(connection: Writing) -> tuple[dt.timedelta, list[tuple[str, Decision]]]:
            waiting = rounds.lock_deadlines(connection)  # before what every step locks last
            absence = find(installation.note_alive(connection, note))
            decided = []
            now = read_now()
            for run, since in waiting if absence or set_at is None else ():
                if set_at is not None and set_at <= since <= now:
                    continue
                event = CoordinatorReturned(absence)
                try:
                    step = take_step(connection, run, event, None, self._known, actor=actor, now=now)
                except (Conflict, ValueError):
                    log.exception("the deadline of run %s cannot be moved", run)
                else:
                    decided.append((run, step))
            if absence or set_at is None:
                assistances.move_deadlines(connection, absence, now, set_at)
            return absence, decided

        return self._writer.write(work)

    def last_alive(self) -> dt.datetime | None:
        """When a coordinator last noted that it is alive; None: never."""
        return self._read(installation.last_alive)

    def read_time(self) -> dt.datetime:
        """PostgreSQL only: its time of day."""
        return self._read_once(installation.read_time)

    def aggregating(self) -> list[OpenAggregation]:
        """Rounds being aggregated, oldest first, with since when."""
        return self._read_once(aggregations.list_aggregating)

    # ---------------------------------------------------------------- assistants

    def ask_assistant(
        self,
        key: assistances.Key,
        asked: assistances.Asked,
        bytes: int,
        deadline: dt.datetime,
        now: dt.datetime,
    ) -> bool:
        """Whether it is asked now. ``bytes``: of the model that is asked about."""
        return self._writer.write(
            lambda connection: assistances.ask(connection, key, asked, bytes, deadline, now)
        )

    def is_assistant(self, run: str, client: str) -> bool:
        """Whether it is the evaluator that the run names."""

        def ask(connection: Reading) -> bool:
            return assistances.is_assistant(connection, run, self._configs.of(connection, run), client)

        return self._read(ask)

    def is_somebodys_name(self, name: str, now: dt.datetime) -> bool:
        """Whether nobody can come by this client's name any more but whom it is for."""
        return self._read(join_tokens.is_somebodys, name, now)

    def add_assistance(
        self,
        key: assistances.Key,
        client: str,
        digest: str,
        bytes: int,
        report: Mapping[str, Any],
        now: dt.datetime,
    ) -> bool:
        """Whether the answer is news. Raises as :func:`server.database.assistances.add_answer`."""

        def work(connection: Writing) -> bool:
            config = self._configs.of(connection, key[0])
            return assistances.add_answer(connection, key, config, client, digest, bytes, report, now)

        return self._writer.write(work)

    def add_assistance_fault(
        self, key: assistances.Key, client: str, fault: str, code: str, now: dt.datetime
    ) -> bool:
        """That there will be no answer. Raises as :func:`server.database.assistances.add_answer`."""

        def work(connection: Writing) -> bool:
            config = self._configs.of(connection, key[0])
            return assistances.add_fault(connection, key, config, client, fault, code, now)

        return self._writer.write(work)

    # ---------------------------------------------------------------- what a round is made of

    def aggregation_input(self, run: str, round: int, attempt: int) -> AggregationInput:
        """All that decides the round's result; NotFound. For replays of completed rounds too."""
        return self._read(aggregations.read_input, run, round, attempt, self._configs)

    def referenced_blobs(self) -> set[str]:
        """Every blob that a row names."""
        return self._read(blobs.list_referenced)

    def unneeded_blobs(self) -> list[str]:
        """Files that a run named and that no run needs any more."""
        return self._read(blobs.list_unneeded)

    def forget_blobs(self, digests: Sequence[str]) -> None:
        """Their files have been deleted."""
        if digests:
            self._writer.write(lambda connection: blobs.forget(connection, digests))

    @contextmanager
    def lock_files(self, exclusive: bool) -> Iterator[None]:
        """Against all coordinators on this PostgreSQL: while files are deleted nobody stores any."""
        with writing(self.engine) as connection:
            connection.lock_files(exclusive=exclusive)
            yield

    def is_recorded(self, digest: str) -> bool:
        """Whether a file of this digest was stored for a run, and not collected since."""
        return self._read(blobs.is_recorded, digest)

    def faulty_blobs(self) -> list[str]:
        """Digests of the files that are known to be missing or damaged."""
        return self._read(blobs.list_faulty)

    def note_blob_fault(self, digest: str, fault: str | None, now: dt.datetime) -> list[WantedUpdate]:
        """What is wrong with a file (None: nothing). If that is news: updates of open rounds that it is."""
        return self._writer.write(lambda connection: blobs.note_fault(connection, digest, fault, now))

    def claim_unchecked_blob(self, before: dt.datetime, now: dt.datetime) -> str | None:
        """A file that was not checked since ``before``; from now on it counts as checked, everywhere."""
        return self._writer.write(
            lambda connection: blobs.claim_unchecked(connection, before, now),
            durable=False,
            news=News.NONE,
        )

    # ---------------------------------------------------------------- verification

    def find_database_faults(self) -> list[str]:
        """What is wrong with the database itself; reads all of it."""
        return integrity.find_faults(self.engine)

    def read_database_id(self) -> str | None:
        """None if it has none yet."""
        return self._read(audit.read_id)

    def audit_runs(self) -> list[StoredRun]:
        """Every run with the ledgers of its completed rounds."""
        return self._read(lambda connection: list(audit.list_runs(connection)))

    def recorded_blobs(self) -> dict[str, int]:
        """Bytes by digest of the files that were stored for runs and not collected since."""
        return self._read(audit.list_recorded)

    def stored_bytes(self) -> tuple[dict[str, int], int]:
        """Of the files that rows name, by run and in all; a file that two runs name counts in both."""
        return self._read(blobs.sum_bytes)

    def run_figures(self, now: dt.datetime) -> list[RunFigures]:
        """Of each run that has not ended."""
        return self._read(run_figures.list_run_figures, now)

    def counts(self) -> dict[str, dict[str, int]]:
        """Figures for the metrics, by noun and status."""
        return self._read(counts.count_rows)

    def waiting_since(self) -> dict[str, dt.datetime]:
        """The runs that cannot go on, and since when."""
        return self._read(counts.list_waiting)

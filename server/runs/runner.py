"""Commits what the state machine decides and carries out its effects; aggregates rounds, watches deadlines.

A decision is committed first, then its effects are carried out. Any effect may be lost with the
process, and none is lost for good: long polls ask the database first, and a round that is left
AGGREGATING is aggregated by whoever finds it. Two processes may do the same work; the
compare-and-swap lets one result in.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from server.background import repeat
from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.clock import Clock
from server.database.store import Store
from server.lifecycle.effects import Aggregate, Record, Wake
from server.lifecycle.events import (
    AggregationDelayed,
    AggregationFailed,
    AggregationFinished,
    AssignmentTaken,
    Event,
    TimePassed,
)
from server.monitoring.metrics import Telemetry
from server.runs.assistance import AssistanceAwaited
from server.runs.blob_faults import BlobFaults
from server.runs.early_sums import EarlySums
from server.runs.moves import Moves
from server.settings import Settings
from server.threads import Threads
from server.wakeups.hub import Hub
from shared.problems import Conflict, NotFound, Problem, ServiceFault, StorageUnavailable
from shared.secure.faults import AttemptAbandoned

if TYPE_CHECKING:
    from server.database.aggregations import OpenAggregation
    from server.database.blobs import WantedUpdate
    from server.database.step.facts import AggregationFacts, Facts
    from server.lifecycle.machine import Decision

__all__ = ["ACTOR", "Runner"]

ACTOR = "coordinator"
SWEEP_SECONDS = 1.0
ORPHANED_AFTER_SECONDS = 60.0
RETRY_SECONDS = 1.0  # the first delay; doubled up to ORPHANED_AFTER_SECONDS
LOOK_AGAIN_SECONDS = 5.0
COLLECT_SECONDS = 300.0
COLLECT_STRAYS_SECONDS = 3600.0
UNNEEDED_AFTER = dt.timedelta(minutes=10)
"""Longer than a file that is about to be named waits for its transaction after it was put."""

Key = tuple[str, int, int]  # run, round, attempt

log = logging.getLogger("feddisco.rounds")


class Runner:
    """The shell around the state machine, and the background work of a coordinator."""

    def __init__(
        self,
        *,
        store: Store,
        blobs: BlobStore,
        integrity: BlobIntegrity,
        faults: BlobFaults,
        moves: Moves,
        hub: Hub,
        threads: Threads,
        telemetry: Telemetry,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._integrity = integrity
        self._faults = faults
        self._moves = moves
        self.early = EarlySums(store, blobs, integrity, settings.early_sum_bytes)
        faults.listener = self._on_lost_updates
        self.follow_time: Callable[[], None] = _follow_nothing
        self.on_revoked: Callable[[str], None] = _tell_nobody
        self._hub = hub
        self._threads = threads
        self._telemetry = telemetry
        self._settings = settings
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(settings.aggregation_threads, "feddisco-aggregate")
        self._busy: set[Key] = set()
        # a round whose aggregation met a fault: when to try again, by the monotonic clock; after which delay
        self._retries: dict[Key, tuple[float, float]] = {}
        # a round that is AGGREGATING and not here: from when on it is no longer left to other processes
        self._orphans: dict[Key, float] | None = None
        # a round that waits for its assistant: when to look again, by the monotonic clock
        self._awaiting: dict[Key, float] = {}
        self._closing = False

    # ------------------------------------------------------------ on any thread

    def commit(
        self,
        run: str,
        event: Event,
        *,
        actor: str,
        facts: Facts | None = None,
        now: dt.datetime | None = None,
    ) -> Decision:
        """One transition as one transaction; the event loop carries out its effects, whoever called."""
        self.follow_time()
        decision = self._store.apply(run, event, actor=actor, now=now or self._clock(), facts=facts)
        self.hand_over(run, decision)
        return decision

    def commit_taken(self, run: str, events: Sequence[AssignmentTaken]) -> set[str]:
        """Assignments that are taken at the same moment; the clients whose round was closed in between."""
        self.follow_time()
        refused = set()
        decided = self._store.take_assignments(run, events, self._clock())
        for event, decision in zip(events, decided, strict=True):
            if isinstance(decision, Conflict):
                refused.add(event.client)
            else:
                self.hand_over(run, decision)
        return refused

    def hand_over(self, run: str, decision: Decision) -> None:
        """Have the event loop carry out what was committed."""
        self._call_soon(self.carry_out, run, decision)

    def record(
        self,
        kind: str,
        *,
        run: str,
        round: int | None = None,
        client: str | None = None,
        actor: str,
        detail: Mapping[str, Any],
    ) -> None:
        """An entry of the event log outside a transition."""
        self._store.record(
            kind, run=run, round=round, client=client, actor=actor, detail=detail, now=self._clock()
        )
        self.announce(run)

    def announce(self, run: str) -> None:
        """Something about the run was written: event streams look again."""
        self._call_soon(self._hub.announce, run)

    def note_revoked(self, client: str) -> None:
        """Its token is not accepted any more, whatever becomes of the rest of what is under way."""
        self._call_soon(self.on_revoked, client)

    def forget_client(self) -> None:
        """One was erased."""
        self._telemetry.forget_ledgers()
        self._call_soon(self._hub.forget_past)

    def forget(self, run: str) -> None:
        """The run has been deleted."""
        self._telemetry.forget_ledgers()
        self._store.unwritten_delays.pop(run, None)
        self.early.forget(run)
        self.announce(run)

    def _call_soon(self, work: Callable[..., None], *args: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work, *args)

    # ------------------------------------------------------------ on the event loop

    def carry_out(self, run: str, decision: Decision) -> None:
        """Every effect of every committed decision passes here."""
        self._telemetry.count_records(decision.effects)
        self.early.follow(decision.run)
        records = []
        for effect in decision.effects:
            match effect:
                case Wake(clients):
                    self._hub.wake(clients)
                case Aggregate(number, attempt):
                    self.schedule(run, number, attempt)
                case Record():
                    records.append(effect)  # written with the transition; streams are woken once, below
        if records:
            self._hub.announce(run, {record.client for record in records if record.client is not None})

    def schedule(self, run: str, number: int, attempt: int) -> None:
        """Aggregate this attempt on a thread of its own, unless this process is doing so already."""
        key = (run, number, attempt)
        if key in self._busy or self._closing:
            return
        self._busy.add(key)
        done = asyncio.get_running_loop().run_in_executor(self._workers, self._aggregate, *key)
        done.add_done_callback(lambda future: self._finished(key, future))

    def _finished(self, key: Key, future: asyncio.Future[None]) -> None:
        self._busy.discard(key)
        _, delay = self._retries.pop(key, (0.0, RETRY_SECONDS / 2))
        self._awaiting.pop(key, None)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, AssistanceAwaited):
            self._await_assistant(key, error)
        elif error is not None:
            delay = min(2 * delay, ORPHANED_AFTER_SECONDS)
            self._retries[key] = (self._clock.monotonic() + delay, delay)
            log.error("round %d of %s stays open: %s; tried again in %g s", key[1], key[0], error, delay)
            log.debug("the reason", exc_info=error)

    def _await_assistant(self, key: Key, awaited: AssistanceAwaited) -> None:
        """Look again when the answer comes, at the deadline, and now and then: another process may get it."""
        left = (awaited.deadline - self._clock()).total_seconds()
        self._awaiting[key] = self._clock.monotonic() + min(max(left, 0.0), LOOK_AGAIN_SECONDS)
        if awaited.is_new:
            log.info("round %d of %s: %s", key[1], key[0], awaited)
            self._hub.wake([awaited.client])
            self._hub.announce(key[0])

    def note_assistance(self, run: str, number: int, attempt: int) -> None:
        """The assistant has answered, or said that it will not. On any thread."""
        self._call_soon(self.schedule, run, number, attempt)
        self.announce(run)

    @property
    def delayed(self) -> int:
        """How many rounds could not be aggregated when it was last tried, and are tried again."""
        return len(self._retries)

    def _on_lost_updates(self, updates: Sequence[WantedUpdate], is_mended: bool) -> None:
        for update in updates:  # its file may have been at fault already when it was summed
            self.early.forget(update.run)
        self._call_soon(self._handle_lost_updates, updates, is_mended)

    def _handle_lost_updates(self, updates: Sequence[WantedUpdate], is_mended: bool) -> None:
        """Who can send a lost update again is woken; a round that waited for it is tried at once."""
        for update in updates:
            self._hub.announce(update.run)
            key = (update.run, update.round, update.attempt)
            if not is_mended:
                self._hub.wake([update.client])
            elif key in self._retries:
                self.schedule(*key)

    async def run(self, keep_time: Callable[[], bool]) -> None:
        """Until cancelled: pick up what an earlier process left, then watch deadlines and aggregations.

        ``keep_time`` is called on a thread before each look at the deadlines; False: not now.
        """
        self._loop = asyncio.get_running_loop()
        await repeat(
            SWEEP_SECONDS, partial(self._sweep, keep_time), "cannot look at deadlines now", at_once=True
        )

    async def collect(self) -> None:
        """Until cancelled: delete what runs no longer need soon, and now and then what no run ever named."""
        await asyncio.gather(
            repeat(COLLECT_SECONDS, self._collect, "cannot delete unneeded files now", at_once=True),
            repeat(COLLECT_STRAYS_SECONDS, self._collect_strays, "cannot delete stray files now"),
        )

    def close(self) -> None:
        """Wait for the aggregation under way; those still in the queue are left to the next start."""
        self._closing = True
        self.early.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    async def _sweep(self, keep_time: Callable[[], bool]) -> None:
        if await self._threads.run(keep_time):
            await self._threads.run(self._pass_time)
        await self._adopt_orphans()

    def _pass_time(self) -> None:
        for run in self._store.overdue(self._clock()):
            try:
                self.commit(run, TimePassed(), actor=ACTOR)
            except Conflict as conflict:
                log.info("run %s was faster than its deadline: %s", run, conflict.detail)
            except ServiceFault:
                raise
            except Exception:  # other runs' deadlines go on
                log.exception("the deadline of run %s cannot be applied", run)

    async def _adopt_orphans(self) -> None:
        waited = {*self._retries, *self._awaiting}
        found = await self._threads.run(self._store.aggregating)
        for key in waited - self._busy - set(map(_key, found)):
            self._retries.pop(key, None)  # stopped, rewound, deleted, or done by another process
            self._awaiting.pop(key, None)
        now, known = self._clock.monotonic(), self._orphans
        # at the start this process has nothing under way, and whoever had may be gone
        patience = 0.0 if known is None else ORPHANED_AFTER_SECONDS
        self._orphans = {key: (known or {}).get(key, now + patience) for key in map(_key, found)}
        for key, due in self._orphans.items():
            later = self._awaiting.get(key)
            if now >= (self._retries.get(key, (due, 0.0))[0] if later is None else later):
                self.schedule(*key)

    async def _collect(self) -> None:
        await self._threads.run_long(self.collect_unneeded)

    async def _collect_strays(self) -> None:
        await self._threads.run_long(self.collect_strays)

    def collect_unneeded(self) -> int:
        """Delete the files that a run named and that no run needs any more; how many those were."""
        older_than = self._clock() - UNNEEDED_AFTER
        removed = self._blobs.remove(self._store.unneeded_blobs(), older_than, self._store.forget_blobs)
        return self._note_collected(len(removed), "that no run needs any more")

    def collect_strays(self) -> int:
        """Delete the files that no run names, such as those of uploads that were refused; how many."""
        # the age limit protects a file whose transaction is not committed yet
        older_than = self._clock() - dt.timedelta(seconds=self._settings.collect_after_seconds)
        removed = self._blobs.collect(self._store.referenced_blobs(), older_than)
        return self._note_collected(len(removed), "that no run names")

    def _note_collected(self, removed: int, what: str) -> int:
        self._telemetry.collected.inc(removed)
        if removed:
            log.info("%d files %s were deleted", removed, what)
        return removed

    # ------------------------------------------------------------ on an aggregation thread

    def _aggregate(self, run: str, number: int, attempt: int) -> None:
        try:
            event, facts = self._compute_result(run, number, attempt)
            self.commit(run, event, actor=ACTOR, facts=facts)
        except (Conflict, NotFound) as settled:  # not found: the run was stopped and deleted meanwhile
            log.info("round %d of %s is settled already: %s", number, run, settled.detail)
        except ServiceFault as fault:
            self._note_delay(run, number, attempt, fault)
            raise
        self._store.unwritten_delays.pop(run, None)

    def _note_delay(self, run: str, number: int, attempt: int, fault: ServiceFault) -> None:
        """In the database; in memory while that is what is at fault, as on the same full disk."""
        # as the run's page shows it
        why = fault.public if isinstance(fault, StorageUnavailable) else fault.detail
        try:
            self.commit(run, AggregationDelayed(number, attempt, why), actor=ACTOR)
        except ServiceFault:
            self._store.unwritten_delays[run] = why
            self._call_soon(self._hub.announce, run)
        except Problem:
            return  # the round is settled meanwhile
        else:
            self._store.unwritten_delays.pop(run, None)

    def _compute_result(
        self, run: str, number: int, attempt: int
    ) -> tuple[AggregationFinished | AggregationFailed, AggregationFacts | None]:
        from server.runs.aggregation import Aggregation

        try:
            work = Aggregation(
                store=self._store,
                blobs=self._blobs,
                integrity=self._integrity,
                faults=self._faults,
                moves=self._moves,
                telemetry=self._telemetry,
                patience=self._settings.lost_update_seconds,
                hold=self._settings.hold_aggregation_seconds,
                clock=self._clock,
                early=self.early,
            )
            return work.compute(run, number, attempt)
        except (ServiceFault, AssistanceAwaited):
            raise  # nothing is wrong with the round: it stays AGGREGATING, and the sweep finds it again
        except Exception as error:
            # a refusal of ours explains itself
            trace = None if isinstance(error, Problem | AttemptAbandoned) else error
            log.error("aggregation of round %d of %s failed: %s", number, run, error, exc_info=trace)
            self._telemetry.aggregation_failures.inc()
            return AggregationFailed(number, attempt, str(error) or type(error).__name__), None


def _key(found: OpenAggregation) -> Key:
    return found.run, found.round, found.attempt


def _tell_nobody(_client: str) -> None:
    """Until the coordinator is there."""


def _follow_nothing() -> None:
    """Until a timekeeper is there."""

"""One aggregation: stored updates in, new model and ledger out. Runs on a thread; imports PyTorch."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.database.aggregations import AggregationInput, Update
from server.database.assistances import Asked
from server.database.step.facts import AggregationFacts, AssistanceFacts, ShadowFacts, TravellingFacts
from server.database.store import Store
from server.lifecycle.events import AggregationFinished
from server.monitoring.metrics import Telemetry
from server.runs.assistance import AssistanceAwaited, find_deadline, inputs_from, make_asked, settle
from server.runs.blob_faults import BlobFaults
from server.runs.early_sums import EarlySums
from server.runs.moves import Moves
from shared.aggregation.round_end import (
    Arrived,
    RoundResult,
    Start,
    close_masked_round,
    close_round,
    unmask_totals,
)
from shared.aggregation.shadows import Shadow, ShadowMaker
from shared.aggregation.travelling import TravellingModel, close_travelling_round
from shared.algorithms.base import UpdateInfo
from shared.problems import IllegalTransition, StorageUnavailable
from shared.schemas import SumTotals, TensorKind
from shared.secure.coordinator import Coordinator
from shared.weightings import Contribution, LedgerEntry
from shared.wire import Written

if TYPE_CHECKING:
    from shared.aggregation import RunningSum

__all__ = ["Aggregation", "StoredEnd", "close_stored"]


@dataclass(frozen=True)
class _TimedShadow:
    shadow: Shadow
    seconds: float

    @property
    def facts(self) -> ShadowFacts:
        shadow = self.shadow
        return ShadowFacts(
            name=shadow.name,
            model=_digest(shadow.scored),
            bytes=None if shadow.scored is None else shadow.scored.bytes,
            weights={row.index: row.weight for row in shadow.rows},
            reason=shadow.reason,
            seconds=self.seconds,
        )


@dataclass(frozen=True)
class _Faulty:
    """An update whose stored file is at fault: for how many seconds this is known, and since when."""

    update: Update
    fault: str
    seconds: float
    since: dt.datetime


@dataclass(frozen=True)
class Aggregation:
    """``patience``: seconds after which the round goes on without an update whose stored file is at fault.

    ``hold``: seconds to wait before the result is handed back, a drill for operators. ``early``: what was
    summed while updates came.
    """

    store: Store
    blobs: BlobStore
    integrity: BlobIntegrity
    faults: BlobFaults
    moves: Moves
    telemetry: Telemetry
    patience: float
    hold: float
    clock: Callable[[], dt.datetime]
    early: EarlySums | None = None

    def compute(self, run: str, number: int, attempt: int) -> tuple[AggregationFinished, AggregationFacts]:
        """What to commit for this attempt; all blobs it names are in the store already.

        Raises:
            StorageUnavailable: nothing is wrong with the round, try again later.
            Problem: the round cannot be aggregated (a diverged model, a missing start model ...).
        """
        started = time.perf_counter()
        given = self.store.aggregation_input(run, number, attempt)
        self._check_start(given)
        intact, lost = self._separate_lost(given)
        if given.secure is not None and not number:
            self._pause_for_drill()
            with ExitStack() as held:
                return _find_totals(given, given.secure, self._holder(held)), _NOTHING_MADE
        with self.blobs.workspace() as folder, ExitStack() as held:
            path = self._holder(held)
            settled = settle(given, intact, self.clock(), self.faults.find)
            begun = self.early.take(run, number, attempt) if self.early is not None else ()
            end = close_stored(settled, intact, path, folder, moves=self.moves, begun=begun)
            result = end.result
            if given.assistance is None and (asked := make_asked(given, intact, result)) is not None:
                self._ask(given, asked, result)
            shadows = self._make_shadows(given, result, path, folder)
            facts = self._facts(settled, end, shadows)
        self.telemetry.aggregation_seconds.observe(time.perf_counter() - started)
        self.telemetry.set_ledger(run, _named(intact, result.rows))
        self._pause_for_drill()
        excluded = {**lost, **_excluded(intact, result.rows)}
        event = AggregationFinished(number, attempt, tuple(excluded.items()), result.weightless)
        return event, facts

    def _ask(self, given: AggregationInput, asked: Asked, result: RoundResult) -> None:
        """Ask the run's assistant. Raises AssistanceAwaited: the round is ended when it has answered."""
        scored = result.files.scored if result.files is not None else None
        size = 0
        if asked.model is not None and scored is not None:
            size = self._adopt([scored])[asked.model]
        now, key = self.clock(), (given.run, given.round, given.attempt)
        deadline = find_deadline(given.config, now)
        self.store.ask_assistant(key, asked, size, deadline, now)
        client = given.config.assistant.client if given.config.assistant is not None else ""
        waits_until = deadline if given.assistant_gone is None else now
        raise AssistanceAwaited(client, waits_until, is_new=True)

    def _holder(self, held: ExitStack) -> Callable[[str], Path]:
        """Finds a blob as a local file, which stays until ``held`` ends."""
        return lambda digest: held.enter_context(self.blobs.local(digest))

    def _pause_for_drill(self) -> None:
        if self.hold:
            time.sleep(self.hold)

    def _check_start(self, given: AggregationInput) -> None:
        """Without what the round starts from there is no round: it waits, however long that takes."""
        start = [
            ("model", given.start_model),
            ("broadcast state", given.start_broadcast),
            ("server state", given.start_private),
            *(("travelling model", model.model) for model in given.travelling),
        ]
        for what, digest in start:
            if digest is not None and (fault := self.faults.find(digest)) is not None:
                lost = f"the {what} that the round starts from, {digest}, {fault}"
                raise StorageUnavailable(
                    lost,
                    hint="Restore the file from a backup, or upload it: PUT /api/v1/blobs/{sha256}.",
                    public=lost,
                )

    def _separate_lost(self, given: AggregationInput) -> tuple[list[Update], dict[str, str]]:
        """Updates whose stored bytes are still what the client sent, and the others with the reason.

        Raises:
            StorageUnavailable: an update is not there, and may still be sent again or restored.
            IllegalTransition: without those that are lost the quorum is not met.
        """
        faulty = self._find_faulty(given.updates)
        awaited = [self._describe_awaited(each) for each in faulty.values() if each.seconds < self.patience]
        if awaited:
            raise StorageUnavailable("; ".join(awaited), public="; ".join(awaited))
        intact = [update for update in given.updates if update.client not in faulty]
        lost = {client: f"its stored update {each.fault}" for client, each in faulty.items()}
        if lost and given.secure is not None:
            raise IllegalTransition(
                f"the stored updates of {', '.join(lost)} are lost, and the masks of the others hide the sum"
            )
        if lost and len(intact) < given.config.updates_needed:
            told = "; ".join(f"that of {client} {each.fault}" for client, each in faulty.items())
            raise IllegalTransition(
                f"{len(intact)} of {given.config.updates_needed} needed updates are left ({told})"
            )
        return intact, lost

    def _find_faulty(self, updates: Sequence[Update]) -> dict[str, _Faulty]:
        """By client. One that is sent again while the others are read, which may take long, is read again."""
        faulty: dict[str, _Faulty] = {}
        unread = list(updates)
        while unread:
            found = [(update, fault) for update in unread if (fault := self.faults.find(update.digest))]
            unread = []
            for update, fault in found:
                if (known := self.faults.since(update.digest)) is None:
                    unread.append(update)
                else:
                    faulty[update.client] = _Faulty(update, fault, *known)
        return faulty

    def _describe_awaited(self, faulty: _Faulty) -> str:
        client, until = faulty.update.client, faulty.since + dt.timedelta(seconds=self.patience)
        return (
            f"the stored update of {client} {faulty.fault}; {client} is asked to send it again, and "
            f"the round goes on without it at {until:%H:%M} UTC"
        )

    def _make_shadows(
        self, given: AggregationInput, result: RoundResult, path: Callable[[str], Path], folder: Path
    ) -> list[_TimedShadow]:
        """Of a round that is scored and has a model of its own."""
        if result.files is None or not given.config.is_scored(given.round):
            return []
        maker = ShadowMaker(
            config=given.config,
            manifest=given.manifest,
            start=_find_start(given, path),
            result=result,
            all_clients=_list_contributions(given),
            number=given.round,
        )
        made = []
        for place, weighting in enumerate(given.config.shadow):
            began = time.perf_counter()
            shadow = maker.make(weighting, folder / f"shadow-{place}")
            made.append(_TimedShadow(shadow, time.perf_counter() - began))
        return made

    def _facts(
        self, given: AggregationInput, end: StoredEnd, shadows: Sequence[_TimedShadow]
    ) -> AggregationFacts:
        """A round without weight made nothing and keeps the old model; its ledger says why."""
        result, made = end.result, end.result.files
        files = (made.model, made.scored, made.broadcast, made.private) if made else (None,) * 4
        if end.travelling:  # nobody starts from their average, so the server's state does not move on
            files = (*files[:2], None, None)
        model, scored, broadcast, private = map(_digest, files)
        written = [travelled.written for travelled in end.travelling]
        return AggregationFacts(
            model=model,
            scored=scored,
            broadcast=broadcast,
            private=private,
            ledger=result.rows,
            travelling=tuple(end.list_travelling(given)),
            blobs=self._adopt([*files, *written, *(timed.shadow.scored for timed in shadows)]),
            memory=result.memory,
            adjustment=result.adjustment,
            sums=_number_sums(result),
            shadows=tuple(timed.facts for timed in shadows),
            assistance=_assistance_facts(given),
        )

    def _adopt(self, files: Iterable[Written | None]) -> dict[str, int]:
        """The sizes of the result files by digest, each of them in the blob store now."""
        sizes: dict[str, int] = {}
        for written in files:
            if written is not None and written.digest not in sizes:
                digest = self.blobs.adopt(written.path, written.digest)
                self.integrity.remember(digest)  # hashed while it was written
                sizes[digest] = written.bytes
        return sizes


@dataclass(frozen=True)
class StoredEnd:
    """A round's end; ``travelling`` are the models that go on, by number, if it does not average."""

    result: RoundResult
    travelling: tuple[TravellingModel, ...] = ()

    def list_travelling(self, given: AggregationInput) -> Iterator[TravellingFacts]:
        """Those that rested are the files they were."""
        for number, model in enumerate(self.travelling):
            digest = given.travelling[number].model if model.written is None else model.written.digest
            yield TravellingFacts(digest, model.client, model.earned)


def close_stored(
    given: AggregationInput,
    updates: Sequence[Update],
    path: Callable[[str], Path],
    folder: Path,
    *,
    moves: Moves | None = None,
    begun: Sequence[RunningSum] = (),
) -> StoredEnd:
    """The round's end from stored rows and files; ``path`` finds a blob. For its replay, too.

    ``moves``: what was measured at the uploads, which is not measured again. ``begun``: what was summed
    meanwhile.
    """
    started = _find_start(given, path)
    if given.secure is not None:
        paths = [path(update.digest) for update in updates]
        masked = close_masked_round(
            given.config,
            given.manifest,
            started,
            given.secure,
            paths,
            given.clients,
            folder,
            number=given.round,
        )
        return StoredEnd(masked)
    parameters = [spec for spec in given.manifest if spec.kind is TensorKind.PARAMETER]
    arrived = [
        Arrived(
            UpdateInfo(update.index, update.examples, update.relative_size, update.steps),
            path(update.digest),
            _known(update),
            None
            if moves is None
            else moves.find(update.start_model or given.start_model, update.digest, parameters),
            update.digest,
            None if update.start_model is None else path(update.start_model),
        )
        for update in updates
    ]
    everyone = _list_contributions(given)
    if given.config.average_every > 1:
        return _close_travelling(given, started, arrived, updates, everyone, path, folder)
    return StoredEnd(
        close_round(
            given.config,
            given.manifest,
            started,
            arrived,
            everyone,
            folder,
            number=given.round,
            begun=begun,
            **inputs_from(given, path),
        )
    )


def _assistance_facts(settled: AggregationInput) -> AssistanceFacts | None:
    found = settled.assistance
    if found is None:
        return None
    return AssistanceFacts(None if found.outcome == "used" else found.fault)


def _close_travelling(
    given: AggregationInput,
    start: Start,
    arrived: Sequence[Arrived],
    updates: Sequence[Update],
    everyone: Sequence[Contribution],
    path: Callable[[str], Path],
    folder: Path,
) -> StoredEnd:
    end = close_travelling_round(
        given.config,
        given.manifest,
        start,
        arrived,
        {update.index: update.start_number for update in updates},
        [TravellingModel(path(model.model), model.client, model.earned) for model in given.travelling],
        everyone,
        folder,
        number=given.round,
    )
    return StoredEnd(end.result, () if given.config.averages(given.round) else end.models)


def _find_start(given: AggregationInput, path: Callable[[str], Path]) -> Start:
    start = (given.start_broadcast, given.start_private)
    broadcast, private = (None if digest is None else path(digest) for digest in start)
    return Start(path(given.start_model), broadcast, private, given.start_memory)


def _list_contributions(given: AggregationInput) -> list[Contribution]:
    return [Contribution(row.index, row.examples, row.discrepancy) for row in given.trainers]


_NOTHING_MADE = AggregationFacts(model=None, scored=None, broadcast=None, private=None, ledger=())


def _find_totals(
    given: AggregationInput, secure: Coordinator, path: Callable[[str], Path]
) -> AggregationFinished:
    """The end of round 0: what the trainers' numbers sum to."""
    found = unmask_totals(given.config, secure, [path(update.digest) for update in given.updates])
    totals = SumTotals(clients=len(given.updates), **found._asdict())
    return AggregationFinished(given.round, given.attempt, totals=totals)


def _number_sums(result: RoundResult) -> dict[str, float]:
    """What is shown of a masked round's sums; its parameters are the model."""
    sums = result.sums
    return {} if sums is None else {"score": sums.score, "steps": sums.steps, "clipped": sums.clipped}


def _known(update: Update) -> Contribution:
    return Contribution(
        update.index,
        update.examples,
        update.discrepancy,
        start_loss=update.start_loss,
        end_loss=update.end_loss,
    )


def _digest(written: Written | None) -> str | None:
    return None if written is None else written.digest


def _named(updates: Sequence[Update], rows: Sequence[LedgerEntry]) -> Iterator[tuple[str, LedgerEntry]]:
    client = {update.index: update.client for update in updates}
    return ((client[row.index], row) for row in rows)


def _excluded(updates: Sequence[Update], rows: Sequence[LedgerEntry]) -> dict[str, str]:
    return {client: row.reason or "left out" for client, row in _named(updates, rows) if not row.included}

"""Whether what is stored is what was written: the database itself, all files, and the ledger against them.

Reads only. A coordinator may be at work meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from server.blobs import BlobStore
from server.blobs.integrity import BlobIntegrity
from server.blobs.store import is_digest
from server.database.audit import StoredRound, StoredRun
from server.database.store import Store
from shared.problems import StorageUnavailable

__all__ = ["Fault", "Report", "verify"]

Part = Literal["database", "files", "ledger", "audit"]
EXACTLY_ONE = 1e-9


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. ``subject``: a file's digest, a run, or a round as RUN/NUMBER."""

    part: Part
    subject: str
    fault: str

    def __str__(self) -> str:
        return f"{self.part}: {self.subject}{' ' if self.subject else ''}{self.fault}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was read, and all that is wrong with it."""

    runs: int
    rounds: int
    files: int
    bytes: int
    faults: tuple[Fault, ...]


def verify(store: Store, blobs: BlobStore) -> Report:
    """Read everything: the database, every file that a run needs, every completed round's ledger.

    Raises:
        StorageUnavailable: the database cannot be read at all.
    """
    faults = [Fault("database", "", fault) for fault in store.find_database_faults()]
    faults += [Fault("audit", "", fault) for fault in store.find_audit_faults()]
    own = store.read_database_id()
    runs = store.audit_runs()
    recorded = store.recorded_blobs()
    for run in runs:
        faults += _check_run(run, recorded)
    needed = store.referenced_blobs()
    broken: list[Fault] = []
    try:
        faults += _check_owner(blobs, own)
        broken += _check_files(blobs, needed, recorded)
    except StorageUnavailable as away:  # says nothing about the files
        faults.append(Fault("files", "", away.detail))
    if broken:  # what was collected while this took its time is not needed any more
        needed = store.referenced_blobs()
        names = set(map(str, needed))
        faults += [fault for fault in broken if fault.subject in names]
    return Report(
        runs=len(runs),
        rounds=sum(len(run.rounds) for run in runs),
        files=len(needed),
        bytes=sum(recorded.get(digest, 0) for digest in needed),
        faults=tuple(faults),
    )


def _check_owner(blobs: BlobStore, own: str | None) -> Iterator[Fault]:
    owner = blobs.read_owner()
    if owner is not None and owner != own:
        yield Fault("files", str(blobs), f"belongs to database {owner}, not to this one ({own})")


def _check_files(blobs: BlobStore, needed: set[str], recorded: dict[str, int]) -> Iterator[Fault]:
    integrity = BlobIntegrity(blobs)
    for digest in sorted(needed, key=str):  # SQLite may give what is no text, where a bit was flipped
        if not is_digest(digest):
            yield Fault("database", str(digest), "is needed, and is no SHA-256")
        elif (fault := integrity.find_fault(digest)) is not None:
            yield Fault("files", digest, fault)
        elif digest not in recorded:
            yield Fault("files", digest, "is needed, but the database has no record of it")
        elif (size := blobs.size(digest)) != recorded[digest]:
            yield Fault("files", digest, f"has {size} bytes, recorded are {recorded[digest]}")


def _check_run(run: StoredRun, recorded: dict[str, int]) -> Iterator[Fault]:
    numbers = [round.round for round in run.rounds]
    if numbers != list(range(1, run.completed_rounds + 1)):
        yield Fault("ledger", run.run, f"has completed {run.completed_rounds} rounds, stored are {numbers}")
    start: tuple[str | None, ...] = (run.initial_model, None, None)
    for round in run.rounds:
        subject = f"{run.run}/{round.round}"
        if (round.start_model, round.start_broadcast, round.start_private) != start:
            yield Fault("ledger", subject, "does not start from the result of the round before")
        yield from (Fault("ledger", subject, fault) for fault in _check_ledger(round, recorded))
        if round.averaged:
            start = (round.model, round.broadcast, round.private)


def _check_ledger(round: StoredRound, recorded: dict[str, int]) -> Iterator[str]:
    included = [update for update in round.updates if update.included]
    total = math.fsum(update.weight or 0.0 for update in included)
    if abs(total - 1) > EXACTLY_ONE and not round.secure:
        yield f"has weights that sum to {total!r}"
    for update in included:
        if update.digest is None:
            yield f"includes {update.client}, of which no update is recorded"
        elif not is_digest(update.digest):
            yield f"includes {update.client}, whose update is named {update.digest!a}: no SHA-256"
        elif recorded.get(update.digest, update.bytes) != update.bytes:
            size = recorded[update.digest]
            yield f"says that the update of {update.client} has {update.bytes} bytes, recorded are {size}"
    if round.model is None:
        yield "has no model"

"""``feddisco backup``, ``backup verify`` and ``restore``: a folder of snapshots that share their files.

::

    DIR/snapshots/20261128T150000Z/database.sqlite   the whole database, whichever kind it came from
    DIR/snapshots/20261128T150000Z/manifest.json     written last: a snapshot without it is not one
    DIR/snapshots/20261128T150000Z/revocations.jsonl
    DIR/blobs/                                       the files of all snapshots, named by their SHA-256
    DIR/lock                                         held while one is added or old ones are removed
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from server.blobs import BlobStore, DiskBlobs, open_blobs, open_lines
from server.blobs.integrity import BlobIntegrity
from server.clock import utc_now
from server.database.copying import Url, file_url, load_copy, unchanging_url, write_copy
from server.database.migrations import check_current, is_current, upgrade
from server.database.session import make_engine, sqlite_file
from server.database.store import Store
from server.ownership import holding, owning
from server.removals import FILE as REMOVALS_FILE
from server.removals import Removals
from server.revocations import FILE, Revocations
from server.runs.verification import Fault, Report, verify
from server.settings import Settings
from shared.files import PRIVATE, make_folder, replace_file, storage_errors, sync_folder
from shared.json_lines import FileLines, Lines, parse_line
from shared.problems import InvalidConfiguration, StorageUnavailable
from shared.texts import format_count
from shared.versions import VERSION
from shared.wire.digests import digest_of

__all__ = ["Later", "back_up", "restore", "verify_backup"]

DATABASE = "database.sqlite"
MANIFEST = "manifest.json"
ALIVE = dt.timedelta(seconds=15)
Later = Literal["known", "none", "all"]
"""Revocations later than the snapshot: known from the data folder or a file; none; or unknown: revoke all."""


@dataclass(frozen=True)
class _Snapshot:
    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / DATABASE

    def manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StorageUnavailable(f"{path} cannot be read: {error}") from error
        kinds = {"at": str, "database_id": str, "database_sha256": str, "lost": dict}
        for name, kind in kinds.items():
            if not isinstance(found, dict) or not isinstance(found.get(name), kind):
                raise StorageUnavailable(
                    f"{path} is damaged: it has no {name}", hint="Choose another --snapshot."
                )
        return dict(found)


@contextmanager
def _reached(url: Url) -> Iterator[Store]:
    """Whatever is in the database."""
    engine = make_engine(url)
    try:
        yield Store(engine)
    finally:
        engine.dispose()


@contextmanager
def _opened(url: Url) -> Iterator[Store]:
    """At the present schema."""
    with _reached(url) as store:
        check_current(store.engine)
        yield store


@contextmanager
def _opened_snapshot(database: Path) -> Iterator[Store]:
    """At the present schema, to which one of an earlier version is brought in a copy elsewhere."""
    with _reached(unchanging_url(database)) as store:
        if is_current(store.engine):
            yield store
            return
    with tempfile.TemporaryDirectory(prefix="feddisco-") as folder, storage_errors(Path(folder)):
        copy = Path(shutil.copyfile(database, Path(folder) / DATABASE))
        upgrade(file_url(copy))
        with _opened(file_url(copy)) as store:
            yield store


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process adds to the backup or removes from it during the block."""
    with storage_errors(folder):
        make_folder(folder)

    def refuse(owner: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"another `feddisco backup` (process {owner or 'unknown'}) is writing to {folder}",
            hint="Try again when it has ended.",
        )

    with holding(folder / "lock", str(os.getpid()), refuse):
        yield


# -------------------------------------------------------------------- out


def back_up(settings: Settings, folder: Path, keep: int | None = None) -> str:
    """Add a snapshot to ``folder``; files that are there already are not copied. The sentence to print.

    The coordinator may run: first the database as of one moment, then the files that it names.
    ``keep``: remove all but so many newest snapshots, and the files that only they name.

    Raises:
        StorageUnavailable: a file is missing or damaged (all others are in the snapshot), a disk refuses, or
            another process works on the same backup.
    """
    path = sqlite_file(settings.database)
    if path is not None and not path.exists():
        raise StorageUnavailable(
            f"there is no database {path}", hint="Choose the coordinator's --data-folder or --database-url."
        )
    with _opened(settings.database):
        pass  # at the present schema
    with _alone(folder):
        return _add_snapshot(settings, folder, keep)


def _add_snapshot(settings: Settings, folder: Path, keep: int | None) -> str:
    now = utc_now()
    with storage_errors(folder):
        for left in (folder / "snapshots").glob("*.partial"):
            shutil.rmtree(left)
        partial = folder / "snapshots" / f"{now:%Y%m%dT%H%M%S%fZ}.partial"
        make_folder(partial, mode=0o700)
    write_copy(settings.database, partial / DATABASE)
    with _opened(unchanging_url(partial / DATABASE)) as store:
        needed, database_id = store.referenced_blobs(), store.read_database_id()
    with _opened(settings.database) as live:
        source = open_blobs(settings, live, create=False)
        copied, lost = _copy_files(source, DiskBlobs(folder / "blobs"), needed, trust=True)
    if lost:
        with _opened(settings.database) as live:  # collected since is not lost
            needed = live.referenced_blobs()
        lost = {digest: fault for digest, fault in lost.items() if digest in needed}
    _keep_revocations(open_lines(settings, FILE), partial)
    manifest = {
        "at": now.isoformat(),
        "version": VERSION,
        "database_id": database_id,
        "database_sha256": digest_of(partial / DATABASE),
        "files": len(needed),
        "lost": lost,
    }
    replace_file(partial / MANIFEST, json.dumps(manifest, indent=1).encode(), mode=PRIVATE)
    with storage_errors(folder):
        done = partial.rename(partial.with_suffix(""))
        sync_folder(done.parent)
    if keep is not None:
        _remove_old(folder, keep)
    said = f"{done}: {format_count(len(needed), 'file')}, {copied} of them new"
    _check_lost(lost, f"{said}.", "`feddisco verify` says what it belongs to.")
    return said


def _check_lost(lost: dict[str, str], said: str, hint: str) -> None:
    """Raise StorageUnavailable if files are lost; all else is done by then, as ``said``."""
    if lost:
        number = "1 file is lost" if len(lost) == 1 else f"{len(lost)} files are lost, the first"
        digest, fault = next(iter(lost.items()))
        raise StorageUnavailable(f"{said} {number}: {digest} {fault}", hint=hint)


def _copy_files(
    source: BlobStore, target: BlobStore, needed: set[str], *, trust: bool
) -> tuple[int, dict[str, str]]:
    """How many were copied, and what is wrong with those that could not be.

    ``trust``: a file that the target has is not read.
    """
    integrity, copied, lost = BlobIntegrity(source), 0, dict[str, str]()
    for digest in sorted(needed):
        if target.exists(digest) and (trust or target.hash(digest) == digest):
            continue
        if (fault := integrity.find_fault(digest)) is not None:
            lost[digest] = fault
            continue
        with source.local(digest) as path, target.workspace() as folder, storage_errors(target.folder):
            copy = Path(shutil.copyfile(path, folder / digest))
            if digest_of(copy) != digest:
                lost[digest] = "changed while it was copied"
                continue
            target.adopt(copy, digest)
        copied += 1
    return copied, lost


def _keep_revocations(known: Lines, target: Path) -> None:
    if found := known.read():
        FileLines(target / FILE).replace(found)


def _list(folder: Path) -> list[_Snapshot]:
    """Complete snapshots, oldest first."""
    with storage_errors(folder):
        found = sorted((folder / "snapshots").glob("*"))
        return [_Snapshot(path) for path in found if path.suffix == "" and (path / MANIFEST).exists()]


def _find(folder: Path, name: str | None) -> _Snapshot:
    found = [one for one in _list(folder) if name in (None, one.folder.name)]
    if not found:
        raise InvalidConfiguration(
            f"there is no snapshot {name or ''} in {folder}".replace("  ", " "),
            hint="`feddisco backup DIR` makes one.",
        )
    return found[-1]


def _remove_old(folder: Path, keep: int) -> None:
    for snapshot in _list(folder)[:-keep]:
        shutil.rmtree(snapshot.folder)
    needed: set[str] = set()
    for snapshot in _list(folder):
        with _opened_snapshot(snapshot.database) as store:
            needed |= store.referenced_blobs()
    DiskBlobs(folder / "blobs").collect(needed, utc_now())


# -------------------------------------------------------------------- look


def verify_backup(folder: Path, name: str | None = None) -> Report:
    """Compare a snapshot (the newest) with what was written: its database, its files, its ledgers."""
    snapshot = _find(folder, name)
    manifest = snapshot.manifest()
    faults = [Fault("files", digest, fault) for digest, fault in manifest["lost"].items()]
    if digest_of(snapshot.database) != manifest["database_sha256"]:
        return Report(0, 0, 0, 0, (Fault("database", "", "is damaged: its bytes have another SHA-256"),))
    with _opened_snapshot(snapshot.database) as store:
        found = verify(store, DiskBlobs(folder / "blobs", create=False))
    known = {fault.subject for fault in faults}
    more = tuple(fault for fault in found.faults if fault.subject not in known)
    return Report(found.runs, found.rounds, found.files, found.bytes, (*faults, *more))


# -------------------------------------------------------------------- back


def restore(
    settings: Settings,
    folder: Path,
    *,
    name: str | None = None,
    replace: bool = False,
    later: Later = "known",
    revocations: Path | None = None,
    with_deleted: bool = False,
) -> str:
    """Make database and files what a snapshot (the newest) holds. The sentence to print.

    Tokens that were revoked later stay revoked: those in the data folder's list, if it is the same
    installation's, and in ``revocations``; otherwise the operator has to say that there were none, or has all
    revoked. They are applied at the next start. Join codes that the snapshot holds as usable are withdrawn:
    which of them were used since is noted nowhere else. Runs that were deleted later are deleted again at the
    next start, unless ``with_deleted`` brings them back.

    Raises:
        StorageUnavailable: the backup lacks a file (all others are restored), or a disk refuses.
        InvalidConfiguration: what is there must not be replaced, or it is not known what was revoked since,
            as where ``revocations`` is no such list.
    """
    given = set[str]() if revocations is None else _read_given(revocations)
    snapshot = _find(folder, name)
    manifest = snapshot.manifest()
    if digest_of(snapshot.database) != manifest["database_sha256"]:
        raise StorageUnavailable(f"{snapshot.database} is damaged", hint="Restore another --snapshot.")
    with _reached(settings.database) as there:
        blobs = open_blobs(settings, there)
        if later == "known" and revocations is None and blobs.read_owner() != manifest["database_id"]:
            raise InvalidConfiguration(
                f"which tokens were revoked since {manifest['at']} is not known in "
                f"{settings.blob_store or settings.data_folder}",
                hint=f"Give a copy of the coordinator's {FILE} with --revocations, or say "
                "--no-later-revocations, or --revoke-all.",
            )
        with owning(sqlite_file(settings.database), "a restore", utc_now()):
            _refuse_living(settings, there)
            with blobs.workspace() as work, storage_errors(work):
                copy = Path(shutil.copyfile(snapshot.database, work / DATABASE))
                kept_as = load_copy(copy, settings.database, replace=replace)
            with _opened(settings.database) as store:
                source, needed = DiskBlobs(folder / "blobs", create=False), store.referenced_blobs()
                copied, lost = _copy_files(source, blobs, needed, trust=False)
                kept = Revocations(open_lines(settings, FILE))
                _add_revocations(kept, given | Revocations(FileLines(snapshot.folder / FILE)).read())
                if with_deleted:
                    Removals(open_lines(settings, REMOVALS_FILE)).forget_runs()
                if later == "all":
                    _revoke_all(kept, store)
                store.end_all_sessions()  # which of them were ended since is not known
                withdrawn = store.withdraw_join_tokens(utc_now())
                detail = {"snapshot": snapshot.folder.name, "join_codes_withdrawn": withdrawn}
                store.add_audit_entry("restored", actor="restore", now=utc_now(), detail=detail)
            blobs.write_owner(manifest["database_id"], overwrite=True)
    files = format_count(copied, "file")
    said = f"Restored {snapshot.folder.name}: {files} copied.{_say_withdrawn(withdrawn)}"
    if kept_as is not None:
        said += f" The database that was there is kept as {kept_as}."
    _check_lost(
        lost,
        said,
        "All else is restored; `feddisco verify` says what it belongs to. Once it is in "
        f"{folder / 'blobs'} again, restore with --replace.",
    )
    return f"{said} Start the coordinator, then check with `feddisco verify`."


def _say_withdrawn(codes: int) -> str:
    if codes == 0:
        return ""
    which = "1 join code was" if codes == 1 else f"{codes} join codes were"
    return (
        f" {which} withdrawn, since the snapshot does not know what became of them; "
        "`feddisco clients invite` makes new ones."
    )


def _refuse_living(settings: Settings, there: Store) -> None:
    """PostgreSQL knows no lock of ours: a coordinator notes every few seconds that it is alive."""
    if not settings.on_postgres:
        return
    alive = there.last_alive()
    if alive is not None and there.read_time() - alive < ALIVE:
        raise InvalidConfiguration(
            "a coordinator was alive on the database a moment ago", hint="Stop it, wait 15 s, try again."
        )


def _read_given(path: Path) -> set[str]:
    """The hashes of a list that an operator gives, of which nothing may be passed over in silence.

    Only its last line may be cut, as a crash leaves it.
    """
    try:
        *lines, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise InvalidConfiguration(
            f"--revocations {path} cannot be read: {error.strerror or error}",
            hint=f"It is the coordinator's {FILE}, or a copy of it.",
        ) from error
    hashes = set()
    for number, line in enumerate((*lines, last), start=1):
        found = (parse_line(line) or {}).get("token_hash")
        if isinstance(found, str):
            hashes.add(found)
        elif line.strip() and number <= len(lines):
            raise InvalidConfiguration(
                f"--revocations {path}, line {number}: this is no entry of a list of revoked tokens",
                hint=f"Give the coordinator's {FILE}, or a copy of it; nothing has been changed.",
            )
    if last.strip() and not hashes:
        raise InvalidConfiguration(
            f"--revocations {path} is no list of revoked tokens",
            hint=f"Give the coordinator's {FILE}, or a copy of it; nothing has been changed.",
        )
    return hashes


def _add_revocations(kept: Revocations, hashes: set[str]) -> None:
    for token_hash in sorted(hashes - kept.read()):
        kept.add(token_hash, "restored list", utc_now())


def _revoke_all(kept: Revocations, store: Store) -> None:
    for token_hash in store.token_hashes():
        kept.add(token_hash, "restore: not known whether revoked since", utc_now())

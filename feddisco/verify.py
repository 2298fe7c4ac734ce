"""``feddisco verify``: the database, all files, and the ledger against them; beside a coordinator or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from server.blobs import open_blobs
from server.database.migrations import check_current
from server.database.session import make_engine, sqlite_file
from server.database.store import Store
from server.runs.verification import Fault, Report, verify
from server.settings import Settings
from shared.problems import SchemaOutdated, StorageUnavailable
from shared.texts import format_count

__all__ = ["open_store", "print_report", "verify_storage"]


@contextmanager
def open_store(settings: Settings) -> Iterator[Store]:
    """The database at the present schema, to be read. Raises StorageUnavailable if there is none."""
    _check_exists(settings)
    engine = make_engine(settings.database)
    try:
        check_current(engine)
        yield Store(engine)
    finally:
        engine.dispose()


def _check_exists(settings: Settings) -> None:
    path = sqlite_file(settings.database)
    if path is not None and not path.exists():
        raise StorageUnavailable(
            f"there is no database {path}", hint="Choose the coordinator's --data-folder or --database-url."
        )


def verify_storage(settings: Settings) -> Report:
    """Reads, and writes nothing. Raises StorageUnavailable if there is no such database."""
    _check_exists(settings)
    try:
        with open_store(settings) as store:
            return _verify(store, settings)
    except SchemaOutdated:
        raise
    except StorageUnavailable as unreadable:
        return _report_only(Fault("database", "", unreadable.detail))
    except ValueError as unreadable:  # of a row that is damaged: a date, a word, JSON
        told = str(unreadable).partition("\n")[0]
        return _report_only(Fault("database", "", f"has a value that cannot be read: {told}"))


def _verify(store: Store, settings: Settings) -> Report:
    try:
        blobs = open_blobs(settings, store, create=False)
    except StorageUnavailable as away:
        return _report_only(Fault("files", "", away.detail))
    return verify(store, blobs)


def _report_only(fault: Fault) -> Report:
    return Report(0, 0, 0, 0, (fault,))


def print_report(report: Report, as_json: bool, say: Callable[[str], None]) -> bool:
    """Whether nothing is wrong. ``as_json``: one object on one line."""
    if as_json:
        say(json.dumps({"ok": not report.faults, **asdict(report)}))
        return not report.faults
    for fault in report.faults:
        say(str(fault))
    counts = ((report.runs, "run"), (report.rounds, "completed round"), (report.files, "file"))
    read = ", ".join([*(format_count(*pair) for pair in counts), f"{report.bytes} bytes"])
    say(f"{read}: {format_count(len(report.faults), 'fault') if report.faults else 'all as it was written'}")
    return not report.faults

"""One flipped bit in a coordinator's SQLite file, and who notices: the next start, ``verify``, or nobody."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from feddisco.verify import verify_storage
from server.app import make_coordinator, prepare
from server.database.integrity import check_quickly
from server.database.migrations import check_current
from server.database.session import make_engine
from server.settings import Settings
from shared.problems import Problem

__all__ = ["DATABASE", "Flip", "Flips"]

DATABASE = "feddisco.db"
Found = Literal["at the start", "by verify", "nobody, and nothing is changed", "nobody"]


@dataclass(frozen=True)
class Flip:
    """``told`` is the sentence of who noticed. ``where``: of what nobody found, the table and its column."""

    place: int
    bit: int
    found: Found
    told: str = ""
    where: str = ""


class Flips:
    """Flips bits in copies of ``folder``, a stopped coordinator's data folder, one at a time."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._content = (folder / DATABASE).read_bytes()
        self._folder = scratch / "data"
        shutil.copytree(folder, self._folder)
        self._database = self._folder / DATABASE
        self._rows = read_rows(self._database)

    def list_used(self) -> list[int]:
        """Places of bytes that are not zero: most others belong to nothing."""
        return [place for place, byte in enumerate(self._content) if byte]

    def find_date(self) -> int:
        """The place of a date's first digit in the file."""
        (created,) = self._rows["runs"]["created_at"]
        assert isinstance(created, bytes)
        return self._content.index(created)

    def try_one(self, place: int, bit: int) -> Flip:
        """Whatever is raised but a :class:`Problem` is a traceback that somebody would see."""
        content = bytearray(self._content)
        content[place] ^= 1 << bit
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._database}{suffix}").unlink(missing_ok=True)
        self._database.write_bytes(content)
        settings = Settings(data_folder=self._folder)
        if told := find_at_start(settings):
            return Flip(place, bit, "at the start", told)
        if faults := verify_storage(settings).faults:
            return Flip(place, bit, "by verify", str(faults[0]))
        changed = self._find_changes()
        if not changed:
            return Flip(place, bit, "nobody, and nothing is changed")
        start_wholly(settings)
        return Flip(place, bit, "nobody", where=", ".join(sorted(changed)))

    def _find_changes(self) -> set[str]:
        try:
            rows = read_rows(self._database)
        except UnicodeDecodeError:  # of a column's name
            return {"the schema"}
        if rows.keys() != self._rows.keys():
            return {"the schema"}
        return {
            f"{table}.{column}"
            for table, before in self._rows.items()
            for column in before
            if rows[table].get(column) != before[column]
        }


def find_at_start(settings: Settings) -> str:
    """The sentence with which a coordinator would not start; empty: its checks let it."""
    engine = make_engine(settings.database)
    try:
        check_quickly(engine)
        check_current(engine)
    except Problem as problem:
        return problem.detail
    finally:
        engine.dispose()
    return ""


def start_wholly(settings: Settings) -> None:
    """All that a coordinator reads before it answers."""
    coordinator = make_coordinator(settings)
    try:
        with contextlib.suppress(Problem):  # a sentence
            prepare(coordinator)
    finally:
        coordinator.close()


def read_rows(database: Path) -> dict[str, dict[str, list[object]]]:
    """By table and column, all values; bytes that are no text as bytes."""
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as connection:
        connection.text_factory = bytes
        tables = [
            name.decode()
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        found: dict[str, dict[str, list[object]]] = {}
        for table in tables:
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            columns = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
            found[table] = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    return found

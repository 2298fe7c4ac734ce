"""What a worker must not lose: the finished update of its newest round, and what the algorithm keeps.

One folder per run. ``entry.json`` is replaced atomically and names the files that count; any other file was
left by a killed process, and is removed. The order of writing is

    kept state, update  ->  entry.json  ->  upload

so that a crash before the entry repeats the training from the same start (same bits), and a crash after it
sends the same bytes again. Only what cannot be recomputed is forced to the disk (fsync): kept state, and the
entry that names it. A power loss may damage an update; its digest shows that, and it is trained again.

The kept state of a round (control variates, for instance) counts only once the coordinator says that this
round took the update: an abandoned round must not advance it. Until then both states are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, TypeAdapter, ValidationError

from shared import wire
from shared.config import Slug
from shared.files import make_folder, replace_file
from shared.schemas import Body, Digest, Train, UpdateReport
from shared.wire.digests import digest_of
from worker.state import set_aside

if TYPE_CHECKING:
    from shared.algorithms.base import Groups

__all__ = ["FinishedUpdate", "Journal", "JournalEntry", "KeptState", "RunJournal"]

Warn = Callable[[str], None]
DELIVERED = "delivered"
SECURE = ("secure.json", "known.json", "summed.json")
"""Of :mod:`worker.secure_work`."""
_SLUG: TypeAdapter[Slug] = TypeAdapter(Slug)


class KeptState(Body):
    """A client's own groups after a round: the tensors' names by group, and the file (None: no tensors)."""

    file: str | None
    digest: str = ""
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class FinishedUpdate(Body):
    file: str
    digest: Digest
    bytes: int
    report: UpdateReport


class JournalEntry(Body):
    """The newest round trained here. ``before`` is None until a first update has been aggregated."""

    round: int
    attempt: int
    update: FinishedUpdate
    before: KeptState | None
    after: KeptState

    def files(self) -> set[str]:
        kept = (self.after.file, self.before.file if self.before else None)
        return {"entry.json", self.update.file, *(name for name in kept if name)}


class Journal:
    """The state folder's runs. A run's id must be a slug (ValidationError), so it is a plain file name."""

    def __init__(self, folder: Path, warn: Warn) -> None:
        self._folder = folder / "runs"
        self._warn = warn
        self._open: dict[str, RunJournal] = {}

    def open_run(self, run: str) -> RunJournal:
        if run not in self._open:
            self._open[run] = RunJournal(self._folder / _SLUG.validate_python(run), self._warn)
        return self._open[run]

    def forget(self, run: str) -> None:
        """Remove a run that is over."""
        self._open.pop(run, None)
        shutil.rmtree(self._folder / _SLUG.validate_python(run), ignore_errors=True)


class RunJournal:
    """One run's entry, files and downloaded blobs."""

    def __init__(self, folder: Path, warn: Warn) -> None:
        self.folder = folder
        self._warn = warn
        self._blobs = folder / "blobs"
        self._verified: set[str] = set()
        make_folder(folder, mode=0o700)
        make_folder(self._blobs, mode=0o700)
        self._entry = self._read_entry()
        self._sweep()

    def _read_entry(self) -> JournalEntry | None:
        path = self.folder / "entry.json"
        try:
            return JournalEntry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            self._warn(
                f"{path} cannot be read; it is kept as {set_aside(path).name}, and training starts again."
            )
            return None

    # ------------------------------------------------------------ the data enrolled with

    @property
    def data_mark(self) -> str | None:
        """Of the data with which this client enrolled, or that it is leaving (:mod:`worker.changed_data`).

        Empty while it declines the run; None if not known.
        """
        try:
            return (self.folder / "data-mark").read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None

    def keep_data_mark(self, mark: str) -> None:
        replace_file(self.folder / "data-mark", mark.encode(), durable=True)

    # ------------------------------------------------------------ before training

    def find_finished(self, assignment: Train) -> FinishedUpdate | None:
        """The update that training of this round and attempt has already made, if its bytes are intact."""
        entry = self._entry
        if entry is None or (entry.round, entry.attempt) != (assignment.round, assignment.attempt):
            return None
        if self._is_intact(entry.update.file, entry.update.digest):
            return entry.update
        self._warn(f"the finished update of round {entry.round} is damaged; the round will be trained again.")
        return None

    def find_kept(self, assignment: Train) -> KeptState | None:
        """The kept state from which this assignment starts; None at the first participation."""
        entry, aggregated = self._entry, assignment.last_aggregated_round
        if entry is None:
            if aggregated:
                self._warn(
                    f"round {aggregated} took an update of this client, but its state folder is new: what "
                    "the algorithm keeps between rounds starts from zero again."
                )
            return None
        if aggregated > entry.round:
            self._warn(
                f"the state folder ends at round {entry.round}, the coordinator took round {aggregated}: "
                "the folder is an old copy, and what the algorithm keeps between rounds is out of date."
            )
        state = entry.after if aggregated == entry.round else entry.before
        if state is None or state.file is None or self._is_intact(state.file, state.digest):
            return state
        self._warn(f"{self.folder / state.file} is damaged; what the algorithm keeps starts from zero again.")
        return None

    def kept_path(self, state: KeptState | None) -> Path | None:
        """The file of the kept tensors; None if there are none."""
        return None if state is None or state.file is None else self.folder / state.file

    def _is_intact(self, name: str, digest: str) -> bool:
        """Hashes a file when it is first used in this process."""
        if name not in self._verified and _hash_file(self.folder / name) == digest:
            self._verified.add(name)
        return name in self._verified

    # ------------------------------------------------------------ after training

    def record(
        self, assignment: Train, before: KeptState | None, update: Groups, kept: Groups, report: UpdateReport
    ) -> FinishedUpdate:
        """Write what a round's training made. Once this returns, a crash loses nothing of it."""
        mark = f"{assignment.round}-{assignment.attempt}"
        after = self._write_kept(f"kept-{mark}.safetensors", kept)
        written = wire.write(self.folder / f"update-{mark}.safetensors", update, durable=False)
        finished = FinishedUpdate(
            file=written.path.name, digest=written.digest, bytes=written.bytes, report=report
        )
        entry = JournalEntry(
            round=assignment.round, attempt=assignment.attempt, update=finished, before=before, after=after
        )
        keeps = after.file is not None or (before is not None and before.file is not None)
        replace_file(self.folder / "entry.json", entry.model_dump_json().encode(), durable=keeps)
        self._entry = entry
        self._verified |= {name for name in (finished.file, after.file) if name}
        self._sweep()
        return finished

    def note_delivered(self) -> None:
        """The coordinator has taken an update or a score of this client."""
        if not self.has_delivered():
            (self.folder / DELIVERED).touch()

    def has_delivered(self) -> bool:
        return (self.folder / DELIVERED).exists()

    def _write_kept(self, name: str, kept: Groups) -> KeptState:
        groups = {group: tuple(tensors) for group, tensors in kept.items() if tensors}
        if not groups:
            return KeptState(file=None)
        written = wire.write(self.folder / name, {group: kept[group] for group in groups})
        return KeptState(file=name, digest=written.digest, groups=groups)

    def _sweep(self) -> None:
        wanted = {"data-mark", DELIVERED, *SECURE, *(self._entry.files() if self._entry else ())}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in wanted and path.suffix != ".unreadable":
                path.unlink(missing_ok=True)
        self._tidy_blobs(lambda blob: not blob.is_dir())

    def _tidy_blobs(self, is_wanted: Callable[[Path], bool]) -> None:
        """Remove what is not wanted, folders too: a killed assistant leaves one, of updates made whole."""
        for path in self._blobs.iterdir():
            if is_wanted(path):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            self._verified.discard(path.name)

    # ------------------------------------------------------------ downloaded blobs

    def fetch_blob(self, digest: Digest, fetch: Callable[[str, Path], object]) -> Path:
        """The blob's file; ``fetch(digest, path)`` downloads it if it is not here yet."""
        path = self._blobs / digest
        if digest not in self._verified and _hash_file(path) != digest:
            fetch(digest, path)
        self._verified.add(digest)
        return path

    def blob_path(self, digest: Digest) -> Path:
        """Where a blob is that was fetched for this round."""
        return self._blobs / digest

    def keep_only(self, digests: set[str]) -> None:
        """Remove every downloaded blob but these, and partial downloads of others."""
        self._tidy_blobs(lambda blob: blob.name.removesuffix(".part") in digests)


def _hash_file(path: Path) -> str | None:
    try:
        return digest_of(path)
    except FileNotFoundError:
        return None

"""Where a simulated run stands: a folder of files, whole whenever the process or the machine dies."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pydantic import Field, ValidationError

from shared.config import Frozen
from shared.files import replace_file
from shared.problems import InvalidConfiguration
from shared.wire.digests import digest_of
from simulation.travels import TravellingFile

__all__ = [
    "CHECKPOINT_FILE",
    "LOCK_FILE",
    "Checkpoint",
    "claim_checkpoint",
    "clear_checkpoint",
    "has_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

CHECKPOINT_FILE = "checkpoint.json"
LOCK_FILE = "lock"


class Checkpoint(Frozen):
    """What is completed, as names of files in its folder; replaced whole after every round."""

    completed: int = 0
    model: str
    broadcast: str | None = None
    private: str | None = None
    kept: dict[int, str] = Field(default_factory=dict)
    took_part: tuple[int, ...] | None = Field(None, description="clients of which an update counted")
    memory: dict[str, dict[int, float]] = Field(default_factory=dict, description="the weighting's")
    travelling: tuple[TravellingFile, ...] = Field((), description="since the last average, which is `model`")
    digests: dict[str, str] | None = Field(None, description="SHA-256 of each file; none in older versions")
    own_digest: str = Field("", description="SHA-256 of all fields above")

    @property
    def names(self) -> set[str]:
        names = (self.model, self.broadcast, self.private, *self.kept.values())
        return {name for name in names if name} | {model.file for model in self.travelling}

    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json(exclude={"own_digest"}).encode()).hexdigest()


def has_checkpoint(folder: Path) -> bool:
    """Whether a round of the run was completed, and what the next one starts from is there."""
    return (folder / CHECKPOINT_FILE).exists()


@contextmanager
def claim_checkpoint(folder: Path, out: Path) -> Iterator[None]:
    """Make the folder, and keep it, with the result file ``out``, from other processes for so long.

    It is removed if nothing was put into it. The claim of a process ends with it, however that ends.

    Raises:
        InvalidConfiguration: another process has it.
    """
    lock = _lock(folder, out)
    try:
        yield
    finally:
        with suppress(OSError):
            if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                shutil.rmtree(folder)
        lock.close()


def _lock(folder: Path, out: Path) -> TextIO:
    path = folder / LOCK_FILE
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a", encoding="utf-8")
        except FileNotFoundError:  # who had it has just ended, and removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BlockingIOError:
            file.close()
            raise InvalidConfiguration(
                f"Another process is simulating {out}.",
                hint="Wait until it has ended, or give another --out.",
            ) from None
        except FileNotFoundError:  # the same, a moment later
            pass
        file.close()


def clear_checkpoint(folder: Path) -> None:
    """Remove what is in it; who has claimed it keeps it."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """What ``folder`` holds; None if no round was completed.

    Raises:
        InvalidConfiguration: a file of it is missing, or not as it was written.
    """
    if not has_checkpoint(folder):
        return None
    path = folder / CHECKPOINT_FILE
    try:
        checkpoint = Checkpoint.model_validate_json(path.read_bytes())
    except (IsADirectoryError, ValidationError):
        raise _damaged(path) from None
    if checkpoint.digests is not None and checkpoint.own_digest != checkpoint.digest():
        raise _damaged(path)
    for name in sorted(checkpoint.names):
        if not (folder / name).is_file():
            raise _damaged(folder / name)
        if checkpoint.digests is not None and checkpoint.digests.get(name) != digest_of(folder / name):
            raise _damaged(folder / name)
    return checkpoint


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, before: Checkpoint) -> Checkpoint:
    """Put it in the place of ``before``, and remove the files that only that one names.

    Returned is what was written: with digests of files that are new. No file is ever changed.
    """
    known = before.digests or {}
    digests = {name: known.get(name) or digest_of(folder / name) for name in sorted(checkpoint.names)}
    whole = checkpoint.model_copy(update={"digests": digests})
    whole = whole.model_copy(update={"own_digest": whole.digest()})
    replace_file(folder / CHECKPOINT_FILE, whole.model_dump_json().encode())
    for name in before.names - whole.names:
        (folder / name).unlink(missing_ok=True)
    return whole


def _damaged(path: Path) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{path} is missing or damaged, so that the run cannot go on.",
        hint=f"Remove {path.parent} to run all rounds anew: they come out the same.",
    )

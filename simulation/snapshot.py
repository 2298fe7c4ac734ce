"""What of a run has to be kept to go on with it, as bytes: it travels between machines."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from shared.files import replace_file
from simulation.checkpoints import CHECKPOINT_FILE, LOCK_FILE, Checkpoint
from simulation.results import checkpoint_of

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """A run's result file, and its checkpoint: ``names`` are all its files, ``files`` those that are news."""

    results: bytes
    names: frozenset[str] = frozenset()
    files: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, out: Path, known: Collection[str] = ()) -> Snapshot:
        """What there is, without the contents of ``known``: only the list, of all files, ever changes."""
        results = out.read_bytes() if out.exists() else b""
        folder = checkpoint_of(out)
        if not (folder / CHECKPOINT_FILE).exists():
            return cls(results)
        content = (folder / CHECKPOINT_FILE).read_bytes()
        names = Checkpoint.model_validate_json(content).names
        files = {name: (folder / name).read_bytes() for name in names - set(known)}
        return cls(results, frozenset(names | {CHECKPOINT_FILE}), files | {CHECKPOINT_FILE: content})

    def store(self, out: Path) -> None:
        """Write it at ``out``. Killed at any point, it leaves what a simulation can go on from:
        files before the list that names them, a round's result before the list that counts the round.
        Whoever has claimed the folder keeps it.
        """
        folder = checkpoint_of(out)
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(self.files.keys() - {CHECKPOINT_FILE}):
            replace_file(folder / name, self.files[name])
        if self.results:
            replace_file(out, self.results)
        if CHECKPOINT_FILE in self.files:
            replace_file(folder / CHECKPOINT_FILE, self.files[CHECKPOINT_FILE])
        for path in folder.iterdir():
            if path.name not in self.names | {LOCK_FILE}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()

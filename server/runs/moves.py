"""How far updates move the model they started from: measured at the upload, told again at the round's end.

A file of a digest cannot change, so neither can what was measured of it. What is not remembered (by a
process that was restarted, or when another one took the update) is measured again, with the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cachetools import LRUCache

if TYPE_CHECKING:
    from shared.aggregation.figures import Move
    from shared.schemas import TensorSpec

__all__ = ["Moves"]

UPDATES = 10_000
MODELS = 100
Names = tuple[str, ...]


class Moves:
    """What was measured last, by digests. Used from several threads."""

    def __init__(self) -> None:
        self._moves: LRUCache[tuple[str, str, Names], Move] = LRUCache(UPDATES)
        self._norms: LRUCache[tuple[str, Names], float] = LRUCache(MODELS)
        self._lock = threading.Lock()

    def find(self, model: str, update: str, parameters: Iterable[TensorSpec]) -> Move | None:
        """By the digests of a model and of an update that started from it, over these tensors."""
        with self._lock:
            return self._moves.get((model, update, _names(parameters)))

    def measure(
        self, model: str, model_file: Path, update: str, update_file: Path, parameters: Sequence[TensorSpec]
    ) -> Move:
        """The files of the digests are there, and validated. Imports PyTorch."""
        from shared.aggregation.figures import measure_move

        names = _names(parameters)
        with self._lock:
            start = self._norms.get((model, names))
        move = measure_move(model_file, update_file, parameters, start)
        with self._lock:
            self._norms[model, names] = move.start
            self._moves[model, update, names] = move
        return move

    def forget(self, model: str) -> None:
        """What was measured on this model, whose file turned out to be damaged."""
        with self._lock:
            for key in [key for key in self._moves if key[0] == model]:
                del self._moves[key]
            for known in [known for known in self._norms if known[0] == model]:
                del self._norms[known]


def _names(parameters: Iterable[TensorSpec]) -> Names:
    """Of two runs with the same files one may train more of the tensors."""
    return tuple(spec.name for spec in parameters)

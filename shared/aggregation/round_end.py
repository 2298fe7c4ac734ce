"""A round's end: from the updates that arrived to the ledger and the next model.

The coordinator, the replay command and the simulation call this one function, so that a weight or a
bit cannot differ between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.algorithms.base import UpdateInfo
from shared.capping import cap_ledger
from shared.config import RunConfig
from shared.schemas import TensorSpec
from shared.weightings import Contribution, LedgerEntry, ledger

if TYPE_CHECKING:
    from shared.aggregation import Aggregated

__all__ = ["Arrived", "RoundResult", "Start", "close_round"]


@dataclass(frozen=True)
class Start:
    """The files that the round started from."""

    model: Path
    broadcast: Path | None = None
    private: Path | None = None


@dataclass(frozen=True)
class Arrived:
    """A client's validated update; ``discrepancy`` is its raw d_k, None if the run does not ask for it."""

    info: UpdateInfo
    path: Path
    discrepancy: float | None


@dataclass(frozen=True)
class RoundResult:
    """``files`` are the next model and its groups (None: no update has weight, ``weightless`` says why)."""

    rows: tuple[LedgerEntry, ...]
    files: Aggregated | None
    weightless: str | None = None


def close_round(
    config: RunConfig,
    manifest: Sequence[TensorSpec],
    start: Start,
    arrived: Sequence[Arrived],
    all_clients: Sequence[Contribution],
    folder: Path,
) -> RoundResult:
    """Weigh the updates and aggregate them; result files are written into ``folder``.

    ``all_clients`` are all trainers enrolled, whether drawn for this round or not.
    """
    from shared.aggregation import UpdateFile, aggregate
    from shared.algorithms import load_algorithm

    contributions = [
        Contribution(update.info.index, update.info.examples, update.discrepancy) for update in arrived
    ]
    rows = cap_ledger(ledger(config.weighting, contributions, all_clients), config.max_weight)
    if not any(row.weight > 0 for row in rows):
        reasons = sorted({row.reason for row in rows if row.reason})
        return RoundResult(rows, None, "; ".join(reasons) or "no update that arrived can be read")
    files = aggregate(
        algorithm=load_algorithm(config.algorithm),
        manifest=manifest,
        model=start.model,
        broadcast=start.broadcast,
        private=start.private,
        updates=[UpdateFile(update.info, update.path) for update in arrived],
        weights={row.index: row.weight for row in rows if row.included},
        clients=len(all_clients),
        local=config.local,
        buffers=config.buffers,
        folder=folder,
    )
    return RoundResult(rows, files)

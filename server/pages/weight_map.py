"""Weights over rounds: a row a client, a cell a round, darker for more; readable with sixty clients."""

from __future__ import annotations

from collections.abc import Sequence

from server.pages.contexts import WeightCell, WeightMap
from server.pages.words import percent
from shared.schemas import RoundStatus, RoundView

__all__ = ["map_weights"]


def map_weights(rounds: Sequence[RoundView]) -> WeightMap | None:
    """Of the completed rounds among these; None where no weight is known, as with secure sums."""
    done = sorted(
        (round for round in rounds if round.status is RoundStatus.COMPLETED), key=lambda round: round.round
    )
    rows: dict[str, dict[int, float]] = {}
    for round in done:
        for row in sorted(round.ledger, key=lambda row: row.index):
            if row.weight is not None:
                rows.setdefault(row.client, {})[round.round] = row.weight
    largest = max((weight for row in rows.values() for weight in row.values()), default=0.0)
    if largest <= 0 or len(done) < 2:
        return None
    numbers = [round.round for round in done]
    width = 100 / len(numbers)
    return WeightMap(
        rounds=numbers,
        width=_short(width),
        largest=largest,
        rows=tuple(
            (
                client,
                tuple(
                    WeightCell(
                        x=_short(place * width),
                        level=min(9, int(10 * row[number] / largest)),
                        label=f"{client}, round {number}: {percent(row[number], 2)}",
                    )
                    for place, number in enumerate(numbers)
                    if number in row
                ),
            )
            for client, row in rows.items()
        ),
    )


def _short(value: float) -> float:
    return float(f"{value:.3f}")

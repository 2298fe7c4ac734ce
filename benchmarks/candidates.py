"""How many label counts a disclosed discrepancy leaves open, by grade: the table of ``docs/privacy.md``.

Run it as ``python -m benchmarks.candidates``. Counts are in no order: the uniform target does not tell it.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from shared.discrepancy import discrepancy, largest
from worker.candidates import count_fits
from worker.noise import make_noise, sensitivity

OUT = Path(__file__).resolve().parents[1] / "docs" / "privacy" / "candidates.jsonl"
SITES: dict[int, list[tuple[int, ...]]] = {
    2: [(20, 40), (60, 200)],
    4: [(5, 10, 20, 25), (20, 40, 100, 100)],
    10: [(1, 2, 3, 4, 5, 6, 7, 8, 10, 14), (2, 5, 8, 12, 18, 25, 30, 40, 50, 70)],
}
EPSILONS = (0.1, 1.0)
DRAWS = 15


def count_multisets(examples: int, classes: int) -> int:
    """Ways to deal examples to classes, in no order: what somebody must consider who knows the size alone.

    >>> count_multisets(4, 2)
    3
    """
    ways = [1] + [0] * examples
    for part in range(1, classes + 1):  # parts of at most this size: the conjugate partitions
        for total in range(part, examples + 1):
            ways[total] += ways[total - part]
    return ways[examples]


def measure(counts: tuple[int, ...]) -> dict[str, object]:
    """Candidates left for one site; those of a noised answer as the median of several draws."""
    size, classes = sum(counts), len(counts)
    true = discrepancy(counts, "uniform")
    exact = count_fits(counts, "uniform", "kl", true)
    row: dict[str, object] = {
        "classes": classes,
        "examples": size,
        "counts": counts,
        "none": count_multisets(size, classes),
        "exact": exact.number,
        "complete": exact.all,
    }
    end = largest("kl", "uniform", classes)
    for epsilon in EPSILONS:
        noise = make_noise(sensitivity("kl", "uniform", classes, size), epsilon)
        told = [min(max(noise.add(true), 0.0), end) for _ in range(DRAWS)]
        fits = [count_fits(counts, "uniform", "kl", value, noise.half_width).number for value in told]
        row[f"noised {epsilon:g}"] = int(statistics.median(fits))
        row[f"scale {epsilon:g}"] = round(noise.scale * noise.grid, 5)
    return row


def main() -> None:
    lines = [json.dumps(measure(counts)) for sites in SITES.values() for counts in sites]
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

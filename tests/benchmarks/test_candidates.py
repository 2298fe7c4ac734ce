"""The figures of ``docs/privacy.md`` about label counts left open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.candidates import OUT, SITES, count_multisets
from shared.discrepancy import discrepancy
from worker.candidates import count_fits, partitions

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
ROWS = [json.loads(line) for line in OUT.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("examples", "classes"), [(5, 2), (12, 4), (20, 10)])
def test_multisets_are_counted_as_they_are_listed(examples: int, classes: int) -> None:
    rows = partitions(examples, classes, ordered=False)
    assert rows is not None
    assert len(rows) == count_multisets(examples, classes)


def test_the_page_shows_the_measured_rows() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [tuple(row["counts"]) for row in ROWS] == [counts for sites in SITES.values() for counts in sites]
    for row in ROWS:
        least = "" if row["complete"] else "at least "
        cells = [
            f"{row['none']:,}",
            *(f"{least}{row[name]:,}" for name in ("noised 0.1", "noised 1", "exact")),
        ]
        assert f"| {row['classes']} | {row['examples']} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("row", ROWS[:4], ids=lambda row: f"{row['classes']} classes, n {row['examples']}")
def test_exact_answers_leave_what_was_measured(row: dict[str, object]) -> None:
    counts = row["counts"]
    assert isinstance(counts, list)
    fits = count_fits(counts, "uniform", "kl", discrepancy(counts, "uniform"))
    assert (fits.number, fits.all) == (row["exact"], row["complete"])

"""The page's table is that of the results."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_of_random_faults_is_made_from_the_results() -> None:
    page = runpy.run_path(str(DOCS / "make_reliability.py"))["rendered"]()
    assert (DOCS / "reliability.md").read_text(encoding="utf-8") == page, (
        "run python docs/make_reliability.py"
    )

"""The experiment on what smaller updates cost: cells differ in what they should alone; its page is true."""

from __future__ import annotations

import pytest

from experiments.compression_costs import CELLS, MODES, PAGE, RESULTS, Cell, compression_page
from simulation.results import Results


@pytest.mark.parametrize("mode", MODES)
def test_runs_differ_in_their_mode_alone(mode: str) -> None:
    whole, other = (Cell(each, 1).config().model_dump() for each in ("whole", mode))
    changed = {name for name in whole if whole[name] != other[name]}
    assert changed == (set() if mode == "whole" else {"name", "compression"})


def test_the_committed_page_says_what_the_committed_results_say() -> None:
    if not any(Results(RESULTS / cell.file).lines() for cell in CELLS):
        pytest.skip("no result of this experiment is committed")
    assert PAGE.read_text(encoding="utf-8") == compression_page()

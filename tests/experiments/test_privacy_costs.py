"""The experiment on what privacy costs: cells differ in what they should alone, and its page is true."""

from __future__ import annotations

import pytest

from experiments.privacy_costs import CELLS, MODES, PAGE, RESULTS, Cell, privacy_page
from simulation.results import Results


def test_every_mode_and_weighting_has_a_run_of_each_seed_and_a_file_of_its_own() -> None:
    assert len({cell.file for cell in CELLS}) == len(CELLS) == 2 * 3 * len(MODES)
    assert {cell.kernels for cell in CELLS if cell.mode.startswith("dp")} == {"torch"}


@pytest.mark.parametrize("weighting", ["disco", "sizes"])
@pytest.mark.parametrize("mode", MODES)
def test_runs_differ_in_their_mode_alone(mode: str, weighting: str) -> None:
    plain, other = (Cell(each, weighting, 1).config().model_dump() for each in ("plain", mode))
    changed = {name for name in plain if plain[name] != other[name]}
    assert changed == (set() if mode == "plain" else {"name", *MODES[mode]})


def test_the_committed_page_says_what_the_committed_results_say() -> None:
    if not any(Results(RESULTS / cell.file).lines() for cell in CELLS):
        pytest.skip("no result of this experiment is committed")
    assert PAGE.read_text(encoding="utf-8") == privacy_page()

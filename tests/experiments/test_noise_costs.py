"""The experiment on what noise costs: its weighting is Disco, its answers the worker's, its page true."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from experiments import noise_costs
from experiments.noise_costs import CELLS, PAGE, RESULTS, Cell, ToldDisco, answers, noise_page, weight_changes
from shared.discrepancy import discrepancy
from shared.weightings.base import Contribution, WeightingRound
from shared.weightings.disco import DiscoWeighting
from simulation.results import Results

COUNTS = [[400, 400, 0, 0], [0, 0, 300, 500], [200, 200, 200, 200]]


def test_exact_answers_give_discos_weights() -> None:
    told = answers(COUNTS, None)
    assert told == [discrepancy(mine, "uniform", "kl") for mine in COUNTS]
    rows = [Contribution(index, 800, told[index]) for index in range(3)]
    ours = ToldDisco(told=tuple(told)).weigh(WeightingRound(rows))
    assert list(ours.rows) == list(DiscoWeighting(a=0.5, b=0.1).weigh(WeightingRound(rows)).rows)


def test_noised_answers_differ_and_stay_in_the_range() -> None:
    told = answers(COUNTS, 0.1)
    assert told != answers(COUNTS, 0.1)
    assert all(0 <= value <= 1.3863 for value in told)


@pytest.mark.long
def test_the_noise_matters_less_at_larger_sites() -> None:
    small, large = (fmean(weight_changes(size, 1.0, draws=30)) for size in (30, 10_000))
    assert large < 0.1 * small


def test_runs_differ_in_what_the_sites_tell_alone() -> None:
    one, other = (Cell(epsilon, 1).config([0.5] * 6).model_dump() for epsilon in (None, 0.1))
    assert {name for name in one if one[name] != other[name]} == {"name"}
    assert len({cell.file for cell in CELLS}) == len(CELLS)


def test_of_one_seed_nothing_is_said_between_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for epsilon in (None, 1.0):
        file = Cell(epsilon, 0).file
        (tmp_path / file).write_bytes((RESULTS / file).read_bytes())
    monkeypatch.setattr(noise_costs, "RESULTS", tmp_path)
    page = noise_page()
    assert "epsilon 1: -1.70 over 1 seed. With" in page
    assert "between seeds" not in page


def test_the_committed_page_says_what_the_committed_results_say() -> None:
    if not any(Results(RESULTS / cell.file).lines() for cell in CELLS):
        pytest.skip("no result of this experiment is committed")
    assert PAGE.read_text(encoding="utf-8") == noise_page()

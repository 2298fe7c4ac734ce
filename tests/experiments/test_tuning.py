"""a and b chosen on examples that no client is dealt, or on the test set as the paper did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.evidence import gather
from experiments.overview import Entry, overview
from experiments.plan import cells, expand
from experiments.report import table_page
from experiments.tables import Table, load_table
from experiments.tuning import choose, settled, trials
from tests.helpers.small_table import longer, write_curves

TUNE: dict[str, Any] = {"weighting.a": [0.5, 0.9], "weighting.b": [0.1], "on": "validation"}
FIRST, SECOND = "a0.5-b0.1", "a0.9-b0.1"


def tuned(**changes: Any) -> Table:
    return longer(**{"weightings": ["base", "tuned"], "tune": TUNE, "target_accuracy": None} | changes)


def write(results: Path, given: Table) -> None:
    """The second pair is better on validation, the first on the test set."""
    curves = {("fedavg", "base", 0): [0.4] * 12, ("feddyn", "base", 0): [0.4] * 12}
    curves |= {("fedavg", FIRST, 0): [0.6] * 12, ("fedavg", SECOND, 0): [0.5] * 12}
    validation = {("fedavg", FIRST, 0): 0.55, ("fedavg", SECOND, 0): 0.58}
    write_curves(results, curves, given, validation)


def test_the_choice_on_validation_stands_beside_that_on_test(tmp_path: Path) -> None:
    write(tmp_path, tuned())
    choice = choose(gather(trials(tuned()), tmp_path))
    assert choice is not None
    assert (choice.on_validation, choice.on_test, choice.of, choice.seeds) == (SECOND, FIRST, 2, (0,))
    assert settled(tuned(), tmp_path).chosen == SECOND
    assert settled(tuned(tune=TUNE | {"on": "test"}), tmp_path).chosen == FIRST
    page = table_page(gather(settled(tuned(), tmp_path), tmp_path), [])
    assert "| a0.5-b0.1 | 55.00 | 60.00 | test, as in the paper |" in page
    assert "| a0.9-b0.1 | 58.00 | 50.00 | validation |" in page


def test_every_other_method_is_run_with_the_choice_alone(tmp_path: Path) -> None:
    given = tuned()
    assert [cell.weighting for cell in cells(given) if cell.method == "fedavg"] == ["base", FIRST, SECOND]
    assert {cell.method for cell in cells(trials(given))} == {"fedavg"}
    write(tmp_path, given)
    chosen = settled(given, tmp_path)
    assert [cell.weighting for cell in cells(chosen) if cell.method == "feddyn"] == ["base", SECOND]


def test_only_the_choice_counts_as_disco(tmp_path: Path) -> None:
    write(tmp_path, tuned())
    assert gather(tuned(), tmp_path).verdicts() == []  # nothing is chosen
    evidence = gather(settled(tuned(), tmp_path), tmp_path)
    assert [gain.cell.weighting for gain in evidence.with_disco()] == [SECOND]
    assert evidence.verdicts() == ["ahead"]


def test_pairs_are_compared_over_the_seeds_that_all_have_to_the_end(tmp_path: Path) -> None:
    given = tuned(seeds=3)
    curves = {("fedavg", FIRST, seed): [0.6] * 12 for seed in (0, 1)}
    curves |= {("fedavg", SECOND, 1): [0.5] * 12, ("fedavg", SECOND, 0): [0.9] * 11}
    validation = dict.fromkeys(curves, 0.5)
    write_curves(tmp_path, curves, given, validation)
    choice = choose(gather(trials(given), tmp_path))
    assert choice is not None
    assert choice.seeds == (1,)
    assert [each.test for each in choice.tried] == [pytest.approx(60), pytest.approx(50)]
    write_curves(tmp_path / "other", {("fedavg", FIRST, 0): [0.6] * 11}, given)
    assert choose(gather(trials(given), tmp_path / "other")) is None
    page = table_page(gather(settled(given, tmp_path / "other"), tmp_path / "other"), [])
    assert "a and b are not chosen yet: no pair was run to the end." in page
    assert "| FedDyn | tuned, not chosen yet |" in page


def test_the_published_figure_of_tuned_is_the_choices(tmp_path: Path) -> None:
    published = {"digits-12": {"fedavg": {"base": 50.0, "tuned": 57.0}}}
    given = tuned(published=published, headline=True)
    assert "Published with FedAvg: 50.00 % without and 57.00 % with Disco." in overview(
        [Entry(given, "not yet run", "", gather(given, tmp_path))]
    )
    write(tmp_path, given)
    evidence = gather(settled(given, tmp_path), tmp_path)
    assert [gain.published for gain in evidence.gains] == [None, pytest.approx(7)]
    page = overview([Entry(evidence.table, "partly", "", evidence)])
    assert page.index("## Small: partly") < page.index("## How gains are compared")
    assert "| FedAvg | a0.9-b0.1 (tuned) | 57.00 | 50.00 |" in page
    assert "FedDyn" not in page[: page.index("## How gains are compared")]


def test_the_papers_partial_participation_is_tuned_on_validation() -> None:
    given = load_table("partial-40")
    assert given.tune is not None
    assert (given.tune.on, len(given.tune.pairs)) == ("validation", 6)
    config = expand(given)[0].config
    assert config.draws == "feddisco-release"
    assert config.partition is not None
    assert config.partition.validation == 5000

"""The two explorations on the digits, from training to page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.exploration import exploration_page, explore, pair_of_like_size, trials
from experiments.plan import Cell, configuration
from experiments.reproduce import write_overview
from experiments.tables import Table
from shared.problems import InvalidConfiguration
from simulation.run import Results
from tests.helpers.small_table import put_small_table, table


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data files with one small table instead of the paper's."""
    put_small_table(tmp_path, monkeypatch)
    return tmp_path


def exploration(number: int) -> Table:
    empty: dict[str, Any] = {"methods": [], "published": {}, "target_accuracy": None, "figures": []}
    return table(name=f"exploration-{number}", kind=f"exploration-{number}", **empty)


def test_the_pair_is_of_like_size_and_as_unlike_as_can_be_else() -> None:
    sizes, distances = [100, 95, 60, 98], [0.2, 0.9, 5.0, 0.4]
    assert pair_of_like_size(sizes, distances) == (1, 0)  # client 2 is too small
    assert pair_of_like_size([100, 50, 60], [0.1, 0.2, 0.3]) == (2, 1)  # none is like: the closest


def test_two_clients_are_blended(tmp_path: Path) -> None:
    given = exploration(1)
    (trial,) = trials(given, tmp_path, seeds=1)
    explore(trial, None, say=lambda line: None)
    header, pair, *blends = Results(trial.out).lines()
    assert header["config"]["seed"] == 0
    assert header["versions"]["torch"]
    assert header["machine"]["engine"] == "in-process"
    assert pair["discrepancies"][0] > pair["discrepancies"][1]
    assert pair["clients"][1] == 5  # the unbiased one of 5+1
    assert [blend["r"] for blend in blends] == pytest.approx([step / 10 for step in range(11)])

    page, done = exploration_page(given, tmp_path, tmp_path / "docs")
    best = max(blends, key=lambda blend: float(blend["accuracy"]))
    assert done == 1
    assert "1 of 2 trials were run." in page
    row = next(line for line in page.splitlines() if line.startswith("| 0 |"))
    assert row.endswith(f"| {best['r']:g} |")
    assert (tmp_path / "docs" / "exploration-1.svg").exists()


def test_local_models_are_set_against_size_and_discrepancy(tmp_path: Path) -> None:
    given = exploration(2)
    (trial,) = trials(given, tmp_path, seeds=1)
    explore(trial, None, say=lambda line: None)
    clients = Results(trial.out).lines()[1:]
    assert [client["client"] for client in clients] == list(range(6))
    assert clients[5]["discrepancy"] < min(client["discrepancy"] for client in clients[:5])
    assert all(0 < client["accuracy"] < 1 for client in clients)

    page, _ = exploration_page(given, tmp_path, tmp_path / "docs")
    row = next(line for line in page.splitlines() if line.startswith("| 0 |"))
    _, _, with_size, with_discrepancy = (cell.strip() for cell in row.strip("|").split("|"))
    assert with_size == "-"  # all of one size
    assert -1 <= float(with_discrepancy) <= 1


def test_what_is_no_trial_is_neither_shown_nor_counted(small: Path) -> None:
    """Copies of one, those of another setting, and a seed that the table does not ask for."""
    given = exploration(1)
    results, docs = small / "results", small / "docs"
    first = trials(given, results, seeds=1)[0].out
    first.parent.mkdir(parents=True)
    config = configuration(Cell("digits", "fedavg", "sizes"), 1).model_dump(mode="json")
    pair = {"kind": "pair", "clients": [0, 1], "sizes": [9, 9], "discrepancies": [0.5, 0.1]}
    blends = [{"kind": "blend", "r": r / 10, "accuracy": 0.5} for r in range(11)]
    text = "".join(json.dumps(line) + "\n" for line in ({"kind": "run", "config": config}, pair, *blends))
    second = first.with_name("digits-s1.jsonl")
    second.write_text(text, encoding="utf-8")
    page, _ = exploration_page(given, results, docs)
    assert "1 of 2 trials were run." in page
    assert "| 1 | [9, 9], [0.5, 0.1] |" in page, "by its seed"
    for stray in ("digits-s1-old.jsonl", "digits-s1 (copy).jsonl", "digits-s7.jsonl"):
        first.with_name(stray).write_text(text, encoding="utf-8")
    first.with_name("elsewhere-s0.jsonl").write_text(text.splitlines()[0] + "\n", encoding="utf-8")
    assert exploration_page(given, results, docs) == (page, 1)
    document = given.model_dump(mode="json", exclude={"name"}, exclude_unset=True)
    (small / "experiments" / "tables" / "exploration-1.yaml").write_text(
        yaml.safe_dump(document), encoding="utf-8"
    )
    write_overview(results, docs)
    assert "| partly | 1 of 2 trials |" in (docs / "results.md").read_text(encoding="utf-8")

    second.rename(first)
    with pytest.raises(InvalidConfiguration, match="another configuration"):
        exploration_page(given, results, docs)


def test_without_a_trial_the_page_says_so(tmp_path: Path) -> None:
    page, done = exploration_page(exploration(2), tmp_path, tmp_path / "docs")
    assert (done, "Not yet run." in page) == (0, True)

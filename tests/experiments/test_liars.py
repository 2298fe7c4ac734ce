"""One liar among ten, on the digits: what it sends and declares, interrupted runs, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import liars
from experiments.liars import CELLS, LIAR, Cell, liars_page, train
from shared.problems import InvalidConfiguration
from simulation.results import Results
from simulation.run import Setup

DOCUMENT = liars.PAGE.parents[1] / "robust-aggregation.md"
NAMES = {"none": "none-mean", "1e30": "1e30-mean", "x1000": "x1000-mean-cap", "x-10": "x-10-mean-cap"}
SMALL = {"task": "digits", "rounds": 3, "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.05}}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell is a small run on the digits, also for the page."""
    whole = Cell.config
    monkeypatch.setattr(Cell, "config", lambda cell, seed, **more: whole(cell, seed, **SMALL | more))


def run(cell: Cell, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    out = folder / f"{cell.name}-s0.jsonl"
    train(cell, cell.config(0, **SMALL | changes), Setup(), out, lambda line: None)
    return Results(out).lines()


def rounds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == "round"]


def test_every_cell_is_a_run_of_its_own() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    assert all(cell.config(1).name.endswith("-s1") for cell in CELLS)


def test_a_name_that_no_cell_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(liars, "PAGE", tmp_path / "liars.md")
    with pytest.raises(SystemExit) as ended:
        liars.main(["--only", "x-1000-*"])
    assert ended.value.code == 2
    assert "no cell has a name like 'x-1000-*'; the first is none-mean" in capsys.readouterr().err
    assert not (tmp_path / "liars.md").exists()


def test_a_liar_spoils_the_mean_and_not_the_median(tmp_path: Path) -> None:
    honest = rounds(run(Cell("none", "mean"), tmp_path))[-1]["accuracy"]
    spoilt = rounds(run(Cell("x1000", "mean", 0.2), tmp_path, max_norm=1e9))[-1]["accuracy"]
    kept = rounds(run(Cell("x1000", "median", 0.2), tmp_path, max_norm=1e9))[-1]["accuracy"]
    assert spoilt < honest - 0.2
    assert kept > spoilt + 0.2


def test_a_model_that_nobody_can_train_ends_the_run_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says in which round; a later call does not train it again."""
    cell = Cell("x1000", "mean", 0.2)
    hot = {"max_norm": 1e30, "local": {"epochs": 1, "batch_size": 16, "learning_rate": 1e3}}
    config = cell.config(0, **SMALL | hot)
    monkeypatch.setattr(Cell, "config", lambda cell, seed, **changes: config)
    lines = run(cell, tmp_path, **hot)
    assert lines[-1]["kind"] == "stopped"
    assert "loss is" in lines[-1]["reason"]
    assert run(cell, tmp_path, **hot) == lines
    assert f"stops in round {lines[-1]['round']} |" in liars_page(tmp_path)


def test_an_update_of_1e30_has_no_weight(tmp_path: Path) -> None:
    for line in rounds(run(Cell("1e30", "mean"), tmp_path)):
        assert line["weights"][LIAR] == 0
        assert sum(line["weights"]) == pytest.approx(1)


def test_a_declared_size_takes_the_model_and_a_cap_bounds_it(tmp_path: Path) -> None:
    taken = rounds(run(Cell("size", "mean"), tmp_path, weighting={"kind": "sizes"}))
    assert taken[0]["weights"][LIAR] == pytest.approx(1)
    capped = rounds(run(Cell("size", "mean", 0.2), tmp_path, weighting={"kind": "sizes"}))
    assert capped[0]["weights"][LIAR] == pytest.approx(0.2)


def test_an_interrupted_run_goes_on_to_the_same_model(tmp_path: Path) -> None:
    cell = Cell("x-10", "clipped", 0.2)
    whole = run(cell, tmp_path / "whole")
    out = tmp_path / "cut" / f"{cell.name}-s0.jsonl"
    kind = type("Lying", (liars.LyingSimulation,), {"lie": cell.lie})
    with kind(cell.config(0, **SMALL), Setup(), out, lambda line: None) as first:
        first.train(until=1)
    train(cell, cell.config(0, **SMALL), Setup(), out, lambda line: None)
    assert [line["model"] for line in rounds(Results(out).lines())] == [
        line["model"] for line in rounds(whole)
    ]


def test_the_page_says_what_is_not_yet_run(small: None, tmp_path: Path) -> None:
    run(Cell("none", "mean"), tmp_path)
    page = liars_page(tmp_path)
    assert "| `mean` | " in page
    assert page.count("not yet run") == 3 * len(liars.RULES) - 1 + 1 + 4
    assert "headline by the median" in page


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_said_of_the_lies_is_what_the_committed_runs_did(seed: int) -> None:
    """Which of them had a cap, what a declared size took, and that a declared discrepancy took nothing."""

    def lines(name: str) -> list[dict[str, Any]]:
        return Results(liars.RESULTS / f"{name}-s{seed}.jsonl").lines()

    page, said = liars.PAGE.read_text(encoding="utf-8"), DOCUMENT.read_text(encoding="utf-8")
    caps = {lie: lines(name)[0]["config"]["max_weight"] for lie, name in NAMES.items()}
    assert caps == {"none": None, "1e30": None, "x1000": 0.2, "x-10": 0.2}
    assert "In the columns with a lie the run has `max_weight: 0.2`; without a lie, and where the" in page
    shares = {round(100 * line["weights"][LIAR]) for line in rounds(lines("size-mean"))}
    assert [f"A declared size of 2^53 takes {share} % of the weight" in said for share in shares] == [True]
    models = [[line["model"] for line in rounds(lines(name))] for name in ("none-mean", "discrepancy-mean")]
    assert models[0] == models[1]
    assert "its discrepancy is 0 before it says so" in page.replace("\n", " ")


def test_the_committed_page_says_what_the_committed_results_say() -> None:
    assert liars.PAGE.read_text(encoding="utf-8") == liars_page(liars.RESULTS)


def test_the_page_is_of_the_cells_own_runs_alone(tmp_path: Path) -> None:
    run(Cell("none", "mean"), tmp_path, rounds=1)
    with pytest.raises(InvalidConfiguration, match="another configuration"):
        liars_page(tmp_path)

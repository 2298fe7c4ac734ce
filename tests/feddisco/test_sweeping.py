"""Sweeps, tables and plots, from the command line and from Python."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import feddisco
from feddisco.main import app
from feddisco.plotting import find_series, plot
from feddisco.result_tables import list_files, read_results, scores_of, tabulate_rounds, tabulate_runs
from feddisco.sweeping import read_choice, vary
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from simulation.run import simulate

SMALL: dict[str, Any] = {
    "name": "small",
    "task": "digits",
    "rounds": 2,
    "partition": "niid1:3:0.5",
    "local": {"steps": 2, "batch_size": 8, "learning_rate": 0.05},
}


def call(*words: str | Path | int) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_all_combinations_with_all_seeds_each_with_a_name_of_its_own() -> None:
    config = RunConfig.model_validate(SMALL | {"seed": 7})
    found = vary(config, {"weighting.a": [0, 0.5], "local.steps": [2, 4]}, seeds=2)
    assert [each.name for each in found] == [
        f"small-a{a}-steps{steps}-s{seed}" for a in ("0", "0.5") for steps in (2, 4) for seed in (7, 8)
    ]
    assert [(e.weighting.a, e.local.steps, e.seed) for e in found][-1] == (0.5, 4, 8)  # type: ignore[attr-defined]
    assert vary(config, {}) == [config]


def test_whole_parts_are_settings_too_and_long_names_stay_distinct() -> None:
    config = RunConfig.model_validate(SMALL | {"name": "n" * 60})
    kinds = [{"kind": "sizes"}, {"kind": "uniform"}]
    found = vary(config, {"weighting": kinds})
    assert [each.weighting.kind for each in found] == ["sizes", "uniform"]
    assert len({each.name for each in found}) == 2
    seeds = vary(config, {"seed": [3, 5]}, seeds=4)
    assert {each.seed for each in seeds} == {3, 5}


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"weighting.aa": [1]}, "aa"),
        ({"local.learning_rate": [0.1, -1]}, "learning_rate"),
        ({"rounds.more": [1]}, "rounds"),
    ],
)
def test_a_setting_that_is_none_is_refused_before_anything_runs(
    choices: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        feddisco.sweep(SMALL, choices, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "no setting with values") for text in ("weighting.a", "=1", "weighting.a=")),
        ("weighting.a=[1", r"'weighting.a=\[1' is not YAML"),
        ("seed=2024-13-45", "cannot be read"),
        ("seed=&a [*a]", "within what it stands for"),
    ],
)
def test_a_choice_without_a_value_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        read_choice(text)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two weights a, two seeds, by the command; interrupted once."""
    folder = tmp_path_factory.mktemp("swept")
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    first = vary(RunConfig.model_validate(SMALL), {"weighting.a": [0, 1]}, seeds=2)[0]
    simulate(first, source=None, out=folder / "out" / f"{first.name}.jsonl", until=1, say=lambda _: None)
    said = call("sweep", file, "--set", "weighting.a=0,1", "--seeds", 2, "--out", folder / "out")
    assert said.exit_code == 0, said.output
    assert "4 runs, 2 rounds each" in said.output
    assert "small-a0-s0  round    1/2" not in said.output, "it went on after its last round"
    assert "small-a0-s0  round    2/2" in said.output
    assert " s left" in said.output
    return folder / "out"


def test_a_second_call_runs_nothing_again(swept: Path) -> None:
    before = {path: path.read_bytes() for path in swept.glob("*.jsonl")}
    assert len(before) == 4
    again = feddisco.sweep(SMALL, {"weighting.a": [0, 1]}, seeds=2, out=swept)
    assert [end.state for end in again.ended] == ["done"] * 4
    assert {path: path.read_bytes() for path in again.paths} == before
    assert list(again.rounds.columns[:4]) == ["run", "seed", "weighting.a", "round"]
    assert len(again.rounds) == 8
    assert again.runs["weighting.a"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert (again.runs["best accuracy"] >= again.runs["last accuracy"]).all()


def test_a_table_has_every_round_with_what_differs(swept: Path, tmp_path: Path) -> None:
    assert call("table", swept, "--out", tmp_path / "rounds.csv").exit_code == 0
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert len(rows) == 8
    line = read_results(swept / "small-a1-s1.jsonl").rounds[1]
    (row,) = [r for r in rows if (r["run"], r["round"]) == ("small-a1-s1", "2")]
    assert (float(row["accuracy"]), row["model"]) == (line["accuracy"], line["model"])
    assert (row["weighting.a"], row["seed"]) == ("1.0", "1")
    assert "local.steps" not in row, "the same in all"
    assert call("table", swept, "--by", "run", "--out", tmp_path / "runs.csv").exit_code == 0
    assert call("table", swept, "--by", "run").output == (tmp_path / "runs.csv").read_text()
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 5


def test_a_setting_that_is_called_like_a_result_has_a_column_of_its_own(tmp_path: Path) -> None:
    found = feddisco.sweep(SMALL, {"model": ["mlp", "resnet18-gn"], "rounds": [1, 2]}, out=tmp_path)
    rounds = tabulate_rounds(found.paths)
    assert {row["config.model"] for row in rounds.rows} == {"resnet18-gn", "mlp"}
    assert {len(row["model"]) for row in rounds.rows} == {64}, "the digest"
    runs = tabulate_runs(found.paths)
    assert [(row["config.rounds"], row["rounds"]) for row in runs.rows] == [(1, 1), (2, 2)] * 2
    assert [row["model"] for row in runs.rows] == ["mlp", "mlp", "resnet18-gn", "resnet18-gn"]
    names = plot(found.paths, tmp_path / "curves.svg")
    assert names == [f"model {model}, rounds {n}" for model in ("mlp", "resnet18-gn") for n in (1, 2)]


@pytest.mark.parametrize("measure", ["run", "model", "round", "seed", "weighting.a"])
def test_what_is_no_number_of_a_round_is_not_drawn(swept: Path, tmp_path: Path, measure: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"No round has the score '{measure}'"):
        plot(list_files([swept]), tmp_path / "plot.svg", measure)


def test_a_measure_of_a_tasks_own_takes_no_column_from_a_round() -> None:
    line = {"round": 1, "accuracy": 0.5, "loss": 1.0, "seconds": 2.0, "model": "a" * 64}
    row = scores_of(line | {"measures": {"model": 3.0, "auroc": 0.7}, "per_category": {}})
    assert row == line | {"measure model": 3.0, "auroc": 0.7}


def test_a_table_as_parquet(swept: Path, tmp_path: Path) -> None:
    """The same rows as in CSV, numbers as numbers."""
    import pyarrow.parquet

    assert call("table", swept, "--out", tmp_path / "rounds.parquet").exit_code == 0
    assert call("table", swept, "--out", tmp_path / "rounds.csv").exit_code == 0
    found = pyarrow.parquet.read_table(tmp_path / "rounds.parquet").to_pylist()
    with (tmp_path / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(found) == len(rows) == 8
    assert [row["accuracy"] for row in found] == [float(row["accuracy"]) for row in rows]


@pytest.mark.parametrize(("name", "begins"), [("c.svg", b"<?xml"), ("c.png", b"\x89PNG"), ("c.pdf", b"%PDF")])
def test_a_plot_has_a_curve_for_each_setting(swept: Path, tmp_path: Path, name: str, begins: bytes) -> None:
    said = call("plot", swept, "--out", tmp_path / name)
    assert said.exit_code == 0, said.output
    assert "2 curves" in said.output
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_seeds_of_one_setting_are_one_curve(swept: Path) -> None:
    table = tabulate_rounds(list_files([swept]))
    series = find_series(table.rows, "accuracy", ["weighting.a"])
    assert list(series) == ["a 0.0", "a 1.0"]
    assert {number: len(values) for number, values in series["a 0.0"].items()} == {1: 2, 2: 2}


def test_what_cannot_be_read_or_drawn_is_one_sentence(swept: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.jsonl").write_text("[]\n")
    for words, said in {
        ("table", tmp_path / "empty", "--out", tmp_path / "t.csv"): "There are no result files",
        ("table", tmp_path / "other.jsonl", "--out", tmp_path / "t.csv"): "is no result file of a simulation",
        ("table", tmp_path / "missing.jsonl"): "There is no file or folder",
        ("table", swept, "--out", tmp_path / "t.xlsx"): "written as .csv or .parquet",
        ("plot", swept, "--out", tmp_path / "p.txt"): "written as .svg, .png, .pdf",
        ("plot", swept, "--out", tmp_path / "p.svg", "--measure", "auroc"): "There are: accuracy",
    }.items():
        found = call(*words)
        assert isinstance(found.exception, InvalidConfiguration), found.output
        assert said in str(found.exception)

"""docs/algorithms.md, done as it says: an algorithm in a file, a weighting in a file and a table with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.plan import with_weightings
from experiments.tables import load_table
from feddisco.main import app
from shared.algorithms import available, load_algorithm
from shared.config import AlgorithmChoice
from shared.problems import InvalidConfiguration
from simulation.run import Results
from tests.helpers.small_table import put_small_table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def block(kind: str, holds: str) -> str:
    """The page's one code block of this kind that holds this text."""
    found = [text for text in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) if holds in text]
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the Python path with what the page says to put there."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "fedslow.py").write_text(block("python", "class FedSlow("), encoding="utf-8")
    (tmp_path / "slow.yaml").write_text(block("yaml", "name: slow"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("ours", "ours.fedslow"):
        sys.modules.pop(name, None)


def test_the_pages_algorithm_runs_by_its_import_path(ours: Path) -> None:
    out = ours / "slow.jsonl"
    answer = CliRunner().invoke(app, ["simulate", str(ours / "slow.yaml"), "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    header, *rounds, end = Results(out).lines()
    assert header["config"]["algorithm"] == {"name": "ours.fedslow:FedSlow", "parameters": {"radius": 0.5}}
    assert [line["round"] for line in rounds] == [1, 2]
    assert end == {"kind": "end", "model": rounds[-1]["model"]}


def test_the_pages_test_passes_and_can_fail(ours: Path) -> None:
    names: dict[str, object] = {}
    exec(block("python", "def test_no_client_leaves_the_ball"), names)
    test = names["test_no_client_leaves_the_ball"]
    assert callable(test)
    test()
    kind = type(load_algorithm(AlgorithmChoice(name="ours.fedslow:FedSlow")))
    del kind.on_step
    with pytest.raises(AssertionError):
        test()


def test_the_page_lists_every_algorithm_with_its_parameters() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE))
    listed = {name: cell for name, cell in listed.items() if name in available()}
    assert sorted(listed) == sorted(available())
    for name, cell in listed.items():
        parameters = load_algorithm(AlgorithmChoice(name=name)).Parameters.model_fields
        assert re.findall(r"`(\w+)`", cell) == list(parameters), name


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's weighting on the Python path, and one small table instead of the paper's."""
    (tmp_path / "weights_of_ours.py").write_text(block("python", "class ByRoot("), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    put_small_table(tmp_path, monkeypatch)
    return tmp_path


def test_the_pages_weighting_gets_a_table_by_one_command(small: Path) -> None:
    folders = ("--results", str(small / "results"), "--docs", str(small / "docs"))
    asked = ("reproduce", "small", "--seeds", "1", "--rounds", "1", *folders)
    defined = 'steep={kind: "weights_of_ours:ByRoot", options: {power: 0.9}}'
    own = ("--weighting", "weights_of_ours:ByRoot", "--weighting", defined)
    answer = CliRunner().invoke(app, [*asked, *own, "--only", "*-fedavg-*"])
    assert answer.exit_code == 0, answer.output
    page = (small / "docs" / "results" / "small.md").read_text(encoding="utf-8")
    for name in ("byroot", "steep"):
        assert f"| FedAvg | {name} |" in page
        assert list((small / "results").rglob(f"fedavg-{name}-s0.jsonl"))
    again = CliRunner().invoke(app, [*asked, *own, "--only", "*-fedavg-*"])
    assert "small: 4 runs, 0 to do" in again.output


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a0.5.1-b0.1", "'a0.5.1-b0.1' is not known"),
        ("a.-b.", "'a.-b.' is not known"),
        ("weights_of_ours:Nope", "'weights_of_ours:Nope' cannot be imported"),
        ('mine={kind: "weights_of_ours:Nope"}', "'weights_of_ours:Nope' cannot be imported"),
        ('mine={kind: "weights_of_ours:make_rows"}', "not a weighting"),
        ('mine={kind: "weights_of_ours:ByRoot", options: {power: high}}', "power"),
        ("mine={kind: disco, a: -1}", "a: "),
        ("entropie", "'entropie' is not known"),
        ("disco={kind: sizes}", "'disco' is a table's already"),
        ("a0.5-b0.2={kind: sizes}", "is a table's already"),
        ("mine-s1={kind: sizes}", "'mine-s1' ends like a run's name, in a seed"),
        ("My Own={kind: sizes}", "'My Own' is no name"),
        ("mine={power: 2}", "defines none"),
        ("mine=", "defines none"),
        ("mine={kind: sizes", "weighting mine"),
        ("mine={kind: nowhere}", "weighting"),
        ("nowhere_at_all:Mine", "nowhere_at_all"),
    ],
)
def test_a_weighting_that_is_none(small: Path, given: str, words: str) -> None:
    folders = ("--results", str(small / "results"), "--docs", str(small / "docs"))
    answer = CliRunner().invoke(
        app, ["reproduce", "small", "--quick", "--only", "*-fedavg-*", "--weighting", given, *folders]
    )
    assert answer.exit_code != 0
    assert isinstance(answer.exception, InvalidConfiguration)
    assert words in str(answer.exception)
    assert not (small / "results").exists()
    assert not (small / "docs").exists()


@pytest.mark.parametrize(
    "given",
    [
        ("mine={kind: entropy}", "mine={kind: sizes}"),
        ("weights_of_ours:ByRoot", "byroot={kind: sizes}"),
        ("weights_of_ours:ByRoot", "weights_again:ByRoot"),
    ],
)
def test_two_weightings_of_one_name_are_refused_before_either_is_run(
    small: Path, given: tuple[str, str]
) -> None:
    (small / "weights_again.py").write_text("from weights_of_ours import ByRoot", encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match="is the name of two"):
        with_weightings(load_table("small"), given)
    same = with_weightings(load_table("small"), (given[0], given[0]))
    assert len(same.added) == 1

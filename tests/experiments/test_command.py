"""``feddisco reproduce`` as it is called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddisco.main import app
from shared.problems import InvalidConfiguration


def call(*arguments: str) -> tuple[int, str, BaseException | None]:
    answer = CliRunner().invoke(app, ["reproduce", *arguments])
    return answer.exit_code, answer.output, answer.exception


@pytest.mark.long
def test_a_report_of_the_bound(tmp_path: Path) -> None:
    code, said, _ = call(
        "theory", "--report-only", "--results", str(tmp_path), "--docs", str(tmp_path / "docs")
    )
    assert code == 0, said
    page = (tmp_path / "docs" / "results" / "theory.md").read_text(encoding="utf-8")
    assert "| original |  | 0.35466672 | 0.35464325 | 0.35463151 | 0.35462563 | 0.35462270 |" in page
    assert "cannot be as they are labelled" in page
    assert "theory.svg" in page
    assert (tmp_path / "docs" / "results" / "theory.svg").exists()


def test_missing_data_end_with_an_exit_code(tmp_path: Path) -> None:
    folders = ("--data", str(tmp_path), "--results", str(tmp_path / "r"), "--docs", str(tmp_path / "d"))
    code, said, _ = call("stragglers", "--quick", *folders)
    assert code == 1
    assert "stragglers: 2 runs, 0 to do" in said


def test_an_unknown_table_is_a_problem() -> None:
    _, _, fault = call("mian")
    assert isinstance(fault, InvalidConfiguration)
    assert "main" in str(fault)


def test_without_the_checkout_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" in path or "lib" in path])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    _, _, fault = call("main")
    assert isinstance(fault, InvalidConfiguration)
    assert "checkout" in str(fault)

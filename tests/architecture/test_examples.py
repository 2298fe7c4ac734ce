"""The examples in docstrings give what they say, and none stands where nothing runs it."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.architecture.sources import PRODUCT, ROOT

FOLDERS = (*PRODUCT, "experiments", "benchmarks")
EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)


def with_examples() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if EXAMPLE.search(path.read_text(encoding="utf-8"))]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", with_examples(), ids=module_name)
def test_the_examples_hold(path: Path) -> None:
    results = doctest.testmod(importlib.import_module(module_name(path)))
    assert results.failed == 0, "see the captured output"
    assert results.attempted == len(EXAMPLE.findall(path.read_text(encoding="utf-8")))


def test_a_wrong_example_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    examples = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner().run(examples).failed == 1
    assert "Expected:\n    3\nGot:\n    2" in capsys.readouterr().out

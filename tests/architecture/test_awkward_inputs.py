"""``docs/awkward-inputs.md``: every test that it names is there, every sentence is one that the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = (ROOT / "docs" / "awkward-inputs.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ") for line in TABLES.splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
PACKAGES = ("shared", "server", "worker", "feddisco")


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module; … where a value is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(map(str, parts))


def test_every_row_has_a_sentence_and_a_test() -> None:
    assert len(ROWS) >= 26
    for row in ROWS:
        assert len(row) == 5, row
        assert row[3].strip()
        assert "::test_" in row[4]


def test_every_test_that_is_named_exists() -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLES):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{path} has no {name}"


def test_every_sentence_is_one_that_the_code_says() -> None:
    said = "\n".join(
        re.sub(r"\{\w+\}", "…", text)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for text in _texts(ast.parse(path.read_text(encoding="utf-8")))
    )
    for row in ROWS:
        for sentence in re.findall(r"`([^`]+)`", row[3]):
            assert sentence.removesuffix("…") in said, f"{row[0]}: nobody says {sentence!r}"

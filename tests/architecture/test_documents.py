"""What documents and docstrings name is there: a decision is enforced by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.sources import PRODUCT, ROOT

FOLDERS = (*PRODUCT, "experiments", "benchmarks", "tests", "docs", "tools")
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*\w")
PLACEHOLDER = re.compile(r"NAME|TABLE|RUN")
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


def missing(text: str) -> list[str]:
    """Paths of the repository that a text names and that are not there; ``*`` matches as in a shell."""
    names = {name.split("::")[0] for name in NAMED.findall(text) if not PLACEHOLDER.search(name)}
    return sorted(name for name in names if not list(ROOT.glob(name)) and not list(ROOT.glob(f"{name}-*")))


def texts() -> list[Path]:
    code = [
        path for folder in (*PRODUCT, "experiments", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    return sorted([*code, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"])


def test_every_path_that_is_named_exists() -> None:
    found = {str(path.relative_to(ROOT)): missing(path.read_text(encoding="utf-8")) for path in texts()}
    assert {name: paths for name, paths in found.items() if paths} == {}
    assert missing("see `tests/server/test_gone.py`, shared/seeds.py and docs/decisions/0004") == [
        "tests/server/test_gone.py"
    ]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_parts_and_is_enforced_by_tests(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    parts = re.findall(r"^\*\*(\w+)(?: by\*\*|\.\*\*)", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequences", "Alternatives", "Enforced"]
    assert re.search(r"\*\*Decision\.\*\* \*[^*]+\*", text, re.DOTALL), "one sentence that can be quoted"
    assert "tests/" in text.partition("**Enforced by**")[2]

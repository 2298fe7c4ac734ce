"""What CONTRIBUTING.md says of the code is so: rooms, targets, lists of parts. Paths: see test_documents."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from shared.config import Metric
from shared.discrepancy import discrepancy
from tests.architecture.sources import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_decisions_are_numbered_without_gap() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [int(path.stem[:4]) for path in decisions] == list(range(1, len(decisions) + 1))


def test_every_room_has_its_row_and_no_other() -> None:
    rows = set(re.findall(r"^\| `([\w/]+)/` \|", section("Rooms"), re.MULTILINE))
    inside = ("shared", "server", "server/database", "simulation")
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in ("*", *(f"{name}/*" for name in inside))
        for path in ROOT.glob(f"{folder}/__init__.py")
    }
    assert rows == (packages | {"alembic", "benchmarks"}) - {"tests"}


def test_every_target_of_make_exists_and_is_named() -> None:
    targets = set(re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", TEXT)) <= targets | {"help"}
    assert targets - {"env", "clean"} <= set(re.findall(r"make ([a-z-]+)", section("Run things"))) | {"help"}


def test_ten_questions_have_an_answer_each() -> None:
    rows = [line for line in section("Ten questions").splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    assert all(re.search(r"`\w+/[\w/]+(\.py)?/?`", row) for row in rows)


PARTS = (
    "An algorithm",
    "A task",
    "A model",
    "A metric of the discrepancy",
    "A weighting",
    "A score of a model",
    "An endpoint",
    "A column",
    "An event, or a kind of record",
    "A problem code",
    "A setting",
    "A table of the paper",
)


def test_each_part_has_its_list_of_files() -> None:
    lists = re.split(r"^### ", section("Add a part"), flags=re.MULTILINE)[1:]
    assert [text.splitlines()[0] for text in lists] == list(PARTS)
    assert all(len(re.findall(r"^\d\. ", text, re.MULTILINE)) >= 3 for text in lists)


@pytest.mark.parametrize("metric", get_args(Metric))
def test_a_metric_has_its_function(metric: Metric) -> None:
    assert discrepancy([3, 1], "uniform", metric) > 0

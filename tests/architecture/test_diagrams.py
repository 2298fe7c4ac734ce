"""The pictures of the state machine are those of its tables."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from server.lifecycle.tables import ENROLMENT_MOVES, PARTICIPANT_MOVES, ROUND_MOVES, RUN_MOVES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "make_diagrams.py"))


def test_the_committed_files_are_up_to_date(script: dict[str, Any]) -> None:
    for path, text in script["rendered"]().items():
        assert path.read_text(encoding="utf-8") == text, f"run python docs/make_diagrams.py ({path.name})"


def test_every_move_is_in_the_pages_diagrams() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for moves in (RUN_MOVES, ROUND_MOVES, PARTICIPANT_MOVES, ENROLMENT_MOVES):
        for before, after in moves:
            assert f"    {before or '[*]'} --> {after}" in page


def test_the_picture_shows_every_status_inside_its_frame() -> None:
    root = ElementTree.parse(ROOT / "docs" / "round.svg").getroot()
    assert root is not None
    name = "{http://www.w3.org/2000/svg}"
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    texts = [(float(t.attrib["x"]), float(t.attrib["y"]), t.text) for t in root.iter(f"{name}text")]
    assert all(0 < x < width and 0 < y < height for x, y, _ in texts)
    shown = {text for _, _, text in texts}
    for moves in (RUN_MOVES, ROUND_MOVES, PARTICIPANT_MOVES):
        for pair in moves:
            assert {str(status) for status in pair if status is not None} <= shown

"""Every call, problem and setting has its paragraph, and no paragraph is of something that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.app import create_app, make_coordinator
from server.settings import PREFIX, Settings
from shared.faults import SENTENCES, FaultCode
from shared.problems import catalogue
from tests.helpers.live_coordinator import settings_for

DOCS = Path(__file__).resolve().parents[3] / "docs"


def described(name: str) -> dict[str, str]:
    """Headings in code style, and the text below each."""
    text = (DOCS / name).read_text(encoding="utf-8")
    parts = re.split(r"^### `(.+)`\n", text, flags=re.MULTILINE)
    return {
        heading: re.split(r"^## ", body, flags=re.MULTILINE)[0].strip()
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_problem_has_its_paragraph() -> None:
    found = described("problems.md")
    assert set(found) == set(catalogue())
    assert all(found.values())


def test_every_fault_has_its_paragraph() -> None:
    found = described("faults.md")
    assert list(found) == list(FaultCode) == list(SENTENCES)
    assert all(found.values())


def test_every_setting_has_its_paragraph() -> None:
    found = described("settings-coordinator.md")
    assert set(found) == {PREFIX + name.upper() for name in Settings.model_fields}
    assert all(found.values())


def test_every_call_has_its_paragraph(migrated_sqlite: Path, tmp_path: Path) -> None:
    coordinator = make_coordinator(settings_for(f"sqlite:///{migrated_sqlite}", tmp_path))
    paths = create_app(coordinator).openapi()["paths"]
    coordinator.close()
    calls = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    found = described("api.md")
    assert set(found) == calls
    assert all(found.values())


@pytest.mark.parametrize(
    "name", ["api.md", "events.md", "faults.md", "problems.md", "settings-coordinator.md"]
)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / name).read_text(encoding="utf-8")):
        assert (DOCS / target).is_file(), target

"""The coordinator that workers are tested against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.live_coordinator import Live, live


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Live]:
    """A coordinator over HTTP, on SQLite."""
    from server.database.migrations import upgrade

    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    upgrade(url)
    with live(url, tmp_path / "coordinator") as found:
        yield found

"""What every test of the simulation runs under."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def as_in_a_pool(one_thread: None) -> None:
    """One thread, as the pool's processes have."""

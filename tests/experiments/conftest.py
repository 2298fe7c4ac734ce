"""The setting of the small table, known only while a test runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.tables import settings
from tests.helpers.small_table import with_digits


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with_digits()
    yield
    del settings()["digits"], settings()["digits-12"]

"""Whole deployments shared by the tests of a module: starting eight interpreters is what costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.databases import Postgres
from tests.helpers.processes import Deployment, deployment


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A coordinator on SQLite and three workers."""
    with deployment(tmp_path_factory.mktemp("sqlite")) as made:
        made.start_coordinator()
        made.start_workers(3)
        yield made


@pytest.fixture(scope="module")
def on_postgres(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two coordinators on one PostgreSQL and one data folder, and three workers split between them."""
    url = postgres.fresh()
    with deployment(tmp_path_factory.mktemp("postgres"), url) as made:
        made.start_coordinator("first")
        made.start_coordinator("second")
        made.start_workers(3, "first", "second")
        yield made
    postgres.recycle(url)

"""Configurations of runs, parsed once; and what is said about a run that is not there."""

from __future__ import annotations

import sqlalchemy as sa

from server.database.session import Reading
from server.database.tables import runs
from shared.config import RunConfig
from shared.problems import NotFound

__all__ = ["Configs", "no_such_run", "require_run"]


class Configs:
    """Configurations by run. They never change, so each is read and parsed once a process."""

    def __init__(self) -> None:
        self._known: dict[str, RunConfig] = {}

    def of(self, connection: Reading, run: str) -> RunConfig:
        """Raises :class:`NotFound`."""
        if run not in self._known:
            stored = connection.select(sa.select(runs.c.config).where(runs.c.run == run)).scalar()
            if stored is None:
                raise no_such_run(run)
            self._known[run] = RunConfig.model_validate(stored)
        return self._known[run]


def no_such_run(run: str) -> NotFound:
    return NotFound(f"there is no run {run!r}", hint="GET /api/v1/runs lists the runs there are.")


def require_run(connection: Reading, run: str) -> None:
    """Raises :class:`NotFound` if there is no run of this name."""
    if connection.select(sa.select(runs.c.run).where(runs.c.run == run)).scalar() is None:
        raise no_such_run(run)

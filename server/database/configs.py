"""Configurations of runs, parsed once; and what is said about a run that is not there."""

from __future__ import annotations

import sqlalchemy as sa

from server.database.session import Reading, Writing
from server.database.tables import runs
from shared.config import RunConfig
from shared.problems import NotFound

__all__ = ["Configs", "keep_run", "no_such_run", "require_run"]


class Configs:
    """Configurations by run, each parsed once a process and revision: a change may come from another one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, RunConfig]] = {}

    def of(self, connection: Reading, run: str, revision: int | None = None) -> RunConfig:
        """``revision``: the run's, as just read; None: the database is asked. Raises :class:`NotFound`."""
        if revision is None:
            revision = connection.select(sa.select(runs.c.revision).where(runs.c.run == run)).scalar()
        known = self._known.get(run)
        if known is None or known[0] != revision:
            known = _read(connection, run)
            if not (isinstance(connection, Writing) and run in connection.pending):  # it may not be committed
                self._known[run] = known
        return known[1]


def _read(connection: Reading, run: str) -> tuple[int, RunConfig]:
    row = connection.select(sa.select(runs.c.revision, runs.c.config).where(runs.c.run == run)).one_or_none()
    if row is None:
        raise no_such_run(run)
    return row.revision, RunConfig.model_validate(row.config)


def no_such_run(run: str) -> NotFound:
    return NotFound(
        f"there is no run {run!r}", hint="`feddisco run list` (GET /api/v1/runs) has the runs there are."
    )


def require_run(connection: Reading, run: str) -> None:
    """Raises :class:`NotFound` if there is no run of this name."""
    if connection.select(sa.select(runs.c.run).where(runs.c.run == run)).scalar() is None:
        raise no_such_run(run)


def keep_run(connection: Writing, run: str) -> None:
    """Nobody deletes the run until the transaction ends. Raises as :func:`require_run`.

    For who locks the event log next: a deletion locks the run first, and the other way round would be a
    deadlock.
    """
    kept = sa.select(runs.c.run).where(runs.c.run == run).with_for_update(read=True, key_share=True)
    if connection.select(kept).scalar() is None:
        raise no_such_run(run)

"""The engine ``in-process``: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from shared.training.workbench import Workbench
from simulation.jobs import ClientResult, Job, carry_out

__all__ = ["InProcess"]


class InProcess:
    """Trains on the workbench that it is given."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def map(self, jobs: Sequence[Job]) -> list[ClientResult]:
        return [carry_out(self._workbench, job) for job in jobs]

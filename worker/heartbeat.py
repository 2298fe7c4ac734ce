"""Heartbeats during training, sent from a separate thread so that no network fault slows a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from shared.problems import Problem
from shared.schemas import Progress, Train
from worker.answers import UnexpectedAnswer
from worker.client import CoordinatorClient
from worker.policy.watch import PolicyChanged

if TYPE_CHECKING:
    from shared.training import TrainProgress

__all__ = ["Heartbeat"]


class Heartbeat:
    """Tells the coordinator how far training has come, at most once a second.

    ``stop_reason`` becomes a sentence once the coordinator no longer wants this round's update, or this
    site's policy is no longer the one under which it was begun. ``clock`` gives seconds.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        assignment: Train,
        clock: Callable[[], float],
        interval_seconds: float = 1.0,
    ) -> None:
        self._coordinator = coordinator
        self._assignment = assignment
        self._clock = clock
        self._interval = interval_seconds
        self._started_at = clock()
        self._progress = Progress(attempt=assignment.attempt)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.stop_reason: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)  # a hanging request must not delay the update

    def update(self, progress: TrainProgress) -> None:
        """Called after every step. Training that ends within ``interval_seconds`` needs no thread."""
        self._progress = Progress(
            attempt=self._assignment.attempt,
            epoch=progress.epoch,
            epochs=progress.epochs,
            step=progress.step,
            steps=progress.steps,
            loss=progress.loss,
        )
        if self._thread is None and self._clock() - self._started_at >= self._interval:
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        while self.stop_reason is None:
            self.send()
            if self._ended.wait(self._interval):
                return

    def send(self) -> None:
        """Send one heartbeat now. Faults are left to the next request that matters."""
        try:
            answer = self._coordinator.progress(self._assignment.run, self._assignment.round, self._progress)
        except Problem as problem:
            if problem.status in (404, 409):
                self.stop_reason = str(problem)
        except PolicyChanged as changed:  # not here, which may be another thread: the next request raises it
            self.stop_reason = str(changed)
        except (httpx.HTTPError, UnexpectedAnswer):
            return
        else:
            if not answer.proceed:
                self.stop_reason = answer.reason or "the round is closed"

"""A run without HTTP: the state machine, the weighting, the algorithm and the trainer of the service.

The same configuration gives the same models, bit for bit, as a deployment on the same type of machine.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from server.lifecycle.events import (
    AggregationFinished,
    ClientEnrolled,
    DiscrepancyReceived,
    Event,
    UpdateReceived,
)
from server.lifecycle.machine import decide
from server.lifecycle.state import Policy, Run
from server.lifecycle.views import relative_sizes
from shared import wire
from shared.aggregation.round_end import Arrived, Closed, Start, close_round
from shared.algorithms.base import UpdateInfo
from shared.config import Frozen
from shared.discrepancy import discrepancy
from shared.files import remove_partial, replace_file
from shared.problems import InvalidConfiguration
from shared.schemas import Role, RunStatus
from shared.weighting import Contribution
from shared.wire.tensors import state_of
from simulation.jobs import Done, Job

if TYPE_CHECKING:
    from shared.config import RunConfig
    from shared.weighting import LedgerEntry
    from shared.wire import Written
    from simulation.engines import Engine
    from simulation.jobs import Workshop

__all__ = ["CHECKPOINT", "Federation", "Files", "RoundOutcome"]

CHECKPOINT = "checkpoint.json"

START = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
"""The simulation's clock stands still: no deadline ever passes."""


@dataclass(frozen=True)
class RoundOutcome:
    """A completed round: who trained, what each weighed, and the model to score."""

    round: int
    done: tuple[Done, ...]
    ledger: tuple[LedgerEntry, ...]
    scored: Path
    digest: str


class Files(Frozen):
    """Where the run stands, as names of files in its folder; replaced whole after every round."""

    completed: int = 0
    model: str
    broadcast: str | None = None
    private: str | None = None
    kept: dict[int, str] = Field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {name for name in (self.model, self.broadcast, self.private, *self.kept.values()) if name}


class Federation:
    """All clients of a run and the coordinator's part of it, in a folder of files.

    A folder that an interrupted process left is gone on with, after its last completed round.
    """

    def __init__(self, config: RunConfig, workshop: Workshop, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self._workshop = workshop
        self._sizes = [len(workshop.examples(index)) for index in range(workshop.clients)]
        self._discrepancies = [self._discrepancy(index) for index in range(workshop.clients)]
        self.run = Run(id=config.name, status=RunStatus.ENROLLING, policy=Policy.of(config))
        remove_partial(folder)
        self.files = self._found() or self._begun()
        self._enrol()
        for _ in range(self.files.completed):
            self._skip_round()

    def rounds(self, engine: Engine, until: int | None = None) -> Iterator[RoundOutcome]:
        """Train round after round until the run is over, or round ``until`` is completed.

        A round counts as completed when the next one is asked for: what is done with an outcome is done
        again if the process dies before.
        """
        last = self.config.rounds if until is None else until
        while self.run.status is RunStatus.RUNNING and self.files.completed < last:
            outcome, files = self._round(engine)
            yield outcome
            self._commit(files)

    # ------------------------------------------------------------ files

    def _path(self, name: str | None) -> Path | None:
        return None if name is None else self.folder / name

    def _found(self) -> Files | None:
        checkpoint = self.folder / CHECKPOINT
        return Files.model_validate_json(checkpoint.read_bytes()) if checkpoint.exists() else None

    def _begun(self) -> Files:
        wire.write(self.folder / "model-0", {wire.MODEL: state_of(self._workshop.model)})
        return Files(model="model-0")

    def _commit(self, files: Files) -> None:
        replace_file(self.folder / CHECKPOINT, files.model_dump_json().encode(), durable=False)
        for name in self.files.names - files.names:
            (self.folder / name).unlink(missing_ok=True)
        self.files = files

    # ------------------------------------------------------------ enrolment

    def _enrol(self) -> None:
        for index, examples in enumerate(self._sizes):
            self._apply(ClientEnrolled(_client(index), Role.TRAINER, examples, index=index))
        if self.config.needs_discrepancy:
            for index in range(len(self._sizes)):
                self._apply(DiscrepancyReceived(_client(index)))
        if self.run.status is not RunStatus.RUNNING:
            raise InvalidConfiguration(
                f"the run does not start: {len(self._sizes)} clients, min_clients {self.config.min_clients}.",
                hint="Set min_clients to the number of clients of the partition, and autostart to true.",
            )

    def _discrepancy(self, index: int) -> float | None:
        weighting = self.config.weighting
        if weighting.kind != "disco" or not self._sizes[index]:
            return None
        return discrepancy(self._workshop.counts(index), weighting.target, weighting.metric)

    # ------------------------------------------------------------ a round

    def _round(self, engine: Engine) -> tuple[RoundOutcome, Files]:
        current = self.run.round
        if current is None:
            raise InvalidConfiguration(
                f"run {self.run.id} is running without a round: no client has examples."
            )
        sizes = relative_sizes(self.run)
        jobs = [self._job(current.number, p.index, sizes[p.client]) for p in current.participants]
        done = engine.map(jobs)
        for d in done:
            self._apply(UpdateReceived(_client(d.index), current.number, current.attempt))
        closed = self._close(jobs, done)
        if closed.made is None:
            raise InvalidConfiguration(f"round {current.number} has no weight: {closed.weightless}")
        excluded = tuple(
            (_client(row.index), row.reason or "left out") for row in closed.rows if not row.included
        )
        self._apply(AggregationFinished(current.number, current.attempt, excluded))
        scored = closed.made.scored
        outcome = RoundOutcome(current.number, tuple(done), closed.rows, scored.path, scored.digest)
        return outcome, self._next_files(current.number, jobs, closed)

    def _job(self, number: int, index: int, relative_size: float) -> Job:
        return Job(
            round=number,
            index=index,
            relative_size=relative_size,
            model=self.folder / self.files.model,
            broadcast=self._path(self.files.broadcast),
            kept=self._path(self.files.kept.get(index)),
            update=self.folder / f"update-{index}",
            kept_after=self.folder / f"kept-{index}-{number}",
        )

    def _close(self, jobs: Sequence[Job], done: Sequence[Done]) -> Closed:
        arrived = [
            Arrived(
                UpdateInfo(d.index, d.examples, job.relative_size, d.steps),
                job.update,
                self._discrepancies[d.index],
            )
            for job, d in zip(jobs, done, strict=True)
        ]
        everyone = [
            Contribution(index, size, self._discrepancies[index]) for index, size in enumerate(self._sizes)
        ]
        files = self.files
        start = Start(self.folder / files.model, self._path(files.broadcast), self._path(files.private))
        made = self.folder / "made"
        made.mkdir(exist_ok=True)
        return close_round(self.config, self._workshop.manifest, start, arrived, everyone, made)

    def _next_files(self, number: int, jobs: Sequence[Job], closed: Closed) -> Files:
        """Results under names of their own; a client's new state counts only if its update did."""
        made = closed.made
        included = {row.index for row in closed.rows if row.included}
        kept = {
            job.index: job.kept_after.name
            for job in jobs
            if job.index in included and job.kept_after.exists()
        }
        return Files(
            completed=number,
            model=self._named(made.model, f"model-{number}") if made else self.files.model,
            broadcast=self._named(made.broadcast, f"broadcast-{number}") if made and made.broadcast else None,
            private=self._named(made.private, f"private-{number}") if made and made.private else None,
            kept=self.files.kept | kept,
        )

    def _named(self, written: Written, name: str) -> str:
        """A second name for the file: the scored model may be the same one."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.hardlink_to(written.path)
        return name

    def _skip_round(self) -> None:
        """Let the state machine pass a round whose results are in the folder already."""
        current = self.run.round
        if current is None:
            return
        for participant in current.participants:
            self._apply(UpdateReceived(participant.client, current.number, current.attempt))
        self._apply(AggregationFinished(current.number, current.attempt))

    def _apply(self, event: Event) -> None:
        self.run = decide(self.run, event, START).run


def _client(index: int) -> str:
    return f"client-{index}"

"""A run without HTTP: the state machine, the weighting, the algorithm and the trainer of the service.

The same configuration gives the same models, bit for bit, as a deployment on the same type of machine.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from server.lifecycle.events import (
    AggregationFinished,
    ClientEnrolled,
    DiscrepancyReceived,
    EvaluationReceived,
    Event,
    StartRequested,
    UpdateReceived,
)
from server.lifecycle.machine import decide
from server.lifecycle.state import Policy, Round, Run
from server.lifecycle.views import relative_sizes
from shared import wire
from shared.aggregation.round_end import Arrived, RoundResult, Start, close_round
from shared.aggregation.shadows import Shadow, ShadowMaker
from shared.aggregation.travelling import TravellingRound, close_travelling_round
from shared.algorithms.base import UpdateInfo
from shared.config import EVERYBODY
from shared.discrepancy import discrepancy
from shared.features import check_features
from shared.files import remove_partial
from shared.problems import InvalidConfiguration
from shared.schemas import Role, RunStatus
from shared.scores import find_score, name_score
from shared.training.workbench import ClientTask
from shared.travelling_checks import check_travelling
from shared.weightings import Contribution, find_refusal, load_weighting
from shared.weightings.base import Need
from shared.wire.tensors import state_of
from simulation.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from simulation.jobs import Job
from simulation.travels import Dealt, TravellingFile, Travels, deal_files

if TYPE_CHECKING:
    from shared.aggregation.distilled import ModelDistiller
    from shared.aggregation.proxy import ProxyExamples
    from shared.config import RunConfig
    from shared.distillation import Distilled
    from shared.schemas import Metrics
    from shared.training.workbench import Workbench
    from shared.weightings import LedgerEntry
    from shared.weightings.base import Target
    from simulation.engines import Engine
    from simulation.jobs import ClientResult

__all__ = ["Federation", "RoundOutcome", "TimedShadow"]

START = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
"""The simulation's clock stands still: no deadline ever passes."""


@dataclass(frozen=True)
class RoundOutcome:
    """A completed round: what came of each client, what each weighed, and the model to score."""

    round: int
    results: tuple[ClientResult, ...]
    ledger: tuple[LedgerEntry, ...]
    scored: Path
    digest: str
    shadows: tuple[TimedShadow, ...] = ()
    distilled: Distilled | None = None
    travels: Travels | None = None


@dataclass(frozen=True)
class TimedShadow:
    """What another weighting made of the round, and how long that took."""

    shadow: Shadow
    seconds: float


def _make_policy(config: RunConfig) -> Policy:
    """Nobody asks to be admitted to a simulation: its clients have other names than the service's."""
    policy = Policy.of(config, masked=False)
    return replace(policy, participants=EVERYBODY, max_examples=None, approve="nothing")


class Federation:
    """All clients of a run and the coordinator's part of it, in a folder of files.

    A folder that an interrupted process left is gone on with, after its last completed round; ``scores`` are
    those of its rounds.
    """

    def __init__(
        self,
        config: RunConfig,
        workbench: Workbench,
        folder: Path,
        scores: Mapping[int, Metrics] | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self._workbench = workbench
        self._sizes = [len(workbench.training_examples(index)) for index in range(workbench.clients)]
        check_features(config, workbench.algorithm)
        check_travelling(config, workbench.algorithm)
        self._needs = load_weighting(config.weighting).needs
        self._target = self._find_target()
        self._known = [self._contribution(index) for index in range(workbench.clients)]
        self._proxy = self._find_proxy()
        self._distiller = self._find_distiller()
        self.run = Run(id=config.name, status=RunStatus.ENROLLING, policy=_make_policy(config))
        self._took_part: set[int] = set()
        remove_partial(folder)
        self.checkpoint = read_checkpoint(folder) or self._write_initial_model()
        self._enrol()
        for number in range(1, self.checkpoint.completed + 1):
            self._skip_round()
            if scores and number in scores:
                self.note_scores(number, scores[number])
        if self.checkpoint.took_part is not None:
            self._took_part = set(self.checkpoint.took_part)

    def train_rounds(self, engine: Engine, until: int | None = None) -> Iterator[RoundOutcome]:
        """Train round after round until the run is over, or round ``until`` is completed.

        A round counts as completed when the next one is asked for: what is done with an outcome is done
        again if the process dies before.
        """
        last = self.config.rounds if until is None else until
        while self.run.status is RunStatus.RUNNING and self.checkpoint.completed < last:
            outcome, checkpoint = self._round(engine)
            yield outcome
            self._commit(checkpoint)

    def note_scores(self, number: int, metrics: Metrics) -> None:
        """What round ``number`` scored: it decides how the run goes on, where the run goes by its scores."""
        if self.config.needs_scores:
            name = self.config.deciding_metric
            value, metric = find_score(metrics, name), name_score(metrics, name)
            self._apply(EvaluationReceived(_EVALUATOR, number, metric, value, metrics.examples))

    # ------------------------------------------------------------ files

    def _path(self, name: str | None) -> Path | None:
        return None if name is None else self.folder / name

    def _write_initial_model(self) -> Checkpoint:
        wire.write(self.folder / "model-0", {wire.MODEL: state_of(self._workbench.model)})
        return Checkpoint(model="model-0")

    def _commit(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = write_checkpoint(self.folder, checkpoint, before=self.checkpoint)

    # ------------------------------------------------------------ enrolment

    def _enrol(self) -> None:
        """All clients that have examples: a run admits no others, and starts with those there are."""
        if self.config.needs_scores:
            self._apply(ClientEnrolled(_EVALUATOR, Role.EVALUATOR, 1))
        sizes = {index: examples for index, examples in enumerate(self._sizes) if examples}
        for index, examples in sizes.items():
            self._apply(ClientEnrolled(_client(index), Role.TRAINER, examples, index=index))
        if self.config.needs_discrepancy:
            for index in sizes:
                self._apply(DiscrepancyReceived(_client(index)))
        if self.run.status is RunStatus.ENROLLING and self.config.autostart and len(sizes) < len(self._sizes):
            self._apply(StartRequested())
        if self.run.status is not RunStatus.RUNNING:
            raise InvalidConfiguration(
                f"the run does not start: {len(self._sizes)} clients, min_clients {self.config.min_clients}.",
                hint="Set min_clients to the number of clients of the partition, and autostart to true.",
            )

    @property
    def _has_global_target(self) -> bool:
        asked = self.config.weighting.discrepancy
        return asked is not None and asked.target == "global"

    def _find_target(self) -> Target | None:
        """What the discrepancies are measured to; of all clients together where it is global."""
        asked = self.config.weighting.discrepancy
        if asked is None:
            return None
        if not self._has_global_target:
            return asked.resolve(None)
        counts = [self._workbench.class_counts(index) for index, size in enumerate(self._sizes) if size]
        return asked.resolve([int(sum(column)) for column in zip(*counts, strict=True)])

    def _discrepancy(self, index: int) -> float | None:
        asked = self.config.weighting.discrepancy
        if asked is None or self._target is None or not self._sizes[index]:
            return None
        return discrepancy(self._workbench.class_counts(index), self._target, asked.metric)

    # ------------------------------------------------------------ a round

    def _round(self, engine: Engine) -> tuple[RoundOutcome, Checkpoint]:
        current = self.run.round
        if current is None:
            raise InvalidConfiguration(
                f"run {self.run.id} is running without a round: no client has examples."
            )
        sizes = relative_sizes(self.run)
        clients = [p.index for p in current.participants]
        dealt = deal_files(self.config, current.number, self.checkpoint.travelling, clients)
        jobs = [self._job(current.number, p.index, sizes[p.client], dealt) for p in current.participants]
        results = engine.map(jobs)
        start = self._find_start()
        end, travelling = self._end_round(current.number, start, self._arrive(jobs, results, dealt), dealt)
        if end.files is None:
            raise InvalidConfiguration(f"round {current.number} has no weight: {end.weightless}")
        included = self._record(current, {row.index: _refusal(row) for row in end.rows})
        kept = [job for job in jobs if job.task.index in included and job.kept.exists()]
        scored = end.files.scored
        shadows = (
            self._make_shadows(current.number, start, end) if self.config.is_scored(current.number) else ()
        )
        averaged = self.config.averages(current.number)
        outcome = RoundOutcome(
            current.number,
            tuple(results),
            end.rows,
            scored.path,
            scored.digest,
            shadows,
            end.files.distilled,
            None if travelling is None else Travels.of(dealt, travelling, averaged=averaged),
        )
        return outcome, self._next_checkpoint(current.number, kept, end, travelling)

    def _job(self, number: int, index: int, relative_size: float, dealt: Dealt) -> Job:
        own = dealt.files.get(index)
        task = ClientTask(
            round=number,
            index=index,
            relative_size=relative_size,
            took_part=index in self._took_part,
            model=self.folder / (self.checkpoint.model if own is None else own.file),
            broadcast=self._path(self.checkpoint.broadcast),
            kept=self._path(self.checkpoint.kept.get(index)),
        )
        return Job(task, self.folder / f"update-{index}", self.folder / f"kept-{index}-{number}")

    def _find_start(self) -> Start:
        files = self.checkpoint
        return Start(
            self.folder / files.model, self._path(files.broadcast), self._path(files.private), files.memory
        )

    def _make_shadows(self, number: int, start: Start, end: RoundResult) -> tuple[TimedShadow, ...]:
        maker = ShadowMaker(
            config=self.config,
            manifest=self._workbench.manifest,
            start=start,
            result=end,
            all_clients=self._known,
            number=number,
            proxy=self._proxy,
            distiller=self._distiller,
        )
        made = []
        for place, weighting in enumerate(self.config.shadow):
            began = time.perf_counter()
            shadow = maker.make(weighting, self.folder / f"shadow-{place}")
            made.append(TimedShadow(shadow, time.perf_counter() - began))
        return tuple(made)

    def _arrive(self, jobs: Sequence[Job], results: Sequence[ClientResult], dealt: Dealt) -> list[Arrived]:
        return [
            Arrived(
                UpdateInfo(result.index, result.examples, job.task.relative_size, result.steps),
                job.update,
                replace(self._known[result.index], start_loss=result.start_loss, end_loss=result.end_loss),
                start=job.task.model if result.index in dealt.files else None,
            )
            for job, result in zip(jobs, results, strict=True)
        ]

    def _end_round(
        self, number: int, start: Start, arrived: Sequence[Arrived], dealt: Dealt
    ) -> tuple[RoundResult, TravellingRound | None]:
        made = self.folder / "made"
        made.mkdir(exist_ok=True)
        if self._proxy is not None:
            self._workbench.load_model(start.model)
        config, manifest, proxy = self.config, self._workbench.manifest, self._proxy
        if config.average_every == 1:
            end = close_round(
                config,
                manifest,
                start,
                arrived,
                self._known,
                made,
                number=number,
                proxy=proxy,
                distiller=self._distiller,
            )
            return end, None
        before = [model.in_folder(self.folder) for model in self.checkpoint.travelling]
        travelling = close_travelling_round(
            config, manifest, start, arrived, dealt.numbers, before, self._known, made, number=number
        )
        return travelling.result, travelling

    def _contribution(self, index: int) -> Contribution:
        counts = None
        if (Need.COUNTS in self._needs or self._has_global_target) and self._sizes[index]:
            counts = tuple(self._workbench.class_counts(index))
        return Contribution(index, self._sizes[index], self._discrepancy(index), counts)

    def _find_proxy(self) -> ProxyExamples | None:
        """The examples that a weighting which needs data learns on: of those dealt to no client."""
        if Need.DATA not in self._needs:
            return None
        proxy = self._workbench.proxy_examples(*load_weighting(self.config.weighting).proxy_size)
        if proxy is None:
            raise InvalidConfiguration(
                f"weighting {self.config.weighting.kind} learns on examples that no client is dealt.",
                hint="Write `validation: 1000` into the partition, for example.",
            )
        return proxy

    def _find_distiller(self) -> ModelDistiller | None:
        """The examples on which the average is distilled, where the run asks for that."""
        if self.config.distillation is None:
            return None
        distiller = self._workbench.make_distiller()
        if distiller is None:
            raise InvalidConfiguration(
                "distillation needs examples that no client is dealt.",
                hint="Write `validation: 1000` into the partition, for example.",
            )
        return distiller

    def _next_checkpoint(
        self, number: int, kept: Sequence[Job], end: RoundResult, travelling: TravellingRound | None
    ) -> Checkpoint:
        """Results under names of their own; ``kept`` are the jobs whose new state counts.

        After a round that does not average, clients' models go on; their average is only scored.
        """
        after = self.checkpoint.model_copy(
            update={
                "completed": number,
                "kept": self.checkpoint.kept | {job.task.index: job.kept.name for job in kept},
                "took_part": tuple(sorted(self._took_part)),
                "memory": {name: dict(values) for name, values in end.memory.items()},
                "travelling": (),
            }
        )
        if travelling is not None and not self.config.averages(number):
            return after.model_copy(update={"travelling": self._name_models(number, travelling)})
        if (made := end.files) is None:
            raise ValueError("a round without a model has no checkpoint")
        written = {"model": made.model, "broadcast": made.broadcast, "private": made.private}
        return after.model_copy(
            update={
                kind: self._link(file.path, f"{kind}-{number}") if file else None
                for kind, file in written.items()
            }
        )

    def _name_models(self, number: int, travelling: TravellingRound) -> tuple[TravellingFile, ...]:
        """Those that rested keep their names."""
        names = {self.folder / model.file: model.file for model in self.checkpoint.travelling}
        return tuple(
            TravellingFile(
                file=names.get(model.path) or self._link(model.path, f"travelling-{number}-{at}"),
                client=model.client,
                earned=model.earned,
            )
            for at, model in enumerate(travelling.models)
        )

    def _link(self, path: Path, name: str) -> str:
        """A second name for the file: the scored model may be the same one."""
        link = self.folder / name
        link.unlink(missing_ok=True)
        link.hardlink_to(path)
        return name

    def _skip_round(self) -> None:
        """Pass a round whose results are in the folder already; the losses reported then are forgotten."""
        current = self.run.round
        if current is None:
            return
        known = [self._known[participant.index] for participant in current.participants]
        rows = [replace(row, start_loss=0.0, end_loss=0.0) for row in known]
        self._record(current, {row.index: find_refusal(self.config.weighting, row) for row in rows})

    def _record(self, current: Round, refusals: Mapping[int, str | None]) -> set[int]:
        """Tell the state machine that every update arrived; returns the clients whose update counts."""
        for participant in current.participants:
            self._apply(UpdateReceived(participant.client, current.number, current.attempt))
        excluded = tuple((_client(index), why) for index, why in refusals.items() if why is not None)
        self._apply(AggregationFinished(current.number, current.attempt, excluded))
        included = {index for index, why in refusals.items() if why is None}
        self._took_part |= included
        return included

    def _apply(self, event: Event) -> None:
        self.run = decide(self.run, event, START).run


def _refusal(row: LedgerEntry) -> str | None:
    return None if row.included else row.reason or "left out"


_EVALUATOR = "evaluator"


def _client(index: int) -> str:
    return f"client-{index}"

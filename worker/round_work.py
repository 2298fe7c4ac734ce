"""One round at this site: fetch, train, write to the journal, send. Or score, for an evaluator."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared import wire
from shared.device import is_out_of_memory
from shared.problems import DigestMismatch, InvalidRequest, Truncated, UpdateRefused
from shared.schemas import Failure, UpdateReport
from shared.training import LocalResult, Stopped, train
from shared.training.evaluation import evaluate
from shared.wire.tensors import load_into
from worker.faults import clip_text, describe_fault, local_faults
from worker.heartbeat import Heartbeat
from worker.progress import format_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.algorithms.base import Groups
    from shared.data import Examples
    from shared.schemas import Evaluate, Metrics, Train
    from shared.training import TrainProgress
    from worker.client import CoordinatorClient
    from worker.journal import FinishedUpdate, KeptState, RunJournal
    from worker.progress import Reporter
    from worker.shutdown import Shutdown
    from worker.site import LocalRun, Site

__all__ = ["RoundWork"]


EVALUATION_BATCH = 512


@dataclass(frozen=True)
class _Job:
    """All that a round's training starts from, fetched and checked."""

    assignment: Train
    local: LocalRun
    examples: Examples
    before: KeptState | None
    model: Path
    broadcast: Path | None

    @property
    def title(self) -> str:
        return _title(self.assignment)


@dataclass(frozen=True)
class RoundWork:
    """The parts that a round needs; it remembers nothing (what must be remembered is in the journal)."""

    coordinator: CoordinatorClient
    site: Site
    reporter: Reporter
    shutdown: Shutdown
    clock: Callable[[], float]  # seconds, monotonic

    # ------------------------------------------------------------ training

    def train(self, assignment: Train, local: LocalRun, journal: RunJournal) -> None:
        """Answer a train assignment: with an update, or with a failure that says why there is none."""
        update = journal.find_finished(assignment)
        if update is not None:
            self.reporter.say(f"{_title(assignment)}: trained already, sending the finished update again")
        else:
            job = self._prepared(assignment, local, journal, self._fetched(assignment, journal))
            if job is None:
                return
            with self.shutdown.defer():
                update = self._trained(job, journal)
        if update is not None:
            self._send(assignment, update, journal)

    def _fetched(self, assignment: Train, journal: RunJournal) -> dict[str, Path]:
        """Download what the round starts from, and remove what older rounds started from."""
        wanted = {digest for digest in (assignment.model, assignment.broadcast) if digest is not None}
        journal.keep_only(wanted)
        return {digest: journal.fetch_blob(digest, self.coordinator.download) for digest in sorted(wanted)}

    def _prepared(
        self, assignment: Train, local: LocalRun, journal: RunJournal, paths: dict[str, Path]
    ) -> _Job | None:
        """The local half, which may take long or fail as training may; None: the coordinator was told why."""
        try:
            return _Job(
                assignment=assignment,
                local=local,
                examples=self.site.training_examples(local, assignment.index),
                before=journal.find_kept(assignment),
                model=paths[assignment.model],
                broadcast=paths[assignment.broadcast] if assignment.broadcast is not None else None,
            )
        except Exception as error:
            self.give_up(assignment, *describe_fault(error))
            return None

    def _trained(self, job: _Job, journal: RunJournal) -> FinishedUpdate | None:
        try:
            with Heartbeat(self.coordinator, job.assignment, self.clock) as heartbeat:
                try:
                    result = self._local_result(job, journal, heartbeat)
                except Stopped:
                    self._tell_stopped(job, heartbeat)
                    return None
            return journal.record(
                job.assignment, job.before, result.tensors, result.kept, _report(job, result)
            )
        except Exception as error:
            self.give_up(job.assignment, *describe_fault(error))
            return None

    def _tell_stopped(self, job: _Job, heartbeat: Heartbeat) -> None:
        if heartbeat.stop_reason is not None:
            self.reporter.say(f"{job.title}: stopped training, {heartbeat.stop_reason}")
        else:  # asked to end: the page shows how far it came, and the round stays this worker's
            heartbeat.send()

    def _local_result(self, job: _Job, journal: RunJournal, heartbeat: Heartbeat) -> LocalResult:
        config = job.local.view.config
        with ExitStack() as stack:
            model = stack.enter_context(wire.opened(job.model))
            show = stack.enter_context(self.reporter.show_training(job.title))

            def on_progress(progress: TrainProgress) -> None:
                heartbeat.update(progress)
                show(progress)

            return train(
                task=job.local.task,
                model=job.local.model,
                algorithm=job.local.algorithm,
                examples=job.examples,
                local=config.local,
                start={name: model.tensor(wire.MODEL, name) for name in job.local.tensors},
                received=self._received(job, stack),
                kept=journal.read_kept(job.before),
                first_time=job.before is None,
                relative_size=job.assignment.relative_size,
                seed=config.seed,
                round=job.assignment.round,
                index=job.assignment.index,
                device=self.site.device,
                clock=self.clock,
                precision=self.site.settings.precision,
                buffers=config.buffers,
                on_progress=on_progress,
                should_stop=lambda: self.shutdown.requested or heartbeat.stop_reason is not None,
            )

    def _received(self, job: _Job, stack: ExitStack) -> Groups:
        """The server groups that came beside the model, mapped; none in the first round."""
        if job.broadcast is None:
            return {}
        file = stack.enter_context(wire.opened(job.broadcast))
        groups = job.local.algorithm.downloads
        return {group: {name: file.tensor(group, name) for name in job.local.parameters} for group in groups}

    def _send(self, assignment: Train, update: FinishedUpdate, journal: RunJournal) -> None:
        path, report = journal.folder / update.file, update.report
        try:
            self.coordinator.upload(assignment.run, assignment.round, report, path, update.digest)
        except UpdateRefused as refused:
            self.reporter.say(f"{_title(assignment)}: the update was not taken: {refused}")
            return
        except (DigestMismatch, Truncated):
            raise  # damaged on the way: it is sent again at the next assignment
        except InvalidRequest as invalid:  # also other data than enrolled: sent again, it stays refused
            self.give_up(assignment, invalid.code, str(invalid))
            return
        loss = "" if report.loss is None else f", loss {report.loss:.4f}"
        trained = f"{report.steps} steps{loss}, {report.seconds:.1f} s"
        self.reporter.say(f"{_title(assignment)}: {trained}, sent {format_size(update.bytes)}")

    def give_up(self, assignment: Train, code: str, sentence: str) -> None:
        """Tell that no update of this round will come, and why."""
        self.reporter.say(f"{_title(assignment)}: no update ({code}): {sentence}")
        failure = Failure(attempt=assignment.attempt, code=code, reason=clip_text(sentence))
        try:
            self.coordinator.failure(assignment.run, assignment.round, failure)
        except UpdateRefused:
            return  # closed meanwhile: nobody waits for an excuse

    # ------------------------------------------------------------ evaluation

    def evaluate(self, assignment: Evaluate, local: LocalRun, journal: RunJournal) -> Metrics:
        """Score a global model on the test data that only this site holds, and tell the result.

        Raises :class:`worker.faults.LocalFault` if it cannot be scored here; it is asked for again.
        """
        journal.keep_only({assignment.model})
        path = journal.fetch_blob(assignment.model, self.coordinator.download)
        with local_faults(f"{assignment.run} round {assignment.round}: scoring the model"):
            with wire.opened(path) as file:
                load_into(local.model, {name: file.tensor(wire.MODEL, name) for name in local.tensors})
            metrics = self._metrics(local)
        self.coordinator.metrics(assignment.run, assignment.round, metrics)
        loss = "is not finite" if metrics.loss is None else f"{metrics.loss:.4f}"
        accuracy = "" if metrics.accuracy is None else f", accuracy {metrics.accuracy:.4f}"
        self.reporter.say(
            f"{assignment.run} round {assignment.round}: loss {loss}{accuracy} on {metrics.examples} examples"
        )
        return metrics

    def _metrics(self, local: LocalRun) -> Metrics:
        """Scores in smaller batches where memory runs out."""
        examples = self.site.test_examples(local)
        batch_size = EVALUATION_BATCH
        while True:
            try:
                return evaluate(
                    task=local.task,
                    model=local.model,
                    examples=examples,
                    device=self.site.device,
                    batch_size=batch_size,
                )
            except (RuntimeError, MemoryError) as error:
                if batch_size == 1 or not is_out_of_memory(error):
                    raise
                batch_size //= 2


def _report(job: _Job, result: LocalResult) -> UpdateReport:
    return UpdateReport(
        attempt=job.assignment.attempt,
        steps=result.steps,
        examples=result.examples,
        loss=result.loss,
        seconds=max(0.0, result.seconds),
    )


def _title(assignment: Train) -> str:
    again = f" (attempt {assignment.attempt})" if assignment.attempt > 1 else ""
    return f"{assignment.run} round {assignment.round}{again}"

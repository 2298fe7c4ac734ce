"""One round at this site: fetch, train, write to the journal, send. Or score, for an evaluator."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shared.faults import Doing, Fault, FaultCode
from shared.problems import (
    Conflict,
    DigestMismatch,
    InvalidRequest,
    StorageUnavailable,
    Truncated,
    UpdateRefused,
)
from shared.schemas import ShadowScore, UpdateReport
from shared.texts import format_count, format_size
from worker.diagnose import diagnose
from worker.disclosure import told_size
from worker.faults import (
    UPLOAD_BREAKS,
    LocalFault,
    describe_broken_upload,
    describe_fault,
    is_disk_full,
    local_faults,
)
from worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.schemas import Evaluate, Metrics, SecureStep, Train
    from shared.training import LocalResult, TrainProgress
    from shared.training.workbench import ClientTask
    from worker.assisting import Assisting
    from worker.client import CoordinatorClient
    from worker.journal import FinishedUpdate, KeptState, RunJournal
    from worker.progress import Reporter
    from worker.secure_work import SecureWork
    from worker.shutdown import Shutdown
    from worker.site import LocalRun, Site

__all__ = ["RoundWork"]

SPACE_POLL_SECONDS = 2.0
"""How often it is tried whether the disk has space again."""


@dataclass(frozen=True)
class _Job:
    """All that a round's training starts from, fetched and checked."""

    assignment: Train
    local: LocalRun
    before: KeptState | None
    task: ClientTask

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
    secure: SecureWork
    assisting: Assisting
    sleep: Callable[[float], None] = time.sleep

    # ------------------------------------------------------------ training

    def train(self, assignment: Train, local: LocalRun, journal: RunJournal) -> None:
        """Answer a train assignment with an update.

        Raises :class:`worker.faults.LocalFault` that says why there is none, OSError or a fault of the
        network if it is to be tried again.
        """
        if _is_secure(local):
            self.secure.check_train(assignment, local, journal)
        update = journal.find_finished(assignment)
        if update is not None:
            self.reporter.say(f"{_title(assignment)}: trained already, sending the finished update again")
        else:
            update = self._make_update(assignment, local, journal)
        if update is not None:
            self._send(assignment, local, update, journal)

    def _make_update(self, assignment: Train, local: LocalRun, journal: RunJournal) -> FinishedUpdate | None:
        """None: the coordinator wants it no more, or this process is to end."""
        try:
            job = self._prepare(assignment, local, journal, self._fetch(assignment, local, journal))
            with self.shutdown.defer():
                return self._train(job, journal)
        except (OSError, StorageUnavailable) as error:
            if is_disk_full(error):  # waiting for space is no silence
                Heartbeat(self.coordinator, assignment, self.clock).send()
            raise

    def _fetch(self, assignment: Train, local: LocalRun, journal: RunJournal) -> dict[str, Path]:
        """Download what the round starts from, and remove what older rounds started from."""
        longest = {assignment.model: local.workbench.model_bytes}
        if assignment.broadcast is not None:
            longest[assignment.broadcast] = local.workbench.broadcast_bytes
        journal.keep_only(set(longest))
        return {digest: self._fetch_file(digest, longest[digest], journal) for digest in sorted(longest)}

    def _fetch_file(self, digest: str, longest: int, journal: RunJournal) -> Path:
        return journal.fetch_blob(digest, partial(self.coordinator.download, longest=longest))

    def _prepare(
        self, assignment: Train, local: LocalRun, journal: RunJournal, paths: dict[str, Path]
    ) -> _Job:
        """Load data and kept state, which may take long or fail."""
        from shared.training.workbench import ClientTask

        self.site.training_examples(local, assignment.index)  # loads them, with a sentence if that fails
        before = journal.find_kept(assignment)
        task = ClientTask(
            round=assignment.round,
            index=assignment.index,
            relative_size=self.secure.relative_size(assignment, local)
            if _is_secure(local)
            else assignment.relative_size,
            took_part=assignment.last_aggregated_round > 0,
            model=paths[assignment.model],
            broadcast=paths[assignment.broadcast] if assignment.broadcast is not None else None,
            kept=journal.kept_path(before),
        )
        return _Job(assignment, local, before, task)

    def _train(self, job: _Job, journal: RunJournal) -> FinishedUpdate | None:
        from shared.training import Stopped

        with Heartbeat(self.coordinator, job.assignment, self.clock) as heartbeat:
            try:
                result = self._train_locally(job, heartbeat)
                return self._record(job, result, journal, heartbeat)
            except Stopped:
                self._tell_stopped(job, heartbeat)
                return None

    def _is_to_stop(self, heartbeat: Heartbeat) -> bool:
        return self.shutdown.requested or heartbeat.stop_reason is not None

    def _train_locally(self, job: _Job, heartbeat: Heartbeat) -> LocalResult:
        """Raises :class:`Stopped` where it was asked to, :class:`worker.faults.LocalFault` for all else."""
        from shared.training import Stopped, TrainProgress
        from worker.private_rounds import begin_private_round

        nothing = TrainProgress(0, 0, 0, 0, None)
        with self.reporter.show_training(job.title) as show, local_faults(Doing.TRAINING):
            private = begin_private_round(job.local, job.task, self.site)
            is_secure = _is_secure(job.local)

            def on_progress(progress: TrainProgress) -> None:
                told = replace(progress, loss=progress.loss if private is None else None)
                heartbeat.update(nothing if is_secure else told)  # steps tell the number of examples
                show(progress)

            try:
                return job.local.workbench.train(
                    job.task,
                    clock=self.clock,
                    on_progress=on_progress,
                    should_stop=lambda: self._is_to_stop(heartbeat),
                    private=private,
                )
            except Stopped:
                if not self._is_to_stop(heartbeat):
                    raise  # by the task's own code
        raise Stopped

    def _record(
        self, job: _Job, result: LocalResult, journal: RunJournal, heartbeat: Heartbeat
    ) -> FinishedUpdate:
        """Write what was trained to the journal, as soon as there is space for it: it is kept meanwhile."""
        from shared.training import Stopped

        report = self._report(job, result)
        while True:
            try:
                return journal.record(job.assignment, job.before, result.tensors, result.kept, report)
            except (OSError, StorageUnavailable) as error:
                if not is_disk_full(error):
                    raise
                self.reporter.say_waiting(f"{job.title}: {diagnose(error, '').sentence}")
            heartbeat.send()
            if self._is_to_stop(heartbeat):
                raise Stopped
            self.sleep(SPACE_POLL_SECONDS)

    def _report(self, job: _Job, result: LocalResult) -> UpdateReport:
        """What is told with the update; of private training no loss, to which no noise is added."""
        from worker.private_rounds import find_told_epsilon

        is_private = job.local.view.config.dp is not None
        return UpdateReport(
            attempt=job.assignment.attempt,
            steps=result.steps,
            examples=told_size(result.examples, self.site.policy_for(job.local.view).sizes),
            loss=None if is_private else result.loss,
            seconds=max(0.0, result.seconds),
            start_loss=result.start_loss,
            end_loss=result.end_loss,
            epsilon=find_told_epsilon(job.local, job.assignment.index, self.site),
        )

    def _tell_stopped(self, job: _Job, heartbeat: Heartbeat) -> None:
        if heartbeat.stop_reason is not None:
            self.reporter.say(f"{job.title}: stopped training, {heartbeat.stop_reason}")
        else:  # asked to end: the page shows how far it came, and the round stays this worker's
            heartbeat.send()

    def _send(self, assignment: Train, local: LocalRun, update: FinishedUpdate, journal: RunJournal) -> None:
        from worker.private_rounds import find_own_epsilon

        path, digest, told = journal.folder / update.file, update.digest, update.report
        if _is_secure(local):
            self._fetch(assignment, local, journal)  # it may be another process that trained
            path, digest, told = self.secure.mask(assignment, local, journal, update)
        size = path.stat().st_size
        policy = self.site.policy_for(local.view)
        if not policy.tell_epsilon:  # another may have trained, and kept, the update
            told = told.model_copy(update={"epsilon": None})
        try:
            self.coordinator.upload(assignment.run, assignment.round, told, path, digest)
        except UpdateRefused as refused:
            self.reporter.say(f"{_title(assignment)}: the update was not taken: {refused}")
            return
        except (DigestMismatch, Truncated):
            raise  # damaged on the way: it is sent again at the next assignment
        except InvalidRequest as invalid:  # also other data than enrolled: sent again, it stays refused
            self.give_up(assignment, _describe_refusal(invalid))
            return
        except UPLOAD_BREAKS as error:
            raise describe_broken_upload(error, size) from error
        journal.note_delivered()
        report = update.report
        loss = "" if report.loss is None else f", loss {report.loss:.4f}"
        trained = f"{format_count(report.steps, 'step')}{loss}, {report.seconds:.1f} s"
        if (epsilon := find_own_epsilon(local, assignment.index, self.site)) is not None:
            trained += f", epsilon {epsilon:.3g} so far"
        self.reporter.say(f"{_title(assignment)}: {trained}, sent {format_size(size)}")

    def give_up(self, assignment: Train | SecureStep, fault: LocalFault) -> None:
        """Report that no update of this round will come, and why."""
        self.reporter.say(f"{_title(assignment)}: no update ({fault.told.code}): {fault}")
        try:
            self.coordinator.failure(assignment.run, assignment.round, assignment.attempt, fault)
        except UpdateRefused:
            return  # closed meanwhile: nobody waits for this update any more

    # ------------------------------------------------------------ evaluation

    def evaluate(self, assignment: Evaluate, local: LocalRun, journal: RunJournal) -> Metrics:
        """Score a global model on the test data that only this site holds, and report the result.

        Raises :class:`worker.faults.LocalFault` if it cannot be scored here; it is asked for again.
        """
        journal.keep_only({assignment.model, *assignment.shadows.values()})
        metrics = self._score(assignment.model, local, journal)
        shadows = {
            name: self._score(model, local, journal) for name, model in sorted(assignment.shadows.items())
        }
        told = told_size(metrics.examples, self.site.policy_for(local.view).sizes)
        metrics = metrics.model_copy(
            update={"examples": told, "shadows": {name: _of_shadow(m) for name, m in shadows.items()}}
        )
        try:
            self.coordinator.metrics(assignment.run, assignment.round, metrics, assignment.model)
        except Conflict as refused:  # the run has gone back meanwhile: the next assignment tells what to do
            self.reporter.say(
                f"{assignment.run} round {assignment.round}: the score was not taken: {refused}"
            )
            return metrics
        journal.note_delivered()
        loss = "is not finite" if metrics.loss is None else f"{metrics.loss:.4f}"
        accuracy = "" if metrics.accuracy is None else f", accuracy {metrics.accuracy:.4f}"
        self.reporter.say(
            f"{assignment.run} round {assignment.round}: loss {loss}{accuracy} on "
            f"{format_count(metrics.examples, 'example')}"
        )
        return metrics

    def _score(self, model: str, local: LocalRun, journal: RunJournal) -> Metrics:
        path = self._fetch_file(model, local.workbench.model_bytes, journal)
        with local_faults(Doing.SCORING):
            local.workbench.load_model(path)
            return local.workbench.evaluate(self.site.test_examples(local), metrics=local.view.config.metrics)


def _of_shadow(metrics: Metrics) -> ShadowScore:
    return ShadowScore(loss=metrics.loss, accuracy=metrics.accuracy, extra=metrics.extra)


def _describe_refusal(refused: InvalidRequest) -> LocalFault:
    """In numbers, if the data have changed since the site enrolled."""
    now, enrolled = refused.extra.get("now"), refused.extra.get("enrolled")
    if type(now) is int and type(enrolled) is int:
        told = Fault(FaultCode.OTHER_EXAMPLES, counts={"now": now, "enrolled": enrolled})
        return LocalFault(told, str(refused))
    return describe_fault(refused, Doing.TRAINING)


def _is_secure(local: LocalRun) -> bool:
    return local.view.config.secure is not None


def _title(assignment: Train | SecureStep) -> str:
    again = f" (attempt {assignment.attempt})" if assignment.attempt > 1 else ""
    return f"{assignment.run} round {assignment.round}{again}"

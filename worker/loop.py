"""The worker's loop: ask for work, do it, ask again; whatever the network does.

Transient faults are retried with full jitter, so that a thousand workers do not come back in step; only what
a person has to fix ends the process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import httpx

from shared.problems import Conflict, InvalidConfiguration, NotFound, Problem
from shared.schemas import Enrol, EnrolmentStatus, Evaluate, Finished, SubmitDiscrepancy, Train, Wait
from worker.changed_data import DataWatch
from worker.client import UnexpectedAnswer
from worker.diagnose import Diagnosis, diagnose
from worker.enrolment import Declined, enrol, submit_discrepancy
from worker.faults import LocalFault

if TYPE_CHECKING:
    from shared.schemas import Assignment, EnrolmentView, RunView
    from worker.client import CoordinatorClient
    from worker.journal import Journal
    from worker.progress import Reporter
    from worker.round_work import RoundWork
    from worker.settings import WorkerSettings
    from worker.site import LocalRun, Site

__all__ = ["FAULTS", "Backoff", "Refused", "Worker"]

FAULTS = (Problem, UnexpectedAnswer, LocalFault, httpx.HTTPError, OSError)
"""What a call or a local file may raise in normal operation."""

LONGEST_DELAY_SECONDS = 30.0
FIRST_DELAY_SECONDS = 0.5
SHORTEST_POLL_SECONDS = 1.0

Result = TypeVar("Result")


class Refused(Exception):
    """The coordinator refuses this worker until someone does something; the message says what."""


@dataclass
class Backoff:
    """Exponential backoff with full jitter: the n-th delay is uniform in [0, min(30, 0.5 * 2**n)] seconds."""

    url: str
    reporter: Reporter
    rng: random.Random
    sleep: Callable[[float], None] = time.sleep
    failures: int = 0

    def retry(self, action: Callable[[], Result], *, registering: bool = False) -> Result:
        """Repeat ``action`` until it succeeds; says what it is waiting for, once per change.

        Raises:
            InvalidConfiguration: something is wrong at this site (not an answer of the coordinator's).
            Refused: any other fault that waiting does not fix.
        """
        while True:
            try:
                result = action()
            except FAULTS as error:
                self.wait_after(error, registering=registering)
            else:
                self.failures = 0
                return result

    def wait_after(self, error: Exception, *, registering: bool = False) -> None:
        """Wait after a fault, or raise if waiting does not help."""
        if isinstance(error, InvalidConfiguration) and not error.remote:
            raise error
        found = (
            Diagnosis(str(error))
            if isinstance(error, LocalFault)
            else diagnose(error, self.url, registering=registering)
        )
        if found.fatal:
            raise Refused(found.sentence) from error
        self.reporter.say_waiting(f"{found.sentence} Trying again.")
        self.sleep(
            self.rng.uniform(0.0, min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**self.failures))
        )
        self.failures = min(self.failures + 1, 16)


class Worker:
    """One client's loop over all its runs."""

    def __init__(
        self,
        *,
        client: str,
        settings: WorkerSettings,
        coordinator: CoordinatorClient,
        journal: Journal,
        site: Site,
        rounds: RoundWork,
        backoff: Backoff,
        reporter: Reporter,
    ) -> None:
        self._client = client
        self._settings = settings
        self._coordinator = coordinator
        self._journal = journal
        self._site = site
        self._rounds = rounds
        self._backoff = backoff
        self._reporter = reporter
        self._data = DataWatch(coordinator, journal, site, reporter.say)
        self._indexes: dict[str, int | None] = {}
        self._done = False

    def run(self) -> None:
        """Work until a run has ended, if the settings say to exit then; otherwise for ever.

        Raises what :meth:`Backoff.retry` raises.
        """
        self._backoff.retry(self._reconsider)
        while not self._done:
            self._backoff.retry(self._poll)

    def _reconsider(self) -> None:
        """Since the last start settings and data may have changed: enrol where this client declined before,
        and look whether its data are those it enrolled with."""
        for summary in self._coordinator.runs():
            if summary.status.is_terminal or summary.task != self._settings.task:
                continue
            view = self._coordinator.run(summary.run)
            try:
                if self._has_declined(view) or self._was_enrolling_anew(view):
                    self._enrol(view)
                elif self._takes_part(view):
                    self._look_at_data(view)
            except Conflict as refused:  # later than it can be joined
                self._reporter.say(f"{view.run}: {refused}")

    def _has_declined(self, view: RunView) -> bool:
        enrolment = self._find_enrolment(view)
        return enrolment is not None and enrolment.status is EnrolmentStatus.DECLINED

    def _look_at_data(self, view: RunView) -> None:
        try:
            local = self._get_run(view.run)
        except (InvalidConfiguration, LocalFault):
            return  # said when the run is worked on
        self._follow_changed_data(local)

    def _was_enrolling_anew(self, view: RunView) -> bool:
        """It left because its data had changed, and was stopped before it came back."""
        enrolment = self._find_enrolment(view)
        left = enrolment is not None and enrolment.status is EnrolmentStatus.LEFT
        return left and self._journal.open_run(view.run).data_mark == ""

    def _takes_part(self, view: RunView) -> bool:
        enrolment = self._find_enrolment(view)
        return enrolment is not None and enrolment.status.is_present

    def _find_enrolment(self, view: RunView) -> EnrolmentView | None:
        return next((row for row in view.enrolments if row.client == self._client), None)

    def _poll(self) -> None:
        began = time.monotonic()
        assignment = self._coordinator.work(self._settings.wait_seconds)
        if not isinstance(assignment, Wait):
            self._act(assignment)
            return
        self._reporter.say_waiting(assignment.reason or "Waiting for work.")
        if time.monotonic() - began < min(SHORTEST_POLL_SECONDS, self._settings.wait_seconds):
            self._backoff.sleep(self._backoff.rng.uniform(0.0, SHORTEST_POLL_SECONDS))  # it shuts down

    def _act(self, assignment: Assignment) -> None:
        match assignment:
            case Enrol():
                self._enrol(self._coordinator.run(assignment.run))
            case SubmitDiscrepancy():
                local = self._get_run(assignment.run)
                if self._follow_changed_data(local):
                    return
                index = self._indexes.get(assignment.run)
                told = submit_discrepancy(assignment, local, index, self._site, self._coordinator)
                self._reporter.say(f"{assignment.run}: {told}")
            case Train():
                self._train(assignment)
            case Evaluate():
                local = self._get_run(assignment.run)
                if self._follow_changed_data(local):
                    return
                self._rounds.evaluate(assignment, local, self._journal.open_run(assignment.run))
            case Finished():
                self._finish(assignment)

    def _train(self, assignment: Train) -> None:
        try:
            local = self._get_run(assignment.run)
            if self._follow_changed_data(local):
                return
        except LocalFault as fault:
            self._rounds.give_up(assignment, fault.code, str(fault))
            return
        self._rounds.train(assignment, local, self._journal.open_run(assignment.run))

    def _follow_changed_data(self, local: LocalRun) -> bool:
        """Whether this client has left the run, since its data are others than it enrolled with."""
        if not self._data.has_changed(local):
            return False
        view = self._coordinator.run(local.view.run)
        enrolment = self._find_enrolment(view)
        index, enrolled = (enrolment.index, enrolment.examples) if enrolment is not None else (None, None)
        if self._data.may_continue(local, index, enrolled):
            return False
        self._indexes.pop(view.run, None)
        if self._data.leave(view.run):
            self._enrol(self._coordinator.run(view.run))
        return True

    def _enrol(self, view: RunView) -> None:
        try:
            answer = enrol(view, self._site, self._coordinator)
        except Declined as declined:
            self._reporter.say(f"{view.run}: not taking part, {declined}")
            return
        self._indexes[view.run] = answer.index
        if (local := self._site.find_run(view.run)) is not None:
            self._data.keep(local)
        part = "" if answer.index is None else f" as number {answer.index}"
        self._reporter.say(f"{view.run}: enrolled{part} ({answer.role.value}, {answer.status.value})")

    def _get_run(self, run: str) -> LocalRun:
        """What this site knows of the run; after a restart it is fetched and built again."""
        known = self._site.find_run(run)
        if known is not None and run in self._indexes:
            return known
        view = self._coordinator.run(run)
        enrolment = self._find_enrolment(view)
        self._indexes[run] = enrolment.index if enrolment is not None else None
        return known or self._site.prepare_run(view)

    def _finish(self, assignment: Finished) -> None:
        why = f": {assignment.reason}" if assignment.reason else ""
        self._reporter.say(f"{assignment.run}: {assignment.status.value}{why}")
        try:
            self._coordinator.leave(assignment.run)
        except NotFound:
            self._reporter.say(f"{assignment.run}: the coordinator has removed it")
        self._journal.forget(assignment.run)
        self._site.forget(assignment.run)
        self._indexes.pop(assignment.run, None)
        self._done = self._settings.exit_when_finished

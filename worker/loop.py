"""The worker's loop: ask for work, do it, ask again; whatever the network does.

Transient faults are retried with full jitter, so that a thousand workers do not come back in step; only what
a person has to fix ends the process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from shared.faults import LASTING, TRANSIENT, Doing, Fault, FaultCode
from shared.problems import InvalidConfiguration, NotFound, Problem
from shared.schemas import (
    Assist,
    Enrol,
    EnrolmentStatus,
    Evaluate,
    Finished,
    SecureStep,
    SubmitDiscrepancy,
    Train,
    Wait,
)
from worker.changed_data import DataWatch
from worker.diagnose import Diagnosis, diagnose
from worker.enrolment import NOT_MEANT, decline_all, enrol, find_enrolment, is_meant, submit_discrepancy
from worker.faults import FAULTS, LocalFault, concerns_all_runs, describe_fault
from worker.own_part import RunWork, check_own_part
from worker.poll_wait import CUTS, PollWait

if TYPE_CHECKING:
    from shared.schemas import RunView
    from worker.client import CoordinatorClient
    from worker.journal import Journal
    from worker.progress import Reporter
    from worker.round_work import RoundWork
    from worker.settings import WorkerSettings
    from worker.site import LocalRun, Site

__all__ = ["Backoff", "NothingDelivered", "Refused", "Unusable", "Worker"]

TRIES = 5
"""How often an assignment is tried whose fault may be over in a moment, before the coordinator is told."""
UPLOAD_TRIES = 15
"""The same for an update that is cut on its way: some minutes, since the network may be bad for a while."""

LONGEST_DELAY_SECONDS = 30.0
FIRST_DELAY_SECONDS = 0.5
SHORTEST_POLL_SECONDS = 1.0

Result = TypeVar("Result")
Work: TypeAlias = Enrol | RunWork | Finished


class Refused(Exception):
    """The coordinator refuses this worker until someone does something; the message says what."""


class Unusable(Exception):
    """Nothing that this worker is for can work until someone does something here."""

    def __init__(self, fault: LocalFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class NothingDelivered(Exception):
    """A worker that is to exit after its run has nothing in it."""


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
            Unusable: the state folder cannot be written.
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
        if found.fatal and found.local:
            raise Unusable(LocalFault(Fault(FaultCode.STATE_FOLDER), found.sentence)) from error
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
        self._wait = PollWait(settings.wait_seconds)
        self._indexes: dict[str, int | None] = {}
        self._newest: dict[str, RunView] = {}
        self._tries: dict[str, int] = {}
        self._done = False

    def run(self) -> None:
        """Work until a run has ended, if the settings say to exit then; otherwise for ever.

        Raises:
            Unusable: the coordinator has been told.
            NothingDelivered: the run to exit after has ended without anything of this client in it, or has
                been declined, and there is no other.
            InvalidConfiguration, Refused: as :meth:`Backoff.retry`.
        """
        try:
            self._backoff.retry(self._reconsider)
            while not self._done:
                self._backoff.retry(self._poll)
        except Unusable as unusable:
            decline_all(self._coordinator, self._client, self._settings, unusable.fault)
            raise

    def _reconsider(self) -> None:
        """Since the last start settings and data may have changed: enrol where this client declined or was
        refused before, and look whether its data are those it enrolled with."""
        for summary in self._coordinator.runs():
            if summary.status.is_terminal or summary.task != self._settings.task:
                continue
            view = self._coordinator.run(summary.run)
            if self._takes_no_part(view) or self._was_enrolling_anew(view):
                self._act(Enrol(run=view.run))
            elif self._takes_part(view):
                self._look_at_data(view)

    def _takes_no_part(self, view: RunView) -> bool:
        enrolment = find_enrolment(view, self._client)
        return enrolment is not None and enrolment.status in (
            EnrolmentStatus.DECLINED,
            EnrolmentStatus.REFUSED,
        )

    def _look_at_data(self, view: RunView) -> None:
        try:
            self._site.check_policy(view)
            self._follow_changed_data(self._get_run(view.run))
        except LocalFault as fault:
            if fault.told.code in LASTING:
                self._decline(view.run, fault)  # else it is told when the run is worked on

    def _was_enrolling_anew(self, view: RunView) -> bool:
        """It left because its data or its sizes had changed, and was stopped before it came back."""
        enrolment = find_enrolment(view, self._client)
        left = enrolment is not None and enrolment.status is EnrolmentStatus.LEFT
        # an empty mark: of an earlier version
        return left and (self._data.is_leaving(view.run) or self._journal.open_run(view.run).data_mark == "")

    def _takes_part(self, view: RunView) -> bool:
        enrolment = find_enrolment(view, self._client)
        return enrolment is not None and enrolment.status.is_present

    def _poll(self) -> None:
        self._rounds.shutdown.check()
        began, wait = time.monotonic(), self._wait.seconds
        try:
            assignment = self._coordinator.work(wait)
        except CUTS as error:
            if not self._wait.is_cut(error, time.monotonic() - began):
                raise
            self._backoff.sleep(self._backoff.rng.uniform(0.0, FIRST_DELAY_SECONDS))
            return
        took = time.monotonic() - began
        if shortened := self._wait.note_answer(took):
            self._reporter.say(shortened)
        if not isinstance(assignment, Wait):
            self._act(assignment)
            return
        self._reporter.say_waiting(assignment.reason or "Waiting for work.")
        if took < min(SHORTEST_POLL_SECONDS, wait):
            self._backoff.sleep(self._backoff.rng.uniform(0.0, SHORTEST_POLL_SECONDS))  # it shuts down

    def _act(self, assignment: Work) -> None:
        """Carry an assignment out. Whatever goes wrong with its run ends only this run's work here."""
        try:
            self._carry_out(assignment)
        except BaseException as error:
            if concerns_all_runs(error) or isinstance(error, NothingDelivered | Unusable):
                raise
            fault = describe_fault(error, Doing.WORKING)
            if fault is not error:
                fault.__cause__ = error
            self._end_work(assignment, fault)
        else:
            self._tries.pop(assignment.run, None)

    def _carry_out(self, assignment: Work) -> None:
        match assignment:
            case Enrol():
                self._enrol(self._coordinator.run(assignment.run))
            case Finished():
                self._finish(assignment)
            case SubmitDiscrepancy() | SecureStep() | Train() | Assist() | Evaluate():
                local = self._get_run(assignment.run)
                view = local.view
                if isinstance(assignment, Train | Assist | Evaluate):
                    view = self._look_at_changes(local, assignment.revision)
                config, rounds = local.view.config, view.config.rounds
                check_own_part(assignment, config, rounds, self._client, self._settings.role)
                if not self._follow_changed_data(local):
                    self._work_on(assignment, local)

    def _work_on(self, assignment: RunWork, local: LocalRun) -> None:
        self._rounds.secure.check_joined(local.view, self._journal.open_run(assignment.run))
        match assignment:
            case SubmitDiscrepancy():
                index = self._indexes.get(assignment.run)
                told = submit_discrepancy(assignment, local, index, self._site, self._coordinator)
                self._reporter.say(f"{assignment.run}: {told}")
            case SecureStep():
                journal = self._journal.open_run(assignment.run)
                self._rounds.secure.answer(assignment, local, journal)
            case Train():
                self._rounds.train(assignment, local, self._journal.open_run(assignment.run))
            case Assist():
                self._rounds.assisting.answer(assignment, local, self._journal.open_run(assignment.run))
            case Evaluate():
                self._rounds.evaluate(assignment, local, self._journal.open_run(assignment.run))

    def _enrol(self, view: RunView) -> None:
        self._rounds.secure.check_joined(view, self._journal.open_run(view.run))
        answer = enrol(view, self._site, self._coordinator)
        self._indexes[view.run] = answer.index
        if (local := self._site.find_run(view.run)) is not None:
            self._data.keep(local)
            self._rounds.secure.note_joined(local, self._journal.open_run(view.run))
        part = "" if answer.index is None else f" as number {answer.index}"
        self._reporter.say(f"{view.run}: enrolled{part} ({answer.role.value}, {answer.status.value})")
        assistant = view.config.assistant
        if assistant is not None and assistant.client != self._client:
            self._reporter.say(f"{view.run}: its assistant {assistant.client} is sent single updates, too")

    # ------------------------------------------------------------ faults of one run

    def _end_work(self, assignment: Work, fault: LocalFault) -> None:
        """Try again, give the round up, or take no part in the run any more; the coordinator knows which."""
        code = fault.told.code
        if code is FaultCode.NO_DATA:
            with suppress(Problem):  # the other runs are told at the end
                self._coordinator.decline(assignment.run, fault, self._settings.role)
            raise Unusable(fault)
        tries = self._tries[assignment.run] = self._tries.get(assignment.run, 0) + 1
        most = UPLOAD_TRIES if code is FaultCode.UPLOAD_CUT else TRIES
        if isinstance(assignment, Finished) or (self._may_pass(assignment, code) and tries < most):
            raise fault
        if (
            isinstance(assignment, Assist) and code is not FaultCode.NOT_ITS_PART
        ):  # the round goes on without it, and the run with its scores
            self._rounds.assisting.give_up(assignment, fault)
        elif isinstance(assignment, Train | SecureStep) and code not in LASTING:
            self._rounds.give_up(assignment, fault)
        else:
            self._decline(assignment.run, fault)
        del self._tries[assignment.run]

    def _may_pass(self, assignment: Work, code: FaultCode) -> bool:
        """A score is tried again after any fault: a round may be given up and drawn anew, a score may not."""
        return code in TRANSIENT or (isinstance(assignment, Evaluate) and code not in LASTING)

    def _decline(self, run: str, fault: LocalFault) -> None:
        self._reporter.say(f"{run}: not taking part, {fault}")
        self._forget(run)
        self._coordinator.decline(run, fault, self._settings.role)
        if self._settings.exit_when_finished and fault.told.code not in NOT_MEANT and not self._has_work():
            raise NothingDelivered("All runs that this worker is for have been declined.")

    def _has_work(self) -> bool:
        """Whether there is an open run in which this client takes part, or may yet enrol."""
        runs = (each.run for each in self._coordinator.runs() if not each.status.is_terminal)
        return any(is_meant(self._coordinator.run(run), self._client, self._settings) for run in runs)

    # ------------------------------------------------------------ what is known of a run

    def _follow_changed_data(self, local: LocalRun) -> bool:
        """Whether this client has left the run, since it would not enrol with what it enrolled with."""
        if self._data.is_leaving(local.view.run):
            self._data.leave_again(local.view.run)
            self._enrol_anew(local.view.run)
            return True
        if self._data.tells_other_sizes(local):
            self._data.leave_to_tell_other_sizes(local)
            self._enrol_anew(local.view.run)
            return True
        if not self._data.has_changed(local):
            return False
        view = self._coordinator.run(local.view.run)
        enrolment = find_enrolment(view, self._client)
        index, enrolled = (enrolment.index, enrolment.examples) if enrolment is not None else (None, None)
        if self._data.may_continue(local, index, enrolled):
            return False
        self._data.leave(local)
        self._enrol_anew(view.run)
        return True

    def _enrol_anew(self, run: str) -> None:
        self._indexes.pop(run, None)
        self._act(Enrol(run=run))

    def _look_at_changes(self, local: LocalRun, revision: int) -> RunView:
        """The run as it is now. Where its configuration was changed since this site agreed to it, the site's
        policy still holds."""
        run = local.view.run
        view = self._newest.get(run, local.view)
        if view.revision != revision:
            view = self._coordinator.run(run)
            self._site.check_policy(view)
            self._newest[run] = view
        return view

    def _get_run(self, run: str) -> LocalRun:
        """What this site knows of the run; after a restart it is fetched and built again."""
        known = self._site.find_run(run)
        if known is not None and run in self._indexes:
            return known
        view = self._coordinator.run(run)
        enrolment = find_enrolment(view, self._client)
        self._indexes[run] = enrolment.index if enrolment is not None else None
        return known or self._site.prepare_run(view)

    def _finish(self, assignment: Finished) -> None:
        why = f": {assignment.reason}" if assignment.reason else ""
        self._reporter.say(f"{assignment.run}: {assignment.status.value}{why}")
        try:
            self._coordinator.leave(assignment.run)
        except NotFound:
            self._reporter.say(f"{assignment.run}: the coordinator has removed it")
        delivered = self._journal.open_run(assignment.run).has_delivered()
        self._journal.forget(assignment.run)
        self._forget(assignment.run)
        self._done = self._settings.exit_when_finished
        if self._done and not delivered:
            raise NothingDelivered(f"{assignment.run} has ended without an update or a score of this worker.")

    def _forget(self, run: str) -> None:
        self._site.forget(run)
        self._indexes.pop(run, None)
        self._newest.pop(run, None)

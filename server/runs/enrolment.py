"""Clients and the runs they take part in: protocol, class contract, enrolling and leaving. On a thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from server.database.step.facts import DiscrepancyFacts, EnrolmentFacts, FailureFacts
from server.database.store import Store
from server.lifecycle.events import ClientDeclined, ClientEnrolled, ClientLeft, DiscrepancyReceived
from server.runs.layout import RunLayout
from server.runs.runner import Runner
from shared.problems import ClassContractMismatch, Conflict, IncompatibleVersion
from shared.schemas import (
    PROTOCOL,
    DeclineRequest,
    DiscrepancySubmission,
    EnrolmentAnswer,
    EnrolmentRequest,
    Registration,
)
from shared.versions import VERSION

__all__ = ["Enrolments", "check_contract", "check_protocol"]


def check_protocol(registration: Registration) -> None:
    """Raises :class:`IncompatibleVersion`, which names both sides, unless both speak the same protocol."""
    if registration.protocol != PROTOCOL:
        raise IncompatibleVersion(
            f"the worker (version {registration.version or 'unknown'}) speaks protocol "
            f"{registration.protocol}, this coordinator (version {VERSION}) speaks protocol {PROTOCOL}",
            hint="Install the same version on both sides.",
            protocol=PROTOCOL,
            version=VERSION,
        )


def check_contract(run: str, request: EnrolmentRequest, layout: RunLayout) -> None:
    """Raises :class:`ClassContractMismatch` for another task, or at the first class that differs."""
    if request.task != layout.task:
        raise ClassContractMismatch(
            f"run {run!r} trains task {layout.task!r}, received {request.task!r}",
            hint="Start the worker with the run's task.",
        )
    for index, (theirs, ours) in enumerate(zip_longest(request.classes, layout.classes)):
        if theirs != ours:
            raise ClassContractMismatch(
                f"class {index} of run {run!r} is {ours!r}, received {theirs!r}",
                hint="Every client of a run declares the same classes in the same order.",
                classes=list(layout.classes),
            )


@dataclass(frozen=True)
class Enrolments:
    """Clients coming to runs and going."""

    store: Store
    runner: Runner
    clock: Callable[[], dt.datetime]

    def enrol(self, run: str, client: str, request: EnrolmentRequest, layout: RunLayout) -> EnrolmentAnswer:
        """Repeated with the same particulars, the answer is the same."""
        check_contract(run, request, layout)
        event = ClientEnrolled(client, request.role, request.examples, request.index)
        facts = EnrolmentFacts(request.device, request.left_out)
        decision = self.runner.commit(run, event, actor=client, facts=facts)
        found = decision.run.enrolment(client)
        if found is None:
            raise Conflict(f"client {client!r} is not enrolled in {run!r}")
        return EnrolmentAnswer(
            run=run, client=client, role=found.role, status=found.status, index=found.index
        )

    def submit_discrepancy(self, run: str, client: str, submission: DiscrepancySubmission) -> None:
        """Once; the same value again changes nothing, another one is refused."""
        facts = DiscrepancyFacts(submission.metric, submission.value, submission.grade, submission.epsilon)
        self.runner.commit(run, DiscrepancyReceived(client), actor=client, facts=facts)

    def decline(self, run: str, client: str, said: DeclineRequest) -> None:
        facts = FailureFacts(said.code)
        self.runner.commit(run, ClientDeclined(client, said.reason), actor=client, facts=facts)

    def leave(self, run: str, client: str) -> None:
        """After the run's end: how a client confirms that it saw it."""
        self.runner.commit(run, ClientLeft(client, "left at its own request"), actor=client)

    def revoke(self, client: str, actor: str) -> None:
        """Revoke the client's token; it leaves every open run in the same transaction."""
        for run, decision in self.store.revoke(client, actor, self.clock()):
            self.runner.hand_over(run, decision)

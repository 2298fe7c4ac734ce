"""Clients and the runs they take part in: protocol, class contract, enrolling and leaving. On a thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import zip_longest

from server.database.step.facts import DiscrepancyFacts, EnrolmentFacts, FailureFacts
from server.database.store import Store
from server.lifecycle.events import (
    ClientDeclined,
    ClientEnrolled,
    ClientLeft,
    DiscrepancyReceived,
    EnrolmentApproved,
    EnrolmentRefused,
)
from server.revocations import Revocations
from server.runs.layout import RunLayout
from server.runs.runner import Runner
from shared.discrepancy import check_possible
from shared.own_parts import is_own
from shared.problems import (
    ClassContractMismatch,
    Conflict,
    IncompatibleVersion,
    InvalidRequest,
    NotAdmitted,
)
from shared.schemas import (
    PROTOCOL,
    DeclineRequest,
    DiscrepancySubmission,
    EnrolmentAnswer,
    EnrolmentRequest,
    EnrolmentStatus,
    Registration,
    Role,
)
from shared.versions import VERSION

__all__ = ["Enrolments", "check_contract", "check_discrepancy", "check_protocol"]


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


def check_discrepancy(submission: DiscrepancySubmission, layout: RunLayout) -> None:
    """Raises :class:`InvalidRequest` for another metric than the run's, or a value out of its range."""
    asked = layout.discrepancy
    if asked is None:
        return  # the state machine says so
    if submission.metric != asked.metric:
        raise InvalidRequest(
            f"the discrepancy is measured by {submission.metric!r}, the run asks for {asked.metric!r}",
            hint="Compute it with the metric of the assignment.",
        )
    check_possible(submission.value, asked.metric, asked.resolve(None), len(layout.classes))


@dataclass(frozen=True)
class Enrolments:
    """Clients coming to runs and going."""

    store: Store
    runner: Runner
    revocations: Revocations
    clock: Callable[[], dt.datetime]

    def enrol(self, run: str, client: str, request: EnrolmentRequest, layout: RunLayout) -> EnrolmentAnswer:
        """Repeated with the same particulars, the answer is the same.

        Raises :class:`NotAdmitted`, after the refusal is written, so that the run's page shows it.
        """
        check_contract(run, request, layout)
        grant = self.store.grant_of(client)
        event = ClientEnrolled(
            client,
            request.role,
            request.examples,
            request.index,
            group=grant.group,
            bound_to=None if grant.role is None else Role(grant.role),
            identity=self.store.identity_of(client),
        )
        facts = EnrolmentFacts(request.device, request.left_out)
        decision = self.runner.commit(run, event, actor=client, facts=facts)
        found = decision.run.enrolment(client)
        if found is None:
            raise Conflict(f"client {client!r} is not enrolled in {run!r}")
        if found.status is EnrolmentStatus.REFUSED:
            raise NotAdmitted(
                f"run {run!r} does not admit {client!r}: {found.reason}",
                hint="Ask the coordinator's operator; the run's page shows who is admitted.",
            )
        return EnrolmentAnswer(
            run=run, client=client, role=found.role, status=found.status, index=found.index
        )

    def approve(self, run: str, client: str, examples: int, actor: str) -> None:
        """The operator believes this size of the client; it must be the one that it declares now."""
        self.runner.commit(run, EnrolmentApproved(client, examples), actor=actor)

    def refuse(self, run: str, client: str, reason: str, actor: str) -> None:
        """The operator wants the client out of the run; it may ask again, and then waits for approval."""
        self.runner.commit(run, EnrolmentRefused(client, reason), actor=actor)

    def submit_discrepancy(
        self, run: str, client: str, submission: DiscrepancySubmission, layout: RunLayout
    ) -> None:
        """Once; the same value again changes nothing, another one is refused.

        Raises :class:`InvalidRequest` for a value that no labels can have; the event log has it.
        """
        try:
            check_discrepancy(submission, layout)
        except InvalidRequest as refused:
            detail = {"code": refused.code, "detail": refused.detail}
            self.runner.record("discrepancy_refused", run=run, client=client, actor=client, detail=detail)
            raise
        metric = "own" if is_own(submission.metric) else submission.metric  # the run says which
        facts = DiscrepancyFacts(metric, submission.value, submission.grade, submission.epsilon)
        self.runner.commit(run, DiscrepancyReceived(client), actor=client, facts=facts)

    def decline(self, run: str, client: str, said: DeclineRequest, role: Role = Role.TRAINER) -> None:
        facts = FailureFacts(said.code)
        self.runner.commit(run, ClientDeclined(client, said.reason, role), actor=client, facts=facts)

    def leave(self, run: str, client: str) -> None:
        """After the run's end: how a client confirms that it saw it."""
        self.runner.commit(run, ClientLeft(client, "left at its own request"), actor=client)

    def revoke(self, client: str, actor: str) -> None:
        """Revoke the client's token; it leaves every open run in the same transaction."""
        now = self.clock()
        if (token_hash := self.store.token_hash_of(client)) is not None:
            self.revocations.add(token_hash, "client", now)
        left = self.store.revoke(client, actor, now)
        self.runner.note_revoked(client)
        for run, decision in left:
            self.runner.hand_over(run, decision)

    def revoke_join_token(self, token: int, actor: str) -> None:
        """Raises NotFound."""
        now = self.clock()
        if (token_hash := self.store.join_hash_of(token)) is not None:
            self.revocations.add(token_hash, "join code", now)
        self.store.revoke_join_token(token, actor, now)

    def apply_revocations(self, token_hashes: Collection[str], actor: str) -> int:
        """Revoke what a restored database knows as valid; how many that were."""
        clients, tokens, users = self.store.unrevoked(token_hashes)
        for client in clients:
            self.revoke(client, actor)
        for token in tokens:
            self.revoke_join_token(token, actor)
        for user in users:
            self.store.revoke_user(user, actor, self.clock())
        return len(clients) + len(tokens) + len(users)

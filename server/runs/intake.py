"""Taking in an update: check whether it is wanted, validate it, keep the file, commit. All of it on a thread.

The order is what makes the promise "an update that was answered 2xx is never lost" hold: the file is
durable before the transaction that names it, and the transaction is durable before the answer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from server.blobs import BlobStore, Incoming
from server.blobs.integrity import BlobIntegrity
from server.database.step.facts import FailureFacts, UpdateFacts
from server.database.store import Store
from server.lifecycle.events import FailureReported, StepAnswered, UpdateReceived
from server.lifecycle.machine import decide
from server.monitoring.metrics import Telemetry
from server.runs.blob_faults import BlobFaults
from server.runs.layout import RunLayout
from server.runs.moves import Moves
from server.runs.runner import Runner
from server.runs.space import Space
from shared.features import check_counts
from shared.problems import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutOfBounds,
    Problem,
    UpdateInvalid,
    UpdateRefused,
)
from shared.schemas import Failure, Metrics, Receipt, SecureAnswer, UpdateReport
from shared.wire.packing import check_packed, unpack
from shared.wire.validation import validate

__all__ = ["Intake", "Offer"]


@dataclass(frozen=True)
class Offer:
    """An update as its upload announces it; ``digest`` is the SHA-256 of the body that is to come."""

    run: str
    round: int
    client: str
    report: UpdateReport
    digest: str
    layout: RunLayout
    announced_bytes: int | None = None

    @property
    def event(self) -> UpdateReceived:
        return UpdateReceived(self.client, self.round, self.report.attempt)

    @property
    def kept(self) -> UpdateReport:
        """The numbers that are stored with it: of a secure run none, whatever the client said."""
        if self.layout.totals is None:
            return self.report
        return UpdateReport(attempt=self.report.attempt, steps=0, examples=0)


@dataclass(frozen=True)
class Intake:
    """What comes in about a round: updates, or the reason why there is none, and scores of its model.

    ``max_bytes``: no update may be larger, whatever its run's layout allows.
    """

    store: Store
    blobs: BlobStore
    integrity: BlobIntegrity
    faults: BlobFaults
    runner: Runner
    space: Space
    moves: Moves
    telemetry: Telemetry
    max_bytes: int
    clock: Callable[[], dt.datetime]

    def check(self, offer: Offer) -> Receipt | None:
        """Whether the update is wanted, before its body is read. The receipt if it was accepted before.

        One that was accepted and whose stored file is missing or damaged is wanted once more.

        Raises:
            UpdateRefused: the round does not wait for it, or has another update of this client.
            InvalidRequest: it was trained on another number of examples than the client enrolled with, or for
                another number of steps than the run asks for, where the algorithm divides by them.
            QuotaExceeded: there is no room for it.
        """
        state = self.store.run_state(offer.run)
        try:
            decide(state, offer.event, self.clock())
        except UpdateRefused:
            if (receipt := self._receipt_of_same(offer)) is None:
                raise
            return None if self._is_lost(offer.digest) else receipt
        enrolled = state.enrolment(offer.client)
        if enrolled is not None and offer.report.examples != enrolled.examples:
            raise InvalidRequest(
                f"the update was trained on {offer.report.examples} examples, but {enrolled.client} is "
                f"enrolled with {enrolled.examples}, the size on which its weight is based",
                hint="Leave the run and enrol again if the data have changed.",
                now=offer.report.examples,
                enrolled=enrolled.examples,
            )
        if enrolled is not None and enrolled.index is not None:
            _check_steps(offer, enrolled.index)
        self.space.check(offer.run, offer.announced_bytes or self.limit_bytes(offer))
        return None

    def _receipt_of_same(self, offer: Offer) -> Receipt | None:
        try:
            receipt = self.store.receipt(offer.run, offer.round, offer.client)
        except NotFound:
            return None
        return receipt if (receipt.digest, receipt.attempt) == (offer.digest, offer.report.attempt) else None

    def _is_lost(self, digest: str) -> bool:
        """Whether the file of an accepted update is at fault, and was not collected on purpose."""
        return self.store.is_recorded(digest) and self.faults.find(digest) is not None

    def limit_bytes(self, offer: Offer) -> int:
        """How large the body may be."""
        return min(offer.layout.max_bytes, self.max_bytes)

    def accept_small(self, offer: Offer, body: bytes, announced_bytes: int) -> Receipt:
        """Everything that happens to a small update, in the same order as to a large one."""
        if (receipt := self.check(offer)) is not None:
            return receipt
        incoming = self.blobs.take(
            body, max_bytes=self.limit_bytes(offer), expected=offer.digest, announced_bytes=announced_bytes
        )
        return self.accept(offer, incoming)

    def accept(self, offer: Offer, incoming: Incoming) -> Receipt:
        """Validate the received file, make it durable, and only then commit the transaction that names it.

        Raises:
            UpdateInvalid: the file is not what the run's layout asks for, or beyond the run's bounds.
            UpdateRefused: the round was closed while the body arrived.
        """
        try:
            self._validate(offer, incoming)
            self.blobs.keep(incoming)
        finally:
            self.blobs.discard(incoming)
        self.integrity.remember(incoming.digest)
        report, now = offer.kept, self.clock()
        facts = UpdateFacts(
            digest=incoming.digest,
            bytes=incoming.bytes,
            steps=report.steps,
            loss=report.loss,
            seconds=report.seconds,
            start_loss=report.start_loss,
            end_loss=report.end_loss,
            epsilon=report.epsilon,
        )
        decision = self.runner.commit(offer.run, offer.event, actor=offer.client, facts=facts, now=now)
        if not decision.effects:  # accepted before: by another connection now, or long ago, and lost since
            self.faults.mend(incoming.digest)
            return self.store.receipt(offer.run, offer.round, offer.client)
        self.space.note(offer.run, incoming.bytes)
        self.runner.early.note(offer.run, offer.round, report.attempt, incoming.bytes)
        self.telemetry.updates.inc()
        self.telemetry.received.inc(incoming.bytes)
        return Receipt(
            run=offer.run,
            round=offer.round,
            attempt=report.attempt,
            client=offer.client,
            digest=incoming.digest,
            bytes=incoming.bytes,
            received_at=now,
        )

    def _validate(self, offer: Offer, incoming: Incoming) -> None:
        """A masked vector is any numbers at all: nothing but its form can be looked at."""
        tensors = offer.layout.tensors_of(offer.round)
        if offer.layout.totals is not None:
            validate(incoming.path, tensors)
            return
        validate(incoming.path, tensors, max_entry=offer.layout.max_entry)
        if (form := offer.layout.packed_of(offer.round)) is not None:
            check_packed(incoming.path, form)
        if keys := [key for key in offer.layout.counted if key in tensors]:
            check_counts(incoming.path, keys, offer.report.examples)
        self._check_move(offer, incoming)

    def _check_move(self, offer: Offer, incoming: Incoming) -> None:
        """Whether the update may move the model as far as it does: an absurd one would spoil it for all."""
        from shared.aggregation.figures import find_excess

        start = self.store.start_model(offer.run, offer.round, offer.report.attempt, offer.client)
        if start is None or self.faults.find(start) is not None:
            return  # no such attempt, as is said next; or a lost or damaged model, for which its round waits
        try:
            with self.blobs.local(start) as path, self._whole(offer, incoming, path) as update:
                move = self.moves.measure(start, path, incoming.digest, update, offer.layout.parameters)
        except NotFound:
            return  # lost this moment
        except UpdateInvalid:  # the update has been validated: it is the stored model that cannot be read
            if self.faults.read_again(start) is None:
                raise
            return
        excess = find_excess(move, offer.layout.max_norm)
        if excess is None:
            return
        if self.faults.read_again(start) is not None:
            self.moves.forget(start)  # it was measured on a damaged file
        else:
            raise OutOfBounds(
                f"{excess}: it is not believed (max_norm)",
                hint="The training diverged, or max_norm of the run is too small for its model.",
                norm=move.norm,
            )

    @contextmanager
    def _whole(self, offer: Offer, incoming: Incoming, start: Path) -> Iterator[Path]:
        """The update as a whole one; what was packed is held to the same bounds as what was not."""
        form = offer.layout.packed_of(offer.round)
        if form is None:
            yield incoming.path
            return
        with self.blobs.workspace() as folder:
            whole = unpack(incoming.path, start, form, folder / "whole")
            validate(whole, form.whole, max_entry=offer.layout.max_entry)
            yield whole

    def record_refusal(self, run: str, round: int, client: str, problem: Problem) -> None:
        """Every refusal of an upload is an entry of the event log."""
        kind = "update_refused" if isinstance(problem, Conflict) else "update_invalid"
        detail = {"code": problem.code, "detail": problem.detail}
        self.runner.record(kind, run=run, round=round, client=client, actor=client, detail=detail)

    def accept_evaluation(
        self, run: str, round: int, client: str, metrics: Metrics, model: str | None
    ) -> None:
        """What a client scored on its own test set; the same again changes nothing.

        Raises NotFound, Forbidden, or Conflict for other values, another model, or a round without model.
        """
        now = self.clock()
        found = self.store.add_evaluation(run, round, client, metrics, actor=client, now=now, model=model)
        if found.decision is not None:
            self.runner.hand_over(run, found.decision)

    def answer_step(self, run: str, round: int, client: str, given: SecureAnswer) -> None:
        """What a client sends in a step of a secure sum; the same again changes nothing.

        Raises a Conflict if the step is not open for it, or the answer is not what it has to be.
        """
        self.runner.commit(run, StepAnswered(client, round, given.attempt, given.answer), actor=client)

    def report_failure(self, run: str, round: int, client: str, failure: Failure) -> None:
        """The client gives this attempt up; the round goes on for the others."""
        event = FailureReported(client, round, failure.attempt, failure.reason)
        self.runner.commit(run, event, actor=client, facts=FailureFacts(failure.code))


def _check_steps(offer: Offer, index: int) -> None:
    """Before the body comes: both numbers follow from the run's configuration and the size."""
    plan = offer.layout.steps
    if plan is None:
        return
    asked, taken = plan(offer.report.examples, index, offer.round), offer.report.steps
    if taken not in asked:
        most = asked.stop - 1
        raise InvalidRequest(
            f"the update was trained for {taken} steps, but {offer.report.examples} examples make {most} in "
            f"round {offer.round}, and the algorithm divides by them",
            hint="Train as the run's configuration says (local), and say how many steps that took.",
            steps=taken,
            planned=most,
        )

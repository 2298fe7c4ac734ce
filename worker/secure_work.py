"""This site's half of a run's secure sums: nothing of its numbers leaves it but hidden by masks.

::

    STATE/identity.key             this client's private Ed25519 key (mode 0600)
    STATE/runs/RUN/secure.json     keys of the newest attempt (mode 0600), on disk before any answer is sent
    STATE/runs/RUN/known.json      the others' public identity keys, the sums over all trainers, the rule of
                                   weights: as this site first saw them; that it is there says that the run
                                   was joined with secure sums
    STATE/runs/RUN/summed.json     which sums this site has helped to unmask, and its score in the newest one
    STATE/label-sums.json          over which sites the label counts here were summed, for a global target

A killed worker goes on from these: it gives the same answer to the same step, and never other numbers under
the same masks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, Field

from shared.discrepancy import discrepancy
from shared.faults import Fault, FaultCode
from shared.files import PRIVATE, replace_file
from shared.fingerprints import format_fingerprint, identity_fingerprint
from shared.frozen import Frozen
from shared.problems import ModelDiverged
from shared.schemas import SecureAnswer, SecureStep, SumTotals, Train, UpdateReport
from shared.secure.client import Client
from shared.secure.faults import AttemptAbandoned, ProtocolRefused
from shared.secure.messages import Answer, Attempt, Inbox, View
from shared.weightings import AnyWeighting, Contribution
from shared.weightings.base import Totals
from worker.disclosure import mark_labels
from worker.faults import UPLOAD_BREAKS, LocalFault, describe_broken_upload
from worker.locks import locked

if TYPE_CHECKING:
    from shared.schemas import RunView
    from shared.secure.ring import RingVector
    from shared.wire import Written
    from worker.client import CoordinatorClient, Record
    from worker.journal import FinishedUpdate, RunJournal
    from worker.progress import Reporter
    from worker.site import LocalRun, Site

__all__ = ["SecureWork", "note_label_sum"]


_TOLERANCE = 2.0**-20
"""Totals are sums of discrepancies, or of shares of classes, in steps of 2^-40."""
_NEARLY_ALL = 0.9
"""A site of this weight is told that the others hide little of its update."""
_LABEL_SUMS = "label-sums.json"
_KNOWN = "known.json"


class _Disclosed(Frozen):
    """A sum that this site has helped to unmask: over whom, and of which vector of its own."""

    members: tuple[int, ...]
    vector: str


class _Summed(Frozen):
    """``disclosed`` by round, of round 0 and the newest; ``score`` is this site's in round ``scored``.

    ``sets`` are the members of all sums of rounds from 1 on, each once.
    """

    disclosed: dict[int, _Disclosed] = Field(default_factory=dict)
    sets: tuple[tuple[int, ...], ...] = ()
    scored: int = 0
    score: float = 0.0


class _LabelSums(Frozen):
    """``members`` of the sum of label counts, by their public identity keys; by all that tells the data.

    Earlier versions kept one fingerprint of the data, and read no more of what is kept now.
    """

    members: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class _Known(Frozen):
    """What this site was told first. Earlier versions kept neither ``totals`` nor ``weighting``."""

    identities: dict[int, str] = Field(default_factory=dict)
    totals: SumTotals | None = None
    weighting: AnyWeighting | None = None


@dataclass(frozen=True)
class SecureWork:
    """The steps of secure sums at this site. ``identity`` is its private key, ``record`` notes what it told.

    Every method raises :class:`worker.faults.LocalFault` where the site does not go on: what it was asked
    could give its numbers away, or too few others are left.
    """

    coordinator: CoordinatorClient
    site: Site
    reporter: Reporter
    identity: bytes
    record: Record

    def answer(self, step: SecureStep, local: LocalRun, journal: RunJournal) -> None:
        """Take a step and send what it asks for."""
        if step.step == "upload":
            _guarded(lambda: _check_first(step))
            self._upload_totals(step, local, journal)
            return
        answer = _guarded(lambda: self._find_answer(step, local, journal))
        self.coordinator.answer_step(step.run, step.round, SecureAnswer(attempt=step.attempt, answer=answer))

    def _find_answer(self, step: SecureStep, local: LocalRun, journal: RunJournal) -> Answer:
        if step.step == "advertise":
            return self._begin(step, local, journal).advertisement
        client = _find_client(step, local, journal)
        if step.step == "share" and step.roster is not None:
            moved, shares = client.share(step.roster)
            _keep_client(journal, moved)
            return shares
        if step.step == "agree" and step.survivors is not None:
            moved, agreement = client.agree(step.survivors)
            _check_repeated(journal, moved)
            _check_apart(journal, moved, self.site.policy_for(local.view).smallest_difference)
            self._check_label_sums(step, local, moved)
            _keep_client(journal, moved)
            return agreement
        if step.step == "unmask" and step.agreements is not None:
            moved, disclosure = client.disclose(step.agreements)
            _note_disclosed(journal, moved)
            _keep_client(journal, moved)
            return disclosure
        raise ProtocolRefused(f"the coordinator asks for the step {step.step} without what belongs to it")

    # ------------------------------------------------------------ 0 what was agreed to

    def note_joined(self, local: LocalRun, journal: RunJournal) -> None:
        """This site takes part in the run by secure sums, and in no other way from now on."""
        if local.view.config.secure is not None and not (journal.folder / _KNOWN).exists():
            _keep(journal.folder / _KNOWN, _Known())

    def check_joined(self, view: RunView, journal: RunJournal) -> None:
        """The run is as secure as it was, also after a restart, which reads its configuration again."""
        if view.config.secure is None and (journal.folder / _KNOWN).exists():
            raise LocalFault(
                Fault(FaultCode.SUM_REFUSED),
                "the run had secure sums when this site joined it, and the coordinator now asks for its "
                "numbers in clear",
            )

    # ------------------------------------------------------------ 1 advertise

    def _begin(self, step: SecureStep, local: LocalRun, journal: RunJournal) -> Client:
        """Fresh keys for a fresh attempt; the same ones if it is asked again."""
        attempt = _attempt_of(step)
        kept = _read(journal.folder / "secure.json", Client)
        if kept is not None and kept.attempt == attempt:
            return kept
        newest = max(_read_summed(journal).disclosed, default=0)
        if step.round < newest and step.round:
            raise ProtocolRefused(f"round {step.round} is over: this site has unmasked round {newest}")
        self._tell_weight(step, journal)
        _hold_totals(step.totals, local.view.config.weighting, journal)
        identities = self._meet(step, journal)
        secure = local.view.config.secure
        if secure is None:
            raise ProtocolRefused("the coordinator asks for a secure sum in a run that has none")
        client = Client.begin(
            attempt,
            _view_of(step, local),
            step.index,
            self.identity,
            identities,
            secure.threshold,
            self.site.policy_for(local.view).smallest_sum,
        )
        _keep_client(journal, client)
        return client

    def _meet(self, step: SecureStep, journal: RunJournal) -> Mapping[int, bytes]:
        """The others' identities: one that was seen before stays, and new ones are told to be compared."""
        known = _read(journal.folder / _KNOWN, _Known) or _Known()
        shown = step.identities or {}
        changed = [index for index, key in shown.items() if known.identities.get(index, key) != key]
        if changed:
            raise ProtocolRefused(
                f"the coordinator shows another identity key of client {changed[0]} than it did before"
            )
        for index in sorted(shown.keys() - known.identities.keys()):
            fingerprint = format_fingerprint(identity_fingerprint(shown[index]) or "")
            who = "this client" if index == step.index else f"client {index}"
            self.reporter.say(f"{step.run}: {who} is known by the identity key {fingerprint}")
        met = known.model_copy(update={"identities": {**known.identities, **shown}})
        _keep(journal.folder / _KNOWN, met)
        return {index: bytes.fromhex(key) for index, key in shown.items()}

    def _tell_weight(self, step: SecureStep, journal: RunJournal) -> None:
        """Its own p_k in the newest round that took its update: nobody knew it before the sum."""
        summed = _read_summed(journal)
        if not step.score_sum or summed.scored != step.last_aggregated_round:
            return
        weight = summed.score / step.score_sum
        who = "nobody else knows it"
        if weight >= _NEARLY_ALL:
            who = "so the sum is nearly this site's update alone, and who reads the sum reads the update"
        self.reporter.say(
            f"{step.run} round {summed.scored}: own weight {weight:.4f} "
            f"(score {summed.score:.4f} of {step.score_sum:.4f} in all); {who}"
        )
        own = {"score": summed.score, "score_sum": step.score_sum, "weight": weight}
        self.record(f"kept here, own weight in {step.run} round {summed.scored}", own)

    def _check_label_sums(self, step: SecureStep, local: LocalRun, client: Client) -> None:
        """The labels of the same data are summed over the same sites only, in whatever run.

        Two sums of label counts that differ by one site tell that site's; the others can see it coming.
        """
        asked = local.view.config.weighting.discrepancy
        if step.round or asked is None or asked.target != "global" or self.site.is_dealt(local.view):
            return
        counts = mark_labels(local.view.classes, self.site.count_classes(local, step.index))
        contents = self.site.data_contents(local, step.index)
        marks = (self.site.data_digest(local, step.index), *contents, counts)
        members = tuple(sorted(client.identities[index].hex() for index in client.survivors or ()))
        note_label_sum(self.site.settings.state, marks, members)

    # ------------------------------------------------------------ 3 upload

    def relative_size(self, assignment: Train, local: LocalRun) -> float:
        """``omega_k = N n_k / sum_j n_j``, which the coordinator cannot tell."""
        totals = _require_totals(assignment.totals)
        return totals.clients * self._count_examples(local, assignment.index) / totals.examples

    def check_train(self, assignment: Train, local: LocalRun, journal: RunJournal) -> None:
        """Before anything is trained: the model is the one that all advertised, and the totals hold."""
        _guarded(lambda: self._check_train(assignment, local, journal))

    def _check_train(self, assignment: Train, local: LocalRun, journal: RunJournal) -> None:
        _find_client(assignment, local, journal)
        _hold_totals(assignment.totals, local.view.config.weighting, journal)
        totals = _require_totals(assignment.totals)
        _check_counts(totals, local)
        own = self._find_own(local, assignment.index, totals)
        d = own.discrepancy if own.discrepancy is not None and math.isfinite(own.discrepancy) else 0.0
        exceeds = own.examples > totals.examples or d > totals.discrepancy + _TOLERANCE
        if totals.counts is not None and own.counts is not None:
            exceeds |= any(mine > all_ for mine, all_ in zip(own.counts, totals.counts, strict=True))
        if exceeds and self._is_in_totals(local, assignment.index, journal):
            raise ProtocolRefused("the totals that the coordinator tells are below this site's own numbers")

    def _is_in_totals(self, local: LocalRun, index: int, journal: RunJournal) -> bool:
        """Whether the totals have this site's numbers: not if it came later, or its data have changed."""
        from shared.aggregation.secure_sums import encode_totals

        summed = _read_summed(journal).disclosed.get(0)
        if summed is None:
            return False
        vector = encode_totals(local.view.config, self._find_own(local, index, None))
        return hashlib.sha256(vector.tobytes()).hexdigest() == summed.vector

    def mask(
        self, assignment: Train, local: LocalRun, journal: RunJournal, update: FinishedUpdate
    ) -> tuple[Path, str, UpdateReport]:
        """The finished update, times this site's score and masked: file, digest, and what is told with it."""
        from shared.aggregation.secure_sums import Plan, score_of

        config, totals = local.view.config, _require_totals(assignment.totals)
        own = self._find_own(local, assignment.index, totals)
        score = score_of(config, own, Totals(totals.examples, totals.discrepancy, totals.counts))
        client = _guarded(lambda: _find_client(assignment, local, journal))
        roster = client.roster
        members = 0 if roster is None else len(roster.members)
        plan = Plan(config, local.workbench.algorithm, local.workbench.manifest, max(1, members))
        model = journal.blob_path(assignment.model)
        try:
            vector = plan.encode(model, journal.folder / update.file, score, update.report.steps)
        except ModelDiverged as error:
            raise LocalFault(Fault(FaultCode.DIVERGED), str(error)) from error
        written = _hide(client, assignment.inbox, vector, journal)
        summed = _read_summed(journal).model_copy(update={"scored": assignment.round, "score": score})
        _keep(journal.folder / "summed.json", summed)
        told = UpdateReport(attempt=assignment.attempt, steps=0, examples=0, epsilon=update.report.epsilon)
        return written.path, written.digest, told

    def _upload_totals(self, step: SecureStep, local: LocalRun, journal: RunJournal) -> None:
        """This site's examples and its discrepancy, or its labels, in the sum that ends enrolment."""
        from shared.aggregation.secure_sums import encode_totals

        client = _guarded(lambda: _find_client(step, local, journal))
        vector = encode_totals(local.view.config, self._find_own(local, step.index, None))
        written = _hide(client, step.inbox, vector, journal)
        report = UpdateReport(attempt=step.attempt, steps=0, examples=0)
        try:
            self.coordinator.upload(step.run, step.round, report, written.path, written.digest)
        except UPLOAD_BREAKS as error:
            raise describe_broken_upload(error, written.bytes) from error
        asked = local.view.config.weighting.discrepancy
        what = "label counts" if asked is not None and asked.target == "global" else "discrepancy"
        self.reporter.say(f"{step.run}: sent examples and {what}, masked, for the sum over all trainers")

    def _find_own(self, local: LocalRun, index: int, totals: SumTotals | None) -> Contribution:
        """What this site knows of itself; before a global target is known, without a discrepancy."""
        asked, examples = local.view.config.weighting.discrepancy, self._count_examples(local, index)
        if asked is None:
            return Contribution(index, examples)
        counts = tuple(self.site.count_classes(local, index))
        if asked.target == "global" and totals is None:
            return Contribution(index, examples, counts=counts)
        target = asked.resolve(None if totals is None else totals.counts)
        return Contribution(index, examples, discrepancy(counts, target, asked.metric), counts)

    def _count_examples(self, local: LocalRun, index: int) -> int:
        return len(self.site.training_examples(local, index))


Made = TypeVar("Made")


def _guarded(work: Callable[[], Made]) -> Made:
    """What the protocol refuses here ends the round for this site, and its log says why."""
    try:
        return work()
    except (ProtocolRefused, AttemptAbandoned) as refused:
        raise LocalFault(Fault(FaultCode.SUM_REFUSED), str(refused)) from refused


def _hide(client: Client, inbox: Inbox | None, vector: RingVector, journal: RunJournal) -> Written:
    from shared.aggregation.secure_sums import write_vector

    if inbox is None:
        raise LocalFault(Fault(FaultCode.SUM_REFUSED), "the coordinator asks for an update without masks")
    _guarded(lambda: _check_members(journal, client))
    moved = _guarded(lambda: client.mask(inbox, vector))
    _keep_client(journal, moved)
    return write_vector(journal.folder / "masked.safetensors", vector)


def _check_first(step: SecureStep) -> None:
    """The totals are summed in round 0, where :func:`_check_repeated` and :func:`note_label_sum` hold the sum
    to its members; in a later one they would be summed over whoever is in that round."""
    if step.round != 0:
        raise ProtocolRefused(
            "the coordinator asks for examples and labels in the sum of "
            f"round {step.round}, which is of updates"
        )


def _attempt_of(asked: SecureStep | Train) -> Attempt:
    return Attempt(run=asked.run, round=asked.round, attempt=asked.attempt)


def _view_of(asked: SecureStep | Train, local: LocalRun) -> View:
    """Digests of all that decides what this site adds: they must be the same for every member."""
    view, totals = local.view, asked.totals
    told = {
        "config": view.config.model_dump(mode="json"),
        "classes": list(view.classes),
        "manifest": [spec.model_dump(mode="json") for spec in view.manifest],
        "totals": None if totals is None else totals.model_dump(mode="json"),
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return View(model=asked.model, broadcast=asked.broadcast, config=digest)


def _find_client(asked: SecureStep | Train, local: LocalRun, journal: RunJournal) -> Client:
    """The keys of this attempt, if what is asked belongs to what was advertised with them."""
    client = _read(journal.folder / "secure.json", Client)
    if client is None or client.attempt != _attempt_of(asked):
        raise ProtocolRefused("this site has no keys of this attempt: its state folder is another one")
    if client.view != _view_of(asked, local):
        raise ProtocolRefused(
            "the coordinator gives another model, configuration or totals than it had shown"
        )
    return client


def _require_totals(totals: SumTotals | None) -> SumTotals:
    if totals is None or totals.examples < 1:
        raise LocalFault(Fault(FaultCode.SUM_REFUSED), "the coordinator tells no sums over all trainers")
    return totals


def _check_counts(totals: SumTotals, local: LocalRun) -> None:
    """A global target is made of one number a class, which sum to all examples."""
    asked, counts = local.view.config.weighting.discrepancy, totals.counts
    if asked is None or asked.target != "global":
        return
    if counts is None or len(counts) != len(local.view.classes) or sum(counts) != totals.examples:
        raise ProtocolRefused("the coordinator tells label counts that are no sum of the sites' examples")


# ---------------------------------------------------------------- what is kept


def _hold_totals(totals: SumTotals | None, weighting: AnyWeighting, journal: RunJournal) -> None:
    """The totals of a run are summed once, in round 0; they and the rule of weights stay as first told.

    By others, the same for all sites, a coordinator could choose one site whose score alone is not 0: the sum
    would be that site's update.
    """
    if totals is None:
        return
    known = _read(journal.folder / _KNOWN, _Known) or _Known()
    if known.totals not in (None, totals):
        raise ProtocolRefused("the coordinator tells other sums over all trainers than it did before")
    if known.weighting not in (None, weighting):
        raise ProtocolRefused("the coordinator tells another rule of weights than it did before")
    if known.totals is None or known.weighting is None:
        told = known.model_copy(update={"totals": totals, "weighting": weighting})
        _keep(journal.folder / _KNOWN, told)


def _check_members(journal: RunJournal, client: Client) -> None:
    """Before the upload: those who have not helped to unmask the round's first sum could unmask a second.

    Where a member of the first is missing, this site would not agree to it, and must not be in it.
    """
    before, roster = _read_summed(journal).disclosed.get(client.attempt.round), client.roster
    if before is not None and roster is not None and not set(before.members) <= set(roster.members):
        raise _make_refusal(client)


def _check_repeated(journal: RunJournal, client: Client) -> None:
    """Two sums of one round that differ in one member would give that member's numbers away."""
    before = _read_summed(journal).disclosed.get(client.attempt.round)
    if before is not None and before != _disclosed_by(client):
        raise _make_refusal(client)


def _make_refusal(client: Client) -> ProtocolRefused:
    return ProtocolRefused(
        f"this site has helped to unmask round {client.attempt.round} before, over other members or "
        "other numbers: the difference of the two sums would tell somebody's"
    )


def _note_disclosed(journal: RunJournal, client: Client) -> None:
    summed, number = _read_summed(journal), client.attempt.round
    kept = {0: summed.disclosed[0]} if 0 in summed.disclosed else {}
    changes = {"disclosed": {**kept, number: _disclosed_by(client)}, "sets": _sets_with(summed, client)}
    _keep(journal.folder / "summed.json", summed.model_copy(update=changes))


def _sets_with(summed: _Summed, client: Client) -> tuple[tuple[int, ...], ...]:
    """Round 0 sums other numbers than all later ones, whose scores are the same in each."""
    members = client.survivors or ()
    return (*summed.sets, members) if client.attempt.round and members not in summed.sets else summed.sets


def _check_apart(journal: RunJournal, client: Client, least: int) -> None:
    """A site's score is the same in every round: sums over different sets tell it by their difference.

    Whoever adds and subtracts the sums gets sums over sites that were in exactly the same of them, together:
    ``least`` of each are asked for.
    """
    sets = _sets_with(_read_summed(journal), client)
    alike = Counter(tuple(index in members for members in sets) for index in set().union(*sets))
    fewest = min(alike.values(), default=least)
    if fewest < least:
        raise ProtocolRefused(
            f"this sum and those before it in the run differ by {fewest} of the sites, whose score the "
            f"difference would tell; this site asks for {least} (smallest_difference in its policy)"
        )


def _disclosed_by(client: Client) -> _Disclosed:
    return _Disclosed(members=client.survivors or (), vector=client.vector_digest or "")


def _read_summed(journal: RunJournal) -> _Summed:
    return _read(journal.folder / "summed.json", _Summed) or _Summed()


def note_label_sum(state: Path, marks: Collection[str], members: tuple[str, ...]) -> None:
    """Keep over whom the labels of the data are summed; workers in slots of one folder one after the other.

    The data are those of before if any of the ``marks`` is: each may change where files are only touched.

    Raises :class:`ProtocolRefused` if they were summed over others before.
    """
    path = state / _LABEL_SUMS
    with locked(state / "label-sums.lock"):
        kept = _read(path, _LabelSums) or _LabelSums()
        before = [kept.members[mark] for mark in marks if mark in kept.members]
        over = before[0] if before else members
        _keep(path, _LabelSums(members={**dict.fromkeys(marks, over), **kept.members}))
        if any(each != members for each in before):
            raise ProtocolRefused(
                "the label counts here were summed with those of other sites before: the difference of the "
                "two sums would tell somebody's; a run with the earlier sum as its target needs no other"
            )


Kept = TypeVar("Kept", bound=BaseModel)


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    """None if there is no such file. One that cannot be read is a fault: a site might tell twice."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None


def _keep_client(journal: RunJournal, client: Client) -> None:
    _keep(journal.folder / "secure.json", client)


def _keep(path: Path, content: BaseModel) -> None:
    replace_file(path, content.model_dump_json().encode(), mode=PRIVATE)

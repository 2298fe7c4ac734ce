"""Whether this worker takes part in a run, and as which part of the data; and its one number ``d_k``."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from shared.device import describe
from shared.faults import Fault, FaultCode
from shared.problems import IndexTaken, InvalidConfiguration
from shared.schemas import DiscrepancySubmission, EnrolmentAnswer, EnrolmentRequest, Role, SubmitDiscrepancy
from worker.disclosure import NotDisclosed, describe_answer, told_size
from worker.faults import FAULTS, LocalFault

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.config import AnyMetric
    from shared.discrepancy import Target
    from shared.schemas import EnrolmentView, RunView
    from worker.client import CoordinatorClient
    from worker.disclosure import Answer, Question
    from worker.settings import WorkerSettings
    from worker.site import LocalRun, Site

__all__ = [
    "NOT_MEANT",
    "decline_all",
    "enrol",
    "find_enrolment",
    "find_mismatch",
    "is_meant",
    "lowest_free",
    "submit_discrepancy",
]

NOT_MEANT = frozenset({FaultCode.OTHER_RUNS, FaultCode.OTHER_TASK})
"""Why a run is declined that this worker was never started for."""


def find_mismatch(view: RunView, settings: WorkerSettings) -> LocalFault | None:
    """Why the run is not for this worker, as far as its settings tell; None if it may be."""
    if settings.run is not None and not fnmatchcase(view.run, settings.run):
        sentence = f"this worker takes part only in runs named {settings.run}"
        return LocalFault(Fault(FaultCode.OTHER_RUNS), sentence)
    if view.config.task != settings.task:
        sentence = f"this worker has the task {settings.task}, the run needs {view.config.task}"
        return LocalFault(Fault(FaultCode.OTHER_TASK), sentence)
    if settings.role is Role.TRAINER and view.config.partition is not None and settings.partition is None:
        return LocalFault(Fault(FaultCode.OWN_DATA))
    return None


def decline_all(
    coordinator: CoordinatorClient, client: str, settings: WorkerSettings, fault: LocalFault
) -> None:
    """Tell every open run that this worker is for, before it ends; what cannot be told now stays untold."""
    with suppress(*FAULTS):
        for summary in coordinator.runs():
            if not summary.status.is_terminal and summary.task == settings.task:
                view = coordinator.run(summary.run)
                if is_meant(view, client, settings):
                    coordinator.decline(view.run, fault, settings.role)


def is_meant(view: RunView, client: str, settings: WorkerSettings) -> bool:
    """Whether this client takes part in the run, or would if nothing spoke against it."""
    enrolment = find_enrolment(view, client)
    if enrolment is not None:
        return enrolment.status.is_present
    fault = find_mismatch(view, settings)
    return fault is None or fault.told.code not in NOT_MEANT


def find_enrolment(view: RunView, client: str) -> EnrolmentView | None:
    return next((row for row in view.enrolments if row.client == client), None)


def enrol(view: RunView, site: Site, coordinator: CoordinatorClient) -> EnrolmentAnswer:
    """Enrol, unless something here speaks against it: then :class:`worker.faults.LocalFault` says what.

    With a partition the number of examples depends on the index, so the lowest free one is asked for by
    number; when another worker was quicker (409) the next one is tried.
    """
    if (fault := find_mismatch(view, site.settings)) is not None:
        raise fault
    local = site.prepare_run(view)
    while True:
        index = _choose_index(view, site)
        try:
            return coordinator.enrol(view.run, _make_request(local, site, index))
        except IndexTaken as taken:
            if site.settings.index is not None:
                told = Fault(FaultCode.INDEX_TAKEN, counts={"index": site.settings.index})
                raise LocalFault(told, str(taken)) from taken
            view = coordinator.run(view.run)


def _choose_index(view: RunView, site: Site) -> int | None:
    spec = site.partition_for(view)
    if site.settings.role is Role.EVALUATOR:
        return None
    index = site.settings.index
    if spec is None:
        return index
    if index is None:
        index = lowest_free(view.taken_indexes)
    if index >= spec.clients:
        raise LocalFault(
            Fault(FaultCode.NO_PART_LEFT, counts={"parts": spec.clients}),
            f"all {spec.clients} parts of the partition are taken, or index {index} is none of them",
        )
    return index


def lowest_free(taken: Collection[int]) -> int:
    """The lowest index that no client holds (one that a client left behind stays its own)."""
    return next(index for index in range(len(taken) + 1) if index not in taken)


def _make_request(local: LocalRun, site: Site, index: int | None) -> EnrolmentRequest:
    role = site.settings.role
    examples = site.own_examples(local, index)
    if len(examples) == 0:
        sentence = f"this site has no examples to {'evaluate' if role is Role.EVALUATOR else 'train'} on"
        raise LocalFault(Fault(FaultCode.NO_EXAMPLES), sentence)
    if role is Role.TRAINER:
        from worker.private_rounds import check_private_plan  # imports PyTorch

        _check_batches(local, site, len(examples))
        _tell_of_travels(local, site)
        check_private_plan(local, index, site)
    masked = role is Role.TRAINER and local.view.config.secure is not None
    asked = local.view.config.weighting.discrepancy
    if role is Role.TRAINER and asked is not None and not masked:
        _answer(local, index, asked.metric, asked.resolve(None), site)  # or the run is declined, now
    return EnrolmentRequest(
        role=role,
        task=site.settings.task,
        examples=0 if masked else told_size(len(examples), site.policy_for(local.view).sizes),
        classes=local.task.classes,
        index=index,
        device=describe(site.device),
        left_out=None if masked else examples.left_out.counts(),
    )


def _tell_of_travels(local: LocalRun, site: Site) -> None:
    every = local.view.config.average_every
    if every > 1:
        site.say(
            f"{local.view.run}: it averages every {every} rounds; between, what this site trains is handed "
            "on to another site as it is, and this site goes on from what another has trained"
        )


def _check_batches(local: LocalRun, site: Site, examples: int) -> None:
    """Batch normalisation has no statistics in a batch of one."""
    from shared.training.batches import check_batches, joins_last, smallest_batch  # imports PyTorch

    training, smallest = local.view.config.local, smallest_batch(local.workbench.model)
    try:
        check_batches(training, examples, smallest)
    except InvalidConfiguration as fault:
        raise LocalFault(Fault(FaultCode.TOO_FEW_EXAMPLES), str(fault)) from fault
    if joins_last(training, examples, smallest):
        site.say(
            f"{local.view.run}: the last batch of an epoch would have one example, too few for batch "
            "normalisation; it is joined to the one before it"
        )


def _answer(
    local: LocalRun, index: int | None, metric: AnyMetric, target: Target, site: Site
) -> tuple[Answer, Question]:
    question = site.question(local, index, metric, target)
    try:
        return site.disclosures.answer(question, site.rule(local.view)), question
    except NotDisclosed as refused:
        raise LocalFault(Fault(refused.code)) from refused


def submit_discrepancy(
    assignment: SubmitDiscrepancy,
    local: LocalRun,
    index: int | None,
    site: Site,
    coordinator: CoordinatorClient,
) -> str:
    """Submit what this site answers about its labels; returns what was told, in a sentence."""
    answer, question = _answer(local, index, assignment.metric, assignment.target, site)
    submission = DiscrepancySubmission(
        metric=answer.metric, value=answer.value, grade=answer.grade, epsilon=answer.epsilon
    )
    coordinator.submit_discrepancy(assignment.run, submission)
    return describe_answer(answer, question)

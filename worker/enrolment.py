"""Whether this worker takes part in a run, and as which part of the data; and its one number ``d_k``."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from shared.device import describe
from shared.problems import DataUnfit, IndexTaken, InvalidConfiguration
from shared.schemas import DiscrepancySubmission, EnrolmentAnswer, EnrolmentRequest, Role, SubmitDiscrepancy
from worker.disclosure import NotDisclosed, describe_answer, told_size
from worker.faults import LocalFault, clip_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.config import Metric
    from shared.data import Examples
    from shared.schemas import RunView
    from worker.client import CoordinatorClient
    from worker.disclosure import Answer, Question
    from worker.noise import Target
    from worker.settings import WorkerSettings
    from worker.site import LocalRun, Site

__all__ = ["Declined", "enrol", "find_mismatch", "lowest_free", "submit_discrepancy"]

MISFIT = "the data here do not fit the run's classes or task options; the site's log names what differs"


class Declined(Exception):
    """This worker does not take part; the message is for the site's log.

    ``public`` is the sentence that the coordinator shows (None: the message).
    """

    def __init__(self, sentence: str, public: str | None = None) -> None:
        super().__init__(sentence)
        self.public = public or sentence


def find_mismatch(view: RunView, settings: WorkerSettings) -> str | None:
    """Why the run is not for this worker, as far as its settings tell; None if it may be."""
    if settings.run is not None and not fnmatchcase(view.run, settings.run):
        return f"this worker takes part only in runs named {settings.run}"
    if view.config.task != settings.task:
        return f"this worker has the task {settings.task}, the run needs {view.config.task}"
    if settings.role is Role.TRAINER and view.config.partition is not None and settings.partition is None:
        return (
            "the run deals one data set to all its clients (partition), this worker has data of its own; "
            "start it with --partition run to take a part"
        )
    return None


def enrol(view: RunView, site: Site, coordinator: CoordinatorClient) -> EnrolmentAnswer:
    """Enrol, or decline with a sentence.

    With a partition the number of examples depends on the index, so the lowest free one is asked for by
    number; when another worker was quicker (409) the next one is tried.

    Raises:
        Declined: the coordinator has the reason already.
        InvalidConfiguration: there are no data here at all.
    """
    try:
        if reason := find_mismatch(view, site.settings):
            raise Declined(reason)
        local = _prepare_run(view, site)
        while True:
            index = _choose_index(view, site)
            try:
                return coordinator.enrol(view.run, _make_request(local, site, index))
            except IndexTaken as taken:
                if site.settings.index is not None:
                    raise Declined(str(taken)) from taken
                view = coordinator.run(view.run)
    except (Declined, LocalFault) as declined:
        site.forget(view.run)
        sentence = declined.public if isinstance(declined, Declined) else str(declined)
        coordinator.decline(view.run, clip_text(sentence))
        raise Declined(str(declined)) from declined


def _prepare_run(view: RunView, site: Site) -> LocalRun:
    try:
        return site.prepare_run(view)
    except DataUnfit as unfit:
        raise Declined(str(unfit), MISFIT) from unfit
    except InvalidConfiguration as difference:
        raise Declined(str(difference)) from difference


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
        raise Declined(
            f"all {spec.clients} parts of the partition are taken, or index {index} is none of them"
        )
    return index


def lowest_free(taken: Collection[int]) -> int:
    """The lowest index that no client holds (one that a client left behind stays its own)."""
    return next(index for index in range(len(taken) + 1) if index not in taken)


def _make_request(local: LocalRun, site: Site, index: int | None) -> EnrolmentRequest:
    role = site.settings.role
    examples = _load_examples(local, site, index)
    if len(examples) == 0:
        raise Declined(f"this site has no examples to {'evaluate' if role is Role.EVALUATOR else 'train'} on")
    if role is Role.TRAINER:
        _check_batches(local, site, len(examples))
    asked = local.view.config.weighting.discrepancy
    if role is Role.TRAINER and asked is not None:
        _answer(local, index, asked.metric, asked.target, site)  # or the run is declined, now
    return EnrolmentRequest(
        role=role,
        task=site.settings.task,
        examples=told_size(len(examples), site.settings.sizes),
        classes=local.task.classes,
        index=index,
        device=describe(site.device),
        left_out=examples.left_out.counts(),
    )


def _check_batches(local: LocalRun, site: Site, examples: int) -> None:
    """Batch normalisation has no statistics in a batch of one."""
    from shared.training.batches import check_batches, joins_last, smallest_batch  # imports PyTorch

    training, smallest = local.view.config.local, smallest_batch(local.workbench.model)
    try:
        check_batches(training, examples, smallest)
    except InvalidConfiguration as fault:
        raise Declined(str(fault)) from fault
    if joins_last(training, examples, smallest):
        site.say(
            f"{local.view.run}: the last batch of an epoch would have one example, too few for batch "
            "normalisation; it is joined to the one before it"
        )


def _load_examples(local: LocalRun, site: Site, index: int | None) -> Examples:
    """What this site brings to the run, by its role; declined if it does not fit the run.

    The fault may name files and quote cells: the coordinator learns only that there is one.
    """
    try:
        return site.own_examples(local, index)
    except InvalidConfiguration as fault:
        from shared.data import (
            fingerprint_of,
        )  # imports PyTorch, which a site waits for only when it has work

        if not isinstance(fault, DataUnfit) and not fingerprint_of(site.settings.data):
            raise  # no data for any run
        raise Declined(str(fault), MISFIT) from fault


def _answer(
    local: LocalRun, index: int | None, metric: Metric, target: Target, site: Site
) -> tuple[Answer, Question]:
    question = site.question(local, index, metric, target)
    try:
        return site.disclosures.answer(question, site.rule(local.view)), question
    except NotDisclosed as refused:
        raise LocalFault(refused.refusal, str(refused)) from refused


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

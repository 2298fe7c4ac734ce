"""Private training at this site: whether a run may be trained, what a round costs, and what is told of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shared.faults import Fault, FaultCode
from shared.problems import InvalidConfiguration
from shared.training.accountant import find_epsilon
from shared.training.private import KEY_BYTES, PrivateRound
from worker.faults import LocalFault
from worker.privacy_account import OWN_DATA

if TYPE_CHECKING:
    from shared.training.workbench import ClientTask
    from worker.site import LocalRun, Site

__all__ = ["begin_private_round", "check_private_plan", "find_own_epsilon", "find_told_epsilon"]


def check_private_plan(local: LocalRun, index: int | None, site: Site) -> None:
    """Raise :class:`LocalFault` if the run's private training cannot be had here, or would cost too much."""
    if local.view.config.dp is None:
        return
    with _private_faults():
        plan = local.workbench.plan_private(index)
        policy = site.policy_for(local.view)
        # what this run has spent before, if the site enrols anew, is a part of the plan
        others = site.account.list_others(_find_data(local, index, site), local.view.run)
        lost = find_epsilon((*others, plan), policy.epsilon_delta)
    if policy.most_epsilon is not None and lost > policy.most_epsilon:
        raise _too_much(site, policy.most_epsilon, policy.epsilon_delta, lost)


def begin_private_round(local: LocalRun, task: ClientTask, site: Site) -> PrivateRound | None:
    """The samples and the noise of a round, once it is counted; None if the run has no ``dp``.

    Both come of 32 bytes of the operating system's randomness, which nobody else has and nothing keeps.

    Raises :class:`LocalFault` if the site's policy leaves too little for it.
    """
    run, data = local.view.run, _find_data(local, task.index, site)
    policy = site.policy_for(local.view)
    with _private_faults():
        spent = site.account.list_spent(data, run)
        private = local.workbench.make_private(task, secrets.token_bytes(KEY_BYTES), spent)
        if private is None or not private.spending.steps:
            return private
        version = site.data_digest(local, task.index)
        limit = (policy.most_epsilon, policy.epsilon_delta)
        lost = site.account.charge(run, data, version, private.spending, *limit)
    if lost is not None and policy.most_epsilon is not None:
        raise _too_much(site, policy.most_epsilon, policy.epsilon_delta, lost)
    return private


def find_own_epsilon(local: LocalRun, index: int, site: Site) -> float | None:
    """What the run has cost the examples here so far; None if it has no ``dp``."""
    dp = local.view.config.dp
    if dp is None:
        return None
    return find_epsilon(site.account.list_spent(_find_data(local, index, site), local.view.run), dp.delta)


def find_told_epsilon(local: LocalRun, index: int, site: Site) -> float | None:
    """The same for the run's page, where the site's policy has it told."""
    return find_own_epsilon(local, index, site) if site.policy_for(local.view).tell_epsilon else None


def _find_data(local: LocalRun, index: int | None, site: Site) -> str:
    return site.data_digest(local, index) if site.is_dealt(local.view) else OWN_DATA


def _too_much(site: Site, most: float, delta: float, lost: float) -> LocalFault:
    told = Fault(FaultCode.PRIVACY_SPENT)
    where = site.where("most_epsilon")
    return LocalFault(
        told,
        f"{told.sentence} (epsilon {lost:.3g} at delta {delta:g} in all runs together; "
        f"{where} has most_epsilon: {most:g})",
    )


@contextmanager
def _private_faults() -> Iterator[None]:
    try:
        yield
    except InvalidConfiguration as fault:
        raise LocalFault(Fault(FaultCode.NO_PRIVACY), str(fault)) from fault

"""Whether what the coordinator asks is this client's part in the run: nothing else is done, whoever asks.

A policy is held to a run by the client's role and the run's configuration. An assignment that goes beyond
them would go beyond the policy: a score of a trainer's, say, tells in clear what secure sums hide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from shared.faults import Fault, FaultCode
from shared.schemas import Assist, Evaluate, Role, SecureStep, SubmitDiscrepancy, Train
from worker.faults import LocalFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.config import RunConfig

__all__ = ["RunWork", "check_own_part"]

RunWork: TypeAlias = SubmitDiscrepancy | SecureStep | Train | Assist | Evaluate

_PARTS: Final[Mapping[type[RunWork], tuple[Role, str]]] = {
    SubmitDiscrepancy: (Role.TRAINER, "tell its discrepancy"),
    SecureStep: (Role.TRAINER, "add to a secure sum"),
    Train: (Role.TRAINER, "train"),
    Assist: (Role.EVALUATOR, "work as the run's assistant"),
    Evaluate: (Role.EVALUATOR, "score a model"),
}


def check_own_part(asked: RunWork, config: RunConfig, rounds: int, client: str, role: Role) -> None:
    """Raise :class:`worker.faults.LocalFault` if it is not for this client in this role to do.

    ``config`` is what the site agreed to; ``rounds`` is how many the run has now, which may be changed.
    """
    if why := _find_excess(asked, config, rounds, client, role):
        raise LocalFault(Fault(FaultCode.NOT_ITS_PART), f"the coordinator asks {why}")


def _find_excess(asked: RunWork, config: RunConfig, rounds: int, client: str, role: Role) -> str | None:
    """What is asked beyond the client's part, in words."""
    whose, what = _PARTS[type(asked)]
    if role is not whose:
        return f"this {role.value} to {what}, which is for {whose.value}s"
    match asked:
        case SubmitDiscrepancy() if config.secure is not None:
            return "for the discrepancy in clear, and the run has secure sums"
        case SubmitDiscrepancy() if (asked.metric, asked.target) != config.weighting.discrepancy:
            return "for another discrepancy than the run's configuration does"
        case Train() if not 1 <= asked.round <= rounds:
            return f"for an update in round {asked.round}, and the run has rounds 1 to {rounds}"
        case Assist() if config.assistant is None or config.assistant.client != client:
            named = "none" if config.assistant is None else config.assistant.client
            return f"this client to {what}, and the assistant that the run names is {named}"
        case _:
            return None

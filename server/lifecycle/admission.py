"""Who a run admits: by name or group, as what, when, and with which size."""

from __future__ import annotations

from server.lifecycle.events import ClientEnrolled
from server.lifecycle.state import Enrolment, Run
from shared.schemas import EnrolmentStatus, Role, RunStatus
from shared.texts import format_count

__all__ = ["REFUSED_BY_OPERATOR", "find_refusal", "find_wait"]

REFUSED_BY_OPERATOR = 0
"""In the place of an approved size: the operator refused the client."""


def find_refusal(run: Run, before: Enrolment | None, event: ClientEnrolled) -> str | None:
    """Why the client does not get in as it asks to; None if it does.

    ``before``: its earlier enrolment, if it has taken part already.
    """
    policy, role = run.policy, event.role
    if event.bound_to not in (None, role):
        return f"its join token lets it take part as {event.bound_to} only, not as {role}"
    if not policy.participants.admits(role, event.client, event.group):
        member = f"it nor its group {event.group}" if event.group else "it"
        return f"the run's participants name {'neither ' if event.group else 'not '}{member} as {role}"
    if policy.join == "before_start" and run.status is not RunStatus.ENROLLING and not _was_in(before):
        return "the run takes nobody in after its start (join: before_start)"
    if policy.secure is not None and role is Role.TRAINER:
        return _find_secure_refusal(event)
    if event.examples < 1:
        return "it declares 0 examples; a size is 1 or more"
    if policy.max_examples is not None and event.examples > policy.max_examples:
        return (
            f"it declares {format_count(event.examples, 'example')}, the run takes at most "
            f"{policy.max_examples} from a client (max_examples)"
        )
    return None


def _find_secure_refusal(event: ClientEnrolled) -> str | None:
    """Why it cannot be a trainer of a secure run."""
    if event.identity is None:
        return "it registered without an identity key, by which the others of a secure run know it"
    if event.examples:
        return "it declares its number of examples; of those of a secure run only the sum is asked for"
    return None


def _was_in(before: Enrolment | None) -> bool:
    """Whether the client came before the start, or the operator has looked at it.

    Only who gets in has an index or an identity; who declines unasked has no size.
    """
    if before is None:
        return False
    has_declined = before.status is EnrolmentStatus.DECLINED and before.examples > 0
    given = (before.index, before.identity, before.approved_examples)
    return has_declined or before.status is EnrolmentStatus.LEFT or any(each is not None for each in given)


def find_wait(run: Run, before: Enrolment | None, event: ClientEnrolled) -> str | None:
    """Why the client, which gets in, waits for the operator first; None if it does not."""
    approved = None if before is None else before.approved_examples
    if approved == REFUSED_BY_OPERATOR:
        return "the operator refused it, so it waits for the operator's approval"
    if run.policy.approve == "nothing" or approved == event.examples:
        return None
    changed = "" if approved is None else f", not the {approved} that were approved,"
    return f"its size of {format_count(event.examples, 'example')}{changed} waits for the operator's approval"

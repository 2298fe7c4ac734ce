"""What can happen to a run. Only facts: what follows from them is decided in ``machine``."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from server.lifecycle.state import Policy
from shared.schemas import Role, SumTotals
from shared.secure.messages import Answer

__all__ = [
    "AggregationDelayed",
    "AggregationFailed",
    "AggregationFinished",
    "AssignmentTaken",
    "ChangeRequested",
    "ClientDeclined",
    "ClientEnrolled",
    "ClientLeft",
    "ClientSeen",
    "CoordinatorReturned",
    "DiscrepancyReceived",
    "EnrolmentApproved",
    "EnrolmentRefused",
    "EvaluationReceived",
    "Event",
    "FailureReported",
    "PauseRequested",
    "ResumeRequested",
    "RewindRequested",
    "Sighting",
    "StartRequested",
    "StepAnswered",
    "StopRequested",
    "TimePassed",
    "UpdateReceived",
]


@dataclass(frozen=True, slots=True)
class ClientEnrolled:
    client: str
    role: Role
    examples: int
    index: int | None = None  # asked for by the client; None: the coordinator assigns one
    group: str | None = None  # of the client, as its join token said
    bound_to: Role | None = None  # the only role that its join token allows
    identity: str | None = None  # its public key, hexadecimal


@dataclass(frozen=True, slots=True)
class EnrolmentApproved:
    """By the operator, with the size that is approved."""

    client: str
    examples: int


@dataclass(frozen=True, slots=True)
class EnrolmentRefused:
    """By the operator, whether the client waits for approval or takes part already."""

    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClientDeclined:
    """The client takes no part, or no longer: something at its side has to be put right first.

    ``role`` is what it would have been; who has enrolled stays what it enrolled as.
    """

    client: str
    reason: str
    role: Role = Role.TRAINER


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """At its own request or because its token was revoked; also how a client confirms the end of a run."""

    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClientSeen:
    """A client that was away is heard of again: it asks for work, or tells how far its training is."""

    client: str


@dataclass(frozen=True, slots=True)
class DiscrepancyReceived:
    client: str


@dataclass(frozen=True, slots=True)
class StartRequested:
    pass


@dataclass(frozen=True, slots=True)
class PauseRequested:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    pass


@dataclass(frozen=True, slots=True)
class StopRequested:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RewindRequested:
    """The run is to go on from the model of an earlier round; 0: the initial one."""

    round: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """The run is to go by another policy from now on. ``changes``: (field, before, after), for the log."""

    policy: Policy
    changes: tuple[tuple[str, float | None, float | None], ...]


@dataclass(frozen=True, slots=True)
class AssignmentTaken:
    client: str
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    client: str
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StepAnswered:
    """In a secure round: what a client sends in a step but the upload."""

    client: str
    round: int
    attempt: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class FailureReported:
    client: str
    round: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """When a participant of the open round was last heard of, and how far its training was then.

    ``done``: a share from 0 to 1, None if it has told nothing of it; ``seen_at`` None: it was never heard of.
    """

    client: str
    seen_at: dt.datetime | None
    done: float | None = None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed; deadlines may be over. ``sightings``: what is known of who misses the deadline."""

    sightings: tuple[Sighting, ...] = ()


@dataclass(frozen=True, slots=True)
class CoordinatorReturned:
    """There was no coordinator for this time, so nobody could deliver: it counts for no deadline.

    Also the step by which the time of day was set; negative if it was set back.
    """

    absence: dt.timedelta


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    """An evaluator has scored a round's model; ``value`` is None if that is no finite number.

    Only runs whose course goes by their scores are told.
    """

    client: str
    round: int
    metric: str
    value: float | None
    examples: int


@dataclass(frozen=True, slots=True)
class AggregationFinished:
    """The new model is in the blob store. ``excluded``: (client, reason) of updates left out of it.

    ``weightless``: why no update had weight, if so; the old model was kept. ``totals`` are what the sum that
    ends enrolment, round 0, has told in place of a model.
    """

    round: int
    attempt: int
    excluded: tuple[tuple[str, str], ...] = ()
    weightless: str | None = None
    totals: SumTotals | None = None


@dataclass(frozen=True, slots=True)
class AggregationDelayed:
    """Nothing is wrong with the round, but something that its aggregation needs is not there yet."""

    round: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class AggregationFailed:
    round: int
    attempt: int
    reason: str


Event = (
    ClientEnrolled
    | EnrolmentApproved
    | EnrolmentRefused
    | ClientDeclined
    | ClientLeft
    | ClientSeen
    | DiscrepancyReceived
    | StartRequested
    | PauseRequested
    | ResumeRequested
    | StopRequested
    | RewindRequested
    | ChangeRequested
    | AssignmentTaken
    | UpdateReceived
    | StepAnswered
    | FailureReported
    | TimePassed
    | CoordinatorReturned
    | EvaluationReceived
    | AggregationFinished
    | AggregationDelayed
    | AggregationFailed
)

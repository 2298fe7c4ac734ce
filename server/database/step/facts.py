"""Facts: what the store is told beside an event, for the rows that the state machine does not look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.config import RunConfig
from shared.schemas import Grade
from shared.weightings.base import UNCHANGED, Adjustment

if TYPE_CHECKING:
    from shared.weightings import LedgerEntry
    from shared.weightings.base import Memory

__all__ = [
    "AggregationFacts",
    "AssistanceFacts",
    "ConfigFacts",
    "DiscrepancyFacts",
    "EnrolmentFacts",
    "Facts",
    "FailureFacts",
    "ShadowFacts",
    "TravellingFacts",
    "UpdateFacts",
]


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """With UpdateReceived: the blob, which is stored already, and the numbers that came with it."""

    digest: str
    bytes: int
    steps: int
    loss: float | None
    seconds: float
    start_loss: float | None = None
    end_loss: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class EnrolmentFacts:
    """With ClientEnrolled. ``left_out``: what its data hold that is not trained on, numbers by reason."""

    device: str = "cpu"
    left_out: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DiscrepancyFacts:
    """With DiscrepancyReceived: d_k, at least 0, possibly infinite; and how the site disclosed it."""

    metric: str  # own: the one that the run names by import path
    value: float
    grade: Grade | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class ShadowFacts:
    """The model that another weighting made of the round's updates: its digest, or why there is none.

    ``weights`` are by client index; ``seconds`` is how long making it took.
    """

    name: str
    model: str | None
    bytes: int | None
    weights: Mapping[int, float]
    reason: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TravellingFacts:
    """A model that travels on: its digest, the index of who trained it last, what it counts so far."""

    model: str
    client: int
    earned: float


@dataclass(frozen=True, slots=True)
class AssistanceFacts:
    """Whether the round was made with the assistant's answer; otherwise ``missed`` says why."""

    missed: str | None = None


@dataclass(frozen=True, slots=True)
class AggregationFacts:
    """With AggregationFinished: digests of what was made, the ledger, and the sizes of the new blobs.

    ``model`` and ``scored`` are None for a weightless round, which keeps the old model. ``memory`` is what
    the run's weighting keeps for the next round, ``adjustment`` what it did to the model. ``sums``
    are all that is known of a secure round, in place of a ledger. ``travelling`` are the models that go on,
    by number, after a round that does not average: then nobody starts from its ``model``. ``assistance``: of
    a round whose assistant was asked.
    """

    model: str | None
    scored: str | None
    broadcast: str | None
    private: str | None
    ledger: tuple[LedgerEntry, ...]
    blobs: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    adjustment: Adjustment = UNCHANGED
    sums: Mapping[str, float] = field(default_factory=dict)
    shadows: tuple[ShadowFacts, ...] = ()
    travelling: tuple[TravellingFacts, ...] = ()
    assistance: AssistanceFacts | None = None


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """With FailureReported and ClientDeclined: the client's word for what is wrong, as ``out-of-memory``."""

    code: str


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """With ChangeRequested: the run's configuration from now on."""

    config: RunConfig


Facts = UpdateFacts | EnrolmentFacts | DiscrepancyFacts | AggregationFacts | FailureFacts | ConfigFacts

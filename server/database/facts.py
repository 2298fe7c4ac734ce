"""What the store is told beside an event (facts), and what an aggregation is told by it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.config import Metric, RunConfig
from shared.schemas import TensorSpec

if TYPE_CHECKING:
    from shared.weighting import LedgerEntry

__all__ = [
    "AggregationFacts",
    "AggregationInput",
    "DiscrepancyFacts",
    "EnrolmentFacts",
    "Facts",
    "FailureFacts",
    "JoinTokenRow",
    "OpenAggregation",
    "Trainer",
    "Update",
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


@dataclass(frozen=True, slots=True)
class EnrolmentFacts:
    """With ClientEnrolled."""

    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class DiscrepancyFacts:
    """With DiscrepancyReceived: d_k, at least 0, possibly infinite."""

    metric: Metric
    value: float


@dataclass(frozen=True, slots=True)
class AggregationFacts:
    """With AggregationFinished: digests of what was made, the ledger, and the sizes of the new blobs.

    ``model`` and ``scored`` are None for a weightless round, which keeps the old model.
    """

    model: str | None
    scored: str | None
    broadcast: str | None
    private: str | None
    ledger: tuple[LedgerEntry, ...]
    blobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """With FailureReported: the client's word for the kind of failure, such as ``out_of_memory``."""

    code: str


Facts = UpdateFacts | EnrolmentFacts | DiscrepancyFacts | AggregationFacts | FailureFacts


@dataclass(frozen=True, slots=True)
class Trainer:
    """An enrolled trainer as it counted when the round opened."""

    index: int
    examples: int
    discrepancy: float | None


@dataclass(frozen=True, slots=True)
class Update:
    """An update that arrived in the round; ``relative_size`` is omega_k as the client was told it."""

    index: int
    client: str
    digest: str
    bytes: int
    examples: int
    relative_size: float
    steps: int
    discrepancy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationInput:
    """All that decides a round's result: stored rows only, so that a replay finds the same.

    ``updates`` and ``trainers`` are in index order; ``trainers`` are all N enrolled at the opening.
    """

    run: str
    round: int
    attempt: int
    config: RunConfig
    manifest: tuple[TensorSpec, ...]
    start_model: str
    start_broadcast: str | None
    start_private: str | None
    updates: tuple[Update, ...]
    trainers: tuple[Trainer, ...]

    @property
    def clients(self) -> int:
        return len(self.trainers)


@dataclass(frozen=True, slots=True)
class OpenAggregation:
    """A round whose aggregation is under way, here or in another process, or was lost with one."""

    run: str
    round: int
    attempt: int
    since: dt.datetime


@dataclass(frozen=True, slots=True)
class JoinTokenRow:
    """A join token without the token, of which only a hash is kept. ``uses_left`` None: without limit."""

    id: int
    uses_left: int | None
    created_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None

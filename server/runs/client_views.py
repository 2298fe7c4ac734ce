"""What a client may read: its own rows, a run's configuration and sums; nothing of any other client.

Pure functions from what operators and viewers read. Every field is named here, so that one that is added to a
view reaches no client before somebody has decided that it may (a view that lacks it cannot be made).

A sum over few tells each of them: a client that knows its own part learns another's from a sum of two. So
sums, and a client's own shares of them, are left out where they would cover one other client alone, and
where the client has no part in them, two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from server.lifecycle.views import reason_for_clients
from shared.config import EVERYBODY
from shared.schemas import (
    EnrolmentView,
    EvaluationView,
    EventView,
    LedgerRow,
    Receipt,
    Role,
    RoundView,
    RunStatus,
    RunSummary,
    RunView,
    Sums,
)
from shared.scores import weighted_mean

__all__ = [
    "SMALLEST_SUM",
    "event_for",
    "is_progress_for",
    "receipt_for",
    "round_for",
    "run_for",
    "summary_for",
]

SMALLEST_SUM = 3
"""Clients in any sum that a client reads, itself included."""

_SHARES = ("size_share", "discrepancy_share", "score", "weight", "size_weight", "uncapped_weight")
"""Numbers of a client's own row that hold a sum over all."""

_SUMMARY = (
    *("run", "status", "task", "algorithm", "weighting", "rounds", "completed_rounds"),
    *("created_at", "finished_at", "accuracy", "waiting_since", "waiting_until"),
)
_RUN = (
    *_SUMMARY,
    *("classes", "manifest", "initial_model", "model", "taken_indexes", "waiting_for", "obstacle"),
    "totals",
)
_ROUND = (
    *("run", "round", "attempt", "status", "opened_at", "deadline_at", "closed_at", "completed_at"),
    *("model", "scored_model"),
)

_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "run_created": ("initial_model", "algorithm", "task"),
    "run_started": ("trainers",),
    "run_paused": ("reason",),
    "run_resumed": (),
    "run_stopped": ("reason",),
    "run_completed": ("rounds",),
    "run_waiting": ("until",),
    "round_opened": ("attempt", "deadline_at"),
    "deadline_moved": ("attempt", "absence_seconds", "deadline_at"),
    "round_closed": ("attempt", "updates", "participants"),
    "round_completed": ("attempt", "aggregated", "participants", "model"),
    "round_abandoned": ("attempt",),
    "round_without_weight": ("attempt",),
    "aggregation_delayed": ("attempt",),
    "aggregation_failed": ("attempt",),
    "step_opened": ("attempt", "step", "clients", "deadline_at"),
}
"""Events that concern a run as a whole, with the fields of their detail that name nobody and quote nobody."""


def summary_for(client: str, view: RunSummary) -> RunSummary:
    return RunSummary(reason=_reason(view), **_pick(view, _SUMMARY))


def _reason(view: RunSummary) -> str | None:
    """That of a waiting run names others; ``waiting_for`` says the same without names."""
    return None if view.status is RunStatus.WAITING else reason_for_clients(view.reason)


def run_for(client: str, view: RunView) -> RunView:
    """``view`` with ``waiting_for`` written for this client."""
    trainers = [row for row in view.enrolments if row.role is Role.TRAINER and row.status.is_present]
    sums = Sums(clients=len(trainers))
    if not _gives_away(client, [row.client for row in trainers]):
        sums = sums.model_copy(update={"examples": _count_examples(view, trainers)})
    return RunView(
        **_pick(view, _RUN),
        config=view.config.model_copy(update={"participants": EVERYBODY, "tags": ()}),  # they may name others
        reason=_reason(view),
        late_evaluators=(),  # names others
        enrolments=_own(client, view.enrolments),
        current_round=None if view.current_round is None else round_for(client, view.current_round),
        sums=sums,
    )


def _count_examples(view: RunView, trainers: Sequence[EnrolmentView]) -> int | None:
    """Of a secure run what its first sum has told."""
    if view.config.secure is not None:
        return None if view.totals is None else view.totals.examples
    return sum(row.examples for row in trainers)


def round_for(client: str, view: RoundView) -> RoundView:
    included = [row for row in view.ledger if row.included]
    hidden = _gives_away(client, [row.client for row in included])
    secure = view.secure and view.secure.model_copy(update={"awaited": ()})  # names others
    return RoundView(
        **_pick(view, _ROUND),
        secure=secure,
        reason=None,
        ledger=tuple(_own_row(row, hidden) for row in _own(client, view.ledger)),
        evaluations=_own(client, view.evaluations),
        shadows=(),  # their weights are of others, too
        sums=Sums(
            clients=len(view.ledger),
            arrived=sum(row.status.has_uploaded for row in view.ledger),
            included=len(included),
            examples=None if hidden or view.secure else sum(row.examples for row in included),
            loss=None if hidden else _mean_loss(included),
        ),
    )


def receipt_for(client: str, receipt: Receipt, round: RoundView) -> Receipt:
    """``round``: the round of the receipt, with the whole ledger."""
    if receipt.row is None:
        return receipt
    hidden = _gives_away(client, [row.client for row in round.ledger if row.included])
    return receipt.model_copy(update={"row": _own_row(receipt.row, hidden)})


def event_for(client: str, event: EventView) -> EventView | None:
    """None for an event that is not the client's business."""
    if event.client == client:
        return event
    if event.client is not None or event.kind not in _EVENTS:
        return None
    detail = {name: event.detail[name] for name in _EVENTS[event.kind] if name in event.detail}
    if "reason" in detail:
        detail["reason"] = reason_for_clients(detail["reason"])
    # another client's upload may have closed the round: who it was is not told
    return EventView(**_pick(event, ("id", "at", "kind", "run", "round", "client")), actor="", detail=detail)


def is_progress_for(client: str, progress: Mapping[str, Any]) -> bool:
    """Whether a heartbeat is this client's own."""
    return progress.get("client") == client


def _pick(view: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(view, name) for name in names}


Row = TypeVar("Row", EnrolmentView, LedgerRow, EvaluationView)


def _own(client: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(row for row in rows if row.client == client)


def _gives_away(client: str, summed: Sequence[str]) -> bool:
    """Whether a sum over these clients tells this one too much of too few others."""
    others = sum(name != client for name in summed)
    has_part = others < len(summed)
    return 0 < others < (SMALLEST_SUM - 1 if has_part else SMALLEST_SUM)


def _own_row(row: LedgerRow, hidden: bool) -> LedgerRow:
    """Whose model it went on from, where models travel, is not told either."""
    left_out: dict[str, Any] = {**dict.fromkeys(_SHARES), "details": {}} if hidden else {}
    if row.started_from is not None:
        left_out["started_from"] = None
    return row.model_copy(update=left_out) if left_out else row


def _mean_loss(rows: Sequence[LedgerRow]) -> float | None:
    """Over the examples; None unless all reported one."""
    pairs = [(row.loss, row.examples) for row in rows if row.loss is not None]
    if len(pairs) < len(rows) or not any(examples for _, examples in pairs):
        return None
    return weighted_mean(pairs)

"""A finished run as one JSON document: configuration, versions, curve, ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from feddisco.admin import AdminClient
from shared.files import replace_file
from shared.schemas import RoundStatus, RoundView
from shared.versions import describe_machine, find_versions

__all__ = ["write_record"]

_NOT_KEPT = {"status", "progress", "heartbeat_at", "uploaded_at", "update"}
"""Of a ledger row: what concerns the moment, or a file that is not in the document."""


def write_record(client: AdminClient, run: str, path: Path) -> None:
    """Write what the pages show of ``run`` to ``path``."""
    view = client.run(run)
    rounds = sorted(client.rounds(run), key=lambda one: (one.round, one.attempt))
    document = {
        "run": run,
        "status": view.status.value,
        "config": view.config.model_dump(mode="json"),
        "versions": find_versions("torch", "numpy"),
        "machine": describe_machine(),
        "model": view.model,
        "rounds": [
            _describe_round(one) for one in rounds if one.status is RoundStatus.COMPLETED and one.round
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(document, indent=1) + "\n").encode())


def _describe_round(view: RoundView) -> dict[str, Any]:
    scores = [
        {"client": one.client, "loss": one.loss, "accuracy": one.accuracy, "per_category": one.per_category}
        for one in view.evaluations
    ]
    took = (view.completed_at - view.opened_at).total_seconds() if view.completed_at else None
    shadows = [shadow.model_dump(mode="json") for shadow in view.shadows]
    seen = {
        one.client: {name: score.accuracy for name, score in one.shadows.items()} for one in view.evaluations
    }
    beside = {
        name: part.model_dump(mode="json")
        for name, part in (("adjustment", view.adjustment), ("assistance", view.assistance))
        if part is not None
    }
    return {
        "round": view.round,
        "seconds": took,
        "model": view.model,
        "evaluations": scores,
        "ledger": [row.model_dump(mode="json", exclude=_NOT_KEPT) for row in view.ledger],
        **beside,
        **({"shadows": shadows, "shadow_accuracy": seen} if shadows else {}),
    }

"""A table small enough to be run in a test, on the digits, and results written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import reproduce, tables
from experiments.plan import expand
from experiments.tables import Setting, Table, settings

DIGITS = Setting(
    title="Digits",
    config={"task": "digits", "rounds": 3, "partition": "niid2:5+1", "local": {"steps": 2, "batch_size": 16}},
)


def table(**changes: Any) -> Table:
    """FedAvg and FedDyn on digits, two seeds; needs the setting ``digits`` (see ``with_digits``)."""
    fields: dict[str, Any] = {
        "name": "small",
        "title": "Small",
        "source": "nowhere but here",
        "claim": "Disco helps.",
        "settings": ["digits"],
        "methods": ["fedavg", "feddyn"],
        "seeds": 2,
        "target_accuracy": 0.55,
        "published": {
            "digits": {"fedavg": {"base": {"value": 54.27, "std": 3.44, "rounds": 58}, "disco": 61.59}}
        },
        "figures": [{"kind": "curves", "title": "Accuracy by round"}],
    }
    return Table.model_validate(fields | changes)


def put_small_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``feddisco reproduce`` know this table alone, from ``folder/experiments``."""
    here = folder / "experiments"
    (here / "tables").mkdir(parents=True)
    document = table().model_dump(mode="json", exclude={"name"}, exclude_unset=True)
    (here / "tables" / "small.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    for name in ("sources.yaml", "methods.yaml"):
        (here / name).write_text((tables.HERE / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(tables, "HERE", here)
    monkeypatch.setattr(reproduce, "HERE", here)


def with_digits() -> None:
    """Make the settings ``digits`` (3 rounds) and ``digits-12`` (12, validation) known to every table."""
    settings()["digits"] = DIGITS
    partition = {"kind": "niid2", "clients": 6, "unbiased": 1, "validation": 200}
    longer = DIGITS.config | {"rounds": 12, "partition": partition}
    settings()["digits-12"] = DIGITS.model_copy(update={"config": longer})


def longer(**changes: Any) -> Table:
    """A table of ``digits-12``: enough rounds to say who is ahead."""
    return table(**{"settings": ["digits-12"], "published": {}, "figures": [], "seeds": 1} | changes)


def write_curves(
    results: Path,
    accuracies: dict[tuple[str, str, int], list[float]],
    given: Table,
    validation: dict[tuple[str, str, int], float] | None = None,
    weights: tuple[float, ...] = (),
) -> None:
    """Committed results by (method, weighting, seed); ``validation`` is the accuracy of all rounds."""
    for run in expand(given):
        curve = accuracies.get((run.cell.method, run.cell.weighting, run.seed))
        if curve is None:
            continue
        config = run.config.model_dump(mode="json")
        lines: list[dict[str, Any]] = [
            {"kind": "run", "config": config, "versions": {"torch": "2"}, "categories": ["a", "b"]}
        ]
        lines += [
            {
                "kind": "round",
                "round": number,
                "accuracy": accuracy,
                "loss": 1 - accuracy,
                "per_category": [accuracy, accuracy],
                "weights": list(weights),
                "per_client": [accuracy, accuracy - 0.1],
                "validation_accuracy": (validation or {}).get(
                    (run.cell.method, run.cell.weighting, run.seed)
                ),
            }
            for number, accuracy in enumerate(curve, start=1)
        ]
        path = results / run.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

"""Shadows in a simulation: the run is untouched, and each is the model that its weighting makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.config import RunConfig
from simulation.run import simulate


def configure(**fields: Any) -> RunConfig:
    given = {
        "name": "shadowed",
        "task": "digits",
        "rounds": 3,
        "partition": "niid1:4:0.3",
        "evaluate_every": 2,
        "local": {"steps": 4, "batch_size": 16, "learning_rate": 0.05},
    }
    return RunConfig.model_validate(given | fields)


def run(out: Path, **fields: Any) -> tuple[str, dict[int, dict[str, Any]]]:
    digest = simulate(configure(**fields), source=None, out=out, say=lambda _: None)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return digest, {line["round"]: line for line in lines if line["kind"] == "round"}


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn"])  # state at both ends; a scored model of its own
def test_the_run_is_the_same_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "plain.jsonl", algorithm=algorithm)
    shadowed, rounds = run(tmp_path / "shadowed.jsonl", algorithm=algorithm, shadow=["sizes", "uniform"])
    assert shadowed == plain
    assert [number for number, line in rounds.items() if "shadows" in line] == [2, 3], "the scored rounds"


def test_a_shadow_of_the_first_round_is_what_a_run_of_that_weighting_makes(tmp_path: Path) -> None:
    """All runs start from the same model, and their clients train the same in the first round."""
    _, rounds = run(
        tmp_path / "disco.jsonl", evaluate_every=1, rounds=1, shadow=["sizes", "uniform", "fedlws"]
    )
    for kind in ("sizes", "uniform", "fedlws"):
        own = {"weighting": {"kind": kind}, "evaluate_every": 1, "rounds": 1}
        digest, alone = run(tmp_path / f"{kind}.jsonl", **own)
        found = rounds[1]["shadows"][kind]
        assert found["model"] == digest != rounds[1]["model"]
        assert (found["accuracy"], found["loss"]) == (alone[1]["accuracy"], alone[1]["loss"])
        assert found["weights"] == alone[1]["weights"]
        assert found["reason"] is None
        assert found["seconds"] >= 0


def test_a_shadow_that_comes_to_nothing_says_why_and_the_run_goes_on(tmp_path: Path) -> None:
    broken = {"kind": f"{__name__}:NoSuchRule"}
    given = {"partition": "iid:4", "evaluate_every": 1}
    hopeless = {"kind": "disco", "a": 100, "b": -1, "on_all_zero": "raise"}
    plain, _ = run(tmp_path / "plain.jsonl", **given)
    digest, rounds = run(tmp_path / "shadowed.jsonl", **given, shadow=[broken, hopeless])
    assert digest == plain
    for line in rounds.values():
        imported, weightless = line["shadows"].values()
        assert (imported["model"], imported["accuracy"]) == (None, None)
        assert "cannot be imported" in imported["reason"]
        assert weightless["model"] is None
        assert weightless["reason"]

"""Runs with every weighting, without HTTP: gone on with, over processes; and what a run must have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.weightings import available
from simulation.run import simulate


def configure(kind: str, **fields: Any) -> RunConfig:
    partition = {"kind": "niid1", "clients": 6, "beta": 0.3, "validation": 300}
    return RunConfig.model_validate(
        {
            "name": "short",
            "task": "digits",
            "rounds": 3,
            "partition": partition,
            "clients_per_round": 5,
            "local": {"steps": 4, "batch_size": 16, "learning_rate": 0.05},
            "weighting": {"kind": kind},
            **fields,
        }
    )


def run(config: RunConfig, out: Path, **arguments: Any) -> str:
    return simulate(config, source=None, out=out, say=lambda _: None, **arguments)


def rounds(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "round"]


@pytest.mark.parametrize("kind", available())
def test_a_run_that_is_gone_on_with_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    """What a weighting remembers survives: after each round all is built anew from the folder."""
    config = configure(kind)
    whole = run(config, tmp_path / "whole.jsonl")
    for until in (1, 2, None):
        pieces = run(config, tmp_path / "pieces.jsonl", until=until)
        if until == 1:  # what it declares is so
            checkpoint = json.loads((tmp_path / "pieces.jsonl.checkpoint" / "checkpoint.json").read_text())
            assert bool(checkpoint["memory"]) == config.weighting.remembers
    assert pieces == whole
    for one, other in zip(rounds(tmp_path / "whole.jsonl"), rounds(tmp_path / "pieces.jsonl"), strict=True):
        assert one["weights"] == other["weights"]
        assert sum(one["weights"]) == pytest.approx(1)


def test_every_weighting_makes_models_of_its_own(tmp_path: Path) -> None:
    digests = {kind: run(configure(kind, rounds=2), tmp_path / f"{kind}.jsonl") for kind in available()}
    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize("kind", ["fedlaw", "fedadp", "feddgga"])
def test_in_a_round_that_only_measures_nothing_is_learned_or_remembered(kind: str, tmp_path: Path) -> None:
    """Nobody moved: a service asks no assistant about such a round, and an angle would be that of nothing."""
    fedfm = {"name": "fedfm", "parameters": {"start": 1}}
    config = configure(kind, algorithm=fedfm, clients_per_round=None)
    memories = []
    for until in (1, 2):
        run(config, tmp_path / "out.jsonl", until=until)
        checkpoint = json.loads((tmp_path / "out.jsonl.checkpoint" / "checkpoint.json").read_text())
        memories.append(checkpoint["memory"])
    assert memories[0] == memories[1]
    trained, measured = rounds(tmp_path / "out.jsonl")
    if kind == "fedlaw":
        run(configure("sizes", clients_per_round=None, rounds=1), tmp_path / "sizes.jsonl")
        by_sizes = pytest.approx(rounds(tmp_path / "sizes.jsonl")[0]["weights"])
        assert measured["weights"] == by_sizes
        assert trained["weights"] != by_sizes


@pytest.mark.long
def test_over_processes_the_same_bits(tmp_path: Path) -> None:
    """Losses travel."""
    config = configure("feddgga")
    one = run(config, tmp_path / "one.jsonl")
    assert run(config, tmp_path / "two.jsonl", processes=2) == one


def test_losses_are_measured_where_they_are_asked_for(tmp_path: Path) -> None:
    run(configure("feddgga", rounds=1), tmp_path / "asked.jsonl")
    run(configure("qfedavg", rounds=1), tmp_path / "start.jsonl")
    run(configure("fedawa", rounds=1), tmp_path / "not.jsonl")
    (asked,), (start,), (not_asked,) = (
        rounds(tmp_path / f"{name}.jsonl") for name in ("asked", "start", "not")
    )
    assert not {"start_loss", "end_loss"} & set(not_asked)
    assert set(start) - set(not_asked) == {"start_loss"}
    assert start["start_loss"] == asked["start_loss"]
    assert all(end < begun for begun, end in zip(asked["start_loss"], asked["end_loss"], strict=True))


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "fedavgm"])
def test_weightings_go_with_any_algorithm(algorithm: str, tmp_path: Path) -> None:
    """Those that do something to the model that the algorithm makes."""
    kinds = ("sizes", "qfedavg", "fedlws", "fedlaw")
    configs = [configure(kind, rounds=2, algorithm=algorithm) for kind in kinds]
    digests = {run(config, tmp_path / f"{config.weighting.kind}.jsonl") for config in configs}
    assert len(digests) == len(kinds)


def test_fedlaw_without_examples_of_its_own_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="learns on examples that no client is dealt"):
        run(configure("fedlaw", partition="niid2:5+1"), tmp_path / "none.jsonl")


def test_a_weighting_of_ones_own_is_simulated(tmp_path: Path) -> None:
    own = {"kind": "tests.shared.test_weightings:Squared", "options": {"power": 0.0}}
    config = configure("sizes", weighting=own)
    assert run(config, tmp_path / "own.jsonl") == run(configure("uniform"), tmp_path / "uniform.jsonl")

"""Runs that distil, without HTTP: with any algorithm, over processes, gone on with; what it may gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from simulation.run import simulate

SKEWED = {"kind": "niid1", "clients": 4, "beta": 0.1, "validation": 300}


def configure(**fields: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "distilled",
        "task": "digits",
        "rounds": 2,
        "partition": SKEWED,
        "local": {"steps": 6, "batch_size": 16, "learning_rate": 0.05},
        "distillation": {"steps": 20},
    }
    return RunConfig.model_validate(given | fields)


def run(out: Path, config: RunConfig, **arguments: Any) -> tuple[str, list[dict[str, Any]]]:
    digest = simulate(config, source=None, out=out, say=lambda _: None, **arguments)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return digest, [line for line in lines if line["kind"] == "round"]


@pytest.mark.long
def test_over_processes_and_gone_on_with_the_same_bits(tmp_path: Path) -> None:
    whole, rounds = run(tmp_path / "whole.jsonl", configure())
    assert [line["distilled"]["steps"] for line in rounds] == [20, 20]
    assert run(tmp_path / "two.jsonl", configure(), processes=2)[0] == whole
    for until in (1, None):
        pieces, _ = run(tmp_path / "pieces.jsonl", configure(), until=until)
    assert pieces == whole
    plain, rounds = run(tmp_path / "plain.jsonl", configure(distillation=None))
    assert plain != whole
    assert "distilled" not in rounds[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "scaffold"},
        {"algorithm": "feddyn"},  # what is sent is not what is scored
        {"algorithm": "fedavgm", "weighting": {"kind": "fedlaw", "examples": 50, "epochs": 2}},
        {"compression": "int8"},
        {"distillation": {"steps": 20, "ensemble": "weights"}},
        {"distillation": {"steps": 20, "examples": 100}},
    ],
)
def test_it_goes_with_any_algorithm_weighting_and_form_of_updates(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    plain, before = run(tmp_path / "plain.jsonl", configure(**{**fields, "distillation": None}))
    made, after = run(tmp_path / "made.jsonl", configure(**fields))
    assert made != plain
    assert after[0]["weights"] == before[0]["weights"]
    for line in after:
        assert line["distilled"]["after"] < line["distilled"]["before"]


def test_where_the_ensemble_is_better_than_the_average_so_is_the_student(tmp_path: Path) -> None:
    """One round, so that all else is the same. It is no rule: on other shares the average is the better."""
    fields: dict[str, Any] = {
        "rounds": 1,
        "partition": {**SKEWED, "clients": 6},
        "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.05},
        "weighting": {"kind": "sizes"},
    }
    _, (plain,) = run(tmp_path / "plain.jsonl", configure(**fields, distillation=None))
    found = []
    for ensemble in ("uniform", "weights"):
        asked = {"steps": 300, "ensemble": ensemble}
        _, (line,) = run(tmp_path / f"{ensemble}.jsonl", configure(**fields, distillation=asked))
        found.append(line["accuracy"])
    assert found[0] != found[1]
    assert min(found) > plain["accuracy"] + 0.05


def test_a_round_that_only_measures_distils_nothing(tmp_path: Path) -> None:
    config = configure(rounds=3, algorithm={"name": "fedfm", "parameters": {"start": 1}})
    _, rounds = run(tmp_path / "fedfm.jsonl", config)
    assert ["distilled" in line for line in rounds] == [True, False, True]
    assert rounds[1]["model"] == rounds[0]["model"]


def test_shadows_are_distilled_like_the_run(tmp_path: Path) -> None:
    """That of the first round is what a run of that weighting makes."""
    _, (shadowed,) = run(tmp_path / "shadowed.jsonl", configure(rounds=1, shadow=["uniform"]))
    alone, _ = run(tmp_path / "alone.jsonl", configure(rounds=1, weighting={"kind": "uniform"}))
    assert shadowed["shadows"]["uniform"]["model"] == alone


def test_without_examples_of_its_own_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="needs examples that no client is dealt"):
        run(tmp_path / "none.jsonl", configure(partition="niid2:5+1"))

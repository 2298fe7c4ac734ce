"""Committed results, made again on a processor of the same kind: the same models, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from experiments.records import HEX, publish
from experiments.reproduce import RESULTS, find_source
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from simulation.kernels import KernelsName
from simulation.results import has_kernels_of_here, header, made_with
from simulation.run import CPU, Results, simulate

SLOW = 20.0
"""Seconds of a round that the suite does not wait for."""


@dataclass(frozen=True)
class Committed:
    """The beginning of a committed result."""

    path: Path
    header: dict[str, Any]
    first: dict[str, Any]


def committed() -> Iterator[Committed]:
    """Those that say how their first round's model came out."""
    for path in sorted(RESULTS.glob("*/*.jsonl")):
        with path.open(encoding="utf-8") as file:
            top, first = json.loads(file.readline()), json.loads(file.readline() or "{}")
        if first.get("kind") == "round" and "model" in first:
            yield Committed(path, top, first)


def is_made_like_here(result: Committed) -> bool:
    here = header(RunConfig.model_validate(result.header["config"]), "in-process", "torch", CPU)
    if made_with(result.header).kernels not in get_args(KernelsName):
        return False
    same = ("processor", "vectors")
    return (
        result.header["versions"] == here["versions"]
        and all(result.header["machine"].get(name) == here["machine"][name] for name in same)
        and (made_with(result.header).kernels == "torch" or has_kernels_of_here(result.header))
    )


@pytest.mark.slow
def test_a_committed_round_made_again_is_the_same_model(tmp_path: Path) -> None:
    alike = [each for each in committed() if each.first["seconds"] < SLOW and is_made_like_here(each)]
    if not alike:
        pytest.skip("no committed result was made on a processor of this kind with these versions")
    quickest = min(alike, key=lambda each: each.first["seconds"])
    config = RunConfig.model_validate(quickest.header["config"])
    try:
        source = find_source(config.task, Path(os.environ.get("FEDDISCO_DATA") or "../shared/data"))
    except InvalidConfiguration as problem:
        pytest.skip(str(problem))
    kernels: Any = made_with(quickest.header).kernels
    simulate(config, source=source, out=tmp_path / "again.jsonl", kernels=kernels, until=1, say=print)
    again = str(Results(tmp_path / "again.jsonl").lines()[1]["model"])
    assert len(quickest.first["model"]) >= HEX, "whole, or as published"
    assert again.startswith(quickest.first["model"])


def test_the_compact_form_keeps_what_a_round_came_out_as(tmp_path: Path) -> None:
    config = RunConfig(name="r", rounds=2, partition="iid:3", local={"steps": 1})
    models = []
    for name in ("one", "two"):
        simulate(config, source=None, out=tmp_path / f"{name}.jsonl", say=lambda line: None)
        publish(tmp_path / f"{name}.jsonl", tmp_path / f"{name}-compact.jsonl")
        lines = Results(tmp_path / f"{name}-compact.jsonl").lines()
        models.append([line["model"] for line in lines if line["kind"] == "round"])
        assert lines[-1]["model"].startswith(lines[-2]["model"])
        assert {"processor", "vectors", "engine", "kernels"} <= lines[0]["machine"].keys()
        assert "commit" in lines[0]
    assert models[0] == models[1]

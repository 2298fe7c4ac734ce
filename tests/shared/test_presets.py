"""The alias and the preset write a configuration out, and leave no trace of their own."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.algorithms import load_algorithm
from shared.config import RunConfig


def run(**fields: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "a", **fields})


def test_the_alias_is_feddyn_with_disco_weights() -> None:
    plain = run(
        algorithm={"name": "feddyn", "parameters": {"alpha": 0.1}}, weighting={"kind": "disco", "a": 0.3}
    )
    short = run(
        algorithm={"name": "feddisco", "parameters": {"alpha": 0.1}}, weighting={"kind": "disco", "a": 0.3}
    )
    assert short == plain
    assert run(algorithm="feddisco") == run(algorithm="feddyn")


@pytest.mark.parametrize("kind", ["sizes", "uniform"])
def test_the_alias_refuses_other_weights(kind: str) -> None:
    with pytest.raises(ValidationError, match=f"FedDyn with Disco weights, received weighting '{kind}'"):
        run(algorithm="feddisco", weighting={"kind": kind})


@pytest.mark.parametrize(
    ("name", "parameters", "clip"),
    [
        ("fedavg", {}, None),
        ("fedavgm", {"beta": 0.5, "damped": True}, None),
        ("scaffold", {"random_controls": 0}, None),
        ("feddyn", {"alpha": 0.01, "alpha_scaling": "size", "scaled_terms": "linear"}, 10.0),
        ("feddisco", {"alpha": 0.01, "alpha_scaling": "size", "scaled_terms": "linear"}, 10.0),
        ("fednova", {"normaliser": "steps"}, None),
        ("feddc", {"alpha": 0.01, "alpha_scaling": "size", "gradient_term": False}, 10.0),
        ("moon", {"mu": 0.1, "temperature": 0.5}, None),
    ],
)
def test_the_release_chooses_its_variants(name: str, parameters: dict[str, Any], clip: float | None) -> None:
    config = run(preset="feddisco-release", algorithm=name)
    assert config.algorithm.parameters == parameters
    assert config.local.clip_norm == clip
    load_algorithm(config.algorithm)
    assert RunConfig.model_validate(config.model_dump()) == config


def test_what_the_configuration_says_goes_before_the_preset() -> None:
    config = run(
        preset="feddisco-release",
        algorithm={"name": "feddyn", "parameters": {"alpha": 0.1}},
        local={"steps": 3, "clip_norm": 1.0},
    )
    assert config.algorithm.parameters == {"alpha": 0.1, "alpha_scaling": "size", "scaled_terms": "linear"}
    assert (config.local.steps, config.local.epochs, config.local.clip_norm) == (3, None, 1.0)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ValidationError, match="preset 'fast' is not known; there is feddisco-release"):
        run(preset="fast")


def test_what_is_no_configuration_is_left_to_the_check() -> None:
    with pytest.raises(ValidationError, match=r"algorithm"):
        run(algorithm=7, preset="feddisco-release")


def test_a_part_by_its_kind_alone_is_that_part() -> None:
    """Everywhere in a run's configuration, also where secure sums decide what Disco leaves open."""
    short = RunConfig.model_validate({"name": "a", "weighting": "nashmtl", "distillation": "feddf"})
    assert short == RunConfig.model_validate(
        {"name": "a", "weighting": {"kind": "nashmtl"}, "distillation": {}}
    )
    secure = {"name": "a", "secure": {}, "min_clients": 3}
    disco = RunConfig.model_validate({**secure, "weighting": "disco"})
    assert disco == RunConfig.model_validate({**secure, "weighting": {"kind": "disco"}})
    assert RunConfig.model_validate({"name": "a", "algorithm": "feddisco", "weighting": "disco"})
    with pytest.raises(ValueError, match="kind is none of disco"):
        RunConfig.model_validate({"name": "a", "weighting": "nash"})

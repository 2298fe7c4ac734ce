"""What has to hold on a GPU: ``make test-gpu``. The same comparisons run on the CPU, where they are exact."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.algorithms import available
from shared.config import RunConfig
from shared.training import Precision
from shared.training.workbench import ClientTask
from shared.weightings import available as weightings
from simulation.jobs import WorkbenchSpec
from simulation.run import simulate

NEAR = {"cpu": 0.0, "cuda": 2e-3}
"""How far losses may be from the CPU's, relative to them."""


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no NVIDIA GPU that PyTorch can use")
    return name


def configure(**fields: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "short",
            "task": "digits",
            "rounds": 2,
            "partition": {"kind": "niid1", "clients": 4, "beta": 0.3, "validation": 200},
            "local": {"steps": 5, "batch_size": 32, "learning_rate": 0.05},
            "weighting": {"kind": "sizes"},
            **fields,
        }
    )


def run(config: RunConfig, out: Path, device: str) -> tuple[str, list[float]]:
    """The final digest, and all losses: of clients, and of the models on test data."""
    digest = simulate(config, source=None, out=out, device=device, say=lambda _: None)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    rounds = [line for line in lines if line["kind"] == "round"]
    return digest, [loss for line in rounds for loss in (*line["local_loss"], line["loss"])]


@pytest.mark.parametrize("algorithm", available())
def test_every_algorithm_is_near_the_cpu(algorithm: str, device: str, tmp_path: Path) -> None:
    config = configure(algorithm=algorithm)
    _, expected = run(config, tmp_path / "cpu.jsonl", "cpu")
    _, found = run(config, tmp_path / "other.jsonl", device)
    assert found == pytest.approx(expected, rel=NEAR[device], abs=0)


@pytest.mark.parametrize("kind", weightings())
def test_every_weighting_is_near_the_cpu(kind: str, device: str, tmp_path: Path) -> None:
    config = configure(weighting={"kind": kind})
    _, expected = run(config, tmp_path / "cpu.jsonl", "cpu")
    _, found = run(config, tmp_path / "other.jsonl", device)
    assert found == pytest.approx(expected, rel=NEAR[device], abs=0)


def test_two_runs_give_the_same_bits(device: str, tmp_path: Path) -> None:
    config = configure(algorithm="scaffold")
    assert run(config, tmp_path / "one.jsonl", device) == run(config, tmp_path / "two.jsonl", device)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_client_trains_in_mixed_precision(precision: Precision, device: str, tmp_path: Path) -> None:
    """Of ten steps the mean loss is within 5 % of float32 on the CPU; data and model stay on the device."""
    losses = {}
    both: list[tuple[str, Precision]] = [("cpu", "float32"), (device, precision)]
    for place, precise in both:
        workbench = WorkbenchSpec.of(configure(local={"steps": 10, "batch_size": 32})).build(
            torch.device(place)
        )
        workbench._precision = precise
        model = write_start(workbench, tmp_path / f"start-{place}-{precise}")
        result = workbench.train(ClientTask(1, 0, 1.0, False, model), clock=time.perf_counter)
        assert workbench.training_examples(0).inputs.device.type == place
        assert all(torch.isfinite(tensor).all() for tensor in result.tensors["model"].values())
        losses[place, precise] = result.loss
    assert losses[device, precision] == pytest.approx(losses["cpu", "float32"], rel=0.05)


def write_start(workbench: Any, path: Path) -> Path:
    from shared import wire
    from shared.wire.tensors import state_of

    return wire.write(path, {wire.MODEL: state_of(workbench.model)}).path


def test_little_of_the_gpu_is_taken(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this machine has no NVIDIA GPU that PyTorch can use")
    torch.cuda.reset_peak_memory_stats()
    run(configure(), tmp_path / "run.jsonl", "cuda")
    assert torch.cuda.max_memory_allocated() < 2**29, "half a gigabyte, for 1,797 images of 64 pixels"

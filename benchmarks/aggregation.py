"""Aggregation against the memory bound: one JSON line.

* ``seconds``: :func:`shared.aggregation.aggregate` with FedAvg, from files to the durable result file.
* ``reference_seconds``: the same files' tensors, mapped in the same way, added into one accumulator with
  ``add_(tensor, alpha=w)``; nothing is written. ``write_seconds``: writing (digest and fsync) of one model.
* ``resident_seconds``: one update that is in memory already, added as often as there are updates.
* ``speed``: reference over ours; ``speed_without_write``: the same without ``write_seconds`` of ours.

Run: ``python -m benchmarks.aggregation --updates 50 --parameters 11173962``
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from benchmarks.command import machine, parse, print_result
from shared import wire
from shared.aggregation import UpdateFile, aggregate
from shared.algorithms import load_algorithm
from shared.algorithms.base import UpdateInfo
from shared.config import AlgorithmChoice, LocalTraining
from shared.schemas import TensorSpec

TENSORS = 60
"""A ResNet-18 has 62 parameter tensors."""


def manifest_for(parameters: int) -> tuple[TensorSpec, ...]:
    """So many float32 parameters in tensors of (nearly) equal size."""
    size, rest = divmod(parameters, TENSORS)
    shapes = [size + (index < rest) for index in range(TENSORS)]
    return tuple(TensorSpec(name=f"t{i:02}", shape=(n,), dtype="F32") for i, n in enumerate(shapes) if n)


def random_model(manifest: tuple[TensorSpec, ...], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {spec.name: torch.randn(spec.shape, generator=generator) for spec in manifest}


class PeakMemory:
    """Largest resident set above that at the start, in bytes, sampled every millisecond."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        process, over = psutil.Process(), threading.Event()
        baseline = process.memory_info().rss

        def watch() -> None:
            while not over.wait(0.001):
                self.bytes = max(self.bytes, process.memory_info().rss - baseline)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def best(repeats: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest of so many runs of each, in seconds; taken in turns, so that a noisy moment hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return {name: min(taken) for name, taken in seconds.items()}


def measure(folder: Path, updates: int, parameters: int, repeats: int) -> dict[str, Any]:
    manifest = manifest_for(parameters)
    model = wire.write(folder / "model.safetensors", {"model": random_model(manifest, updates)}).path
    files = [
        UpdateFile(
            UpdateInfo(index, 1, 1.0, 1),
            wire.write(folder / f"{index}.safetensors", {"model": random_model(manifest, index)}).path,
        )
        for index in range(updates)
    ]
    weights = dict.fromkeys(range(updates), 1 / updates)

    def ours() -> object:
        return aggregate(
            algorithm=load_algorithm(AlgorithmChoice(name="fedavg")),
            manifest=manifest,
            model=model,
            broadcast=None,
            private=None,
            updates=files,
            weights=weights,
            clients=updates,
            local=LocalTraining(steps=1),
            buffers="average",
            folder=folder,
        )

    def reference() -> None:
        sums = {spec.name: torch.zeros(spec.shape) for spec in manifest}
        for file in files:
            with wire.opened(file.path) as mapped:
                for name, total in sums.items():
                    total.add_(mapped.tensor("model", name), alpha=weights[file.info.index])

    loaded = random_model(manifest, 0)
    sums = {name: torch.zeros_like(tensor) for name, tensor in loaded.items()}

    def resident() -> None:
        for weight in weights.values():
            for name, total in sums.items():
                total.add_(loaded[name], alpha=weight)

    peak = PeakMemory()
    with peak.watched():
        ours()
    taken = best(
        repeats,
        {
            "ours": ours,
            "reference": reference,
            "write": lambda: wire.write(folder / "written.safetensors", {"model": loaded}),
            "resident": resident,
        },
    )
    return {
        "seconds": round(taken["ours"], 4),
        "reference_seconds": round(taken["reference"], 4),
        "write_seconds": round(taken["write"], 4),
        "resident_seconds": round(taken["resident"], 4),
        "speed": round(taken["reference"] / taken["ours"], 3),
        "speed_without_write": round(taken["reference"] / (taken["ours"] - taken["write"]), 3),
        "peak_models": round(peak.bytes / (4 * parameters), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Aggregation against the memory bound; prints one JSON line."
    )
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--parameters", type=int, default=11_173_962, help="a ResNet-18 for ten classes")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parse(parser, {"updates": 4, "parameters": 100_000, "repeats": 1})
    about = {
        "benchmark": "aggregation",
        "updates": chosen.updates,
        "parameters": chosen.parameters,
        **machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print_result(lambda folder: about | measure(folder, chosen.updates, chosen.parameters, chosen.repeats))


if __name__ == "__main__":
    main()

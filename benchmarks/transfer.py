"""What one large update costs the coordinator: real HTTP over loopback, memory sampled while it arrives.

    python -m benchmarks.transfer            1 GiB
    python -m benchmarks.transfer --mib 64   smaller

Prints one JSON line. The same file first travels as initial weights, so that the growth of memory covers both
kinds of upload. It is memory that only this process has, against that after a small upload, which has PyTorch
imported: pages of a mapped file, which the system takes back whenever it likes, do not count. Of the two
trainers only one delivers: nothing is aggregated. Seconds end with the receipt, so they include hashing,
validation and fsync.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch

from benchmarks.command import Failed, machine, parse, print_result
from benchmarks.deployment import JOIN_TOKEN, deployment
from feddisco.admin import AdminClient
from shared import wire
from shared.config import RunConfig
from shared.schemas import (
    EnrolmentRequest,
    InitialBlob,
    Registration,
    RunRequest,
    TensorSpec,
    Train,
    UpdateReport,
)
from worker.client import CoordinatorClient

MIB = 1024 * 1024
LIMIT_BYTES = 64 * MIB
RUN = "transfer"
TASK = "benchmarks.nowhere:Task"  # never imported: its weights are uploaded
CLASSES = ("no", "yes")
TENSORS = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the update in MiB")
    chosen = parse(parser, {"mib": 4})
    print_result(lambda folder: measure(folder, chosen.mib))


def measure(folder: Path, mib: int) -> dict[str, Any]:
    files: dict[str, tuple[wire.Written, tuple[TensorSpec, ...]]] = {}
    with deployment(folder) as running:
        for run, size in (("small", 1), (RUN, mib)):
            files[run] = _file(folder / run, size)
        _create(running.admin, "small", *files["small"])
        _upload(running.url, "small", files["small"][0])
        written, manifest = files[RUN]
        with _memory_of(running.processes.running["coordinator"].pid) as memory:
            initial_seconds = _create(running.admin, RUN, written, manifest)
            update_seconds = _upload(running.url, RUN, written)
    return _result(written.bytes, memory, initial_seconds, update_seconds)


def _file(path: Path, mib: int) -> tuple[wire.Written, tuple[TensorSpec, ...]]:
    tensor = torch.ones(mib * MIB // 4 // TENSORS)
    names = [f"layer{number:02}.weight" for number in range(TENSORS)]
    manifest = tuple(TensorSpec(name=name, shape=tuple(tensor.shape), dtype="F32") for name in names)
    return wire.write(path, {wire.MODEL: dict.fromkeys(names, tensor)}), manifest


def _create(admin: AdminClient, run: str, written: wire.Written, manifest: tuple[TensorSpec, ...]) -> float:
    begin = time.perf_counter()
    admin.put_blob(written.path, written.digest)
    seconds = time.perf_counter() - begin
    config = RunConfig.model_validate(
        {
            "name": run,
            "task": TASK,
            "classes": CLASSES,
            "quorum": 2,
            "weighting": {"kind": "sizes"},
            "evaluate_every": 0,
        }
    )
    admin.create(RunRequest(config=config, initial=InitialBlob(digest=written.digest, manifest=manifest)))
    return seconds


def _upload(url: str, run: str, written: wire.Written) -> float:
    """Two trainers enrol; the first sends its update. Seconds from the first byte to the receipt."""
    with CoordinatorClient(url) as first, CoordinatorClient(url) as second:
        for name, client in (("first", first), ("second", second)):
            client.authenticate(client.register(JOIN_TOKEN, Registration(name=f"{name}-{run}")).token)
            client.enrol(run, EnrolmentRequest(task=TASK, examples=10, classes=CLASSES))
        assignment = first.work(10)
        if not isinstance(assignment, Train):
            raise Failed(f"The first client was not asked to train: {assignment}")
        report = UpdateReport(attempt=assignment.attempt, steps=1, examples=10)
        begin = time.perf_counter()
        receipt = first.upload(run, assignment.round, report, written.path, written.digest)
        seconds = time.perf_counter() - begin
    assert receipt.digest == written.digest
    return seconds


@contextmanager
def _memory_of(pid: int) -> Iterator[list[int]]:
    """Private bytes of a process: at the beginning, then every 10 ms until the block ends."""
    process, ended = psutil.Process(pid), threading.Event()

    def read() -> int:
        found = process.memory_info()
        return int(found.rss - getattr(found, "shared", 0))  # Linux tells

    samples = [read()]

    def sample() -> None:
        while not ended.wait(0.01):
            samples.append(read())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _result(size: int, memory: list[int], initial_seconds: float, update_seconds: float) -> dict[str, Any]:
    growth = max(memory) - memory[0]
    return {
        "benchmark": "transfer",
        "bytes": size,
        "growth_bytes": growth,
        "limit_bytes": LIMIT_BYTES,
        "within_limit": growth < LIMIT_BYTES,
        "idle_bytes": memory[0],
        "samples": len(memory),
        "update_seconds": round(update_seconds, 3),
        "update_mb_per_second": round(size / 1e6 / update_seconds, 1),
        "initial_mb_per_second": round(size / 1e6 / initial_seconds, 1),
        **machine(),
        "httpx": httpx.__version__,
    }


if __name__ == "__main__":
    main()

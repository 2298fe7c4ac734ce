"""The engine ``ray``: a round's clients as tasks on the nodes of a cluster, which share no file system."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from shared.problems import Problem, ServiceFault
from shared.training import Diverged
from simulation.cluster import check_node, connect, locate_cache, locate_data
from simulation.engines.processes import use_one_thread
from simulation.jobs import ClientResult, Job, WorkbenchSpec, carry_out_in_process
from simulation.results import versions

__all__ = ["TRIES", "Ray"]

TRIES = 3
"""How often a client is trained anew elsewhere after its process or node died."""


@dataclass(frozen=True)
class ResultFiles:
    """What comes back: a job's result, and the contents of the files that it writes."""

    result: ClientResult
    update: bytes
    kept: bytes | None


class Ray:
    """One task a client, one thread each; the results are those of the engine ``in-process``, bit for bit."""

    def __init__(self, spec: WorkbenchSpec, address: str | None, say: Callable[[str], None]) -> None:
        self._spec = replace(
            spec,
            source=spec.source and spec.source.resolve(),
            cache=spec.cache and spec.cache.resolve(),
            engine=secrets.token_hex(8),
        )
        self._connection = connect(address, say)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._ray = self._open.enter_context(self._connection)
        self._train = self._ray.remote(num_cpus=1, max_retries=TRIES)(train_on_node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def map(self, jobs: Sequence[Job]) -> list[ClientResult]:
        sent: dict[Path, Any] = {}  # the model once for all clients
        for path in {path for job in jobs for path in (job.task.model, job.task.broadcast) if path}:
            sent[path] = self._ray.put(path.read_bytes())
        spec = self._ray.put(self._spec)
        pending = [
            self._train.remote(
                spec,
                versions(),
                job,
                sent[job.task.model],
                job.task.broadcast and sent[job.task.broadcast],
                job.task.kept and job.task.kept.read_bytes(),
            )
            for job in jobs
        ]
        return [self._fetch(job, ref) for job, ref in zip(jobs, pending, strict=True)]

    def _fetch(self, job: Job, ref: Any) -> ClientResult:
        errors = self._ray.exceptions
        try:
            files: ResultFiles = self._ray.get(ref)
        except errors.RayTaskError as fault:
            if isinstance(fault.cause, Problem | Diverged):
                raise fault.cause from None
            raise
        except errors.RayError as fault:
            raise ServiceFault(
                f"round {job.task.round}, client {job.task.index}: its process or node died "
                f"({type(fault).__name__}).",
                hint="Repeat the call: it goes on after the last completed round.",
            ) from None
        job.update.write_bytes(files.update)
        if files.kept is not None:
            job.kept.write_bytes(files.kept)
        return files.result


def train_on_node(
    spec: WorkbenchSpec,
    expected: dict[str, str],
    job: Job,
    model: bytes,
    broadcast: bytes | None,
    kept: bytes | None,
) -> ResultFiles:
    """What a node runs: the job, on files of its own. ``expected`` are the driver's package versions."""
    use_one_thread()
    check_node(expected)
    with TemporaryDirectory(prefix="feddisco-") as place:
        folder = Path(place)
        contents = {"model": model, "broadcast": broadcast, "kept": kept}
        paths = {name: folder / name for name, content in contents.items() if content is not None}
        for name, path in paths.items():
            path.write_bytes(contents[name] or b"")
        own = Job(
            task=replace(
                job.task, model=paths["model"], broadcast=paths.get("broadcast"), kept=paths.get("kept")
            ),
            update=folder / "update",
            kept=folder / "kept-after",
        )
        here = replace(spec, source=locate_data(spec.source), cache=locate_cache(spec.cache))
        result = carry_out_in_process(here, own)
        after = own.kept.read_bytes() if own.kept.exists() else None
        return ResultFiles(result, own.update.read_bytes(), after)

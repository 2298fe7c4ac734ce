"""Engine ``ray``: a round's clients as tasks on the nodes of a cluster, which share no file system."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from shared.config import RunConfig
from shared.problems import Problem, ServiceFault
from shared.training import Diverged
from simulation.engines import one_thread
from simulation.jobs import Done, Job, work_in_process
from simulation.ray_cluster import check_node, connected, located
from simulation.results import versions

__all__ = ["Ray"]

TRIES = 3
"""How often a client is trained anew elsewhere after its process or node died."""


@dataclass(frozen=True)
class Site:
    """What a node has to know of the run. ``engine`` names the engine, which nodes keep their data for."""

    engine: str
    config: str
    source: Path | None
    cache: Path | None
    versions: dict[str, str]

    @classmethod
    def of(cls, config: RunConfig, source: Path | None, cache: Path | None) -> Site:
        return cls(
            engine=secrets.token_hex(8),
            config=config.model_dump_json(),
            source=source and source.resolve(),
            cache=cache and cache.resolve(),
            versions=versions(),
        )


@dataclass(frozen=True)
class Trained:
    """What comes back: the contents of the files that a job writes."""

    done: Done
    update: bytes
    kept: bytes | None


class Ray:
    """One task a client, one thread each; the results are those of the engine ``in-process``, bit for bit."""

    def __init__(
        self,
        config: RunConfig,
        source: Path | None,
        cache: Path | None,
        address: str | None,
        say: Callable[[str], None],
    ) -> None:
        self._site = Site.of(config, source, cache)
        self._connection = connected(address, say)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._ray = self._open.enter_context(self._connection)
        self._train = self._ray.remote(num_cpus=1, max_retries=TRIES)(train_there)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def map(self, jobs: Sequence[Job]) -> list[Done]:
        sent: dict[Path, Any] = {}  # the model once for all clients
        for path in {path for job in jobs for path in (job.model, job.broadcast) if path}:
            sent[path] = self._ray.put(path.read_bytes())
        site = self._ray.put(self._site)
        pending = [
            self._train.remote(
                site, job, sent[job.model], job.broadcast and sent[job.broadcast], _read(job.kept)
            )
            for job in jobs
        ]
        return [self._received(job, ref) for job, ref in zip(jobs, pending, strict=True)]

    def _received(self, job: Job, ref: Any) -> Done:
        errors = self._ray.exceptions
        try:
            received: Trained = self._ray.get(ref)
        except errors.RayTaskError as fault:
            if isinstance(fault.cause, Problem | Diverged):
                raise fault.cause from None
            raise
        except errors.RayError as fault:
            raise ServiceFault(
                f"round {job.round}, client {job.index}: its process or node died ({type(fault).__name__}).",
                hint="Repeat the call: it goes on after the last completed round.",
            ) from None
        job.update.write_bytes(received.update)
        if received.kept is not None:
            job.kept_after.write_bytes(received.kept)
        return received.done


def train_there(site: Site, job: Job, model: bytes, broadcast: bytes | None, kept: bytes | None) -> Trained:
    """What a node runs: the job, on files of its own."""
    one_thread()
    check_node(site.versions)
    with TemporaryDirectory(prefix="feddisco-") as folder:
        here = Path(folder)
        given = {"model": model, "broadcast": broadcast, "kept": kept}
        paths = {name: here / name for name, content in given.items() if content is not None}
        for name, path in paths.items():
            path.write_bytes(given[name] or b"")
        own = replace(
            job,
            model=paths["model"],
            broadcast=paths.get("broadcast"),
            kept=paths.get("kept"),
            update=here / "update",
            kept_after=here / "kept-after",
        )
        done = work_in_process(site.engine, site.config, located(site.source), seen(site.cache), own)
        kept_after = own.kept_after.read_bytes() if own.kept_after.exists() else None
        return Trained(done, own.update.read_bytes(), kept_after)


def seen(cache: Path | None) -> Path | None:
    """The folder of decoded data where a node has it; another decodes by itself."""
    return cache if cache and cache.is_dir() else None


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()

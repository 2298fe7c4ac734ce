"""Many runs over all nodes of a Ray cluster; what each has so far comes back after every round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shared.problems import InvalidConfiguration
from simulation.checkpoints import claim_checkpoint
from simulation.cluster import check_node, connect, locate_cache, locate_data
from simulation.engines.processes import use_one_thread
from simulation.engines.ray import TRIES
from simulation.results import checkpoint_of, versions
from simulation.run import Setup, Simulation
from simulation.snapshot import Snapshot
from simulation.sweep import Planned, Swept, claim_results, say_end

__all__ = ["sweep_over_nodes"]

Say = Callable[[str], None]


# ---------------------------------------------------------------- on a node


@dataclass(frozen=True)
class Advanced:
    """A round further: what it said, what to keep, and whether that is all that was asked for."""

    said: tuple[str, ...]
    snapshot: Snapshot
    digest: str
    over: bool


class Runner:
    """The actor of one run: holds data and model in memory, and its files in a folder of the node."""

    def __init__(self, planned: Planned, expected: dict[str, str], snapshot: Snapshot) -> None:
        self._planned = planned
        self._expected = expected
        self._snapshot = snapshot
        self._said: list[str] = []
        self._open = ExitStack()
        self._run: Simulation | None = None

    def advance(self) -> Advanced:
        """Train one round; the files go when it is the last one, or raises."""
        try:
            run = self._run = self._run or self._begin()
            last = self._planned.until or self._planned.config.rounds
            digest = run.train(min(run.completed + 1, last))
            over = run.completed >= last
            self._snapshot = Snapshot.of(self._out, self._snapshot.names)
        except BaseException:
            self._open.close()
            raise
        if over:
            self._open.close()
        said = tuple(self._said)
        self._said.clear()
        return Advanced(said, self._snapshot, digest, over)

    def _begin(self) -> Simulation:
        use_one_thread()
        check_node(self._expected)
        planned = self._planned
        folder = self._open.enter_context(TemporaryDirectory(prefix="feddisco-"))
        self._out = Path(folder) / planned.out.name
        self._snapshot.store(self._out)
        setup = Setup(locate_data(planned.source), locate_cache(planned.cache), kernels=planned.kernels)
        return self._open.enter_context(Simulation(planned.config, setup, self._out, self._said.append))


# ---------------------------------------------------------------- on the driver


@dataclass
class _Active:
    place: int
    planned: Planned
    claim: ExitStack
    runner: Any = None
    lost: int = 0


def sweep_over_nodes(runs: Sequence[Planned], *, address: str | None, say: Say = print) -> list[Swept]:
    """Carry out the runs in their order, one a core of the cluster; the ends, in the runs' order.

    A run that fails, or that another sweep is doing, does not keep the others from theirs. One whose process
    or node dies goes on elsewhere after its last completed round; so do all when a call is repeated.

    Raises:
        InvalidConfiguration: Ray is not installed, or there is no cluster at the address.
    """
    with connect(address, say) as ray:
        return _Sweep(ray, runs, say).carry_out()


def claim_run(claim: ExitStack, out: Path) -> bool:
    """Whether this process alone may write ``out`` and its checkpoint: no sweep does, and no simulation."""
    if not claim.enter_context(claim_results(out)):
        return False
    try:
        claim.enter_context(claim_checkpoint(checkpoint_of(out), out))
    except InvalidConfiguration:
        return False
    return True


class _Sweep:
    def __init__(self, ray: Any, runs: Sequence[Planned], say: Say) -> None:
        self._ray = ray
        self._say = say
        self._runner = ray.remote(num_cpus=1, max_restarts=0)(Runner)
        self._waiting = deque(enumerate(runs))
        self._pending: dict[Any, _Active] = {}
        self._ended: dict[int, Swept] = {}

    def carry_out(self) -> list[Swept]:
        while self._waiting or self._pending:
            self._fill()
            if self._pending:
                ready, _ = self._ray.wait(list(self._pending))
                for ref in ready:
                    self._step(ref, self._pending.pop(ref))
        return [swept for _, swept in sorted(self._ended.items())]

    def _fill(self) -> None:
        """As many as there are cores now: nodes come and go."""
        cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        while self._waiting and len(self._pending) < cores:
            active = _Active(*self._waiting.popleft(), ExitStack())
            if claim_run(active.claim, active.planned.out):
                self._start(active)
            else:
                self._end(active, Swept(active.planned.config.name, "busy", "another process is doing it"))

    def _start(self, active: _Active) -> None:
        planned = active.planned
        elsewhere = replace(
            planned,
            source=planned.source and planned.source.resolve(),
            cache=planned.cache and planned.cache.resolve(),
        )
        active.runner = self._runner.remote(elsewhere, versions(), Snapshot.of(planned.out))
        self._pending[active.runner.advance.remote()] = active

    def _step(self, ref: Any, active: _Active) -> None:
        name, errors = active.planned.config.name, self._ray.exceptions
        try:
            advanced = self._ray.get(ref)
        except errors.RayTaskError as fault:
            self._end(active, Swept(name, "failed", str(fault.cause)))
        except errors.RayError as fault:
            self._start_again(active, type(fault).__name__)
        else:
            self._store(active, advanced)

    def _store(self, active: _Active, advanced: Advanced) -> None:
        active.lost = 0
        if not advanced.over:
            self._pending[active.runner.advance.remote()] = active  # trains while this one is written
        advanced.snapshot.store(active.planned.out)
        for line in advanced.said:
            self._say(line)
        if advanced.over:
            self._end(active, Swept(active.planned.config.name, "done", advanced.digest))

    def _start_again(self, active: _Active, how: str) -> None:
        active.lost += 1
        name = active.planned.config.name
        if active.lost > TRIES:
            why = f"its process died {active.lost} times in the same round (out of memory?)"
            self._end(active, Swept(name, "failed", why))
        else:
            self._say(f"{name}: its process or node died ({how}); it goes on after its last completed round")
            self._start(active)

    def _end(self, active: _Active, swept: Swept) -> None:
        active.claim.close()
        if active.runner is not None:
            self._ray.kill(active.runner)
        self._ended[active.place] = say_end(swept, self._say)

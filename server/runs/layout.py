"""What an update of a run must look like, from the run's manifest and its algorithm's declaration."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import LRUCache

from server.database.store import Store
from server.threads import Threads
from shared.config import RunConfig
from shared.schemas import RunView, TensorKind, TensorSpec
from shared.weightings.base import Discrepancy

if TYPE_CHECKING:
    from shared.wire import Layout
    from shared.wire.packing import PackedForm

__all__ = ["RunLayout", "RunLayouts", "largest_update", "layout_of", "update_tensors"]

REMEMBERED_RUNS = 64


@dataclass(frozen=True)
class RunLayout:
    """The class contract of a run, what it asks of its labels, and the tensors of its updates.

    ``max_bytes``: the tensors' own bytes and an allowance for the file's header, in whatever round.
    ``packed`` says what the updates of a run with compression stand for (None: they arrive whole), ``totals``
    are the tensors of round 0 of a secure run, the sum that ends enrolment (None: updates arrive in clear).
    ``steps`` are those that a client can have taken, by its examples, its index and the round (None: they
    make no difference).
    ``calibrating`` are the tensors of the round that calibrates, by its number (None: there is none), and
    ``counted`` the keys of the tensors in which clients count their examples.
    """

    task: str
    classes: tuple[str, ...]
    tensors: Layout
    max_bytes: int
    discrepancy: Discrepancy | None
    max_entry: float
    max_norm: float
    parameters: tuple[TensorSpec, ...]
    packed: PackedForm | None = None
    totals: Layout | None = None
    steps: Callable[[int, int, int], range] | None = None
    calibrating: tuple[int, Layout] | None = None
    counted: tuple[str, ...] = ()

    def tensors_of(self, round: int) -> Layout:
        """Of an update of this round."""
        if self.calibrating is not None and round == self.calibrating[0]:
            return self.calibrating[1]
        return self.tensors if round or self.totals is None else self.totals

    def packed_of(self, round: int) -> PackedForm | None:
        """As ``packed``, of this round: one that calibrates has nothing to pack."""
        return None if self.calibrating is not None and round == self.calibrating[0] else self.packed


def layout_of(run: RunView) -> RunLayout:
    """Imports PyTorch: call it on a thread."""
    from shared.aggregation.secure_sums import sum_layout, totals_length
    from shared.calibrated import find_algorithm
    from shared.features import count_keys
    from shared.update_forms import find_form

    config = run.config
    algorithms = [find_algorithm(config, number) for number in (1, config.rounds)]
    tensors, packed = update_tensors(config, run.manifest), find_form(config, run.manifest)
    return RunLayout(
        task=config.task,
        classes=run.classes,
        tensors=tensors,
        max_bytes=largest_update(config, run.manifest),
        discrepancy=config.weighting.discrepancy,
        max_entry=config.max_entry,
        max_norm=config.max_norm,
        parameters=tuple(spec for spec in run.manifest if spec.kind is TensorKind.PARAMETER),
        packed=packed,
        totals=None if config.secure is None else sum_layout(config, totals_length(config, len(run.classes))),
        steps=_plan_steps(config),
        calibrating=_find_calibrating(config, run.manifest),
        counted=tuple({key for each in algorithms for key in count_keys(each, run.manifest)}),
    )


def _plan_steps(config: RunConfig) -> Callable[[int, int, int], range] | None:
    """Where an algorithm divides by the steps that clients say they took, a false number would bend it."""
    from shared.algorithms import load_algorithm
    from shared.training.batches import planned_steps

    algorithm = load_algorithm(config.algorithm)
    if not algorithm.divides_by_steps or config.secure is not None:
        return None

    def plan(examples: int, index: int, round: int) -> range:
        if config.calibrates(round) or not algorithm.trains(round):
            return range(1)
        # with batch normalisation, of which nothing is known here, a last batch of one is joined to another
        least, most = (
            planned_steps(config.local, examples, config.seed, round, index, smallest) for smallest in (2, 1)
        )
        return range(least, most + 1)

    return plan


def update_tensors(config: RunConfig, manifest: Sequence[TensorSpec]) -> Layout:
    """What an update of the run consists of; of a secure run one masked vector."""
    from shared.aggregation.secure_sums import Plan, sum_layout
    from shared.algorithms import load_algorithm
    from shared.update_forms import find_form, whole_layout

    algorithm, packed = load_algorithm(config.algorithm), find_form(config, manifest)
    if packed is not None:
        return packed.layout
    if config.secure is None:
        return whole_layout(config, algorithm, manifest)
    return sum_layout(config, Plan(config, algorithm, manifest, config.clients_expected).length)


def _find_calibrating(config: RunConfig, manifest: Sequence[TensorSpec]) -> tuple[int, Layout] | None:
    from shared.calibrated import find_algorithm
    from shared.update_forms import whole_layout

    if config.calibration is None:
        return None
    return config.rounds, whole_layout(config, find_algorithm(config, config.rounds), manifest)


def largest_update(config: RunConfig, manifest: Sequence[TensorSpec]) -> int:
    """The most bytes that an update of the run may have, in whatever round."""
    from shared.wire import largest_bytes

    calibrating = _find_calibrating(config, manifest)
    layouts = [update_tensors(config, manifest), *([] if calibrating is None else [calibrating[1]])]
    return max(map(largest_bytes, layouts))


class RunLayouts:
    """The layouts of the runs asked for last. A run's layout is fixed at its creation. On the event loop."""

    def __init__(self, store: Store, threads: Threads, clock: Callable[[], dt.datetime]) -> None:
        self._store = store
        self._threads = threads
        self._clock = clock
        self._known: LRUCache[str, RunLayout] = LRUCache(REMEMBERED_RUNS)

    async def find(self, run: str) -> RunLayout:
        """Raises :class:`shared.problems.NotFound` if there is no such run."""
        known = self._known.get(run)
        if known is None:
            view = await self._threads.run(self._store.run_view, run, self._clock())
            known = self._known[run] = await self._threads.run_long(layout_of, view)
        return known

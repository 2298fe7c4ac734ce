"""A coordinator that reads class shares from updates: right on clear ones, at chance on masked ones.

The attack is passive (Decaf, Dai et al., 2024, for FedAvg): the bias of the last layer moves by
``lr sum_t (p_c - mean softmax_c)``. The model sent to the clients is known, and so is its mean output at the
start; what a class's bias fell furthest by is a class that the site lacks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shared import wire
from shared.aggregation.secure_sums import Plan
from shared.data import Examples
from shared.secure.messages import Attempt
from shared.tasks.base import Split
from shared.tasks.digits import Digits
from shared.training.workbench import ClientTask
from shared.wire.tensors import state_of
from tests.helpers.benches import make_bench
from tests.helpers.processes import run_config
from tests.helpers.secure_parties import Party

pytestmark = pytest.mark.usefixtures("one_thread")

Shares = NDArray[np.float64]
CLIENTS, CLASSES = 6, 10
ATTEMPTS = 15
"""Masks of the same updates, fresh keys each time: 90 uploads."""


class LargeDigits(Digits):
    """Twice as high and wide, so that the paper's simple CNN fits."""

    input_shape = (1, 16, 16)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        found = super().load(split, source, seed)
        return Examples(found.inputs.repeat_interleave(2, -1).repeat_interleave(2, -2), found.targets)


TASK = LargeDigits(LargeDigits.Options())


def estimate_shares(moved: Shares) -> Shares:
    """Class shares from the displacement of the last layer's biases, which sums to about 0.

    Nobody has less than no example of a class: the scale is such that the class that fell most has none.
    """
    fallen = -float(moved.min())
    if not fallen > 0:
        return np.full(CLASSES, 1 / CLASSES)
    estimate = np.maximum(moved + fallen, 0)
    return np.asarray(estimate / estimate.sum())


def correlate(found: Shares, true: Shares) -> float:
    """Of shares that are all alike, as masked ones may be estimated, nothing can be read: 0."""
    return float(np.corrcoef(found, true)[0, 1]) if np.ptp(found) > 0 else 0.0


def test_class_shares_are_read_from_clear_updates_and_not_from_masked_ones(tmp_path: Path) -> None:
    local = {"steps": 5, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    config = run_config("read", partition=f"niid1:{CLIENTS}:0.5", local=local, secure={}, model="simple-cnn")
    bench = make_bench(config, TASK)
    wire.write(tmp_path / "model", {wire.MODEL: state_of(bench.model)})
    plan = Plan(config, bench.algorithm, bench.manifest, CLIENTS)
    assert bench.manifest[-1].shape == (CLASSES,), "the biases of the last layer end every vector"

    vectors, truth, clear = {}, [], []
    for index in range(CLIENTS):
        task = ClientTask(1, index, 1.0, took_part=False, model=tmp_path / "model")
        result = bench.train(task, clock=lambda: 0.0)
        wire.write(tmp_path / "update", result.tensors)
        vectors[index] = plan.encode(tmp_path / "model", tmp_path / "update", 0.2, result.steps)
        counts = np.array(bench.class_counts(index))
        truth.append(counts / counts.sum())
        clear.append(estimate_shares(plan.ring.decode(vectors[index][-CLASSES:])))

    masked: list[list[Shares]] = [[] for _ in range(CLIENTS)]
    for number in range(1, ATTEMPTS + 1):
        party = Party(vectors, plan.ring, attempt=Attempt(run="read", round=1, attempt=number))
        party.play()
        for index, upload in party.uploads.items():
            masked[index].append(estimate_shares(plan.ring.decode(upload[-CLASSES:])))

    mistaken = [float(np.abs(found - true).mean()) for found, true in zip(clear, truth, strict=True)]
    assert max(mistaken) < 0.05, "within five percentage points a class"
    assert all(found.argmax() == true.argmax() for found, true in zip(clear, truth, strict=True))

    pairs = [(found, true) for row, true in zip(masked, truth, strict=True) for found in row]
    hits = sum(found.argmax() == true.argmax() for found, true in pairs)
    assert hits <= 27, f"{hits} of 90 largest classes; 9 by chance, more than 27 once in 10^7"
    correlation = float(np.mean([correlate(found, true) for found, true in pairs]))
    assert abs(correlation) < 0.2, "standard deviation 0.035 where there is none"
    assert float(np.mean([np.abs(found - true).mean() for found, true in pairs])) > 2 * max(mistaken)

"""Batch normalisation and batches of one example: case D7 of issue 8."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from shared.algorithms.base import Algorithm, AlgorithmParameters
from shared.config import LocalTraining
from shared.data import Examples
from shared.problems import InvalidConfiguration
from shared.tasks.base import NoOptions, Split, Task
from shared.training import LocalResult, train
from shared.training.batches import batches, epochs_of, joins_last, planned_steps, smallest_batch


class Normed(Task):
    """Five numbers, a layer of batch normalisation, two classes."""

    name = "normed"
    default_model = "own"
    classes = ("no", "yes")
    input_shape = (5,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        inputs = torch.randn(9, 5, generator=torch.Generator().manual_seed(seed))
        return Examples(inputs, (inputs.sum(dim=1) > 0).long())

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained(examples: int, local: LocalTraining) -> LocalResult:
    task = Normed(NoOptions())
    model = task.build_model(None, 0)
    return train(
        task=task,
        model=model,
        algorithm=Algorithm[AlgorithmParameters](AlgorithmParameters()),
        examples=task.load("train", None, 0).subset(torch.arange(examples)),
        local=local,
        start=model.state_dict(),
        received={},
        kept={},
        first_time=True,
        relative_size=1.0,
        seed=0,
        round=1,
        index=0,
        device=torch.device("cpu"),
        clock=time.perf_counter,
    )


def sizes(local: LocalTraining, examples: int, smallest: int) -> list[int]:
    return [len(positions) for _, positions in batches(local, examples, 0, 1, 0, smallest)]


def test_d7_a_last_batch_of_one_is_joined_to_the_one_before_it() -> None:
    local = LocalTraining(epochs=2, batch_size=4, drop_last=False)
    assert sizes(local, 9, 1) == [4, 4, 1] * 2
    assert sizes(local, 9, 2) == [4, 5] * 2
    assert joins_last(local, 9, 2)
    joined = [
        sorted(torch.cat([p for e, p in batches(local, 9, 0, 1, 0, 2) if e == n]).tolist()) for n in (1, 2)
    ]
    assert joined == [list(range(9))] * 2  # each example once an epoch
    assert planned_steps(local, 9, 0, 1, 0, 2) == trained(9, local).steps == 4
    assert epochs_of(4, local, 9, 2) == 2


def test_d7_steps_are_as_many_as_asked_for() -> None:
    local = LocalTraining(steps=5, batch_size=4, drop_last=False)
    assert sizes(local, 9, 2) == [4, 5, 4, 5, 4]
    assert trained(9, local).steps == 5


@pytest.mark.parametrize("examples", [8, 10])
@pytest.mark.parametrize("drop_last", [True, False])
def test_d7_nothing_changes_where_no_batch_of_one_would_come(examples: int, drop_last: bool) -> None:
    local = LocalTraining(epochs=2, batch_size=4, drop_last=drop_last)
    with_rule, without = (list(batches(local, examples, 7, 3, 1, smallest)) for smallest in (2, 1))
    assert [epoch for epoch, _ in with_rule] == [epoch for epoch, _ in without]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(with_rule, without, strict=True))
    assert not joins_last(local, examples, 2)


def test_d7_only_batch_normalisation_needs_two() -> None:
    assert smallest_batch(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))) == 2
    assert smallest_batch(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.LayerNorm(2))) == 1


@pytest.mark.parametrize(
    ("examples", "size", "said"), [(1, 4, "there is 1 example"), (9, 1, "batch_size is 1")]
)
def test_d7_what_cannot_be_trained_is_said(examples: int, size: int, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"needs 2 examples in a batch; .*{said}"):
        trained(examples, LocalTraining(epochs=1, batch_size=size))

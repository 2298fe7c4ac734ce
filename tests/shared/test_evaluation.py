"""Evaluation against hand-computed numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shared.data import Examples
from shared.tasks.base import NoOptions, Split, Task
from shared.training.evaluation import evaluate

CPU = torch.device("cpu")


class Three(Task):
    """Three classes; the inputs are the logits."""

    name = "three"
    classes: tuple[str, ...] = ("a", "b", "c")
    input_shape = (3,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        inputs = torch.tensor([[2.0, 0, 0], [0, 2.0, 0], [2.0, 0, 0], [2.0, 0, 0]])
        return Examples(inputs, torch.tensor([0, 1, 1, 0]))


class Squares(Three):
    """A regression in two bins."""

    classes = ("low", "high")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).square().mean()

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        return None

    def categories(self, targets: Tensor) -> Tensor:
        return (targets > 0).long()

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"error": (outputs[:, 0] - targets).abs()}


THREE = Three(NoOptions())
EXAMPLES = THREE.load("test", None, 0)


@pytest.mark.parametrize("batch_size", [1, 3, 512])
def test_loss_accuracy_and_accuracy_of_the_classes_present(batch_size: int) -> None:
    metrics = evaluate(task=THREE, model=nn.Identity(), examples=EXAMPLES, device=CPU, batch_size=batch_size)
    # three right: -ln(e^2 / (e^2 + 2)) each; one wrong: -ln(1 / (e^2 + 2))
    right, wrong = math.log(math.exp(2) + 2) - 2, math.log(math.exp(2) + 2)
    assert metrics.loss == pytest.approx((3 * right + wrong) / 4, rel=1e-6)
    assert metrics.accuracy == 0.75
    assert metrics.examples == 4
    assert metrics.per_category == {"a": 1.0, "b": 0.5}


def test_a_regression_has_a_loss_and_no_accuracy() -> None:
    squares = Squares(NoOptions())
    metrics = evaluate(task=squares, model=nn.Identity(), examples=EXAMPLES, device=CPU, batch_size=3)
    assert metrics.loss == (4 + 1 + 1 + 4) / 4  # outputs 2 0 2 2 against 0 1 1 0
    assert metrics.extra == {"error": (2 + 1 + 1 + 2) / 4}
    assert metrics.accuracy is None
    assert metrics.per_category == {}


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_scored_in_evaluation_mode_and_put_back(training: bool) -> None:
    model = nn.Dropout(0.9).train(training)
    first, second = (evaluate(task=THREE, model=model, examples=EXAMPLES, device=CPU) for _ in range(2))
    assert first == second
    assert first.accuracy == 0.75
    assert model.training is training


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_result_too(bad: float) -> None:
    broken = Examples(EXAMPLES.inputs * bad, EXAMPLES.targets)
    metrics = evaluate(task=THREE, model=nn.Identity(), examples=broken, device=CPU)
    assert metrics.loss is None
    assert metrics.accuracy is not None
    assert metrics.examples == 4


def test_no_examples_is_an_error() -> None:
    with pytest.raises(ValueError, match="no examples"):
        evaluate(task=THREE, model=nn.Identity(), examples=EXAMPLES.subset(torch.tensor([])), device=CPU)

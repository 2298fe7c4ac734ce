"""CCVR's arithmetic: the Gaussian of each class, features drawn from them, a classifier trained on these.

In float64, and multiplied in orders of our own, since those of a library depend on how many threads it has.
Nothing that clients tell makes it fail: a class needs one example, a covariance need not be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from shared.calibration import Calibration

__all__ = [
    "ClassGaussian",
    "LinearLayer",
    "draw_features",
    "factorise",
    "fit_gaussians",
    "retrain",
    "share_out",
]

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""A variance below this part of what it was before others were explained is rounding, and taken for 0."""


@dataclass(frozen=True)
class ClassGaussian:
    """Features z of one class: their ``mean`` (F,), and ``products`` (F, F), the sum of z z'.

    The covariance is computed where it is asked for, so that those of all classes are never there at once.
    """

    label: int
    count: float
    mean: Array
    products: Array

    @property
    def covariance(self) -> Array:
        """``(sum z z' - n mean mean') / (n - 1)``: (F, F), unbiased, and zero of one example.

        Equation 4 of the paper in terms of sums.
        """
        if self.count < 2:
            return np.zeros_like(self.products)
        spread = (self.products + self.products.T) / 2 - self.count * np.outer(self.mean, self.mean)
        covariance: Array = spread / (self.count - 1)
        return covariance


class LinearLayer(NamedTuple):
    """``weight`` (C, F) and ``bias`` (C,), or None."""

    weight: Array
    bias: Array | None


def fit_gaussians(counts: Array, sums: Array, products: Array) -> list[ClassGaussian]:
    """Of the classes that have an example, from what all clients' examples sum to.

    ``counts`` (C,) of examples, ``sums`` (C, F) of their features z, ``products`` (C, F, F) of z z'.
    """
    return [
        ClassGaussian(label, float(counts[label]), sums[label] / counts[label], products[label])
        for label in np.flatnonzero(counts >= 1).tolist()
    ]


def share_out(counts: Sequence[float], total: int) -> list[int]:
    """``M_c = M n_c / n``, rounded, and one at least: how many features each class is given.

    >>> share_out([50, 30, 1], 20)
    [12, 7, 1]
    """
    return [max(1, round(total * count / sum(counts))) for count in counts]


def factorise(covariance: Array) -> Array:
    """A lower triangular L with ``L L' = covariance`` (F, F), which may be singular.

    Of a symmetric matrix that is no covariance at all, L is that of one with the same variances or less.

    >>> factorise(np.array([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [[2.0, 0.0], [1.0, 0.0]]
    """
    left, lower = covariance.copy(), np.zeros_like(covariance)
    variances = np.diag(covariance)
    for at, variance in enumerate(variances):
        pivot = left[at, at]
        if not pivot > ROUNDING * abs(variance):
            continue
        largest = np.sqrt(np.maximum(np.diag(left)[at:], 0))
        column = np.clip(left[at:, at] / np.sqrt(pivot), -largest, largest)
        lower[at:, at] = column
        left[at:, at:] -= np.outer(column, column)
    return lower


def draw_features(
    gaussians: Sequence[ClassGaussian], total: int, generator: torch.Generator
) -> tuple[Array, NDArray[np.int64]]:
    """About ``total`` features (M, F) and their labels (M,), class after class."""
    import torch

    features = []
    numbers = share_out([each.count for each in gaussians], total)
    for each, number in zip(gaussians, numbers, strict=True):
        drawn = torch.randn(number, len(each.mean), generator=generator, dtype=torch.float64).numpy()
        features.append(each.mean + np.einsum("ij,kj->ik", drawn, factorise(each.covariance)))
    return np.concatenate(features), np.repeat([each.label for each in gaussians], numbers)


def retrain(
    layer: LinearLayer,
    features: Array,
    labels: NDArray[np.int64],
    options: Calibration,
    generator: torch.Generator,
) -> LinearLayer:
    """The layer after SGD on the cross-entropy of ``features`` (M, F) and ``labels`` (M,), begun from itself.

    Each epoch is in an order drawn anew, its last batch may be smaller.
    """
    import torch

    weight = layer.weight.copy()
    bias = None if layer.bias is None else layer.bias.copy()
    parameters = [weight] if bias is None else [weight, bias]
    velocities = [np.zeros_like(parameter) for parameter in parameters]
    for _ in range(options.epochs):
        order = torch.randperm(len(labels), generator=generator).numpy()
        for first in range(0, len(order), options.batch_size):
            chosen = order[first : first + options.batch_size]
            slopes = _slopes(LinearLayer(weight, bias), features[chosen], labels[chosen])
            for parameter, velocity, slope in zip(parameters, velocities, slopes, strict=False):
                velocity *= options.momentum
                velocity += slope + options.weight_decay * parameter
                parameter -= options.learning_rate * velocity
    return LinearLayer(weight, bias)


def _slopes(layer: LinearLayer, features: Array, labels: NDArray[np.int64]) -> tuple[Any, Any]:
    """Gradients of the batch's mean cross-entropy by weight and by bias."""
    scores = np.einsum("bf,cf->bc", features, layer.weight)
    if layer.bias is not None:
        scores += layer.bias
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    errors = exponents / exponents.sum(axis=1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1
    errors /= len(labels)
    return np.einsum("bc,bf->cf", errors, features), errors.sum(axis=0)

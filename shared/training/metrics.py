"""Scores over a whole test set, of what the model says of each example; computed by torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shared.metric_names import CONFUSION

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["compute_confusion", "compute_metrics"]

CALIBRATION_BINS = 15


def compute_metrics(
    names: Sequence[str], probabilities: Tensor, targets: Tensor, classes: Sequence[str]
) -> dict[str, float]:
    """By name; what the test set leaves undefined is left out, such as the sensitivity of a class it has not.

    ``probabilities`` of each class, float32 (N, C); ``targets``, int64 (N,); both on the CPU. ``auroc`` is
    one class against all others, over all classes the mean of those that can be told apart;
    ``balanced_accuracy`` is the mean sensitivity of the classes that there are. ``calibration_error`` is the
    expected one over 15 bins of the highest probability.
    """
    found: dict[str, float] = {}
    for name in names:
        if name != CONFUSION:
            kind, _, label = name.partition(":")
            value = (
                _of_class(kind, probabilities, targets, classes.index(label))
                if label
                else _over_all(kind, probabilities, targets)
            )
            if math.isfinite(value):
                found[name] = value
    return found


def compute_confusion(probabilities: Tensor, targets: Tensor) -> list[list[float]]:
    """Row i, column j: the share of the examples of class i that the model takes for class j, four digits.

    A class without examples has a row of zeros.
    """
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    classes = probabilities.shape[1]
    counts = multiclass_confusion_matrix(probabilities, targets, num_classes=classes).double()
    rows: list[list[float]] = (counts / counts.sum(dim=1, keepdim=True).clamp(min=1)).tolist()
    return [[round(share, 4) for share in row] for row in rows]


def _over_all(kind: str, probabilities: Tensor, targets: Tensor) -> float:
    from torchmetrics.functional import classification as of

    classes = probabilities.shape[1]
    match kind:
        case "auroc":
            return _mean(_aurocs(probabilities, targets))
        case "balanced_accuracy":
            recalls = of.multiclass_recall(probabilities, targets, num_classes=classes, average="none")
            return float(recalls[targets.bincount(minlength=classes) > 0].double().mean())
        case "calibration_error":
            return float(
                of.multiclass_calibration_error(
                    probabilities, targets, num_classes=classes, n_bins=CALIBRATION_BINS
                )
            )
        case "cohen_kappa":
            return float(of.multiclass_cohen_kappa(probabilities, targets, num_classes=classes))
        case _:  # macro_f1, weighted_f1
            average = kind.removesuffix("_f1")
            return float(
                of.multiclass_f1_score(probabilities, targets, num_classes=classes, average=average)  # type: ignore[arg-type]
            )


def _aurocs(probabilities: Tensor, targets: Tensor) -> Iterator[float]:
    for index in range(probabilities.shape[1]):
        value = _auroc(probabilities, targets, index)
        if math.isfinite(value):
            yield value


def _auroc(probabilities: Tensor, targets: Tensor, index: int) -> float:
    """Not a number where the test set has only this class, or nothing of it."""
    from torchmetrics.functional.classification import binary_auroc

    own = targets == index
    if own.all() or not own.any():
        return math.nan
    return float(binary_auroc(probabilities[:, index], own.long()))


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else math.nan


def _of_class(kind: str, probabilities: Tensor, targets: Tensor, index: int) -> float:
    if kind == "auroc":
        return _auroc(probabilities, targets, index)
    own, said = targets == index, probabilities.argmax(dim=1) == index
    hits, missed = int((own & said).sum()), int((own & ~said).sum())
    alarms, rest = int((~own & said).sum()), int((~own & ~said).sum())
    match kind:
        case "sensitivity":
            return hits / (hits + missed) if hits + missed else math.nan
        case "specificity":
            return rest / (rest + alarms) if rest + alarms else math.nan
        case "precision":
            return hits / (hits + alarms) if hits + alarms else math.nan
        case _:  # f1
            return 2 * hits / (2 * hits + missed + alarms) if hits + missed + alarms else math.nan

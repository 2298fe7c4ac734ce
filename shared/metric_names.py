"""Which scores a run may ask its evaluators for, beside loss and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from shared.problems import InvalidConfiguration
from shared.texts import find_nearest

__all__ = ["CONFUSION", "OF_A_CLASS", "OVER_ALL", "check_metric", "check_metrics"]

CONFUSION = "confusion_matrix"
OVER_ALL = (
    "auroc",
    "balanced_accuracy",
    "calibration_error",
    "cohen_kappa",
    CONFUSION,
    "macro_f1",
    "weighted_f1",
)
OF_A_CLASS = ("auroc", "f1", "precision", "sensitivity", "specificity")
"""Written with the class behind a colon: ``sensitivity:melanoma``."""
_ALWAYS = ("accuracy", "loss")


def check_metric(name: str) -> str:
    """The name itself. Raises ValueError for what is no metric."""
    kind, colon, label = name.partition(":")
    if (kind in OF_A_CLASS and label) if colon else kind in OVER_ALL:
        return name
    known = (*OVER_ALL, *(f"{each}:CLASS" for each in OF_A_CLASS))
    near = find_nearest(name, (*_ALWAYS, *known))
    if not near:
        raise ValueError(f"is none of {', '.join(known)}")
    if near[0] in _ALWAYS:
        raise ValueError(f"{near[0]} is in every evaluation: leave it out")
    raise ValueError(f"did you mean {near[0]}?")


def check_metrics(names: Sequence[str], classes: Sequence[str], outputs: int | None = None) -> None:
    """Raises InvalidConfiguration for a class that the contract has not, or where a model says no classes.

    ``outputs``: how many numbers the model gives for each example, where that is known.

    >>> check_metrics(["auroc", "sensitivity:owl"], ["cat", "owl"])
    """
    for name in names:
        label = name.partition(":")[2]
        if label and label not in classes:
            raise InvalidConfiguration(
                f"metrics: {name}: the run has no class {label!r}", hint=f"Its classes: {', '.join(classes)}."
            )
    if names and outputs is not None and outputs != len(classes):
        raise InvalidConfiguration(
            f"metrics: {names[0]} is about classes, and the task's model says a number",
            hint="Leave metrics out; a task's own scores are its method `metrics`.",
        )

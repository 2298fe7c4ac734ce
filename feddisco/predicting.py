"""Predictions as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shared.texts import escape_controls

if TYPE_CHECKING:
    from feddisco.loaded import Prediction, Predictions

__all__ = ["format_predictions"]


def format_predictions(predictions: Predictions, top: int, as_json: bool) -> Iterator[str]:
    """A line each: the name, then the ``top`` likeliest classes with their probabilities, between tabs."""
    for each in predictions:
        yield _as_json(each) if as_json else escape_controls("\t".join([each.name, *_words(each, top)]))


def _words(each: Prediction, top: int) -> list[str]:
    if each.probabilities is None:
        return [f"{each.value:.6g}"]
    ordered = sorted(each.probabilities.items(), key=lambda pair: -pair[1])
    return [f"{label}\t{probability:.4f}" for label, probability in ordered[:top]]


def _as_json(each: Prediction) -> str:
    said = {"name": each.name, "class": each.label, "probabilities": each.probabilities, "value": each.value}
    return json.dumps({name: value for name, value in said.items() if value is not None})

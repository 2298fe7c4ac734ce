"""What the updates of a run look like: whole ones, and those of a run with compression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shared import wire
from shared.wire.packing import PackedForm

if TYPE_CHECKING:
    from shared.algorithms.base import Algorithm
    from shared.config import RunConfig
    from shared.schemas import TensorSpec
    from shared.wire import Layout

__all__ = ["find_form", "whole_layout"]


def whole_layout(config: RunConfig, algorithm: Algorithm[Any], manifest: Sequence[TensorSpec]) -> Layout:
    """The tensors of an update that is sent in clear, whole; ``algorithm`` is its round's."""
    return wire.update_layout(manifest, algorithm.uploads, config.buffers, algorithm.own_specs(manifest))


def find_form(config: RunConfig, manifest: Sequence[TensorSpec]) -> PackedForm | None:
    """How the run's updates are packed; None: they are sent whole.

    Raises InvalidConfiguration if the run's parameters cannot be packed. Imports PyTorch.
    """
    from shared.algorithms import load_algorithm

    if config.compression is None:
        return None
    form = PackedForm(config.compression, whole_layout(config, load_algorithm(config.algorithm), manifest))
    _ = form.layout  # says what is wrong now, not at the first upload
    return form

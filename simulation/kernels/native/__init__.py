"""The kernels ``native``: small convolutions, of images and of texts, compiled from C++ of our own."""

from __future__ import annotations

from torch import nn

from shared.problems import InvalidConfiguration
from simulation.kernels.native.layers import accelerate_rows
from simulation.kernels.native.network import Network, find_network
from simulation.kernels.native.texts import accelerate_texts

__all__ = ["accelerate"]


def accelerate(model: nn.Module) -> Network | None:
    """Let the kernels compute what they can in ``model``, in place. The whole of it, where they can that.

    Raises:
        InvalidConfiguration: none, or no compiler.
    """
    blocks, texts = accelerate_rows(model), accelerate_texts(model)
    if blocks or texts:
        return find_network(model, blocks)
    raise InvalidConfiguration(
        f"kernels: native finds nothing in {type(model).__name__} that it computes faster.",
        hint="It takes Conv2d (stride 1, no padding), ReLU, MaxPool2d(2) in an nn.Sequential, and textcnn. "
        "The kernels torch train every model.",
    )

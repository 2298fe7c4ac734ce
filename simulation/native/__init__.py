"""The engine ``native``: one client after the other, small convolutions by kernels of our own."""

from __future__ import annotations

from torch import nn

from shared.problems import InvalidConfiguration
from simulation.engines import InProcess
from simulation.jobs import Workshop
from simulation.native.images import accelerate_images
from simulation.native.layers import accelerate_rows
from simulation.native.texts import accelerate_texts

__all__ = ["Native", "accelerate"]


class Native(InProcess):
    """In this process, with the small convolutions compiled; every algorithm, every model that has some.

    Raises:
        InvalidConfiguration: the model has none, or there is no C++ compiler.
    """

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop)
        accelerate(workshop.model)
        accelerate_images(workshop.task)


def accelerate(model: nn.Module) -> int:
    """Let the kernels compute what they can in ``model``, in place. How many parts of it that are.

    Raises:
        InvalidConfiguration: none, or no compiler.
    """
    if found := accelerate_rows(model) + accelerate_texts(model):
        return found
    raise InvalidConfiguration(
        f"engine: native finds nothing in {type(model).__name__} that it computes faster.",
        hint="It takes Conv2d (stride 1, no padding), ReLU, MaxPool2d(2) in an nn.Sequential, and textcnn. "
        "The engines in-process and processes train every model.",
    )

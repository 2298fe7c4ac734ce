"""The engine ``native``: one client after the other, images and small convolutions by kernels of our own."""

from __future__ import annotations

from simulation.engines import InProcess
from simulation.jobs import Workshop
from simulation.native.images import accelerate_images
from simulation.native.layers import accelerate

__all__ = ["Native"]


class Native(InProcess):
    """In this process, with the small convolutions compiled; every algorithm, every model that has some.

    Raises:
        InvalidConfiguration: the model has none, or there is no C++ compiler.
    """

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(workshop)
        accelerate(workshop.model)
        accelerate_images(workshop.task)

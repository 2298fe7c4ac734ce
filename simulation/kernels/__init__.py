"""Kernels: how one client is computed. ``torch`` is PyTorch's own way, ``native`` ours where that is faster.

What two kernels give is equal but for rounding. How a round's clients are mapped is another choice:
:mod:`simulation.engines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

    from shared.tasks.base import Task

__all__ = ["KernelsName", "use_kernels"]

KernelsName = Literal["torch", "native"]


def use_kernels(name: KernelsName, model: nn.Module, task: Task) -> None:
    """Let these kernels compute ``model`` and prepare ``task``'s batches, in place.

    Raises:
        InvalidConfiguration: they can't compute anything of the model, or there is no C++ compiler.
    """
    if name == "native":
        from simulation.kernels.native import accelerate
        from simulation.kernels.native.images import accelerate_images

        accelerate(model)
        accelerate_images(task)

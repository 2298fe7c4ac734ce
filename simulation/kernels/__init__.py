"""Kernels: how one client is computed. ``torch`` is PyTorch's own way, ``native`` ours where that is faster.

What two kernels give is equal but for rounding. How a round's clients are mapped is another choice:
:mod:`simulation.engines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

    from shared.tasks.base import Task
    from shared.training import Gradients

__all__ = ["KernelsName", "use_kernels"]

KernelsName = Literal["torch", "native"]


def use_kernels(name: KernelsName, model: nn.Module, task: Task) -> Gradients | None:
    """Let these kernels compute ``model`` and prepare ``task``'s batches, in place.

    What is returned makes the gradients of the whole model at once; None: autograd has to.

    Raises:
        InvalidConfiguration: they can't compute anything of the model, or there is no C++ compiler.
    """
    if name == "torch":
        return None
    from simulation.kernels.native import accelerate
    from simulation.kernels.native.images import accelerate_images

    accelerate_images(task)
    return accelerate(model)

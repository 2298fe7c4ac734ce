"""Augmentation and normalisation of images by the compiled kernels, right into the layout they work on."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from shared.tasks.base import Task
from shared.tasks.images import ImageTask
from shared.tasks.transforms import corners, mirrored
from simulation.kernels.native.layers import call, lanes_for
from simulation.kernels.native.library import Shape, load_library

__all__ = ["accelerate_images"]


def accelerate_images(task: Task) -> bool:
    """Let the kernels prepare ``task``'s images, bit for bit; False if it has a way of its own."""
    if not isinstance(task, ImageTask) or task.rotation:
        return False
    kind: type[ImageTask] = type(task)
    if (kind.prepare, kind.augment) != (ImageTask.prepare, ImageTask.augment):
        return False
    shift, scale = (each.expand(task.input_shape[0]).contiguous() for each in task.normalisation())
    task.prepare = partial(_prepare, task, shift, scale)  # type: ignore[method-assign]
    return True


def _prepare(
    task: ImageTask, shift: Tensor, scale: Tensor, inputs: Tensor, generator: torch.Generator | None
) -> Tensor:
    """What :meth:`ImageTask.prepare` makes of bytes (B, C, H, W), with the batch innermost in memory.

    ``shift`` and ``scale`` (C,) are its normalisation.
    """
    if inputs.dtype != torch.uint8:
        return ImageTask.prepare(task, inputs, generator)
    number, channels, height, width = inputs.shape
    padding = 0
    down = right = torch.zeros(number, dtype=torch.int64)
    turned = torch.zeros(number, dtype=torch.bool)
    if generator is not None and task.crop_padding:
        padding = task.crop_padding
        down, right = corners(number, padding, generator)
    if generator is not None and task.flips:
        turned = mirrored(number, generator)
    out = torch.empty(channels, height, width, lanes_for(number))
    shape = Shape(inputs=channels, height=height, width=width, lanes=out.shape[3])
    images = inputs.contiguous()
    call(load_library().prepare, shape, images, number, padding, down, right, turned, shift, scale, out)
    return out.permute(3, 0, 1, 2)[:number]

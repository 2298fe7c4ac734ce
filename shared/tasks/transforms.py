"""Augmentations of whole batches (B, C, H, W), drawn from a CPU generator on whatever device they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["corners", "crop", "flip", "jitter", "mirrored", "rotate"]


def corners(number: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """How far down and right (number,) the windows lie that :func:`crop` cuts out."""
    down, right = torch.randint(0, 2 * padding + 1, (2, number), generator=generator)
    return down, right


def crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """A window of the images' own size (B, C, H, W) at a random place of each image padded with black."""
    number, _, height, width = images.shape
    down, right = corners(number, padding, generator)
    padded = functional.pad(images, (padding,) * 4)
    if images.device.type == "cpu":
        return _windows_by_rows(padded, down, right, height, width)
    return _windows(padded, down.to(images.device), right.to(images.device), height, width)


def _windows(images: Tensor, down: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """Of each image, what lies ``down`` and ``right`` (B,) from its corner: (B, C, height, width)."""
    views = images.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, rows, columns, height, width), no copy
    return views[torch.arange(len(images), device=images.device), :, down, right]


def _windows_by_rows(images: Tensor, down: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """The same on the CPU, where PyTorch would copy pixel by pixel."""
    found = images.new_empty(*images.shape[:2], height, width)
    for image, y, x, target in zip(images.numpy(), down.tolist(), right.tolist(), found.numpy(), strict=True):
        target[:] = image[:, y : y + height, x : x + width]
    return found


def mirrored(number: int, generator: torch.Generator) -> Tensor:
    """Which (number,) of the images :func:`flip` mirrors: each with a chance of a half."""
    return torch.rand(number, generator=generator) < 0.5


def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each of the images (B, C, H, W) mirrored left to right, or not, with equal chances."""
    chosen = torch.nonzero(mirrored(len(images), generator)).flatten().to(images.device)
    return images.index_copy(0, chosen, images.index_select(0, chosen).flip(3))


def rotate(images: Tensor, degrees: float, generator: torch.Generator) -> Tensor:
    """Each image turned about its centre by an angle within +-``degrees``, float32, black where nothing is.

    (B, C, H, W) with nearest pixels, so that no new colours arise.
    """
    draws = torch.rand(len(images), generator=generator).to(images.device)
    angles = (2 * draws - 1) * math.radians(degrees)
    cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    height, width = images.shape[2:]
    # rows of the map from output to input places, both from -1 to 1, hence the ratio of the sides
    rows = [cosine, -sine * (height / width), zero, sine * (width / height), cosine, zero]
    grid = functional.affine_grid(
        torch.stack(rows, dim=1).view(-1, 2, 3), list(images.shape), align_corners=False
    )
    return functional.grid_sample(images.float(), grid, mode="nearest", align_corners=False)


def jitter(
    images: Tensor, brightness: float, contrast: float, hue: float, generator: torch.Generator
) -> Tensor:
    """Colours (B, 3, H, W), 0 to 255, changed image by image; float32, 0 to 255.

    Brightness is multiplied by 1 +- ``brightness`` at most, the distance from the mean grey by
    1 +- ``contrast``, and the hue is turned by +- ``hue`` of the colour circle.
    """
    draws = 2 * torch.rand((3, len(images), 1, 1, 1), generator=generator).to(images.device) - 1
    brighter = (images.float() * (1 + brightness * draws[0])).clamp_(0, 255)
    weights = torch.tensor((0.299, 0.587, 0.114), device=images.device).view(3, 1, 1)
    grey = (brighter * weights).sum(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True)
    contrasted = torch.lerp(grey, brighter, 1 + contrast * draws[1]).clamp_(0, 255)
    return _turn_hue(contrasted, hue * draws[2].squeeze(1))


def _turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """RGB (B, 3, H, W) with the hue turned by ``turn`` (B, 1, 1) of the circle; value and chroma stay."""
    value, chroma = images.amax(dim=1), images.amax(dim=1) - images.amin(dim=1)  # (B, H, W)
    red, green, blue = images.unbind(dim=1)
    of_red, of_green = torch.remainder((green - blue) / chroma, 6), (blue - red) / chroma + 2
    sixths = torch.where(
        value == red, of_red, torch.where(value == green, of_green, (red - green) / chroma + 4)
    )
    sixths = torch.nan_to_num(sixths, posinf=0, neginf=0) + 6 * turn  # grey has no hue
    distances = [torch.remainder(offset + sixths, 6) for offset in (5, 3, 1)]
    turned = [value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1) for k in distances]
    return torch.stack(turned, dim=1)

"""One's own images: a folder or zip with a folder a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from shared.config import Frozen
from shared.data import Examples, opened
from shared.tasks.base import Split
from shared.tasks.images import ImageTask, read_folder

__all__ = ["TASK", "ImageFolder"]

Side = Annotated[int, Field(ge=8, le=4096)]


class ImageFolderOptions(Frozen):
    """``classes`` is the class contract, the same at every site; images are resized to (height, width)."""

    classes: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(min_length=2)
    size: tuple[Side, Side] = (32, 32)
    channels: Literal[1, 3] = 3
    flips: bool = Field(True, description="mirror training images left to right at random")
    crop_padding: int = Field(
        4, ge=0, le=64, description="pixels by which training images are shifted at most"
    )

    @field_validator("size", mode="before")
    @classmethod
    def _one_number_is_a_square(cls, value: object) -> object:
        return (value, value) if isinstance(value, int) else value


class ImageFolder(ImageTask):
    """``train/<class>/...`` and ``test/<class>/...``, or ``<class>/...`` where a site has only one split.

    A label is the class's position in the contract; a class without a folder has no images here.
    """

    name = "imagefolder"
    Options = ImageFolderOptions

    def __init__(self, options: ImageFolderOptions) -> None:
        super().__init__(options)
        self.classes = options.classes
        self.size, self.channels = options.size, options.channels
        self.input_shape = (options.channels, *options.size)
        self.mean = self.deviation = (0.5,) * options.channels
        self.flips, self.crop_padding = options.flips, options.crop_padding

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images sorted by class and name, resized, in the number of channels of the options."""
        with opened(source, f"images as {split}/<class>/... or <class>/...") as archive:
            return read_folder(archive, split, self.classes, self.channels, self.size, self.cache)


TASK = ImageFolder

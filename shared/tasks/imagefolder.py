"""One's own images: a folder or zip with a folder a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from shared.config import Frozen
from shared.data import Examples, opened
from shared.tasks.base import Split
from shared.tasks.images import ImageTask

__all__ = ["TASK", "ImageFolder"]

Side = Annotated[int, Field(ge=8, le=4096)]


class ImageFolderOptions(Frozen):
    """``classes`` is the class contract, the same at every site; images are resized to (height, width).

    ``window`` (low, high) or ``bits`` say which values of grey images of more than 8 bits become black and
    white; without them the whole range of the file's depth.
    """

    classes: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(min_length=2)
    size: tuple[Side, Side] = (32, 32)
    channels: Literal[1, 3] = 3
    flips: bool = Field(True, description="mirror training images left to right at random")
    crop_padding: int = Field(
        4, ge=0, le=64, description="pixels by which training images are shifted at most"
    )

    window: tuple[float, float] | None = None
    bits: int | None = Field(None, ge=1, le=32, description="the same as window: [0, 2**bits - 1]")

    @model_validator(mode="after")
    def _one_window(self) -> Self:
        if self.window is not None and self.bits is not None:
            raise ValueError("give window or bits, not both")
        if self.window is not None and not (self.window[0] < self.window[1]):
            raise ValueError("window is [low, high], low below high")
        return self

    @field_validator("size", mode="before")
    @classmethod
    def _one_number_is_a_square(cls, value: object) -> object:
        return (value, value) if isinstance(value, int) else value


class ImageFolder(ImageTask):
    """``train/<class>/...`` and ``test/<class>/...``, or ``<class>/...`` where a site has only one split.

    A label is the class's position in the contract; a class without a folder has no images here.
    """

    name = "imagefolder"
    Options: ClassVar[type[Frozen]] = ImageFolderOptions

    def __init__(self, options: ImageFolderOptions) -> None:
        super().__init__(options)
        self.classes = options.classes
        self.size, self.channels = options.size, options.channels
        self.input_shape = (options.channels, *options.size)
        self.mean = self.deviation = (0.5,) * options.channels
        self.flips, self.crop_padding = options.flips, options.crop_padding
        self.window = options.window if options.bits is None else (0, 2**options.bits - 1)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images sorted by class and name, resized, in the number of channels of the options."""
        with opened(source, f"images as {split}/<class>/... or <class>/...", self.on_broken) as archive:
            return self.read_folder(archive, split, self.channels, self.size)


TASK = ImageFolder

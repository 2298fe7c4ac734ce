"""HAM10000: 10,015 dermatoscopic images in seven diagnoses (Tschandl, Rosendahl, Kittler, Sci. Data 2018).

CC BY-NC 4.0: not for commercial use. There is no official split; as in FedDisco's experiments 30 images
a diagnosis are held out, and here all images of one lesion stay on one side.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from shared.config import Frozen
from shared.data import Archive, Examples, find_file, opened
from shared.data.images import is_image
from shared.left_out import Reason
from shared.problems import InvalidConfiguration
from shared.seeds import torch_generator
from shared.tasks.base import Split, Task
from shared.tasks.images import ImageTask
from shared.tasks.tables import fault
from shared.tasks.transforms import flip, jitter

__all__ = ["HAM10000", "TASK"]

HELD_OUT = 30
"""Test images of each diagnosis (Ye et al., ICML 2023: a test set of 210)."""

METADATA = ("HAM10000_metadata.csv", "HAM10000_metadata")
COLUMNS = ("lesion_id", "image_id", "dx")


@dataclass(frozen=True)
class _Image:
    lesion: str
    name: str
    label: int


class HAM10000Options(Frozen):
    """Images are resized to ``size`` x ``size`` pixels."""

    size: Annotated[int, Field(ge=16, le=600)] = 56


class HAM10000(ImageTask):
    """Reads the published metadata and images, whatever the folders, from a folder, zip or tar."""

    name = "ham10000"
    Options = HAM10000Options
    default_model = "resnet18-gn"
    classes = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    mean = (0.485, 0.456, 0.406)
    deviation = (0.229, 0.224, 0.225)
    flips = True
    rotation = 20.0

    def __init__(self, options: HAM10000Options) -> None:
        super().__init__(options)
        self.size = (options.size, options.size)
        self.input_shape = (3, *self.size)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images sorted by diagnosis and image id; which are held out is drawn by the seed."""
        with opened(source, f"HAM10000 ({METADATA[0]} and the images it names)", self.on_broken) as archive:
            images = _listing(archive, self)
            held_out = _held_out(images, len(self.classes), seed)
            chosen = [image for image in images if (image in held_out) == (split == "test")]
            return self.read_images(archive, [(image.name, image.label) for image in chosen], 3, self.size)

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Beside the flip and the rotation a vertical flip, and jitter of brightness, contrast and hue."""
        images = flip(images.transpose(2, 3), generator).transpose(2, 3)
        return jitter(super().augment(images, generator), 0.1, 0.1, 0.1, generator)


TASK = HAM10000


def _listing(archive: Archive, task: Task) -> list[_Image]:
    files = {name.rsplit("/", 1)[-1].rsplit(".", 1)[0]: name for name in archive.names if is_image(name)}
    where = find_file(archive, METADATA)
    images = []
    for line, row in _read_rows(archive, where):
        label = task.class_of(row["dx"])
        if row["image_id"] not in files or label is None:
            raise InvalidConfiguration(
                f"data: {where} in {archive.path}, line {line}: looked for the image "
                f"{row['image_id']!r} of diagnosis {row['dx']!r}: "
                f"{'no such diagnosis' if row['image_id'] in files else 'no such image'}.",
                hint=f"The diagnoses are {', '.join(task.classes)}. "
                + (task.ask_class(row["dx"]) if label is None else ""),
            )
        images.append(_Image(row["lesion_id"], files[row["image_id"]], task.classes.index(label)))
    listed = {image.name for image in images}
    for name in archive.names:
        if is_image(name) and name not in listed:
            archive.left_out.add(Reason.UNLISTED, name)
    return sorted(images, key=lambda image: (image.label, image.name.rsplit("/", 1)[-1]))


def _read_rows(archive: Archive, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The metadata's rows, which have a cell in each of ``COLUMNS``, and the line of each."""
    text = archive.read(where).decode("utf-8-sig", errors="replace")
    rows = csv.DictReader(io.StringIO(text), strict=True)
    try:
        if not set(COLUMNS) <= set(rows.fieldnames or ()):
            raise InvalidConfiguration(
                f"data: {where} in {archive.path} has the columns {rows.fieldnames}, "
                f"not {', '.join(COLUMNS)}."
            )
        for row in rows:
            if missing := [column for column in COLUMNS if row[column] is None]:
                raise fault(archive, where, rows.line_num, f"the row ends before column {missing[0]}")
            yield rows.line_num, row
    except csv.Error as error:
        hint = "A quotation mark that is not closed takes the rest of the file for one cell."
        raise fault(archive, where, rows.reader.line_num, str(error), hint=hint) from error


def _held_out(images: list[_Image], classes: int, seed: int) -> set[_Image]:
    """At most ``HELD_OUT`` images of each class, as whole lesions that still fit, in an order of the seed."""
    generator = torch_generator(seed, "split")
    lesions: dict[str, list[_Image]] = defaultdict(list)
    for image in images:
        lesions[image.lesion].append(image)
    names, room, held_out = sorted(lesions), [HELD_OUT] * classes, set[_Image]()
    for position in torch.randperm(len(names), generator=generator).tolist():
        members = lesions[names[position]]
        label = members[0].label
        if len(members) <= room[label]:
            room[label] -= len(members)
            held_out.update(members)
    return held_out

"""FEMNIST: handwritten characters by writer, 28x28, grey (Caldas et al., *LEAF*, 2018; from NIST SD 19).

White is 255 and ink is dark, as LEAF makes them (MNIST is the other way round).
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from shared.config import Frozen
from shared.data import Archive, Examples, opened
from shared.data.images import is_image
from shared.left_out import Reason
from shared.problems import InvalidConfiguration
from shared.seeds import torch_generator
from shared.tasks.base import Split
from shared.tasks.images import ImageTask
from shared.tasks.leaf import is_leaf, read_leaf
from shared.tasks.tables import natural

__all__ = ["FEMNIST", "TASK"]

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""LEAF's labels 0 to 61."""

CHOICES = {"digits": string.digits, "a-j": "abcdefghij", "all": CHARACTERS}
HELD_OUT = 0.1


class FEMNISTOptions(Frozen):
    """``characters`` are the ten digits, the lower-case letters a to j (FedProx's experiment), or all 62."""

    characters: Literal["digits", "a-j", "all"] = "digits"


class FEMNIST(ImageTask):
    """Reads LEAF's JSON files, or images as ``<writer>/<character>/...``; the writers are the keys.

    Where there is no split (no folders ``train`` and ``test``) a tenth of each writer's images is held
    out, drawn by the seed.
    """

    name = "femnist"
    Options = FEMNISTOptions
    input_shape = (1, 28, 28)
    mean = (0.5,)
    deviation = (0.5,)

    def __init__(self, options: FEMNISTOptions) -> None:
        super().__init__(options)
        self.classes = tuple(CHOICES[options.characters])

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images sorted by writer, in the order of the files; other characters are left out."""
        wanted = "FEMNIST (LEAF's all_data_*.json, or images as <writer>/<character>/...)"
        with opened(source, wanted, self.on_broken) as archive:
            if any(map(is_leaf, archive.names)):
                return self._leaf(archive, split, seed)
            return self._images(archive, split, seed)

    def _leaf(self, archive: Archive, split: Split, seed: int) -> Examples:
        labels = {CHARACTERS.index(name): label for label, name in enumerate(self.classes)}
        found = read_leaf(archive, split, 28 * 28, len(CHARACTERS))
        known = torch.tensor([label in labels for label in found.labels.tolist()], dtype=torch.bool)
        _require_some(archive, int(known.sum()), self.classes)
        kept = torch.nonzero(known).flatten()
        if others := len(known) - len(kept):
            archive.left_out.add(Reason.OTHER_CLASS, "other characters", times=others)
        examples = Examples(
            found.pixels[kept].view(-1, 1, 28, 28),
            torch.tensor([labels[label] for label in found.labels[kept].tolist()]),
            found.writers[kept],
            archive.left_out,
        )
        return examples if found.is_split else examples.subset(_side(found.writers[kept], split, seed))

    def _images(self, archive: Archive, split: Split, seed: int) -> Examples:
        listing = _listing(archive, self.classes)
        _require_some(archive, len(listing), self.classes)
        chosen = _side(torch.tensor([image.writer for image in listing]), split, seed).tolist()
        images = [listing[position] for position in chosen]
        listed = [(image.name, image.label) for image in images]
        return self.read_images(archive, listed, 1, (28, 28), [image.writer for image in images])


TASK = FEMNIST


@dataclass(frozen=True)
class _Image:
    writer: int
    label: int
    name: str


def _listing(archive: Archive, classes: Sequence[str]) -> list[_Image]:
    """The images of the classes, sorted by writer, class and name."""
    by_writer: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name in archive.names:
        parts = name.split("/")
        if is_image(name):
            if len(parts) < 3 or parts[-2] not in set(CHARACTERS):
                raise InvalidConfiguration(
                    f"data: {name} in {archive.path} is in no folder <writer>/<character>/ "
                    "with one of 0-9, A-Z, a-z as the character."
                )
            by_writer["/".join(parts[:-2])].append((parts[-2], name))
            if parts[-2] not in classes:
                archive.left_out.add(Reason.OTHER_CLASS, name)
        else:
            archive.left_out.add(Reason.NOT_AN_IMAGE, name)
    return [
        _Image(writer, classes.index(character), name)
        for writer, key in enumerate(sorted(by_writer, key=natural))
        for character, name in sorted(by_writer[key])
        if character in classes
    ]


def _require_some(archive: Archive, number: int, classes: Sequence[str]) -> None:
    if not number:
        raise InvalidConfiguration(
            f"data: looked for the characters {''.join(classes)} in LEAF's all_data_*.json or in images as "
            f"<writer>/<character>/... in {archive.path}, found none among {len(archive.names)} files.",
            absent=True,
            hint="Say which characters there are with task_options.characters: digits, a-j or all.",
        )


def _side(writers: Tensor, split: Split, seed: int) -> Tensor:
    """Positions of one side of the split within each writer, in the order given."""
    generator = torch_generator(seed, "split")
    held_out = torch.zeros(len(writers), dtype=torch.bool)
    for writer in sorted(set(writers.tolist())):
        own = torch.nonzero(writers == writer).flatten()
        order = torch.randperm(len(own), generator=generator)
        held_out[own[order[: round(HELD_OUT * len(own))]]] = True
    return torch.nonzero(held_out if split == "test" else ~held_out).flatten()

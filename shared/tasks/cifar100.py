"""CIFAR-100: 50,000 + 10,000 colour images of 32x32 in a hundred classes (Krizhevsky, 2009)."""

from __future__ import annotations

from pathlib import Path

from shared.data import Examples, opened
from shared.tasks.base import Split
from shared.tasks.cifar10 import read_binary, refuse_pickle
from shared.tasks.images import ImageTask

__all__ = ["CIFAR100", "TASK"]

FILES = {"train": ("train.bin",), "test": ("test.bin",)}

NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


class CIFAR100(ImageTask):
    """Reads the published *binary* version, or images as ``train/<class>/...``: a folder, tar or zip."""

    name = "cifar100"
    default_model = "resnet18-gn"
    classes = tuple(NAMES.split())
    input_shape = (3, 32, 32)
    mean = (0.507075, 0.486549, 0.440918)
    deviation = (0.267334, 0.256438, 0.276150)
    crop_padding = 4
    flips = True
    rotation = 15.0

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Images in the order of the file, or sorted by class and name where they are single images."""
        wanted = "CIFAR-100 (train.bin and test.bin, or images as train/<class>/... and test/<class>/...)"
        with opened(source, wanted, self.on_broken) as archive:
            ends = {name.rsplit("/", 1)[-1] for name in archive.names}
            if ends & {"train.bin", "test.bin"}:
                # a coarse label (not used), a fine one, and the pixels
                return read_binary(archive, FILES[split], label_bytes=2, classes=100)
            if {"train", "test", "meta"} <= ends:
                refuse_pickle(archive, "cifar-100-binary.tar.gz")
            return self.read_folder(archive, split, 3, (32, 32))


TASK = CIFAR100

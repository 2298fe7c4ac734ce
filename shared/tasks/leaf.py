"""LEAF's JSON (Caldas et al., 2018): ``users``, ``num_samples`` and ``user_data`` of flat images."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.data import Archive
from shared.problems import InvalidConfiguration
from shared.tasks.base import Split
from shared.tasks.tables import natural

__all__ = ["Leaf", "is_leaf", "read_leaf"]


@dataclass(frozen=True)
class Leaf:
    """Images uint8 (N, pixels), labels and writers int64 (N,), sorted by writer.

    ``is_split``: the files were those of one split; otherwise they are the whole data set.
    """

    pixels: Tensor
    labels: Tensor
    writers: Tensor
    is_split: bool


def is_leaf(name: str) -> bool:
    """Whether a file is one of LEAF's: ``all_data_0.json``, ``train/all_data_0_niid_..._train_9.json`` ..."""
    return re.fullmatch(r"all_data_.*\.json", name.rsplit("/", 1)[-1]) is not None


def read_leaf(archive: Archive, split: Split, pixels: int, labels: int) -> Leaf:
    """All images of ``split`` if there are folders ``train`` and ``test``, otherwise all there are.

    A writer's number is its place among the writers of all files. Files are read one after the other:
    only one of them is in memory as JSON, which takes many times the room of the images.

    Raises:
        InvalidConfiguration: a file is not LEAF's JSON, or an image or label is not what it must be.
    """
    found = [name for name in archive.names if is_leaf(name)]
    sides = {name: part for name in found for part in name.split("/")[:-1] if part in ("train", "test")}
    images: dict[str, list[Tensor]] = {}
    numbers: dict[str, list[Tensor]] = {}
    writers: set[str] = set()
    for name in found:
        users, data = _parsed(archive, name)
        writers.update(users)
        if sides and sides.get(name) != split:
            continue
        for user in users:
            own = data[user]
            where = f"data: {name} in {archive.path}, user {user!r}"
            images.setdefault(user, []).append(_pixels(own, pixels, where))
            numbers.setdefault(user, []).append(_labels(own, labels, where))
            if len(images[user][-1]) != len(numbers[user][-1]):
                raise InvalidConfiguration(
                    f"{where}: {len(images[user][-1])} images but {len(numbers[user][-1])} labels."
                )
    return _sorted(images, numbers, writers, pixels, bool(sides))


def _sorted(
    images: dict[str, list[Tensor]],
    numbers: dict[str, list[Tensor]],
    writers: set[str],
    pixels: int,
    is_split: bool,
) -> Leaf:
    order = [(index, key) for index, key in enumerate(sorted(writers, key=natural)) if key in images]
    labels = [torch.cat(numbers[key]) for _, key in order]
    none = torch.zeros(0, dtype=torch.int64)
    return Leaf(
        pixels=torch.cat(
            [torch.zeros((0, pixels), dtype=torch.uint8), *(i for _, k in order for i in images[k])]
        ),
        labels=torch.cat([none, *labels]),
        writers=torch.cat(
            [none, *(torch.full_like(own, index) for (index, _), own in zip(order, labels, strict=True))]
        ),
        is_split=is_split,
    )


def _parsed(archive: Archive, name: str) -> tuple[list[str], dict[str, Any]]:
    try:
        content = json.loads(archive.read(name))
        users, data = content["users"], content["user_data"]
        return [user for user in users if data[user]["y"]], data
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfiguration(
            f"data: {name} in {archive.path} is not LEAF's JSON (users, user_data with x and y): {error!r}."
        ) from error


def _pixels(own: dict[str, Any], pixels: int, where: str) -> Tensor:
    """The user's images, 0 to 1 in the file, as uint8 (n, pixels)."""
    try:
        values = np.array(own["x"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidConfiguration(f"{where}: x is not a list of images: {error}.") from error
    if values.ndim != 2 or values.shape[1] != pixels or not ((values >= 0) & (values <= 1)).all():
        raise InvalidConfiguration(
            f"{where}: x has the shape {list(values.shape)}, or values outside 0 to 1; "
            f"each image has {pixels} values from 0 to 1."
        )
    return torch.from_numpy(np.rint(255 * values).astype(np.uint8))


def _labels(own: dict[str, Any], labels: int, where: str) -> Tensor:
    values = own["y"]
    if not all(isinstance(value, int) and 0 <= value < labels for value in values):
        raise InvalidConfiguration(f"{where}: y holds something else than labels from 0 to {labels - 1}.")
    return torch.tensor(values, dtype=torch.int64)

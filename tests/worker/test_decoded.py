"""Decoded images do not fill a site's disk for ever; what is read stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from PIL import Image

from shared.data import opened
from shared.data.images import Picture, decode_images
from worker.decoded import KEPT_SECONDS, remove_unused


def decode(folder: Path, cache: Path) -> torch.Tensor:
    with opened(folder, "images") as archive:
        return decode_images(archive, ["a.png"], Picture(channels=3, size=None), cache)[0]


def test_what_was_not_read_for_a_month_goes(tmp_path: Path) -> None:
    cache, now = tmp_path / "cache", time.time()
    for name, colour in (("read", "red"), ("unread", "blue")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4), colour).save(tmp_path / name / "a.png")
        decode(tmp_path / name, cache)
    kept = {path: path.read_bytes() for path in cache.iterdir()}
    assert len(kept) == 4
    for path in kept:
        os.utime(path, (now - KEPT_SECONDS - 60,) * 2)
    first = decode(tmp_path / "read", cache)

    remove_unused(cache, now)
    left = {path: path.read_bytes() for path in cache.iterdir()}
    assert len(left) == 2
    assert left.items() <= kept.items()
    assert torch.equal(decode(tmp_path / "read", cache), first)
    remove_unused(cache, now)
    assert len(list(cache.iterdir())) == 2
    remove_unused(tmp_path / "nowhere", now)

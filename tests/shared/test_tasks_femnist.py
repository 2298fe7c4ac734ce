"""FEMNIST: images by writer, LEAF's JSON, and the real sample."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shared.config import Partition
from shared.data import Examples
from shared.data.partition import partition
from shared.problems import InvalidConfiguration
from shared.tasks import load_task


def image(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    Image.new("L", (28, 28), shade).save(stream, "PNG")
    path.write_bytes(stream.getvalue())


def leaf(path: Path, users: dict[str, list[tuple[int, float]]]) -> None:
    """LEAF's JSON of one-coloured images: for each user (label, grey from 0 to 1)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        user: {"x": [[grey] * 784 for _, grey in own], "y": [label for label, _ in own]}
        for user, own in users.items()
    }
    content = {"users": list(users), "num_samples": [len(own) for own in users.values()], "user_data": data}
    path.write_text(json.dumps(content))


def rows(examples: Examples) -> list[tuple[int, int, int]]:
    """(key, label, grey) of each example."""
    assert examples.keys is not None
    greys = examples.inputs[:, 0, 0, 0].tolist()
    return list(zip(examples.keys.tolist(), examples.targets.tolist(), greys, strict=True))


def test_images_by_writer_hold_out_a_tenth_of_each(tmp_path: Path) -> None:
    for writer, number in (("client_10", 20), ("client_9", 30)):
        for i in range(number):
            image(
                tmp_path / "all" / writer / str(i % 10) / f"{i}.png", (100 if writer == "client_9" else 0) + i
            )
    image(tmp_path / "all" / "client_9" / "q" / "1.png", 255)  # another character, left out
    task = load_task("femnist")
    train, test = rows(task.load("train", tmp_path, 0)), rows(task.load("test", tmp_path, 0))
    assert [key for key, _, _ in test] == [0, 0, 0, 1, 1]  # client_9 comes before client_10
    everything = [(0, i % 10, 100 + i) for i in range(30)] + [(1, i % 10, i) for i in range(20)]
    assert sorted(train + test) == sorted(everything)
    assert [row[:2] for row in train] == sorted(row[:2] for row in train)
    assert rows(task.load("test", tmp_path, 1)) != test
    assert rows(task.load("test", tmp_path, 0)) == test


def test_leafs_json_keeps_its_split_and_its_writers(tmp_path: Path) -> None:
    # f0012_03 is only in the test files: its number is taken in both splits
    leaf(tmp_path / "train/all_data_1_niid_0_keep_0_train_9.json", {"f0013_01": [(3, 0.2), (36, 0.4)]})
    leaf(tmp_path / "train/all_data_0_niid_0_keep_0_train_9.json", {"f0001_41": [(9, 1.0), (0, 0.0)]})
    leaf(
        tmp_path / "test/all_data_0_niid_0_keep_0_test_9.json",
        {"f0013_01": [(5, 0.6)], "f0012_03": [(1, 0.5)]},
    )
    digits, letters = load_task("femnist"), load_task("femnist", {"characters": "a-j"})
    assert rows(digits.load("train", tmp_path, 0)) == [(0, 9, 255), (0, 0, 0), (2, 3, 51)]
    assert rows(digits.load("test", tmp_path, 0)) == [(1, 1, 128), (2, 5, 153)]
    assert rows(letters.load("train", tmp_path, 0)) == [(2, 0, 102)]  # 36 is LEAF's a
    whole = load_task("femnist", {"characters": "all"})
    assert (len(whole.classes), whole.classes[10], whole.classes[36]) == (62, "A", "a")
    assert [label for _, label, _ in rows(whole.load("train", tmp_path, 0))] == [9, 0, 3, 36]


def test_leafs_json_before_its_split_is_split_here(tmp_path: Path) -> None:
    leaf(tmp_path / "all_data/all_data_0.json", {"b": [(i % 10, i / 255) for i in range(20)], "empty": []})
    leaf(tmp_path / "all_data/all_data_1.json", {"a": [(i % 10, (100 + i) / 255) for i in range(10)]})
    task = load_task("femnist")
    train, test = rows(task.load("train", tmp_path, 3)), rows(task.load("test", tmp_path, 3))
    assert [key for key, _, _ in test] == [0, 1, 1]
    everything = [(0, i % 10, 100 + i) for i in range(10)] + [(1, i % 10, i) for i in range(20)]
    assert sorted(train + test) == sorted(everything)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": ["a", "b"]}, r"all_data_0\.json in .* is not LEAF's JSON .*'b'"),
        ({"user_data": {"a": {"y": [1]}}}, "user 'a': x is not a list of images"),
        ({"user_data": {"a": {"x": [[0.5] * 783], "y": [1]}}}, r"x has the shape \[1, 783\]"),
        ({"user_data": {"a": {"x": [[1.5] * 784], "y": [1]}}}, "values outside 0 to 1"),
        (
            {"user_data": {"a": {"x": [[0.5] * 784], "y": [62]}}},
            "y holds something else than labels from 0 to 61",
        ),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [1, 2]}}}, "1 images but 2 labels"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [40]}}}, "looked for the characters 0123456789"),
    ],
)
def test_a_file_that_is_not_leafs(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    leaf(tmp_path / "all_data_0.json", {"a": [(1, 0.5)]})
    content = json.loads((tmp_path / "all_data_0.json").read_text())
    (tmp_path / "all_data_0.json").write_text(json.dumps({**content, **changes}))
    with pytest.raises(InvalidConfiguration, match=said):
        load_task("femnist").load("train", tmp_path, 0)


@pytest.mark.parametrize("name", ["1/a.png", "client_0/12/a.png"])
def test_an_image_of_nobody_or_nothing_is_named(tmp_path: Path, name: str) -> None:
    image(tmp_path / name, 3)
    with pytest.raises(InvalidConfiguration, match=f"{name} in .* is in no folder <writer>/<character>/"):
        load_task("femnist").load("train", tmp_path, 0)


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="found none among 0 files"):
        load_task("femnist").load("train", tmp_path, 0)


@pytest.mark.data
def test_the_real_sample_is_dealt_by_client(data_folder: Path, tmp_path: Path) -> None:
    task = load_task("femnist")
    task.cache = tmp_path
    train, test = (
        task.load(split, data_folder / "femnist-digits-12-clients.zip", 0) for split in ("train", "test")
    )
    assert train.keys is not None
    assert test.keys is not None
    each = [487, 504, 544, 518, 507, 454, 516, 528, 479, 505, 496, 459]  # the data's own README
    assert torch.bincount(torch.cat([train.keys, test.keys])).tolist() == each
    assert torch.bincount(test.keys).tolist() == [round(number / 10) for number in each]
    digits = torch.bincount(torch.cat([train.targets, test.targets])).tolist()
    assert digits == [593, 702, 591, 607, 621, 565, 615, 559, 560, 584]
    parts = partition(
        Partition.model_validate("by-key:12"), train.targets.numpy(), 10, 0, keys=train.keys.numpy()
    )
    assert [len(part) for part in parts] == torch.bincount(train.keys).tolist()
    assert all(np.unique(train.keys.numpy()[part]).tolist() == [k] for k, part in enumerate(parts))
    assert train.inputs.float().mean() > 200  # dark ink on white

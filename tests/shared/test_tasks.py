"""Tasks: readers on small files made here and on the real archives, preparation, refusals."""

from __future__ import annotations

import colorsys
import gzip
import io
import math
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from shared.config import Partition, RunConfig
from shared.data import Examples, opened
from shared.data.images import Picture, decode_images
from shared.data.partition import partition
from shared.problems import InvalidConfiguration
from shared.tasks import available, load_task, task_of
from shared.tasks.base import Split, Task
from shared.tasks.transforms import _windows, _windows_by_rows, crop, flip, jitter, rotate

CONTRACT = ("cat", "dog", "lion")


class Mine(Task):
    """A site's own task."""

    name = "mine"
    default_model = "mlp"
    classes = ("no", "yes")
    input_shape = (3,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        return Examples(torch.zeros(2, 3), torch.tensor([0, 1]))


def png(colour: tuple[int, int, int] | int, size: tuple[int, int] = (8, 8)) -> bytes:
    """A one-coloured image of (width, height)."""
    stream = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def folder_task(**options: object) -> Task:
    return load_task("imagefolder", {"classes": CONTRACT, "size": 8, **options})


# ---------------------------------------------------------------- finding tasks


def test_the_built_in_tasks_are_there() -> None:
    assert available() == (
        "ag-news", "cifar10", "cifar100", "cinic10", "csv", "digits",
        "facebook-comments", "fashion-mnist", "femnist", "ham10000", "hf-image", "hf-text",
        "imagefolder",
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(available()) - {"csv", "hf-image", "hf-text", "imagefolder"}))
def test_every_built_in_task_builds_its_model_for_its_own_inputs(name: str) -> None:
    task = load_task(name)
    assert task.name == name
    batch = torch.zeros((2, *task.input_shape), dtype=torch.uint8)
    outputs = task.build_model(None, seed=0)(task.prepare(batch, None))
    assert outputs.shape == (2, task.outputs)


def test_a_task_by_import_path() -> None:
    assert isinstance(load_task(f"{__name__}:Mine"), Mine)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("digit", {}, "no built-in task 'digit'. Did you mean digits"),
        ("base", {}, "no built-in task 'base'"),
        ("digits", {"size": 3}, r"task_options\.size: Extra inputs are not permitted, received 3"),
        ("imagefolder", {}, r"task_options\.classes: Field required"),
        ("imagefolder", {"classes": CONTRACT, "channels": 2}, r"task_options\.channels: .*received 2"),
        ("nowhere.at_all:Task", {}, "cannot be imported: No module named 'nowhere'"),
        (f"{__name__}:Nothing", {}, "has no attribute 'Nothing'"),
        (f"{__name__}:CONTRACT", {}, "not a subclass of shared.tasks.base.Task"),
        (":Mine", {}, "cannot be imported"),
    ],
)
def test_a_task_that_cannot_be_loaded_says_why(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_task(name, options)


def test_the_runs_class_contract_reaches_the_task_or_is_refused() -> None:
    run = RunConfig(name="pets", task="imagefolder", classes=CONTRACT, task_options={"size": 16})
    assert task_of(run).classes == CONTRACT
    assert task_of(RunConfig(name="d", task="digits")).classes == tuple("0123456789")
    with pytest.raises(
        InvalidConfiguration, match=r"classes: task 'digits' has the classes \['0'.*received \['a'"
    ):
        task_of(RunConfig(name="d", task="digits", classes=("a", "b")))


def test_initial_models_depend_on_the_seed_alone() -> None:
    task = load_task("digits")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = task.build_model(None, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    again, other = task.build_model(None, seed=5).state_dict(), task.build_model(None, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def test_examples_refuse_inputs_and_targets_of_two_lengths() -> None:
    with pytest.raises(ValueError, match="3 inputs but 2 targets"):
        Examples(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(ValueError, match="1 keys but 2 targets"):
        Examples(torch.zeros(2, 1), torch.zeros(2), torch.zeros(1))


# ---------------------------------------------------------------- digits


def test_digits_are_split_within_each_class_by_the_seed() -> None:
    task = load_task("digits")
    train, test = task.load("train", None, 1), task.load("test", None, 1)
    number = torch.bincount(torch.cat([train.targets, test.targets]))
    assert number.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.bincount(test.targets).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    images = torch.cat([train.inputs, test.inputs]).flatten(1)
    assert torch.unique(images, dim=0).shape == (1797, 64)  # all are distinct, so no image is on both sides
    again, other = task.load("test", None, 1), task.load("test", None, 2)
    assert torch.equal(test.inputs, again.inputs)
    assert not torch.equal(test.inputs, other.inputs)
    prepared = task.prepare(images, None)
    assert prepared.mean().item() == pytest.approx(0, abs=1e-3)
    assert prepared.std().item() == pytest.approx(1, abs=1e-3)


def test_digits_can_be_dealt_by_niid2() -> None:
    targets = load_task("digits").load("train", None, 0).targets.numpy()
    parts = partition(Partition.model_validate("niid2:5+1"), targets, 10, seed=0)
    assert {len(part) for part in parts} == {230}  # smallest class 139, so shards of 23


# ---------------------------------------------------------------- preparation of images


def test_normalisation_is_that_of_the_reference() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    deviation = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    prepared = load_task("cifar10").prepare(images, None)
    torch.testing.assert_close(prepared, (images / 255 - mean) / deviation)


def test_windows_row_by_row_are_those_of_accelerators() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20, 3, 9, 12), generator=generator, dtype=torch.uint8)
    down, right = torch.randint(0, 5, (2, 20), generator=generator)
    rows = _windows_by_rows(images, down, right, 5, 8)
    assert torch.equal(rows, _windows(images, down, right, 5, 8))
    assert torch.equal(rows[7], images[7, :, down[7] : down[7] + 5, right[7] : right[7] + 8])


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    images = torch.randint(1, 256, (64, 3, 8, 8), dtype=torch.uint8)
    cropped = crop(images, 2, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    places = set()
    for image, whole in zip(cropped, padded, strict=True):
        matches = [
            (y, x) for y in range(5) for x in range(5) if torch.equal(whole[:, y : y + 8, x : x + 8], image)
        ]
        assert len(matches) == 1
        places.add(matches[0])
    assert len(places) > 20  # of 25, drawn 64 times


def test_a_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.randint(0, 256, (200, 1, 4, 4), dtype=torch.uint8)
    flipped = flip(images, torch.Generator().manual_seed(0))
    mirrored = [torch.equal(one, other.flip(2)) for one, other in zip(flipped, images, strict=True)]
    kept = [torch.equal(one, other) for one, other in zip(flipped, images, strict=True)]
    assert all(a or b for a, b in zip(mirrored, kept, strict=True))
    assert 70 < sum(mirrored) < 130


def test_a_rotation_turns_the_image_about_its_centre() -> None:
    wide = torch.arange(1, 16, dtype=torch.uint8).view(1, 1, 3, 5).repeat(300, 1, 1, 1)
    turned = rotate(wide, 180, torch.Generator().manual_seed(0))
    assert torch.all(turned[:, 0, 1, 2] == 8)  # the centre stays
    square = torch.zeros(300, 1, 9, 9, dtype=torch.uint8)
    square[:, 0, 4, 8] = 1  # 4 pixels right of the centre
    angles = 90 * (2 * torch.rand(300, generator=torch.Generator().manual_seed(0)) - 1)
    places = rotate(square, 90, torch.Generator().manual_seed(0))[:, 0]
    for angle, place in zip(angles.tolist(), places, strict=True):
        for y, x in torch.nonzero(place).tolist():
            there = math.degrees(math.atan2(4 - y, x - 4))
            assert abs(abs(there) - abs(angle)) < 12  # within a pixel of the circle's arc
    still = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(rotate(still, 1e-4, torch.Generator().manual_seed(0)), still.float())
    ahead = rotate(square[:64], 15, torch.Generator().manual_seed(0))
    assert set(torch.nonzero(ahead)[:, 2].tolist()) <= {3, 4, 5}  # sin 15 degrees is about a pixel in 4


@pytest.mark.parametrize("hue", [0.0, 0.1, 0.5])
def test_hue_is_turned_as_the_standard_library_does(hue: float) -> None:
    images = torch.randint(0, 256, (40, 3, 2, 2), dtype=torch.uint8)
    images[0] = 77  # grey
    turned = jitter(images, 0, 0, hue, torch.Generator().manual_seed(0))
    turns = hue * (2 * torch.rand((3, 40), generator=torch.Generator().manual_seed(0))[2] - 1)
    for turn, before, after in zip(turns.tolist(), images, turned, strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(before[:, 0, 1] / 255).tolist())
        expected = torch.tensor(colorsys.hsv_to_rgb((h + turn) % 1, s, v)) * 255
        torch.testing.assert_close(after[:, 0, 1], expected, atol=0.02, rtol=0)


def test_brightness_and_contrast_are_scaled_image_by_image() -> None:
    images = torch.randint(60, 180, (50, 3, 4, 4), dtype=torch.uint8)
    draws = 2 * torch.rand((3, 50, 1, 1, 1), generator=torch.Generator().manual_seed(0)) - 1
    brighter = jitter(images, 0.1, 0, 0, torch.Generator().manual_seed(0))
    torch.testing.assert_close(brighter, images * (1 + 0.1 * draws[0]), atol=0.02, rtol=0)
    contrasted = jitter(images, 0, 0.1, 0, torch.Generator().manual_seed(0))
    middle = contrasted.mean(dim=(2, 3), keepdim=True)
    kept = images.float().mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(contrasted - middle, (images - kept) * (1 + 0.1 * draws[1]), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "ham10000"])
def test_augmentation_follows_the_generator_only(name: str) -> None:
    task = load_task(name)
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    copy = images.clone()

    def prepared(seed: int) -> Tensor:
        return task.prepare(images, torch.Generator().manual_seed(seed))

    assert torch.equal(prepared(1), prepared(1))
    assert not torch.equal(prepared(1), prepared(2))
    assert torch.equal(images, copy)


# ---------------------------------------------------------------- image folders


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
@pytest.mark.parametrize("wrapper", ["", "pets/"])
def test_a_label_is_the_position_in_the_contract(tmp_path: Path, kind: str, wrapper: str) -> None:
    files = {
        f"{wrapper}train/lion/b.png": png((20, 0, 0)),
        f"{wrapper}train/lion/a.png": png((10, 0, 0), size=(4, 4)),
        f"{wrapper}train/cat/deeper/z.PNG": png((30, 0, 0)),
        f"{wrapper}test/dog/x.png": png((40, 50, 60)),
        f"{wrapper}train/.DS_Store": b"?",
        f"{wrapper}notes.txt": b"about",
    }
    source = written(tmp_path / "data", files)
    if kind == "zip":
        source = zipped(tmp_path / "data.zip", files)
    if kind == "tar":
        source = tmp_path / "data.tar.gz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(tmp_path / "data", arcname=".")
    task = folder_task()
    train, test = task.load("train", source, 0), task.load("test", source, 0)
    assert train.targets.tolist() == [0, 2, 2]  # no dog here; sorted by class, then by name
    assert train.inputs.shape == (3, 3, 8, 8)
    assert train.inputs[:, 0, 0, 0].tolist() == [30, 10, 20]
    assert test.targets.tolist() == [1]
    assert test.inputs[0, :, 7, 7].tolist() == [40, 50, 60]


def test_a_site_may_have_class_folders_only(tmp_path: Path) -> None:
    source = written(tmp_path, {"dog/1.png": png(7), "cat/1.png": png(9)})
    grey = folder_task(channels=1, size=(12, 10))
    for split in ("train", "test"):
        examples = grey.load(split, source, 0)
        assert examples.inputs.shape == (2, 1, 12, 10)
        assert examples.inputs[:, 0, 3, 3].tolist() == [9, 7]
        assert examples.targets.tolist() == [0, 1]
    assert grey.input_shape == (1, 12, 10)
    assert grey.prepare(examples.inputs, None)[0, 0, 0, 0].item() == pytest.approx((9 / 255 - 0.5) / 0.5)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"train/wolf/1.png": b"", "train/cat/1.png": b""},
            "train/wolf/1.png .* in no folder of the classes",
        ),
        ({"1.png": b""}, "1.png .* in no folder of the classes"),
        ({"train/cat/1.txt": b""}, r"looked for images .* train/<class>/.* found none among 1 files"),
        ({"test/cat/1.png": b""}, "found none among 1 files"),
        ({"cat/1.png": b"not a picture"}, "cat/1.png in .* is not an image"),
        ({"cat/1.png": png(1)[:-30]}, "cat/1.png in .* is not an image"),
        ({}, "found none among 0 files"),
    ],
)
def test_a_folder_that_does_not_fit_says_what_was_found(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        folder_task().load("train", written(tmp_path, files), 0)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_decoded_images_are_kept_until_they_change(tmp_path: Path, kind: str) -> None:
    def source(shade: int) -> Path:
        files = {"cat/1.png": png(shade), "dog/1.png": png(2)}
        return written(tmp_path / "d", files) if kind == "folder" else zipped(tmp_path / "d.zip", files)

    def shades() -> list[int]:
        inputs: Tensor = task.load("train", place, 0).inputs
        return inputs[:, 0, 0, 0].tolist()

    task, place = folder_task(), source(1)
    task.cache = tmp_path / "new" / "cache"
    assert shades() == [1, 2]
    (kept,) = task.cache.glob("*.npy")
    np.save(kept, np.full((2, 8, 8, 3), 7, dtype=np.uint8))
    assert shades() == [7, 7]  # read back, not decoded
    kept.write_bytes(b"cut off")
    assert shades() == [1, 2]
    source(200)
    os.utime(place / "cat/1.png" if kind == "folder" else place, (1, 1))
    assert shades() == [200, 2]
    assert sorted(file.suffix for file in task.cache.iterdir()) == [".json"] * 2 + [".npy"] * 2


def test_images_of_several_sizes_need_a_size_to_be_resized_to(tmp_path: Path) -> None:
    files = {"a.png": png(1, size=(8, 8)), "b.png": png(1, size=(9, 8))}
    with (
        opened(written(tmp_path, files), "images") as archive,
        pytest.raises(InvalidConfiguration, match=r"b\.png in .* width \(8, 9\), a\.png has \(8, 8\)"),
    ):
        decode_images(archive, ["a.png", "b.png"], Picture(channels=3, size=None))


@pytest.mark.parametrize("task", ["imagefolder", "cifar10", "fashion-mnist"])
def test_a_wrong_place_is_named(tmp_path: Path, task: str) -> None:
    options = {"classes": CONTRACT} if task == "imagefolder" else {}
    missing, note = tmp_path / "missing", tmp_path / "note.txt"
    note.write_text("no archive")
    for source, said in (
        (None, "no place given for"),
        (missing, "looked for .*missing, which does not exist"),
        (note, "note.txt, which is neither a folder nor a zip or tar"),
    ):
        with pytest.raises(InvalidConfiguration, match=said):
            load_task(task, options).load("train", source, 0)


# ---------------------------------------------------------------- CIFAR-10


def records(labels: list[int]) -> bytes:
    """Binary records whose red plane holds 1, green 2, blue 3, but for the first pixel: the label."""
    planes = b"".join(bytes([value]) * 1024 for value in (1, 2, 3))
    return b"".join(bytes([label, label]) + planes[1:] for label in labels)


def test_the_binary_version_of_cifar10(tmp_path: Path) -> None:
    files = {f"cifar-10-batches-bin/data_batch_{i}.bin": records([i, 9]) for i in range(1, 6)}
    files["cifar-10-batches-bin/test_batch.bin"] = records([0, 4, 2])
    task = load_task("cifar10")
    for source in (
        written(tmp_path, files),
        tmp_path / "cifar-10-batches-bin",
        zipped(tmp_path / "c.zip", files),
    ):
        train, test = task.load("train", source, 0), task.load("test", source, 0)
        assert train.targets.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
        assert train.inputs.shape == (10, 3, 32, 32)
        assert train.inputs[:, 0, 0, 0].tolist() == train.targets.tolist()
        assert test.inputs[0, :, 31, 31].tolist() == [1, 2, 3]
        assert test.targets.tolist() == [0, 4, 2]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"test_batch.bin": records([0])}, "looked for data_batch_1.bin in"),
        ({"data_batch_1.bin": records([0])[:-1]}, "has 3072 bytes, not a multiple of 3073"),
        ({"data_batch_1.bin": records([10])}, "label above 9"),
        ({"cifar-10-batches-py/data_batch_1": b""}, "pickle, never read.*cifar-10-binary"),
        ({"train/tiger/1.png": b""}, "tiger/1.png"),
    ],
)
def test_a_folder_that_is_not_cifar10(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_task("cifar10").load("train", written(tmp_path, files), 0)


def test_the_binary_version_of_cifar100_counts_the_fine_label(tmp_path: Path) -> None:
    coarse_first = b"".join(bytes([19]) + record for record in (records([99]), records([88])))
    source = written(tmp_path, {"cifar-100-binary/train.bin": coarse_first})
    task = load_task("cifar100")
    examples = task.load("train", source, 0)
    assert [task.classes[label] for label in examples.targets] == ["worm", "tiger"]
    assert examples.inputs[1, :, 0, 0].tolist() == [88, 2, 3]
    assert (len(task.classes), list(task.classes)) == (100, sorted(set(task.classes)))


def test_the_python_version_of_cifar100_is_not_read(tmp_path: Path) -> None:
    files = dict.fromkeys(("train", "test", "meta"), b"")
    with pytest.raises(InvalidConfiguration, match=r"pickle, never read.*cifar-100-binary"):
        load_task("cifar100").load("train", written(tmp_path, files), 0)


def test_cinic10_as_published(tmp_path: Path) -> None:
    files = {
        f"{split}/{label}/1.png": png(9) for split in ("train", "valid", "test") for label in ("truck", "cat")
    }
    task = load_task("cinic10")
    for split in ("train", "test"):
        assert task.load(split, written(tmp_path, files), 0).targets.tolist() == [3, 9]


@pytest.mark.long
@pytest.mark.data
def test_the_real_cifar10_archive(data_folder: Path) -> None:
    examples = load_task("cifar10").load("test", data_folder / "cifar10-jpeg.zip", 0)
    assert torch.bincount(examples.targets).tolist() == [1000] * 10
    mean = examples.inputs.float().mean(dim=(0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.494, 0.485, 0.450], abs=1e-3)
    with zipfile.ZipFile(data_folder / "cifar10-jpeg.zip") as archive:
        first = sorted(
            name for name in archive.namelist() if name.startswith("test/truck/") and name[-1] == "g"
        )[0]
        pixels = np.asarray(Image.open(io.BytesIO(archive.read(first))))
    assert np.array_equal(examples.inputs[9000].permute(1, 2, 0).numpy(), pixels)


# ---------------------------------------------------------------- HAM10000


def lesions(tmp_path: Path, extra: str = "") -> Path:
    """40 lesions of two images in nv, 20 of one in df; images in two folders, as published."""
    rows, files = ["lesion_id,image_id,dx,age"], {}
    for number in range(100):
        lesion, dx = (number // 2, "nv") if number < 80 else (number, "df")
        rows.append(f"L{lesion},I{number:03},{dx},50.0")
        files[f"HAM10000_images_part_{number % 2}/I{number:03}.png"] = png((number, 0, 0))
    files["HAM10000_metadata.csv"] = "\n".join([*rows, extra]).encode()
    return written(tmp_path, files)


def test_ham10000_holds_out_whole_lesions(tmp_path: Path) -> None:
    task = load_task("ham10000", {"size": 16})
    source = lesions(tmp_path)
    train, test = task.load("train", source, 0), task.load("test", source, 0)
    assert torch.bincount(test.targets, minlength=7).tolist() == [0, 0, 0, 20, 0, 30, 0]
    assert torch.bincount(train.targets, minlength=7).tolist() == [0, 0, 0, 0, 0, 50, 0]
    ids = {
        split: [int(image[0, 0, 0]) for image in part.inputs] for split, part in (("a", train), ("b", test))
    }
    assert sorted(ids["a"] + ids["b"]) == list(range(100))
    assert not {i // 2 for i in ids["a"]} & {i // 2 for i in ids["b"] if i < 80}
    assert ids["a"] == sorted(ids["a"])
    assert not torch.equal(task.load("test", source, 1).inputs, test.inputs)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("L1,I999,nv,50.0", "line 102: looked for the image 'I999' .*: no such image"),
        ("L1,I001,wart,50.0", "diagnosis 'wart': no such diagnosis"),
        ("L1,I001,NV,50.0", "diagnosis 'NV': no such diagnosis.* Did you mean nv"),
        ("L1,I001", "line 102: the row ends before column dx"),
        ('L1,I001,nv,"50.0', "line 102: unexpected end of data.* is not closed"),
        ("L1,I001,nv," + "0" * 200_000, "line 102: field larger than field limit"),
    ],
)
def test_metadata_of_ham10000_that_does_not_fit(tmp_path: Path, extra: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_task("ham10000").load("train", lesions(tmp_path, extra), 0)


def test_metadata_of_ham10000_without_lesions(tmp_path: Path) -> None:
    source = written(tmp_path, {"HAM10000_metadata.csv": b"image_id,dx\n"})
    with pytest.raises(InvalidConfiguration, match=r"has the columns \['image_id', 'dx'\], not lesion_id"):
        load_task("ham10000").load("train", source, 0)


@pytest.mark.data
def test_the_real_ham10000_archive(data_folder: Path) -> None:
    test = load_task("ham10000").load("test", data_folder / "ham10000-200x150-jpeg.zip", 0)
    assert torch.bincount(test.targets).tolist() == [30] * 7
    assert test.inputs.shape == (210, 3, 56, 56)


# ---------------------------------------------------------------- Fashion-MNIST


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


IMAGES = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
LABELS = np.array([9, 3], dtype=np.uint8)


@pytest.mark.parametrize("compressed", [False, True])
def test_fashion_mnist_reads_idx_files(tmp_path: Path, compressed: bool) -> None:
    end, pack = (".gz", gzip.compress) if compressed else ("", bytes)
    files = {
        f"raw/t10k-images-idx3-ubyte{end}": pack(idx(IMAGES)),
        f"raw/t10k-labels-idx1-ubyte{end}": pack(idx(LABELS)),
    }
    examples = load_task("fashion-mnist").load("test", written(tmp_path, files), 0)
    assert np.array_equal(examples.inputs[:, 0].numpy(), IMAGES)
    assert examples.targets.tolist() == [9, 3]


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (idx(IMAGES)[:-1], idx(LABELS), r"announces the shape \[2, 28, 28\] but holds 1567 values"),
        (idx(IMAGES), b"\0\0\x0d\x01", "labels-idx1-ubyte in .* is not an idx file of bytes"),
        (idx(IMAGES), b"", "is not an idx file of bytes"),
        (idx(IMAGES), b"\0\0\x08\x02\0", r"announces the shape \[\]"),
        (b"\x1f\x8bnot gzip", idx(LABELS), "is not gzip"),
        (idx(IMAGES), idx(LABELS[:1]), r"labels of shape \[1\]"),
        (idx(IMAGES), idx(LABELS + 1), "labels from 0 to 9"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), r"images of shape \[0, 28, 28\].* N at least 1"),
        (idx(IMAGES), None, "looked for t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in"),
    ],
)
def test_files_that_are_not_fashion_mnist(
    tmp_path: Path, images: bytes, labels: bytes | None, said: str
) -> None:
    files = {"t10k-images-idx3-ubyte": images}
    if labels is not None:
        files["t10k-labels-idx1-ubyte"] = labels
    with pytest.raises(InvalidConfiguration, match=said):
        load_task("fashion-mnist").load("test", written(tmp_path, files), 0)


@pytest.mark.data
def test_the_real_fashion_mnist_archive(data_folder: Path) -> None:
    source = data_folder / "fashion-mnist-idx.zip"
    parts: tuple[tuple[Split, int], ...] = (("train", 6000), ("test", 1000))
    for split, each in parts:
        examples = load_task("fashion-mnist").load(split, source, 0)
        assert torch.bincount(examples.targets).tolist() == [each] * 10
        assert examples.inputs.shape == (10 * each, 1, 28, 28)

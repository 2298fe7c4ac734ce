"""Images as people have them: many formats and depths, broken files, odd names. Cases D1 to D4 of issue 8."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, features

from shared.data import Examples, fingerprint_of
from shared.data.images import FORMATS, IMAGE_SUFFIXES
from shared.left_out import Reason
from shared.problems import InvalidConfiguration
from shared.tasks import load_task
from shared.tasks.base import Task

CLASSES = ("a", "b")
RAMP = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)


def task_of(**options: Any) -> Task:
    return load_task("imagefolder", {"classes": CLASSES, "size": 8, "channels": 1, **options})


def saved(image: Image.Image, format: str, **more: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **more)
    return stream.getvalue()


def grey(shade: int = 100, format: str = "PNG") -> bytes:
    return saved(Image.new("L", (8, 8), shade), format)


def place(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def pixels(folder: Path, image: bytes, name: str = "1.png", **options: Any) -> np.ndarray[Any, Any]:
    """One image (8, 8) as the task reads it, in the folder of class a."""
    found = task_of(**options).load("train", place(folder, {f"a/{name}": image}), 0).inputs
    return found[0].numpy() if options.get("channels") == 3 else found[0, 0].numpy()


# ---------------------------------------------------------------- D1: formats, and what is left out


def test_d1_what_pillow_reads_is_read(tmp_path: Path) -> None:
    files = {f"a/{number}.png": grey() for number in range(3)}
    files |= {"b/1.tif": grey(format="TIFF"), "b/2.TIFF": grey(format="TIFF"), "b/3.bmp": grey(format="BMP")}
    files |= {"b/4.webp": grey(format="WEBP"), "b/5.jfif": grey(format="JPEG"), "b/6.gif": grey(format="GIF")}
    files |= {
        "b/7.jp2": grey(format="JPEG2000"),
        "b/8.tga": grey(format="TGA"),
        "b/9.pgm": grey(format="PPM"),
    }
    examples = task_of().load("train", place(tmp_path, files), 0)
    assert torch.bincount(examples.targets).tolist() == [3, 9]
    assert (examples.inputs.float() - 100).abs().max() <= 2
    assert examples.left_out.counts() == {}


def test_the_list_of_formats_is_pillows_but_for_what_is_named() -> None:
    Image.init()
    known = Image.registered_extensions()
    assert {known[suffix] for suffix in IMAGE_SUFFIXES if suffix in known} <= set(FORMATS)
    for name, suffixes in FORMATS.items():
        assert set(suffixes) <= {suffix for suffix, format in known.items() if format == name}, name
    assert not {"EPS", "WMF", "PDF", "HDF5", "GRIB", "BUFR"} & set(FORMATS)


def test_d1_every_file_that_is_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), shade) for shade in (10, 200, 30)]
    files = {
        "train/a/1.png": grey(),
        "train/a/2.gif": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "train/a/notes.txt": b"x",
        "train/a/.DS_Store": b"x",
        "train/b/Thumbs.db": b"x",
        "valid/a/3.png": grey(),
        "test/a/4.png": grey(),
        "test/a/notes.txt": b"of the other split",
        "README": b"x",
    }
    examples = task_of().load("train", place(tmp_path, files), 0)
    assert examples.inputs[:, 0, 0, 0].tolist() == [100, 10]  # of several frames the first
    assert examples.left_out.counts() == {
        "hidden": 2,
        "not-an-image": 2,
        "other-folder": 1,
        "further-frames": 2,
    }
    told = "\n".join(examples.left_out.sentences())
    for name in ("train/a/notes.txt", "README", ".DS_Store", "valid/a/3.png", "train/a/2.gif"):
        assert name in told
    assert "no image by the name's ending: 2 (README, train/a/notes.txt)" in told
    assert examples.subset(torch.tensor([0])).left_out.counts() == examples.left_out.counts()


def test_a_linked_class_folder_is_read_and_a_circle_ends(tmp_path: Path) -> None:
    place(tmp_path / "elsewhere", {"1.png": grey()})
    place(tmp_path / "data", {"a/1.png": grey()})
    (tmp_path / "data" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "a" / "up").symlink_to(tmp_path / "data")
    examples = task_of().load("train", tmp_path / "data", 0)
    assert torch.bincount(examples.targets).tolist() == [1, 1]


# ---------------------------------------------------------------- D2: depths and colours


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM", "JPEG2000"])
def test_d2_sixteen_bits_keep_their_full_range(tmp_path: Path, format: str) -> None:
    name = f"1{FORMATS[format][-1]}"
    found = pixels(tmp_path, saved(Image.fromarray(RAMP), format), name)
    assert np.array_equal(found, (RAMP / 257).round())
    assert (found == 255).mean() < 0.02


def test_d2_twelve_bits_in_sixteen_by_bits_or_window(tmp_path: Path) -> None:
    ramp = (RAMP >> 4).astype(np.uint16)  # 0 to 4095
    image = saved(Image.fromarray(ramp), "PNG")
    wanted = (ramp.astype(float) * 255 / 4095).round()
    assert np.array_equal(pixels(tmp_path, image, bits=12), wanted)
    assert np.array_equal(pixels(tmp_path, image, window=[0, 4095]), wanted)
    lung = pixels(tmp_path, image, window=[1000, 2000])
    assert lung[ramp <= 1000].max() == 0
    assert lung[ramp >= 2000].min() == 255
    assert pixels(tmp_path, image).max() == 16  # by the depth of the file


def test_d2_a_window_leaves_eight_bits_alone(tmp_path: Path) -> None:
    assert pixels(tmp_path, grey(100), window=[0, 4095]).tolist() == [[100] * 8] * 8


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_d2_thirty_two_bits_need_a_window(tmp_path: Path, kind: type[np.generic]) -> None:
    values = (np.arange(64).reshape(8, 8) * 10 - 300).astype(kind)
    image = saved(Image.fromarray(values), "TIFF")
    said = r"1\.tif in .* has values from -300 to 330 and no range of its own; .* task_options window"
    with pytest.raises(InvalidConfiguration, match=said):
        pixels(tmp_path, image, "1.tif")
    found = pixels(tmp_path, image, "1.tif", window=[-300, 330])
    assert np.array_equal(found, ((values.astype(float) + 300) * 255 / 630).round())


def test_d2_values_that_are_not_finite_are_a_broken_image(tmp_path: Path) -> None:
    image = saved(Image.fromarray(np.full((8, 8), np.nan, dtype=np.float32)), "TIFF")
    with pytest.raises(InvalidConfiguration, match="has values that are not finite numbers"):
        pixels(tmp_path, image, "1.tif", window=[0, 1])


def test_d2_white_is_zero_in_sixteen_bits(tmp_path: Path) -> None:
    image = saved(Image.fromarray(RAMP), "TIFF", tiffinfo={262: 0})
    assert Image.open(io.BytesIO(image)).tag_v2[262] == 0  # type: ignore[attr-defined]
    assert np.array_equal(pixels(tmp_path, image, "1.tif"), 255 - (RAMP / 257).round())


@pytest.mark.parametrize("bits", [8, 16])
def test_d2_the_exif_orientation_is_followed(tmp_path: Path, bits: int) -> None:
    values = np.zeros((8, 8), dtype=np.uint8 if bits == 8 else np.uint16)
    values[0] = 2**bits - 1  # the top row is white
    for format, name in (("PNG", "1.png"), ("TIFF", "1.tif")):
        exif = Image.Exif()
        exif[0x0112] = 6  # stored turned: the top row is the right column
        found = pixels(tmp_path / format, saved(Image.fromarray(values), format, exif=exif), name)
        assert (found[:, 7] == 255).all(), format
        assert (found[:, :7] == 0).all(), format


def test_d2_palette_alpha_cmyk_and_one_bit(tmp_path: Path) -> None:
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    half = Image.new("LA", (8, 8), (0, 128))
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    lab = ImageCms.profileToProfile(red, *profiles, outputMode="LAB")
    assert lab is not None
    cases: list[tuple[Image.Image, str, tuple[int, int, int], dict[str, Any]]] = [
        (red.quantize(4), "PNG", (255, 0, 0), {}),
        (clear, "PNG", (255, 255, 255), {}),  # on white
        (half, "PNG", (127, 127, 127), {}),
        (Image.new("P", (8, 8), 0), "PNG", (255, 255, 255), {"transparency": 0}),
        (red.convert("CMYK"), "JPEG", (254, 0, 0), {}),
        (red.convert("CMYK"), "TIFF", (255, 0, 0), {}),
        (Image.new("1", (8, 8), 1), "PNG", (255, 255, 255), {}),
        (lab, "TIFF", (255, 0, 0), {}),
    ]  # fmt: skip
    for number, (image, format, wanted, more) in enumerate(cases):
        name = f"1{FORMATS[format][-1]}"
        found = pixels(tmp_path / str(number), saved(image, format, **more), name, channels=3)
        assert np.abs(found[:, 4, 4].astype(int) - wanted).max() <= 5, (number, found[:, 4, 4])
        assert pixels(tmp_path / str(number), saved(image, format, **more), name).shape == (8, 8)


# ---------------------------------------------------------------- D3: names


def test_d3_names_that_are_no_utf8_are_read_from_a_folder(tmp_path: Path) -> None:
    place(tmp_path, {"a/1.png": grey()})
    odd = os.fsencode(tmp_path / "b") + b"/r\xf6ntgen.png"
    (tmp_path / "b").mkdir()
    Path(os.fsdecode(odd)).write_bytes(grey(50))
    task = task_of()
    task.cache = tmp_path / "cache-of-another-place"
    for _ in range(2):  # decoded, then kept
        examples = task.load("train", tmp_path, 0)
        assert examples.inputs[:, 0, 0, 0].tolist() == [100, 50]
    assert fingerprint_of(tmp_path)
    Path(os.fsdecode(odd)).write_bytes(b"")
    with pytest.raises(InvalidConfiguration, match=r"b/r\\udcf6ntgen\.png in .* is empty") as refused:
        task.load("train", tmp_path, 0)
    str(refused.value).encode()  # may be printed


@pytest.mark.parametrize("raw", [b"b/r\xf6ntgen.png", "b/röntgen.png".encode()])
def test_d3_names_that_are_no_utf8_are_read_from_a_zip(tmp_path: Path, raw: bytes) -> None:
    stand_in = b"b/" + b"x" * (len(raw) - 2)
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("a/1.png", grey())
        archive.writestr(stand_in.decode(), grey(50))
    packed = tmp_path / "d.zip"
    packed.write_bytes(packed.read_bytes().replace(stand_in, raw))
    examples = task_of().load("train", packed, 0)
    assert examples.inputs[:, 0, 0, 0].tolist() == [100, 50]


def test_d3_a_class_in_a_zip_whose_program_does_not_mark_utf8(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("xxxxxxx/1.png", grey())
        archive.writestr("b/1.png", grey())
    packed = tmp_path / "d.zip"
    packed.write_bytes(packed.read_bytes().replace(b"xxxxxxx", "Nävus!".encode()))
    assert len(task_of(classes=("Nävus!", "b")).load("train", packed, 0)) == 2


# ---------------------------------------------------------------- D4: broken files


def broken(folder: Path) -> Path:
    jpeg = saved(Image.effect_noise((64, 64), 90), "JPEG")
    files = {f"a/{number}.png": grey() for number in range(5)}
    files |= {"b/empty.png": b"", "b/cut.jpg": jpeg[: len(jpeg) // 2], "b/good.png": grey(50)}
    files |= {"b/page.jpg": b"<!DOCTYPE html><html>404</html>", "b/noise.png": b"not a picture"}
    return place(folder, files)


def test_d4_broken_images_are_refused_with_the_reason_of_each(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        task_of().load("train", broken(tmp_path), 0)
    said = str(refused.value)
    assert "4 files or rows" in said
    assert "b/empty.png is empty (0 bytes)" in said
    assert "b/cut.jpg is not an image all through, it is cut short or damaged: image file is trunc" in said
    assert "b/page.jpg is not an image: it is a web page (HTML)" in said
    assert "b/noise.png is not an image of a kind that is read here" in said
    assert "--on-broken skip" in said
    assert "0x7" not in said  # no memory address
    assert "BytesIO" not in said


@pytest.mark.parametrize("cached", [False, True])
def test_d4_broken_images_are_skipped_and_counted_if_the_site_says_so(tmp_path: Path, cached: bool) -> None:
    task, source = task_of(), broken(tmp_path / "data")
    task.on_broken = "skip"
    task.cache = tmp_path / "cache" if cached else None
    for _ in range(2):
        examples = task.load("train", source, 0)
        assert torch.bincount(examples.targets).tolist() == [5, 1]
        assert examples.inputs[:, 0, 0, 0].tolist() == [100] * 5 + [50]
        assert examples.left_out.counts() == {"empty": 1, "broken": 3}
    task.on_broken = "decline"
    with pytest.raises(InvalidConfiguration, match="4 files or rows"):
        task.load("train", source, 0)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_links_in_an_archive_are_the_files_they_lead_to(tmp_path: Path, kind: str) -> None:
    """As in a folder; zips know no hard links."""
    files = {"a/1.png": grey(10), "b/1.png": grey(20), ".store/x": grey(30)}
    links = {"a/2.png": "1.png", "a/3.png": "2.png", "b/2.png": "../.store/x"}
    wrong = {"a/circle.png": "circle.png", "b/nowhere.png": "/etc/hostname", "b/out.png": "../../a/1.png"}
    source = tmp_path / f"data.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(source, "w") as packed:
            for name, data in files.items():
                packed.writestr(name, data)
            for name, link in (links | wrong).items():
                info = zipfile.ZipInfo(name)
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                packed.writestr(info, link)
    else:
        with tarfile.open(source, "w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(f"./{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            for name, link in (links | wrong | {"b/3.png": "./b/1.png"}).items():
                member = tarfile.TarInfo(f"./{name}")
                member.type = tarfile.LNKTYPE if name == "b/3.png" else tarfile.SYMTYPE
                member.linkname = link
                archive.addfile(member)
    task = task_of()
    with pytest.raises(InvalidConfiguration, match="3 files or rows") as refused:
        task.load("train", source, 0)
    assert "a/circle.png cannot be read (it is a link that leads back to itself)" in str(refused.value)
    assert "(it is a link to /etc/hostname, no file of the archive)" in str(refused.value)
    task.on_broken = "skip"
    examples = task.load("train", source, 0)
    assert examples.inputs[:, 0, 0, 0].tolist() == [10] * 3 + [20, 30] + ([20] if kind == "tar" else [])
    assert examples.left_out.counts() == {"hidden": 1, "unreadable": 3}


def test_what_could_not_be_read_for_a_while_is_not_kept(tmp_path: Path) -> None:
    """A disk that fails for a moment: no time of the file tells that it is back."""
    source = place(tmp_path / "data", {"a/1.png": grey(10), "b/1.png": grey(20)})
    task = task_of()
    task.cache, task.on_broken = tmp_path / "cache", "skip"
    fault = source / "a" / "1.png"
    state = fault.stat()
    real = Path.read_bytes

    def fails(path: Path) -> bytes:
        if path == fault:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", fails)
        assert task.load("train", source, 0).left_out.counts() == {"unreadable": 1}
    assert fault.stat().st_ctime_ns == state.st_ctime_ns
    for _ in range(2):
        examples = task.load("train", source, 0)
        assert (len(examples), examples.left_out.counts()) == (2, {})
    assert len(list(task.cache.glob("*.npy"))) == 1


def as_another_user() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
def unprivileged() -> Any:
    """Not root, whom no permission stops."""
    if as_another_user():
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


@pytest.mark.usefixtures("unprivileged")
@pytest.mark.parametrize("what", ["b/1.png", "b"])
def test_d4_a_file_or_folder_that_may_not_be_read_is_told_as_that(what: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:  # the user's own, unlike tmp_path
        source = place(Path(folder), {"a/1.png": grey(), "b/1.png": grey()})
        (source / what).chmod(0)
        try:
            with pytest.raises(
                InvalidConfiguration, match=rf"data: {what} in .* may not be read by this user"
            ):
                task_of().load("train", source, 0)
            task = task_of()
            task.on_broken = "skip"
            assert task.load("train", source, 0).left_out.counts() == {"unreadable": 1}
        finally:
            (source / what).chmod(0o700)


@pytest.mark.usefixtures("unprivileged")
def test_d4_a_folder_that_may_be_listed_and_not_entered_is_told_by_its_files() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source = place(Path(folder), {"a/1.png": grey(), "b/1.png": grey()})
        whole = fingerprint_of(source)
        (source / "b").chmod(0o600)
        try:
            assert fingerprint_of(source) != whole
            with pytest.raises(
                InvalidConfiguration, match=r"data: b/1\.png in .* may not be read by this user"
            ):
                task_of().load("train", source, 0)
            task = task_of()
            task.on_broken = "skip"
            assert task.load("train", source, 0).left_out.counts() == {"unreadable": 1}
        finally:
            (source / "b").chmod(0o700)


@pytest.mark.usefixtures("unprivileged")
@pytest.mark.parametrize("mode", [0, 0o300, 0o400])
@pytest.mark.parametrize("inside", ["", "data"])
def test_d4_data_that_may_not_be_read_at_all_are_told_as_that(mode: int, inside: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place(Path(folder) / inside, {"a/1.png": grey(), "b/1.png": grey()})
        Path(folder).chmod(mode)
        try:
            source = Path(folder) / inside
            assert fingerprint_of(source)
            if (mode, inside) == (0o300, "data"):
                assert len(task_of().load("train", source, 0)) == 2  # who knows the name may enter
                return
            with pytest.raises(InvalidConfiguration, match=r"data: (.|\n)*may not be read by this user"):
                task_of().load("train", source, 0)
        finally:
            Path(folder).chmod(0o700)


def test_d4_a_link_into_nowhere_is_told(tmp_path: Path) -> None:
    place(tmp_path, {"a/1.png": grey()})
    (tmp_path / "a" / "2.png").symlink_to(tmp_path / "gone.png")
    fingerprint_of(tmp_path)
    with pytest.raises(InvalidConfiguration, match=r"a/2\.png in .* cannot be read \(No such file"):
        task_of().load("train", tmp_path, 0)


# ---------------------------------------------------------------- labels, and inputs left as they are


def test_a_label_map_says_which_class_a_folder_is(tmp_path: Path) -> None:
    source = place(tmp_path, {"mel/1.png": grey(1), "b/1.png": grey(2), "a/1.png": grey(3)})
    with pytest.raises(InvalidConfiguration, match=r"mel/1\.png in .* is in no folder of the classes"):
        task_of().load("train", source, 0)
    task = task_of()
    task.labels = {"mel": "a"}
    examples = task.load("train", source, 0)
    assert (examples.inputs[:, 0, 0, 0].tolist(), examples.targets.tolist()) == ([3, 1, 2], [0, 0, 1])


@pytest.mark.parametrize(
    ("folder", "labels", "option"),
    [
        ("Nevi", {}, '{"Nevi": "nevus"}'),
        ("  NEVUS ", {}, '{"  NEVUS ": "nevus"}'),
        ("Mel", {"mel": "melanoma"}, '{"mel": "melanoma", "Mel": "melanoma"}'),
    ],
)
def test_a_folder_that_nearly_is_a_class_asks_which_is_meant(
    tmp_path: Path, folder: str, labels: dict[str, str], option: str
) -> None:
    task = load_task("imagefolder", {"classes": ("melanoma", "nevus"), "size": 8})
    task.labels = labels
    with pytest.raises(InvalidConfiguration, match=rf"Did you mean \w+\? .*--labels '{re.escape(option)}'"):
        task.load("train", place(tmp_path, {f"{folder}/1.png": grey()}), 0)


@pytest.mark.parametrize(("name", "options"), [("digits", {}), ("imagefolder", {"classes": CLASSES})])
def test_preparing_leaves_the_resident_examples_as_they_are(name: str, options: dict[str, Any]) -> None:
    task = load_task(name, options)
    inputs = torch.rand(4, *task.input_shape)
    before = inputs.clone()
    once, twice = task.prepare(inputs, None), task.prepare(inputs, None)
    assert torch.equal(inputs, before)
    assert torch.equal(once, twice)


def test_examples_carry_what_was_left_out_along() -> None:
    examples = Examples(torch.zeros(2, 1), torch.zeros(2))
    examples.left_out.add(Reason.HIDDEN, "x")
    assert examples.to(torch.device("cpu")).left_out.counts() == {"hidden": 1}


def test_avif_is_read_where_pillow_has_it(tmp_path: Path) -> None:
    if not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    assert np.abs(pixels(tmp_path, grey(format="AVIF"), "1.avif").astype(int) - 100).max() <= 2


# ---------------------------------------------------------------- tables


TABLE = "age,outcome\n40,well\n\n50,ill\n,well\n60\n70,sick\nnan,ill\n80,dead\n\n"


def table_task(**options: Any) -> Task:
    return load_task("csv", {"columns": ["age"], "target": "outcome", "classes": ["well", "ill"], **options})


def test_rows_that_are_empty_or_broken_are_counted_or_refused(tmp_path: Path) -> None:
    source = place(tmp_path, {"train.csv": TABLE.encode()})
    with pytest.raises(
        InvalidConfiguration, match=r"train\.csv in .*, line 5: column 'age': '' is not a fin"
    ):
        table_task().load("train", source, 0)
    task = table_task()
    task.on_broken, task.labels = "skip", {"sick": "ill"}
    examples = task.load("train", source, 0)
    assert (examples.inputs.flatten().tolist(), examples.targets.tolist()) == ([40, 50, 70], [0, 1, 1])
    assert examples.left_out.counts() == {"empty-rows": 2, "broken-rows": 4}
    told = "\n".join(examples.left_out.sentences())
    assert "train.csv, line 6 has 1 fields, the header has 2" in told


def test_keys_are_counted_once_whatever_the_other_file_holds(tmp_path: Path) -> None:
    files = {
        "train.csv": b"age,outcome,who\n1,well,x\n\n2,ill,y\n",
        "test.csv": b"age,outcome,who\n\n3,ill,z\n4\n",
    }
    examples = table_task(key="who").load("train", place(tmp_path, files), 0)
    assert examples.keys is not None
    assert examples.keys.tolist() == [0, 1]
    assert examples.left_out.counts() == {"empty-rows": 1}

"""Writing, reading and layouts; what is refused is in tests/hostile/test_files.py."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from shared import wire
from shared.problems import (
    InvalidConfiguration,
    MissingTensor,
    NotFinite,
    StorageUnavailable,
    TooLarge,
)
from shared.schemas import TensorKind, TensorSpec
from shared.wire.tensors import dtype_name

MANIFEST = (
    TensorSpec(name="conv.weight", shape=(4, 3), dtype="F32"),
    TensorSpec(name="head.weight", shape=(2, 4), dtype="F32", kind=TensorKind.FROZEN),
    TensorSpec(name="scale", shape=(), dtype="BF16"),
    TensorSpec(name="bn.running_mean", shape=(4,), dtype="F32", kind=TensorKind.BUFFER),
    TensorSpec(name="bn.num_batches_tracked", shape=(), dtype="I64", kind=TensorKind.INTEGER),
)
MIB = 1024 * 1024


def mixed() -> dict[str, dict[str, torch.Tensor]]:
    """Everything that is awkward to write: transposed, 0-dimensional, empty, narrow, boolean, in a group."""
    numbers = torch.arange(12, dtype=torch.float32)
    return {
        "model": {
            "transposed": numbers.reshape(3, 4).t(),
            "strided": numbers[::3],
            "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
            "count": torch.tensor(7),
            "empty": torch.empty(0, 3),
            "half": torch.full((3,), -2.0, dtype=torch.float16),
            "double": torch.tensor([1e300], dtype=torch.float64),
            "mask": torch.tensor([True, False, True]),
            "über/ß": torch.ones(1),
        },
        "control": {"transposed": -numbers.reshape(4, 3)},
    }


def layout_of(tensors: dict[str, torch.Tensor]) -> wire.Layout:
    return {
        name: TensorSpec(name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype, name))
        for name, tensor in tensors.items()
    }


# ---------------------------------------------------------------- layouts


def test_a_model_file_holds_every_tensor_of_the_manifest() -> None:
    assert list(wire.model_layout(MANIFEST)) == [spec.name for spec in MANIFEST]


@pytest.mark.parametrize(
    ("buffers", "expected"),
    [
        ("average", ["conv.weight", "scale", "bn.running_mean", "control/conv.weight", "control/scale"]),
        ("keep-local", ["conv.weight", "scale", "control/conv.weight", "control/scale"]),
    ],
)
def test_an_update_holds_what_is_trained_averaged_and_declared(buffers: str, expected: list[str]) -> None:
    layout = wire.update_layout(MANIFEST, ("control",), buffers)  # type: ignore[arg-type]
    assert list(layout) == expected
    assert layout["control/scale"] == MANIFEST[2]


def test_a_groups_file_holds_parameters_only() -> None:
    assert list(wire.groups_layout(MANIFEST, ("a", "b"))) == [
        "a/conv.weight",
        "a/scale",
        "b/conv.weight",
        "b/scale",
    ]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([("w", "F32"), ("w", "F32")], "'w' stands for two tensors"),
        ([("__metadata__", "F32")], "'__metadata__' is reserved"),
        ([("w", "C64")], "'w' has dtype 'C64'"),
    ],
)
def test_a_manifest_that_no_file_can_hold_is_refused(specs: list[tuple[str, str]], message: str) -> None:
    manifest = [TensorSpec(name=name, shape=(1,), dtype=dtype) for name, dtype in specs]
    with pytest.raises(InvalidConfiguration, match=message):
        wire.model_layout(manifest)


def test_a_name_that_meets_a_group_is_refused() -> None:
    manifest = [TensorSpec(name=name, shape=(1,), dtype="F32") for name in ("w", "control/w")]
    with pytest.raises(InvalidConfiguration, match="'control/w' stands for two tensors"):
        wire.update_layout(manifest, ("control",), "average")


# ---------------------------------------------------------------- writing


def test_the_safetensors_library_reads_what_was_written(tmp_path: Path) -> None:
    wire.write(tmp_path / "update", mixed())
    loaded = load_file(tmp_path / "update")
    expected = {wire.key(group, name): t for group, members in mixed().items() for name, t in members.items()}
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert torch.equal(loaded[name], tensor), name


def test_what_the_library_writes_is_valid(tmp_path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in mixed()["model"].items()}
    save_file(tensors, tmp_path / "library", metadata={"format": "pt", "note": "ß"})
    wire.validate(tmp_path / "library", layout_of(tensors))


def test_equal_tensors_give_equal_bytes_in_any_order(tmp_path: Path) -> None:
    tensors = mixed()
    turned = {
        group: {name: members[name].clone() for name in reversed(members)}
        for group, members in reversed(tensors.items())
    }
    first, second = wire.write(tmp_path / "first", tensors), wire.write(tmp_path / "second", turned)
    assert first.digest == second.digest
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_the_bytes_of_a_file_never_change_between_versions(tmp_path: Path) -> None:
    # by hand: 54 bytes of JSON, padded to a multiple of 8; then 1.0 and -2.0 as little-endian float32
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' + b" " * 2
    wire.write(tmp_path / "file", {"model": {"w": torch.tensor([1.0, -2.0])}})
    expected = len(header).to_bytes(8, "little") + header + bytes.fromhex("0000803f000000c0")
    assert (tmp_path / "file").read_bytes() == expected


def test_every_tensor_is_aligned_to_its_itemsize(tmp_path: Path) -> None:
    wire.write(tmp_path / "file", mixed())
    data = (tmp_path / "file").read_bytes()
    length = int.from_bytes(data[:8], "little")
    itemsize = {"F64": 8, "I64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1}
    for name, item in json.loads(data[8 : 8 + length]).items():
        assert (8 + length + item["data_offsets"][0]) % itemsize[item["dtype"]] == 0, name


def test_what_write_returns_describes_the_file(tmp_path: Path) -> None:
    written = wire.write(tmp_path / "file", mixed())
    data = (tmp_path / "file").read_bytes()
    assert written == wire.Written(tmp_path / "file", hashlib.sha256(data).hexdigest(), len(data))


def test_others_may_read_the_file_and_nothing_temporary_stays(tmp_path: Path) -> None:
    wire.write(tmp_path / "file", mixed())
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_dtype_without_a_name_is_refused_and_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(InvalidConfiguration, match=r"'z' has dtype torch\.complex64"):
        wire.write(tmp_path / "file", {"model": {"z": torch.zeros(1, dtype=torch.complex64)}})
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_folder_that_is_not_there_is_a_storage_problem(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="nowhere") as caught:
        wire.write(tmp_path / "nowhere" / "file", mixed())
    assert "Create the folder" in caught.value.hint


def test_two_tensors_under_one_key_are_refused(tmp_path: Path) -> None:
    tensors = {"model": {"control/w": torch.ones(1)}, "control": {"w": torch.ones(1)}}
    with pytest.raises(InvalidConfiguration, match="'control/w' stands for two tensors"):
        wire.write(tmp_path / "file", tensors)


# ---------------------------------------------------------------- validating


def test_a_whole_update_is_valid(tmp_path: Path) -> None:
    tensors = {
        "model": {
            "conv.weight": torch.ones(4, 3),
            "scale": torch.tensor(torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16),
            "bn.running_mean": torch.zeros(4),
        },
        "control": {"conv.weight": torch.ones(4, 3), "scale": torch.tensor(0.0, dtype=torch.bfloat16)},
    }
    written = wire.write(tmp_path / "update", tensors)
    wire.validate(tmp_path / "update", wire.update_layout(MANIFEST, ("control",), "average"), written.bytes)


def test_one_byte_over_the_limit_is_too_large(tmp_path: Path) -> None:
    written = wire.write(tmp_path / "file", {"model": {"w": torch.ones(3)}})
    layout = layout_of({"w": torch.ones(3)})
    with pytest.raises(TooLarge, match=f"has {written.bytes} bytes, allowed are {written.bytes - 1}"):
        wire.validate(written.path, layout, written.bytes - 1)


@pytest.mark.parametrize("position", [0, 262_143, 262_144, 299_999])
def test_the_message_says_where_the_value_is(tmp_path: Path, position: int) -> None:
    # 262,144 float32 values are one piece of the scan
    values = torch.zeros(300_000)
    values[position] = float("nan")
    wire.write(tmp_path / "file", {"model": {"w": values}})
    with pytest.raises(NotFinite, match=f"'w' holds NaN or infinity at position {position} ") as caught:
        wire.validate(tmp_path / "file", layout_of({"w": values}))
    assert caught.value.extra == {"tensor": "'w'", "position": position}


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    spec = TensorSpec(name="w", shape=(32 * MIB,), dtype="F32")
    header = json.dumps({"w": {"dtype": "F32", "shape": [32 * MIB], "data_offsets": [0, 128 * MIB]}}).encode()
    with (tmp_path / "large").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 128 * MIB)  # zeros that take no disk
    tracemalloc.start()
    wire.validate(tmp_path / "large", {"w": spec})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MIB


def test_validating_needs_no_torch() -> None:
    """The coordinator's start and its upload path must not pay for torch."""
    code = "import sys, shared.wire; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- reading


def test_opened_gives_back_every_tensor(tmp_path: Path) -> None:
    wire.write(tmp_path / "file", mixed())
    with wire.opened(tmp_path / "file") as file:
        for group, members in mixed().items():
            for name, expected in members.items():
                assert file.has(group, name)
                assert file.tensor(group, name).dtype == expected.dtype, name
                assert torch.equal(file.tensor(group, name), expected), name
        assert not file.has("control", "scalar")
        with pytest.raises(MissingTensor, match="'control/scalar'"):
            file.tensor("control", "scalar")


def test_writing_to_a_mapped_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    wire.write(tmp_path / "file", {"model": {"w": torch.ones(4)}})
    with wire.opened(tmp_path / "file") as file:
        file.tensor("model", "w").zero_()
    assert torch.equal(wire.read_group(tmp_path / "file", "model", ["w"])["w"], torch.ones(4))


def test_tensors_of_a_writer_that_does_not_align_are_read(tmp_path: Path) -> None:
    # a byte, then 1.0 and -2.0 from an odd position on
    header = (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}'
    )
    data = len(header).to_bytes(8, "little") + header + bytes.fromhex("070000803f000000c0")
    (tmp_path / "file").write_bytes(data)
    assert wire.read_group(tmp_path / "file", "model", ["w"])["w"].tolist() == [1.0, -2.0]


def test_read_group_copies_what_is_asked_for(tmp_path: Path) -> None:
    wire.write(tmp_path / "file", mixed())
    read = wire.read_group(tmp_path / "file", "control", ["transposed"])
    (tmp_path / "file").write_bytes(b"")  # a mapping would be gone now
    assert list(read) == ["transposed"]
    assert torch.equal(read["transposed"], mixed()["control"]["transposed"])


@pytest.mark.skipif(sys.platform != "linux", reason="how resident memory is counted differs elsewhere")
def test_the_pages_leave_memory_even_if_a_tensor_is_kept(tmp_path: Path) -> None:
    wire.write(tmp_path / "file", {"model": {"w": torch.ones(16 * MIB)}})
    process = psutil.Process()
    before = process.memory_info().rss
    with wire.opened(tmp_path / "file") as file:
        kept = file.tensor("model", "w")
        assert kept.sum().item() == 16 * MIB
        inside = process.memory_info().rss - before
    after = process.memory_info().rss - before
    assert kept.shape == (16 * MIB,)
    assert inside > 60 * MIB
    assert after < 4 * MIB

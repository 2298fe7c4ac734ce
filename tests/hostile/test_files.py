"""Attack files: each is refused with the right class, quickly and in little memory."""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import re
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared import wire
from shared.problems import (
    MissingTensor,
    NotFinite,
    NotSafetensors,
    Truncated,
    UnknownTensor,
    UpdateInvalid,
    WrongDtype,
    WrongShape,
)
from shared.schemas import TensorSpec

MIB = 1024 * 1024
LAYOUT = {
    "w": TensorSpec(name="w", shape=(2, 3), dtype="F32"),
    "b": TensorSpec(name="b", shape=(3,), dtype="F32"),
}
W = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]}
DATA = struct.pack("<9f", *range(9))


def framed(header: bytes | str | dict[str, Any], data: bytes = DATA, length: int | None = None) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


GOOD = framed({"w": W, "b": B})
HEADER_BYTES = len(GOOD) - 8 - len(DATA)


def w_and_b(w: dict[str, Any] | None = None, b: dict[str, Any] | None = None, data: bytes = DATA) -> bytes:
    """A good file with some fields of its two tensors replaced."""
    return framed({"w": W | (w or {}), "b": B | (b or {})}, data)


def torch_saved(zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2, 3)}, buffer, _use_new_zipfile_serialization=zipped)  # no-pickle: an attack
    return buffer.getvalue()


def refused(tmp_path: Path, content: bytes, layout: wire.Layout = LAYOUT) -> UpdateInvalid:
    path = tmp_path / "attack"
    path.write_bytes(content)
    with pytest.raises(UpdateInvalid) as caught:
        wire.validate(path, layout)
    caught.value.detail.encode("ascii")  # fit for any log, header or page
    return caught.value


@contextmanager
def cheap(seconds: float = 2.0, peak_bytes: int = 8 * MIB) -> Iterator[None]:
    """Whatever happens inside takes little CPU time (the bound is ten times what was seen) and memory."""
    tracemalloc.start()
    begin = time.process_time()
    try:
        yield
        assert time.process_time() - begin < seconds
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()


def test_the_file_that_the_attacks_start_from_is_good(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(GOOD)
    wire.validate(tmp_path / "good", LAYOUT)


# ---------------------------------------------------------------- cut off, or too long


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_file_cut_anywhere_is_truncated(tmp_path: Path, length: int) -> None:
    assert type(refused(tmp_path, GOOD[:length])) is Truncated


def test_the_empty_file_says_so(tmp_path: Path) -> None:
    assert "0 bytes" in refused(tmp_path, b"").detail


def test_bytes_after_the_last_tensor_are_told_from_a_cut(tmp_path: Path) -> None:
    problem = refused(tmp_path, GOOD + b"\0")
    assert type(problem) is NotSafetensors
    assert problem.detail == "1 bytes follow the last tensor"


# ---------------------------------------------------------------- not this format at all


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch_saved(zipped=True), "zip archive, which is what torch.save writes"),
        (torch_saved(zipped=False), "PyTorch pickle"),
        (pickle.dumps({"w": 1}, protocol=2), "PyTorch pickle"),
        (pickle.dumps({"w": [1.0] * 300}, protocol=4), "PyTorch pickle"),
        (pickle.dumps({"w": 1}, protocol=5), "PyTorch pickle"),
        (b"<!DOCTYPE html><title>502 Bad Gateway</title>", "HTML"),
        (b"<html><body>login</body></html>", "HTML"),
        (json.dumps({"w": [1.0, 2.0]}).encode(), "JSON without the leading length"),
        (gzip.compress(GOOD), "compressed with gzip"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
        (b"\x93NUMPY\x01\x00" + bytes(100), "numpy"),
        (b"\xff" * 100, "more than the"),
        (bytes(100), "does not begin with '{'"),
    ],
    # of the messages alone: pickles and gzip differ from process to process, and the workers' names must not
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_file_is_instead_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    problem = refused(tmp_path, content)
    assert type(problem) is NotSafetensors
    assert message in problem.detail
    assert "pickles are never read" in problem.hint


# ---------------------------------------------------------------- a lying header


def nested(depth: int) -> str:
    return '{"w":' + "[" * depth + "]" * depth + "}"


HEADERS: dict[str, tuple[bytes, type[UpdateInvalid], str]] = {
    "length zero": (framed("", b"{}" + DATA), NotSafetensors, "does not end with '}'"),
    "length one short": (framed({"w": W, "b": B}, length=HEADER_BYTES - 1), NotSafetensors, "cannot be read"),
    "length one long": (framed({"w": W, "b": B}, length=HEADER_BYTES + 1), NotSafetensors, "does not end"),
    "length 2**64-1": (framed({"w": W, "b": B}, length=2**64 - 1), NotSafetensors, "more than the"),
    "length 2**63": (framed({"w": W, "b": B}, length=2**63), NotSafetensors, "more than the"),
    "no JSON": (framed("{w: 1}"), NotSafetensors, "cannot be read"),
    "two objects": (framed('{"w":1}{"b":1}'), NotSafetensors, "Extra data"),
    "not UTF-8": (framed(b'{"w\xff":1}'), NotSafetensors, "utf-8"),
    "byte order mark": (
        framed(b"\xef\xbb\xbf" + json.dumps({"w": W, "b": B}).encode()),
        NotSafetensors,
        "begin",
    ),
    "leading space": (framed(" " + json.dumps({"w": W, "b": B})), NotSafetensors, "begin"),
    "newline at the end": (framed(json.dumps({"w": W, "b": B}) + "\n"), NotSafetensors, "does not end"),
    "lone surrogate": (framed('{"\\ud800":' + json.dumps(W) + "}"), NotSafetensors, "surrogates"),
    "a list": (framed("[1]}"), NotSafetensors, "begin"),
    "duplicate tensor": (
        framed(f'{{"w":{json.dumps(W)},"w":{json.dumps(W)},"b":{json.dumps(B)}}}'),
        NotSafetensors,
        "'w' is there twice",
    ),
    "duplicate by escape": (
        framed(f'{{"w":{json.dumps(W)},"\\u0077":{json.dumps(W)}}}'),
        NotSafetensors,
        "'w' is there twice",
    ),
    "duplicate field": (
        framed('{"w":{"dtype":"F32","shape":[2,3],"shape":[6],"data_offsets":[0,24]}}'),
        NotSafetensors,
        "'shape' is there twice",
    ),
    "deeply nested": (framed(nested(20_000)), NotSafetensors, "nested too deeply"),
    "a digit too many": (w_and_b({"shape": [10**19, 3]}), NotSafetensors, "not a size"),
    "a million digits": (framed('{"w":' + "9" * 60_000 + "}"), NotSafetensors, "not a size"),
    "NaN": (framed('{"w":NaN}'), NotSafetensors, "NaN is not an integer"),
    "Infinity": (framed('{"w":-Infinity}'), NotSafetensors, "-Infinity is not an integer"),
    "metadata not text": (framed({"__metadata__": {"a": 1}, "w": W, "b": B}), NotSafetensors, "text to text"),
    "metadata nested": (framed({"__metadata__": {"a": {}}, "w": W, "b": B}), NotSafetensors, "text to text"),
    "metadata a list": (framed({"__metadata__": [], "w": W, "b": B}), NotSafetensors, "text to text"),
    "metadata null": (framed({"__metadata__": None, "w": W, "b": B}), NotSafetensors, "text to text"),
    "metadata as tensor": (framed({"__metadata__": W, "b": B}), NotSafetensors, "text to text"),
    "tensor a number": (framed({"w": 1, "b": B}), NotSafetensors, "exactly dtype, shape"),
    "tensor null": (framed({"w": None, "b": B}), NotSafetensors, "exactly dtype, shape"),
    "field missing": (
        framed({"w": {"dtype": "F32", "shape": [2, 3]}}),
        NotSafetensors,
        "exactly dtype, shape",
    ),
    "field too many": (w_and_b({"strides": [3, 1]}), NotSafetensors, "exactly dtype, shape"),
    "shape a number": (w_and_b({"shape": 6}), NotSafetensors, "'w': the shape must be"),
    "shape of floats": (w_and_b({"shape": [2.0, 3]}), NotSafetensors, "2.0 is not an integer"),
    "shape in exponents": (framed('{"w":{"shape":[1e9]}}'), NotSafetensors, "1e9 is not an integer"),
    "shape of booleans": (
        w_and_b(b={"shape": [True, 3]}),
        NotSafetensors,
        "'b': the shape must be",
    ),
    "shape of text": (w_and_b({"shape": ["2", "3"]}), NotSafetensors, "'w': the shape must be"),
    "shape negative": (w_and_b({"shape": [-2, -3]}), NotSafetensors, "-2 is not a size"),
    "shape overflowing to 24 bytes": (
        # 2**62 * 4 * 4 wraps to 0 and (2**62 + 6) * 4 to 24 in 64-bit arithmetic
        w_and_b({"shape": [2**62 + 6]}),
        NotSafetensors,
        f"takes {(2**62 + 6) * 4} bytes",
    ),
    "a thousand million each": (w_and_b({"shape": [10**9] * 8}), NotSafetensors, "takes"),
    "65 axes": (w_and_b({"shape": [1] * 63 + [2, 3]}), NotSafetensors, "at most 64 integers"),
    "offsets missing one": (w_and_b({"data_offsets": [0]}), NotSafetensors, "must be two integers"),
    "offsets three": (w_and_b({"data_offsets": [0, 12, 24]}), NotSafetensors, "must be two integers"),
    "offsets boolean": (w_and_b({"data_offsets": [False, 24]}), NotSafetensors, "must be two integers"),
    "offsets negative": (w_and_b({"data_offsets": [-24, 0]}), NotSafetensors, "-24 is not"),
    "offsets reversed": (w_and_b({"data_offsets": [24, 0]}), NotSafetensors, "'w': shape"),
    "offsets short": (w_and_b({"data_offsets": [0, 20]}), NotSafetensors, "takes 24 bytes"),
    "overlap": (
        w_and_b(b={"data_offsets": [12, 24]}),
        NotSafetensors,
        "'b': the data at bytes 12 to 24 overlaps",
    ),
    "same bytes twice": (
        framed({"w": W, "b": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}),
        NotSafetensors,
        "overlaps",
    ),
    "hole at the start": (
        w_and_b({"data_offsets": [4, 28]}, {"data_offsets": [28, 40]}, DATA + bytes(4)),
        NotSafetensors,
        "'w': the data at bytes 4 to 28 leaves a hole",
    ),
    "hole between": (
        w_and_b(b={"data_offsets": [28, 40]}, data=DATA + bytes(4)),
        NotSafetensors,
        "'b': .*hole",
    ),
    "beyond the file": (
        w_and_b(b={"shape": [10**15], "data_offsets": [24, 24 + 4 * 10**15]}),
        Truncated,
        "take 4000000000000024 bytes, the file has 36",
    ),
    "no tensors but data": (framed("{}"), NotSafetensors, "36 bytes follow"),
    "no tensors": (framed("{}", b""), MissingTensor, "'w'"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_lying_header_is_refused(tmp_path: Path, name: str) -> None:
    content, kind, message = HEADERS[name]
    with cheap():
        problem = refused(tmp_path, content)
    assert type(problem) is kind
    assert re.search(message, problem.detail)


@pytest.mark.parametrize("body", [b"[" * 16_000_000, b'"w":[' + b"[]," * 5_000_000, b'"a":{},' * 2_000_000])
def test_a_huge_header_is_not_even_parsed(tmp_path: Path, body: bytes) -> None:
    content = framed(b"{" + body + b"}")
    with cheap():
        problem = refused(tmp_path, content)
    assert "more than the" in problem.detail


def test_a_bomb_within_the_limit_stays_small(tmp_path: Path) -> None:
    body = b'{"w":[' + b"[]," * 21_000 + b"[]]}"  # what fits where two tensors are expected
    with cheap():
        assert type(refused(tmp_path, framed(body))) is NotSafetensors


def test_a_sparse_file_of_a_terabyte_costs_nothing(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    with (tmp_path / "attack").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2**40)
    with cheap(), pytest.raises(WrongShape):
        wire.validate(tmp_path / "attack", LAYOUT)


# ---------------------------------------------------------------- other tensors than expected

C = {"dtype": "F32", "shape": [0], "data_offsets": [36, 36]}

STRANGE_TENSORS: dict[str, tuple[bytes, type[UpdateInvalid], str]] = {
    "one too many": (framed({"w": W, "b": B, "c": C}), UnknownTensor, "'c'"),
    "one too few": (framed({"w": W}, DATA[:24]), MissingTensor, r"'b' \(F32 \[3\]\)"),
    "renamed": (framed({"w": W, "B": B}), UnknownTensor, "'B'"),
    "as in a wrapped model": (framed({"module.w": W, "b": B}), UnknownTensor, "'module.w'"),
    "combining character": (framed({"w\u0301": W, "b": B}), UnknownTensor, r"'w\\u0301'"),
    "cyrillic": (framed({"w": W, "\u0432": B}), UnknownTensor, r"'\\u0432'"),
    "full width": (framed({"\uff57": W, "b": B}), UnknownTensor, r"'\\uff57'"),
    "zero width space": (framed({"w\u200b": W, "b": B}), UnknownTensor, r"'w\\u200b'"),
    "right to left": (framed({"\u202ew": W, "b": B}), UnknownTensor, r"'\\u202ew'"),
    "NUL": (framed({"w\0": W, "b": B}), UnknownTensor, r"'w\\x00'"),
    "empty name": (framed({"": W, "b": B}), UnknownTensor, "''"),
    "path": (framed({"../../etc/passwd": W, "b": B}), UnknownTensor, "passwd"),
    "markup": (framed({"<script>": W, "b": B}), UnknownTensor, "<script>"),
    "endless name": (framed({"x" * 5000: W, "b": B}), UnknownTensor, r"'x{200}\.\.\.'"),
    "transposed": (w_and_b({"shape": [3, 2]}), WrongShape, r"'w' has shape \[3, 2\], expected is \[2, 3\]"),
    "flattened": (w_and_b({"shape": [6]}), WrongShape, r"\[6\], expected is \[2, 3\]"),
    "an axis more": (w_and_b({"shape": [2, 3, 1]}), WrongShape, r"\[2, 3, 1\], expected"),
    "larger": (
        w_and_b(b={"shape": [4], "data_offsets": [24, 40]}, data=DATA + bytes(4)),
        WrongShape,
        r"'b' has shape \[4\], expected is \[3\]",
    ),
    "integers": (w_and_b({"dtype": "I32"}), WrongDtype, "'w' has dtype I32, expected is F32"),
    "half as wide": (w_and_b({"dtype": "F16", "shape": [4, 3]}), WrongDtype, "'w' has dtype F16"),
    "unknown dtype": (w_and_b({"dtype": "F31"}), WrongDtype, "'w' has the unknown dtype 'F31'"),
    "lower case dtype": (w_and_b({"dtype": "f32"}), WrongDtype, "unknown dtype 'f32'"),
    "dtype a list": (w_and_b({"dtype": ["F32"]}), WrongDtype, "unknown dtype"),
    "dtype null": (w_and_b({"dtype": None}), WrongDtype, "unknown dtype 'None'"),
}


@pytest.mark.parametrize("name", STRANGE_TENSORS)
def test_other_tensors_are_refused_by_name(tmp_path: Path, name: str) -> None:
    content, kind, message = STRANGE_TENSORS[name]
    problem = refused(tmp_path, content)
    assert type(problem) is kind
    assert re.search(message, problem.detail)
    assert "tensor" in problem.extra


def test_a_wrong_shape_carries_both_for_programs(tmp_path: Path) -> None:
    problem = refused(tmp_path, w_and_b({"shape": [3, 2]}))
    assert problem.extra == {"tensor": "'w'", "expected": [2, 3], "received": [3, 2]}


# ---------------------------------------------------------------- values that are no numbers

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_are_found_in_every_format(tmp_path: Path, dtype: str, value: float) -> None:
    values = torch.tensor([[0.0, 1.0], [value, 2.0]], dtype=DTYPES[dtype])
    wire.write(tmp_path / "written", {"model": {"w": values}})
    layout = {"w": TensorSpec(name="w", shape=(2, 2), dtype=dtype)}
    problem = refused(tmp_path, (tmp_path / "written").read_bytes(), layout)
    assert type(problem) is NotFinite
    assert problem.extra == {"tensor": "'w'", "position": 2}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_the_smallest_numbers_are_finite(tmp_path: Path, dtype: str) -> None:
    info = torch.finfo(DTYPES[dtype])
    values = torch.tensor([info.max, info.min, info.smallest_normal, -0.0], dtype=DTYPES[dtype])
    values = torch.cat([values, (values[2:3] / 2)])  # and one below the normal numbers
    wire.write(tmp_path / "written", {"model": {"w": values}})
    wire.validate(tmp_path / "written", {"w": TensorSpec(name="w", shape=(5,), dtype=dtype)})


@pytest.mark.parametrize("payload", [0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0xFF800001])
def test_signalling_nans_are_found_too(tmp_path: Path, payload: int) -> None:
    problem = refused(tmp_path, w_and_b(data=DATA[:32] + struct.pack("<I", payload)))
    assert type(problem) is NotFinite
    assert problem.extra == {"tensor": "'b'", "position": 2}


def test_a_boolean_is_zero_or_one(tmp_path: Path) -> None:
    header = {"m": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    layout = {"m": TensorSpec(name="m", shape=(3,), dtype="BOOL")}
    (tmp_path / "good").write_bytes(framed(header, b"\0\1\1"))
    wire.validate(tmp_path / "good", layout)
    problem = refused(tmp_path, framed(header, b"\0\1\2"), layout)
    assert type(problem) is NotSafetensors
    assert "'m' is BOOL" in problem.detail


# ---------------------------------------------------------------- anything at all

FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _valid_or_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        wire.validate(path, LAYOUT)
    except UpdateInvalid as problem:
        problem.detail.encode("ascii")
        return False
    return True


@FUZZ
@given(content=st.binary(max_size=300))
def test_random_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    assert not _valid_or_refused(tmp_path / "fuzz", content)


@FUZZ
@given(header=st.binary(max_size=200), data=st.binary(max_size=50))
def test_random_headers_are_refused(tmp_path: Path, header: bytes, data: bytes) -> None:
    assert not _valid_or_refused(tmp_path / "fuzz", framed(b"{" + header + b"}", data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@FUZZ
@given(field=st.sampled_from(["dtype", "shape", "data_offsets"]), value=JSON)
def test_any_json_in_a_field_is_refused_or_harmless(tmp_path: Path, field: str, value: Any) -> None:
    accepted = _valid_or_refused(tmp_path / "fuzz", w_and_b({field: value}))
    assert accepted == (value == W[field] and type(value) is type(W[field]))


@FUZZ
@given(position=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255), cut=st.integers(0, 40))
def test_a_mutated_file_is_refused_or_still_the_same_tensors(
    tmp_path: Path, position: int, value: int, cut: int
) -> None:
    content = bytearray(GOOD)
    content[position] = value
    if _valid_or_refused(tmp_path / "fuzz", bytes(content[: len(content) - cut])):
        with wire.opened(tmp_path / "fuzz") as file:
            assert file.tensor("model", "w").isfinite().all()
            assert file.tensor("model", "b").shape == (3,)

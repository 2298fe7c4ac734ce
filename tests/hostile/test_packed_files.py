"""Packed updates that lie: each is refused with the class that says so, and none is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from shared import wire
from shared.compression import Compression
from shared.problems import (
    MissingTensor,
    NotFinite,
    OutOfBounds,
    UnknownTensor,
    UpdateInvalid,
    WrongDtype,
    WrongShape,
)
from shared.schemas import TensorSpec
from shared.wire.packing import PackedForm, check_packed, unpack

SPEC = TensorSpec(name="w", shape=(2, 5), dtype="F32")


def form_of(kind: str, **more: Any) -> PackedForm:
    compression = Compression.model_validate({"kind": kind, **more})
    return PackedForm(compression, wire.model_layout([SPEC]))


INT8, TOP_K = form_of("int8"), form_of("top-k", share=0.3)  # 3 of 10 numbers
STEPS, SCALE = np.full((2, 5), 3, np.int8), np.array(0.5, np.float32)
PLACES, VALUES = np.array([0, 4, 9], np.int32), np.ones(3, np.float32)


def int8(steps: Any = STEPS, scale: Any = SCALE, **more: Any) -> dict[str, Any]:
    return {"int8/w": steps, "int8-scale/w": np.asarray(scale), **more}


def top_k(places: Any = PLACES, values: Any = VALUES, **more: Any) -> dict[str, Any]:
    return {"top-k-places/w": np.asarray(places), "top-k-values/w": np.asarray(values), **more}


def check(tensors: dict[str, Any], form: PackedForm, folder: Path) -> Path:
    path = folder / "packed"
    path.write_bytes(save(tensors))
    wire.validate(path, form.layout, max_entry=1e12)
    check_packed(path, form)
    return path


def places(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


ATTACKS: dict[str, tuple[dict[str, Any], PackedForm, type[UpdateInvalid], str]] = {
    "whole": ({"w": np.ones((2, 5), np.float32)}, INT8, UnknownTensor, "'w' is not one of the 2"),
    "other-form": (top_k(), INT8, UnknownTensor, "is not one of the 2"),
    "both": (int8(w=np.ones((2, 5), np.float32)), INT8, UnknownTensor, "'w' is not one of the 2"),
    "no-scale": ({"int8/w": STEPS}, INT8, MissingTensor, "'int8-scale/w'"),
    "scale-nan": (int8(scale=np.float32("nan")), INT8, NotFinite, "'int8-scale/w'"),
    "scale-infinite": (int8(scale=np.float32("inf")), INT8, NotFinite, "'int8-scale/w'"),
    "scale-huge": (int8(scale=np.float32(1e30)), INT8, OutOfBounds, "max_entry"),
    "scale-below-zero": (int8(scale=np.float32(-0.5)), INT8, OutOfBounds, "is -0.5, below zero"),
    "scale-minus-zero": (int8(scale=np.float32(-0.0)), INT8, OutOfBounds, "below zero"),
    "scale-of-two": (int8(scale=np.ones(2, np.float32)), INT8, WrongShape, "'int8-scale/w'"),
    "scale-double": (int8(scale=np.float64(0.5)), INT8, WrongDtype, "'int8-scale/w'"),
    "minus-128": (int8(np.full((2, 5), -128, np.int8)), INT8, OutOfBounds, "holds -128"),
    "uint8": (int8(np.ones((2, 5), np.uint8)), INT8, WrongDtype, "'int8/w'"),
    "transposed": (int8(np.ones((5, 2), np.int8)), INT8, WrongShape, "'int8/w'"),
    "place-beyond": (top_k(places(0, 4, 10)), TOP_K, OutOfBounds, "go from 0 to 10, it has 10 numbers"),
    "place-far": (top_k(places(0, 4, 2**31 - 1)), TOP_K, OutOfBounds, "it has 10 numbers"),
    "place-below": (top_k(places(-1, 4, 9)), TOP_K, OutOfBounds, "go from -1 to 9"),
    "twice": (top_k(places(0, 4, 4)), TOP_K, OutOfBounds, "4 at position 2 follows 4"),
    "unsorted": (top_k(places(4, 0, 9)), TOP_K, OutOfBounds, "0 at position 1 follows 4"),
    "too-few": (top_k(places(0, 4), np.ones(2, np.float32)), TOP_K, WrongShape, "'top-k-values/w'"),
    "too-many": (top_k(np.arange(10, dtype=np.int32)), TOP_K, WrongShape, "'top-k-places/w'"),
    "places-of-64-bits": (top_k(np.array([0, 4, 9])), TOP_K, WrongDtype, "'top-k-places/w'"),
    "value-nan": (top_k(values=np.array([1, np.nan, 1], np.float32)), TOP_K, NotFinite, "position 1"),
    "value-huge": (top_k(values=np.array([1, 1, 1e13], np.float32)), TOP_K, OutOfBounds, "max_entry"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_packed_file_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    tensors, form, problem, sentence = ATTACKS[name]
    with pytest.raises(problem, match=sentence) as caught:
        check(tensors, form, tmp_path)
    assert caught.value.status == 422
    caught.value.detail.encode("ascii")


def test_a_fall_of_the_places_is_found_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one piece that is looked at ends and the next begins."""
    monkeypatch.setattr("shared.wire.packing.PIECE", 4)
    spec = TensorSpec(name="w", shape=(100,), dtype="F32")
    form = PackedForm(Compression(kind="top-k", share=0.12), wire.model_layout([spec]))
    ascending = np.arange(12, dtype=np.int32) * 2
    check(top_k(ascending, np.ones(12, np.float32)), form, tmp_path)
    for at in range(1, 12):
        wrong = ascending.copy()
        wrong[at] = wrong[at - 1]
        with pytest.raises(OutOfBounds, match=f"at position {at} follows"):
            check(top_k(wrong, np.ones(12, np.float32)), form, tmp_path)


def test_what_passes_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(save({"w": np.full((2, 5), 2, np.float32)}))
    for tensors, form in ((int8(), INT8), (top_k(), TOP_K)):
        whole = unpack(check(tensors, form, tmp_path), tmp_path / "model", form, tmp_path / "whole")
        found = wire.read_group(whole, wire.MODEL, ["w"])["w"].reshape(-1).tolist()
        assert found == ([3.5] * 10 if form is INT8 else [3, 2, 2, 2, 3, 2, 2, 2, 2, 3])

"""Packed updates: what decoding may be off by, what is kept of it, and that runs stay themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shared import wire
from shared.aggregation.early import expect_sums
from shared.compression import Compression
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.schemas import TensorSpec
from shared.training import Diverged, LocalResult
from shared.training.packed import pack_result
from shared.update_forms import find_form
from shared.weightings import Contribution
from shared.wire.packing import RESIDUAL, PackedForm, check_packed, pack, unpack
from simulation.run import simulate

KINDS: tuple[Any, ...] = ("bfloat16", "int8", "top-k", {"kind": "top-k", "share": 0.3})
LARGE = 2.0**60  # far from where float32 ends
VALUES = arrays(np.float32, st.integers(1, 40), elements=st.floats(-LARGE, LARGE, width=32))


def compress(kind: Any) -> Compression:
    return Compression.model_validate(kind)


def form_of(kind: Any, **shapes: tuple[int, ...]) -> PackedForm:
    specs = [TensorSpec(name=name, shape=shape, dtype="F32") for name, shape in shapes.items()]
    return PackedForm(compress(kind), wire.model_layout(specs))


def decode(kind: Any, moved: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """By files, from a model of zeros, as a coordinator does it."""
    form = form_of(kind, **{name: tuple(tensor.shape) for name, tensor in moved.items()})
    zeros = {name: torch.zeros_like(tensor) for name, tensor in moved.items()}
    wire.write(folder / "model", {wire.MODEL: zeros}, durable=False)
    wire.write(folder / "packed", dict(pack(moved, {}, form.compression).groups), durable=False)
    wire.validate(folder / "packed", form.layout)
    check_packed(folder / "packed", form)
    unpack(folder / "packed", folder / "model", form, folder / "whole")
    wire.validate(folder / "whole", form.whole)
    return wire.read_group(folder / "whole", wire.MODEL, moved)


# ---------------------------------------------------------------- what decoding may be off by


@settings(deadline=None)
@given(VALUES)
def test_bfloat16_is_off_by_half_a_step_of_eight_bits(values: np.ndarray[Any, Any]) -> None:
    moved = torch.from_numpy(values)
    left = pack({"w": moved}, {}, compress("bfloat16")).residual["w"]
    # half a unit in the last of 8 places; below the smallest normal number, 2^-126, the steps stay equal
    bound = moved.abs().double() * 2.0**-8 + 2.0**-134
    assert bool((left.abs().double() <= bound).all())


@settings(deadline=None)
@given(VALUES)
def test_int8_is_off_by_half_a_step_of_the_largest(values: np.ndarray[Any, Any]) -> None:
    moved = torch.from_numpy(values)
    packed = pack({"w": moved}, {}, compress("int8"))
    scale = float(packed.groups["int8-scale"]["w"])
    slack = float(moved.abs().max()) * 2.0**-20 + 127 * 2.0**-149  # of dividing and multiplying in float32
    assert scale <= float(moved.abs().max()) / 127 + slack
    assert float(packed.residual["w"].abs().max()) <= scale / 2 + slack
    assert int(packed.groups["int8"]["w"].int().abs().max()) <= 127


@settings(deadline=None)
@given(VALUES, st.sampled_from(KINDS[2:]))
def test_top_k_sends_the_largest_and_leaves_out_no_more_than_its_share(
    values: np.ndarray[Any, Any], kind: Any
) -> None:
    """Stich et al. (2018), eq. 7: |v - top_k(v)|^2 <= (1 - k / d) |v|^2."""
    moved, compression = torch.from_numpy(values), compress(kind)
    packed, size = pack({"w": moved}, {}, compression), values.size
    places = packed.groups["top-k-places"]["w"].tolist()
    kept = max(1, math.ceil((compression.share or 0.01) * size))
    # of equal ones the first: a stable sort of what is left by magnitude
    assert places == sorted(sorted(range(size), key=lambda at: (-abs(values[at]), at))[:kept])
    assert packed.groups["top-k-values"]["w"].tolist() == values[places].tolist()
    left = packed.residual["w"].double()
    assert float(left @ left) <= (1 - kept / size) * float(moved.double() @ moved.double()) * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sent_and_what_is_kept_sum_to_what_was_moved(kind: Any) -> None:
    """Over 50 rounds, each of which is packed with what the ones before have left."""
    generator = torch.Generator().manual_seed(4)
    sent, true = torch.zeros(300, dtype=torch.float64), torch.zeros(300, dtype=torch.float64)
    left: dict[str, torch.Tensor] = {}
    for _ in range(50):
        moved = torch.randn(300, generator=generator)
        packed = pack({"w": moved}, left, compress(kind))
        whole = moved + left.get("w", torch.zeros(300))
        sent += (whole - packed.residual["w"]).double()
        true += moved.double()
        left = packed.residual
    assert torch.allclose(sent + left["w"].double(), true, rtol=0, atol=50 * 2.0**-20)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_decodes_to_what_the_client_believes_it_does(kind: Any, tmp_path: Path) -> None:
    moved = {
        "w": torch.randn(7, 5, generator=torch.Generator().manual_seed(1)),
        "b": torch.tensor([0.0, -3e-42, 0.5]),
        "none": torch.zeros(0, 4),
        "one": torch.tensor(-1.5),
    }
    found = decode(kind, moved, tmp_path)
    left = pack(moved, {}, compress(kind)).residual
    for name, tensor in moved.items():
        assert torch.equal(found[name], tensor - left[name]), name


def test_bytes_are_those_that_were_promised(tmp_path: Path) -> None:
    moved = {"w": torch.randn(1000, 50)}
    sizes = {}
    for kind in KINDS:
        compression = compress(kind)
        written = wire.write(tmp_path / "packed", dict(pack(moved, {}, compression).groups), durable=False)
        with wire.opened(written.path) as file:
            sizes[compression.label] = sum(
                tensor.numel() * tensor.element_size()
                for group in pack(moved, {}, compression).groups
                for tensor in [file.tensor(group, "w")]
            )
        assert sizes[compression.label] == compression.count_bytes(50_000)
        whole = written.bytes - sizes[compression.label] + 200_000
        assert compression.find_ratio(written.bytes, [50_000]) == pytest.approx(whole / written.bytes)
    assert sizes == {"bfloat16": 100_000, "int8": 50_004, "top-k of 1 %": 4_000, "top-k of 30 %": 120_000}


@pytest.mark.parametrize(("kind", "number"), [("bfloat16", 3.4e38), ("int8", math.inf), ("top-k", math.nan)])
def test_what_no_form_can_hold_is_no_update(kind: str, number: float) -> None:
    with pytest.raises(ArithmeticError, match="'w' moved by more than"):
        pack({"w": torch.tensor([1.0, number])}, {}, compress(kind))


# ---------------------------------------------------------------- a client's round


def made(steps: int = 3, **values: list[float]) -> LocalResult:
    model = {name: torch.tensor(numbers) for name, numbers in values.items()}
    return LocalResult({wire.MODEL: model, "control": {}}, {"mine": {}}, steps, 10, 0.5, 1.0)


def test_a_client_that_made_no_step_keeps_what_it_has() -> None:
    form = form_of("int8", w=(2,))
    start, before = {"w": torch.tensor([1.0, 2.0])}, {RESIDUAL: {"w": torch.tensor([0.25, 0.0])}}
    idle = pack_result(made(steps=0, w=[1.0, 2.0]), start, before, form)
    assert idle.tensors["int8"]["w"].tolist() == [0, 0]
    assert idle.kept[RESIDUAL]["w"].tolist() == [0.25, 0.0]
    busy = pack_result(made(w=[1.0, 2.0]), start, before, form)
    assert busy.tensors["int8"]["w"].tolist() == [127, 0]
    assert busy.kept.keys() == {"mine", RESIDUAL}
    assert busy.tensors.keys() == {wire.MODEL, "control", "int8", "int8-scale"}


def test_a_move_beyond_the_format_is_a_fault_of_the_training() -> None:
    with pytest.raises(Diverged, match="moved by more than bfloat16"):
        pack_result(made(w=[3.4e38]), {"w": torch.zeros(1)}, {}, form_of("bfloat16", w=(1,)))


# ---------------------------------------------------------------- what a run may ask for


def configure(**changes: Any) -> dict[str, Any]:
    return {
        "name": "packed",
        "task": "digits",
        "rounds": 3,
        "partition": "niid1:3:0.5",
        "local": {"steps": 5, "batch_size": 16},
        **changes,
    }


def test_what_does_not_go_together_is_refused_with_a_sentence() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"compression": "int8", "secure": {}, "partition": "iid:3"}, "compression packs single updates"),
        (
            {"compression": {"kind": "int8", "share": 0.1}},
            "share goes with top-k, not with int8, received 0.1",
        ),
        ({"compression": {"kind": "top-k", "share": 0.7}}, "less than or equal to 0.5"),
        ({"compression": "zip"}, "'bfloat16', 'int8' or 'top-k'"),
    ]
    for changes, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            RunConfig.model_validate(configure(**changes))


@pytest.mark.parametrize("spec", [("F64", (3,)), ("F16", (3,)), ("F32", (2**16, 2**15))])
def test_parameters_that_cannot_be_packed_are_refused_when_the_run_is_made(
    spec: tuple[str, tuple[int, ...]],
) -> None:
    manifest = [TensorSpec(name="w", dtype=spec[0], shape=spec[1])]
    with pytest.raises(InvalidConfiguration, match=r"tensor 'w' .* cannot be packed"):
        find_form(RunConfig.model_validate(configure(compression="int8")), manifest)


@pytest.mark.parametrize("compression", [None, "int8"])
def test_packed_updates_are_not_summed_as_they_come(compression: str | None) -> None:
    config = RunConfig.model_validate(configure(compression=compression, weighting={"kind": "sizes"}))
    manifest = [TensorSpec(name="w", shape=(2,), dtype="F32")]
    clients = [Contribution(index, 10, None) for index in range(3)]
    found = expect_sums(config, manifest, {}, clients, clients, number=1)
    assert len(found) == (1 if compression is None else 0)


def test_keys_of_two_tensors_are_refused() -> None:
    specs = {"w": TensorSpec(name="w", shape=(2,), dtype="F32")}
    own = {"int8/w": TensorSpec(name="w", shape=(2,), dtype="F32")}  # an algorithm's group of that name
    with pytest.raises(InvalidConfiguration, match="stands for two tensors"):
        _ = PackedForm(compress("int8"), {**own, **specs}).layout


# ---------------------------------------------------------------- whole runs


def rounds_of(tmp_path: Path, **changes: Any) -> list[dict[str, Any]]:
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    config = RunConfig.model_validate(configure(**changes))
    simulate(config, source=None, out=out, say=lambda line: None)
    return [found for line in out.read_text().splitlines() if "round" in (found := json.loads(line))]


def test_without_a_step_the_model_stays_what_it_is(tmp_path: Path) -> None:
    whole = rounds_of(tmp_path, rounds=1, local={"steps": 0})
    for kind in KINDS:
        assert (
            rounds_of(tmp_path, rounds=1, local={"steps": 0}, compression=kind)[-1]["model"]
            == (whole[-1]["model"])
        )


def test_clients_drawn_now_and_then_keep_their_rest(tmp_path: Path) -> None:
    """With an algorithm that keeps something itself and sends a group of its own."""
    drawn = {"clients_per_round": 2, "rounds": 4, "algorithm": "scaffold"}
    first, again = (rounds_of(tmp_path, compression="int8", **drawn) for _ in range(2))
    assert [found["model"] for found in first] == [found["model"] for found in again]
    whole = rounds_of(tmp_path, **drawn)
    assert first[-1]["model"] != whole[-1]["model"]
    assert first[-1]["accuracy"] == pytest.approx(whole[-1]["accuracy"], abs=0.05)

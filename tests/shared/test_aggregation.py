from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shared import wire
from shared.aggregation import Aggregated, UpdateFile, aggregate
from shared.algorithms import load_algorithm
from shared.algorithms.base import Algorithm, AlgorithmParameters, Combined, ServerRound, UpdateInfo
from shared.config import AlgorithmChoice, LocalTraining
from shared.problems import InvalidConfiguration, InvalidRequest, ModelDiverged, WeightlessRound
from shared.schemas import TensorKind, TensorSpec

FEDAVG = load_algorithm(AlgorithmChoice(name="fedavg"))
LOCAL = LocalTraining(steps=1)
TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def _spec(name: str, shape: Sequence[int], dtype: str = "F32", kind: str = "parameter") -> TensorSpec:
    return TensorSpec(name=name, shape=tuple(shape), dtype=dtype, kind=TensorKind(kind))


MANIFEST = (
    _spec("weight", (1003, 7)),
    _spec("half", (33,), "F16"),
    _spec("brain", (33,), "BF16"),
    _spec("double", (5, 3), "F64"),
    _spec("scale", ()),
    _spec("nothing", (0, 4)),
    _spec("fixed", (3,), "F32", "frozen"),
    _spec("running", (9,), "F32", "buffer"),
    _spec("count", (), "I64", "integer"),
)
SENT = ("parameter", "buffer")


def _values(
    manifest: Sequence[TensorSpec], seed: int, kinds: Sequence[str] = tuple(TensorKind)
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        spec.name: torch.tensor(seed)
        if spec.kind is TensorKind.INTEGER
        else torch.randn(spec.shape, generator=generator, dtype=torch.float64).to(TORCH[spec.dtype])
        for spec in manifest
        if spec.kind in kinds
    }


class Round:
    """A global model and updates on disk."""

    def __init__(self, folder: Path, clients: int, manifest: Sequence[TensorSpec] = MANIFEST) -> None:
        self.folder, self.manifest = folder, manifest
        self.start = _values(manifest, 1000)
        self.model = wire.write(folder / "start.safetensors", {"model": self.start}).path
        self.tensors = [_values(manifest, seed, SENT) for seed in range(clients)]
        self.files = [
            UpdateFile(
                UpdateInfo(index, 10, 1.0, 5),
                wire.write(folder / f"update-{index}.safetensors", {"model": tensors}).path,
            )
            for index, tensors in enumerate(self.tensors)
        ]

    def aggregate(self, weights: Mapping[int, float], into: str = "out", **changes: Any) -> Aggregated:
        folder = self.folder / into
        folder.mkdir(exist_ok=True)
        arguments: dict[str, Any] = {
            "algorithm": FEDAVG,
            "manifest": self.manifest,
            "model": self.model,
            "broadcast": None,
            "private": None,
            "updates": self.files,
            "weights": weights,
            "clients": len(self.files),
            "local": LOCAL,
            "buffers": "average",
            "folder": folder,
        }
        return aggregate(**arguments | changes)

    def result(self, done: Aggregated) -> dict[str, Tensor]:
        wire.validate(done.model.path, wire.model_layout(self.manifest))
        return wire.read_group(done.model.path, "model", [spec.name for spec in self.manifest])


WEIGHTS = {0: 0.5, 1: 0.3, 2: 0.2}


def test_parameters_and_buffers_are_weighted_means_in_the_manifests_dtypes(tmp_path: Path) -> None:
    """Against NumPy in float64: a half-precision result is off by one rounding only, not by that of a sum."""
    case = Round(tmp_path, 3)
    found = case.result(case.aggregate(WEIGHTS))
    precision = {"F16": 2**-11, "BF16": 2**-8, "F32": 1e-6, "F64": 1e-14}
    for spec in MANIFEST:
        if spec.kind not in SENT:
            continue
        expected = sum(WEIGHTS[k] * case.tensors[k][spec.name].double().numpy() for k in WEIGHTS)
        assert found[spec.name].dtype == TORCH[spec.dtype]
        assert found[spec.name].shape == spec.shape
        np.testing.assert_allclose(
            found[spec.name].double().numpy(),
            expected,
            rtol=precision[spec.dtype],
            atol=precision[spec.dtype] / 4,
        )


def test_frozen_and_integer_tensors_stay(tmp_path: Path) -> None:
    case = Round(tmp_path, 3)
    found = case.result(case.aggregate(WEIGHTS))
    assert torch.equal(found["fixed"], case.start["fixed"])
    assert found["count"].item() == 1000
    assert found["count"].dtype == torch.int64


def test_buffers_that_stay_local_are_not_even_read(tmp_path: Path) -> None:
    case = Round(tmp_path, 3)
    files = []
    for index, tensors in enumerate(case.tensors):
        path = tmp_path / f"local-{index}.safetensors"
        own = {name: tensor for name, tensor in tensors.items() if name != "running"}
        files.append(UpdateFile(case.files[index].info, wire.write(path, {"model": own}).path))
    found = case.result(case.aggregate(WEIGHTS, buffers="keep-local", updates=files))
    assert torch.equal(found["running"], case.start["running"])


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_many_small_shares_of_half_precision_add_up(dtype: str, tmp_path: Path) -> None:
    """63 updates of 1.0 with weight 1/63; a bfloat16 accumulator ends at 0.9883, a float16 one at 0.9922."""
    case = Round(tmp_path, 1, [_spec("w", (5,), dtype)])
    path = wire.write(tmp_path / "ones.safetensors", {"model": {"w": torch.ones(5, dtype=TORCH[dtype])}}).path
    files = [UpdateFile(UpdateInfo(index, 10, 1.0, 5), path) for index in range(63)]
    found = case.result(case.aggregate(dict.fromkeys(range(63), 1 / 63), updates=files))
    assert torch.equal(found["w"], torch.ones(5, dtype=TORCH[dtype]))


def test_arrival_order_does_not_change_a_bit(tmp_path: Path) -> None:
    case = Round(tmp_path, 12)
    weights = {index: (index + 1) / 78 for index in range(12)}
    shuffle, digests = random.Random(0), set()
    for _ in range(6):
        arrived = shuffle.sample(case.files, len(case.files))
        digests.add(
            case.aggregate(dict(shuffle.sample(sorted(weights.items()), 12)), updates=arrived).model.digest
        )
    assert len(digests) == 1


def test_the_number_of_threads_does_not_change_a_bit(tmp_path: Path) -> None:
    """Tensors long enough for torch to split them, at lengths that no vector width divides."""
    case = Round(tmp_path, 3, [_spec("long", (300_007,)), _spec("double", (70_001,), "F64")])
    before, digests = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            digests.add(case.aggregate(WEIGHTS).model.digest)
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 1


def test_an_update_without_weight_is_not_in_the_sum(tmp_path: Path) -> None:
    case = Round(tmp_path, 3)
    without = case.aggregate({0: 0.6, 1: 0.4}, updates=case.files[:2])
    assert case.aggregate({0: 0.6, 1: 0.4, 2: 0.0}, "zero").model.digest == without.model.digest
    assert case.aggregate({0: 0.6, 1: 0.4}, "absent").model.digest == without.model.digest


def test_scored_is_the_model_unless_the_algorithm_says_otherwise(tmp_path: Path) -> None:
    case = Round(tmp_path, 3)
    done = case.aggregate(WEIGHTS)
    assert done.scored is done.model
    assert (done.broadcast, done.private) == (None, None)
    feddyn = load_algorithm(AlgorithmChoice(name="feddyn"))
    both = case.aggregate(WEIGHTS, "feddyn", algorithm=feddyn)
    assert both.scored.digest == done.model.digest
    assert both.model.digest != both.scored.digest


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("weights", [{}, {0: 0.0, 1: 0.0, 2: 0.0}, {7: 1.0}])
def test_a_round_without_weight_says_so_and_writes_nothing(weights: dict[int, float], tmp_path: Path) -> None:
    case = Round(tmp_path, 3)
    with pytest.raises(WeightlessRound, match="3 updates"):
        case.aggregate(weights)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("weights", [{0: 0.5, 1: 0.3}, {0: 1.0, 1: 1.0}, {0: math.nan}])
def test_weights_of_another_round_are_refused(weights: dict[int, float], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not to 1"):
        Round(tmp_path, 3).aggregate(weights)


def test_one_client_twice_is_refused(tmp_path: Path) -> None:
    case = Round(tmp_path, 2)
    with pytest.raises(InvalidRequest, match=r"\[0, 0, 1\]"):
        case.aggregate({0: 0.5, 1: 0.5}, updates=[*case.files, case.files[0]])


def test_a_result_that_overflows_is_no_model(tmp_path: Path) -> None:
    """Two finite float32 values whose FedAvgM step is not: x - 1e3 (x - y) with x - y near the largest."""
    case = Round(tmp_path, 1, [_spec("w", (2,))])
    path = wire.write(tmp_path / "far.safetensors", {"model": {"w": torch.tensor([0.0, 3e38])}}).path
    fedavgm = load_algorithm(AlgorithmChoice(name="fedavgm", parameters={"server_learning_rate": 1e3}))
    with pytest.raises(ModelDiverged, match="tensor 'w' of group 'model'") as caught:
        case.aggregate({0: 1.0}, algorithm=fedavgm, updates=[UpdateFile(case.files[0].info, path)])
    assert caught.value.extra == {"tensor": "w"}


class _Wrong(Algorithm[AlgorithmParameters]):
    """Server halves that somebody could write."""

    def __init__(self, answer: Combined) -> None:
        super().__init__(AlgorithmParameters())
        self.answer = answer

    def combine(self, server: ServerRound) -> Combined:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Combined(model={}), "tensor 'w' of group 'model' is missing"),
        (Combined(model={"w": torch.zeros(3)}), r"has shape \[3\], not \[2\]"),
        (Combined(model={"w": torch.full((2,), math.nan)}), "not finite"),
        (Combined(model={"w": torch.zeros(2)}, score={"w": torch.full((2,), math.inf)}), "not finite"),
        (
            Combined(model={"w": torch.zeros(2)}, state={"extra": {}}),
            r"declares the server groups \[\] .*'extra'",
        ),
    ],
)
def test_what_an_algorithm_returns_is_not_believed(answer: Combined, said: str, tmp_path: Path) -> None:
    case = Round(tmp_path, 1, [_spec("w", (2,))])
    with pytest.raises((InvalidConfiguration, ModelDiverged), match=said):
        case.aggregate({0: 1.0}, algorithm=_Wrong(answer))


# ---------------------------------------------------------------- memory

_PEAK = """
import re, sys
from pathlib import Path
sys.path[:0] = {paths!r}
import torch
from test_aggregation import Round, UpdateFile, UpdateInfo, _spec
torch.set_num_threads(1)
count = 2_000_000
case = Round(Path({folder!r}), 2, [_spec("a", (count // 2,)), _spec("b", (count // 2,))])
case.start, case.tensors = None, None
case.files = [UpdateFile(UpdateInfo(k, 10, 1.0, 5), case.files[k % 2].path) for k in range(40)]

def peak():
    return int(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
before = peak()
case.aggregate(dict.fromkeys(range(40), 1 / 40))
print((peak() - before) / (4 * count))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak resident memory from /proc")
def test_forty_updates_take_less_memory_than_four_models(tmp_path: Path) -> None:
    """In a process of its own, with 8 MB a model; forty mapped files at once would be forty models."""
    here = Path(__file__).parent
    code = _PEAK.format(paths=[str(here), str(here.parents[1])], folder=str(tmp_path))
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0.9 < float(answer.stdout) < 4

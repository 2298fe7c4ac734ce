"""Norms, largest entries and cosines of updates in float32, beside the same in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shared import wire
from shared.aggregation import figures
from shared.aggregation.figures import Move, find_cosines, measure_move
from shared.schemas import TensorSpec

DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    return wire.write(path, {wire.MODEL: tensors}).path


def specs_of(tensors: dict[str, Tensor], dtype: str) -> list[TensorSpec]:
    return [TensorSpec(name=name, shape=tuple(value.shape), dtype=dtype) for name, value in tensors.items()]


def exact(tensors: dict[str, Tensor]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return torch.cat([value.double().reshape(-1) for value in tensors.values()]).numpy()


def find_exact_cosines(start: dict[str, Tensor], updates: list[dict[str, Tensor]]) -> list[float]:
    rows = np.stack([exact(update) - exact(start) for update in updates])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    others = rows.sum(axis=0) - rows
    return [float(row @ other / np.linalg.norm(other)) for row, other in zip(rows, others, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clients", [2, 9])
def test_figures_in_every_precision(
    tmp_path: Path, dtype: str, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "CHUNK", 700)  # some pieces to a tensor, the last one short
    monkeypatch.setattr(figures, "COSINES_CHUNK", 4000)
    made = torch.Generator().manual_seed(7)
    shapes = {"a": (61, 40), "b": (1,), "none": (0, 4), "c": ()}

    def draw(size: float) -> dict[str, Tensor]:
        return {
            n: size * torch.randn(shape, generator=made, dtype=torch.float64) for n, shape in shapes.items()
        }

    start = {name: value.to(DTYPES[dtype]) for name, value in draw(1.0).items()}
    updates = [
        {n: (start[n].double() + move).to(DTYPES[dtype]) for n, move in draw(0.1 * (1 + at)).items()}
        for at in range(clients)
    ]
    model, specs = write(tmp_path / "model", start), specs_of(start, dtype)
    paths = {at: write(tmp_path / f"{at}", update) for at, update in enumerate(updates)}
    moves = {at: measure_move(model, path, specs) for at, path in paths.items()}
    for at, update in enumerate(updates):
        moved = exact(update) - exact(start)
        assert moves[at].norm == pytest.approx(float(np.linalg.norm(moved)), rel=1e-6)
        assert moves[at].largest == pytest.approx(float(np.abs(moved).max()), rel=1e-6)
        assert moves[at].start == pytest.approx(float(np.linalg.norm(exact(start))), rel=1e-6)
    found = find_cosines(model, paths, moves, specs)
    assert list(found.values()) == pytest.approx(find_exact_cosines(start, updates), abs=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 3e38])
def test_what_float32_cannot_square_is_measured_in_float64(tmp_path: Path, size: float) -> None:
    start = {"a": torch.full((5,), -size)}
    updates = [{"a": torch.tensor([size, size, size, size, -size])}, {"a": torch.tensor([size, 0, 0, 0, 0])}]
    model, specs = write(tmp_path / "model", start), specs_of(start, "F32")
    paths = {at: write(tmp_path / f"{at}", update) for at, update in enumerate(updates)}
    held = float(torch.tensor(size))
    moves = {at: measure_move(model, path, specs) for at, path in paths.items()}
    assert moves[0].norm == pytest.approx(4 * held)
    assert moves[0].largest == 2 * held
    assert moves[0].start == pytest.approx(5**0.5 * held)
    found = find_cosines(model, paths, moves, specs)
    assert list(found.values()) == pytest.approx(find_exact_cosines(start, updates))


def test_others_that_cancel_each_other_leave_a_right_cosine(tmp_path: Path) -> None:
    """The mean direction of two that point against each other is the small rest in which they differ."""
    made = torch.Generator().manual_seed(1)
    one, rest, own = (torch.randn(5000, generator=made) for _ in range(3))
    start = {"a": torch.zeros(5000)}
    updates = [{"a": one}, {"a": -one + 1e-4 * rest}, {"a": own + rest}]
    model, specs = write(tmp_path / "model", start), specs_of(start, "F32")
    paths = {at: write(tmp_path / f"{at}", update) for at, update in enumerate(updates)}
    moves = {at: measure_move(model, path, specs) for at, path in paths.items()}
    found = find_cosines(model, paths, moves, specs)
    assert list(found.values()) == pytest.approx(find_exact_cosines(start, updates), abs=1e-4)
    assert found[2] > 0.5


def test_a_model_that_stays_moves_by_nothing(tmp_path: Path) -> None:
    start = {"a": torch.ones(4)}
    model = write(tmp_path / "model", start)
    assert measure_move(model, model, specs_of(start, "F32")) == Move(0.0, 0.0, 2.0)
    assert measure_move(model, model, specs_of(start, "F32"), start=3.0).start == 3.0

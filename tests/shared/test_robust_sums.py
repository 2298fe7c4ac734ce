"""Aggregation rules over real files, what is told of each update, and updates that are not believed."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared import wire
from shared.aggregation import Aggregated, UpdateFile, aggregate, products
from shared.aggregation.figures import Move, find_cosines, find_excess, measure_move
from shared.aggregation.round_end import Arrived, RoundResult, Start, close_round
from shared.algorithms import load_algorithm
from shared.algorithms.base import UpdateInfo
from shared.config import AlgorithmChoice, LocalTraining, RunConfig
from shared.outliers import find_outliers
from shared.rules import (
    ClippedRule,
    GeometricMedianRule,
    KrumRule,
    MeanRule,
    MedianRule,
    MultiKrumRule,
    TrimmedMeanRule,
)
from shared.schemas import TensorKind, TensorSpec
from shared.weightings import Contribution

CLIENTS = 6
MANIFEST = (
    TensorSpec(name="deep", shape=(5, 3), dtype="F32"),
    TensorSpec(name="wide", shape=(7,), dtype="F64"),
    TensorSpec(name="scale", shape=(), dtype="F32"),
    TensorSpec(name="seen", shape=(4,), dtype="F32", kind=TensorKind.BUFFER),
    TensorSpec(name="steps", shape=(), dtype="I64", kind=TensorKind.INTEGER),
)
PARAMETERS = [spec for spec in MANIFEST if spec.kind is TensorKind.PARAMETER]
BUFFERS = [spec for spec in MANIFEST if spec.kind is TensorKind.BUFFER]
WEIGHTS = (0.25, 0.15, 0.2, 0.1, 0.2, 0.1)
RULES: list[Any] = [
    ClippedRule(),
    TrimmedMeanRule(trim=0.2),
    MedianRule(),
    KrumRule(),
    MultiKrumRule(keep=3),
    GeometricMedianRule(),
]
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)


def drawn(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {
        spec.name: torch.tensor(3)
        if spec.dtype == "I64"
        else scale
        * torch.randn(
            spec.shape, generator=made, dtype=torch.float64 if spec.dtype == "F64" else torch.float32
        )
        for spec in MANIFEST
    }


class Files:
    """A model, the updates of some clients, and a second group beside each model."""

    def __init__(self, folder: Path, clients: int = CLIENTS) -> None:
        self.folder = folder
        self.x = drawn(0)
        self.model = wire.write(folder / "model", {wire.MODEL: self.x}).path
        moves = [drawn(10 + index, 0.1 * (1 + index)) for index in range(clients)]
        self.y = [{n: self.x[n] + move[n] if n != "steps" else move[n] for n in self.x} for move in moves]
        self.other = [
            {spec.name: drawn(50 + index)[spec.name] for spec in PARAMETERS} for index in range(clients)
        ]
        self.updates = [self.write(index) for index in range(clients)]

    def write(self, index: int, tensors: dict[str, Tensor] | None = None) -> UpdateFile:
        sent = self.y[index] if tensors is None else tensors
        groups = {
            wire.MODEL: {n: t for n, t in sent.items() if n != "steps"},
            "control_delta": self.other[index],
        }
        path = wire.write(self.folder / f"update-{index}", groups).path
        return UpdateFile(UpdateInfo(index, 10, 1.0, 2), path)

    def aggregate(self, into: str, algorithm: str = "fedavg", **more: Any) -> Aggregated:
        folder = self.folder / into
        folder.mkdir()
        given: dict[str, Any] = {
            "updates": self.updates,
            "weights": dict(enumerate(WEIGHTS)),
            "clients": len(self.updates),
        }
        return aggregate(
            algorithm=load_algorithm(AlgorithmChoice(name=algorithm)),
            manifest=MANIFEST,
            model=self.model,
            broadcast=None,
            private=None,
            local=LocalTraining(),
            buffers="average",
            folder=folder,
            **{**given, **more},
        )

    def arrived(self, **changed: int) -> list[Arrived]:
        return [
            Arrived(update.info, update.path, Contribution(update.info.index, 10)) for update in self.updates
        ]


def flat(tensors: dict[str, Tensor], specs: list[TensorSpec]) -> NDArray[np.float64]:
    return np.concatenate([tensors[spec.name].double().numpy().reshape(-1) for spec in specs])


def read(path: Path, specs: list[TensorSpec], group: str = wire.MODEL) -> NDArray[np.float64]:
    return flat(wire.read_group(path, group, [spec.name for spec in specs]), specs)


def expected(rule: Any, rows: NDArray[np.float64], weights: Any) -> NDArray[np.float64]:
    given = np.asarray(weights, dtype=np.float64)
    if hasattr(rule, "centre"):
        found: NDArray[np.float64] = rule.centre(rows, given)
        return found
    return np.asarray(rule.coefficients(given, rows @ rows.T) @ rows)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@by_rule
@pytest.mark.parametrize("chunk", [1, 23, 1 << 21])
def test_the_new_model_is_the_rules_centre_of_the_updates(
    files: Files, rule: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "CHUNK_NUMBERS", chunk)
    made = files.aggregate("made", rule=rule)
    for specs in (PARAMETERS, BUFFERS):  # a liar could use either, so each has its own centre
        x = flat(files.x, specs)
        rows = np.stack([flat(y, specs) - x for y in files.y])
        assert read(made.model.path, specs) == pytest.approx(x + expected(rule, rows, WEIGHTS), abs=2e-5)
    assert wire.read_group(made.model.path, wire.MODEL, ["steps"])["steps"] == 3


@by_rule
def test_sums_of_other_groups_go_by_the_rule_too(files: Files, rule: Any) -> None:
    """SCAFFOLD: c <- c + 1/N sum_S delta_k, so C = K/N of the centre with equal weights."""
    made = files.aggregate("made", "scaffold", rule=rule)
    rows = np.stack([flat(other, PARAMETERS) for other in files.other])
    assert made.broadcast is not None
    control = read(made.broadcast.path, PARAMETERS, "control")
    assert control == pytest.approx(expected(rule, rows, [1 / CLIENTS] * CLIENTS), abs=2e-5)


@by_rule
@pytest.mark.parametrize("algorithm", ["fedavgm", "fednova", "feddyn", "fedopt", "fedprox"])
def test_every_algorithm_takes_every_rule(files: Files, rule: Any, algorithm: str) -> None:
    once, again = (files.aggregate(name, algorithm, rule=rule) for name in ("once", "again"))
    assert once.model.digest == again.model.digest
    backwards = files.aggregate("backwards", algorithm, rule=rule, updates=files.updates[::-1])
    assert backwards.model.digest == once.model.digest, "whatever order they came in"


def test_the_mean_has_the_bits_it_had(files: Files) -> None:
    sums = {spec.name: torch.zeros(spec.shape, dtype=files.x[spec.name].dtype) for spec in PARAMETERS}
    for y, weight in zip(files.y, WEIGHTS, strict=True):
        for name, total in sums.items():
            total.add_(y[name], alpha=weight)
    made = files.aggregate("made", rule=MeanRule())
    found = wire.read_group(made.model.path, wire.MODEL, list(sums))
    assert all(torch.equal(found[name], total) for name, total in sums.items())
    assert made.shares is None
    assert files.aggregate("default").model.digest == made.model.digest


def test_bits_do_not_depend_on_the_number_of_threads(files: Files) -> None:
    before = torch.get_num_threads()
    try:
        for rule in RULES:
            digests = set()
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                digests.add(files.aggregate(f"{rule.kind}-{threads}", rule=rule).model.digest)
            assert len(digests) == 1, rule.kind
    finally:
        torch.set_num_threads(before)


def test_a_rule_of_vectors_says_what_each_update_counts_for(files: Files) -> None:
    shares = files.aggregate("krum", rule=KrumRule()).shares
    assert shares is not None
    assert sorted(shares.values()) == [0, 0, 0, 0, 0, 1]
    assert files.aggregate("median", rule=MedianRule()).shares is None


@pytest.mark.long
def test_slices_keep_memory_bounded(tmp_path: Path) -> None:
    """Eight updates of 16 MB side by side would be 256 MB as float64, and sorting several times that."""
    spec = TensorSpec(name="large", shape=(4_000_000,), dtype="F32")
    paths = []
    for index in range(9):
        tensor = torch.full(spec.shape, float(index))
        paths.append(wire.write(tmp_path / str(index), {wire.MODEL: {"large": tensor}}).path)
    updates = [UpdateFile(UpdateInfo(i, 1, 1.0, 1), path) for i, path in enumerate(paths[1:])]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = aggregate(
        algorithm=load_algorithm(AlgorithmChoice(name="fedavg")), manifest=[spec], model=paths[0],
        broadcast=None, private=None, updates=updates, weights=dict.fromkeys(range(8), 1 / 8), clients=8,
        local=LocalTraining(), buffers="average", folder=tmp_path, rule=MedianRule(),
    )  # fmt: skip
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 400e6, f"{grown / 1e6:.0f} MB"
    value = wire.read_group(made.model.path, wire.MODEL, ["large"])["large"]
    assert (value == 4.5).all()


# ---------------------------------------------------------------- what is told of each update


def test_moves_and_cosines_are_those_of_the_flat_vectors(files: Files) -> None:
    x = flat(files.x, PARAMETERS)
    rows = np.stack([flat(y, PARAMETERS) - x for y in files.y])
    moves = {u.info.index: measure_move(files.model, u.path, PARAMETERS) for u in files.updates}
    for index, row in enumerate(rows):
        assert moves[index].norm == pytest.approx(float(np.linalg.norm(row)))
        assert moves[index].largest == pytest.approx(float(np.abs(row).max()))
        assert moves[index].start == pytest.approx(float(np.linalg.norm(x)))
    directions = rows / np.linalg.norm(rows, axis=1)[:, None]
    found = find_cosines(files.model, {u.info.index: u.path for u in files.updates}, moves, PARAMETERS)
    for index, direction in enumerate(directions):
        others = np.delete(directions, index, axis=0).mean(axis=0)
        assert found[index] == pytest.approx(float(direction @ others / np.linalg.norm(others)))


def test_an_update_that_does_not_move_or_is_alone_has_no_cosine(files: Files) -> None:
    files.updates[2] = files.write(2, files.x)
    moves = {u.info.index: measure_move(files.model, u.path, PARAMETERS) for u in files.updates}
    assert moves[2] == Move(0.0, 0.0, moves[0].start)
    paths = {u.info.index: u.path for u in files.updates}
    assert set(find_cosines(files.model, paths, moves, PARAMETERS)) == {0, 1, 3, 4, 5}
    assert find_cosines(files.model, {0: paths[0]}, moves, PARAMETERS) == {}


def test_the_bound_is_a_multiple_of_the_models_norm_or_of_one() -> None:
    assert find_excess(Move(norm=999.0, largest=1.0, start=0.0), 1000.0) is None
    assert find_excess(Move(norm=20_000.0, largest=1.0, start=20.0), 1000.0) is None
    assert find_excess(Move(norm=20_001.0, largest=1.0, start=20.0), 1000.0) == (
        "the update moves the model by 2e+04, more than 1000 times the norm of the model it started from (20)"
    )
    assert find_excess(Move(norm=float("nan"), largest=1.0, start=1.0), 1000.0) is not None


# ---------------------------------------------------------------- a round


def closed(files: Files, folder: str = "closed", **settings: Any) -> RoundResult:
    config = RunConfig.model_validate(
        {"name": "x", "weighting": {"kind": "sizes"}, "min_clients": CLIENTS, "quorum": 5, **settings}
    )
    (files.folder / folder).mkdir()
    everyone = [Contribution(index, 10) for index in range(CLIENTS)]
    start = Start(files.model)
    return close_round(config, MANIFEST, start, files.arrived(), everyone, files.folder / folder, number=1)


def lie(files: Files, index: int, factor: float) -> None:
    moved = {
        name: value if name == "steps" else files.x[name] + factor * (value - files.x[name])
        for name, value in files.y[index].items()
    }
    files.updates[index] = files.write(index, moved)


def test_c3_an_update_of_1e30_is_left_out_with_a_reason(files: Files) -> None:
    honest = closed(files, "honest")
    absurd = {n: t if n == "steps" else torch.full_like(t, 1e30) for n, t in files.x.items()}
    files.updates[3] = files.write(3, absurd)
    result = closed(files)
    assert [row.index for row in result.rows] == list(range(CLIENTS))
    assert not result.rows[3].included
    assert result.rows[3].reason is not None
    assert "more than 1000 times the norm of the model" in result.rows[3].reason
    assert result.rows[3].weight == 0
    assert sum(row.weight for row in result.rows) == pytest.approx(1)
    assert result.files is not None
    assert np.abs(read(result.files.model.path, PARAMETERS)).max() < 10
    assert honest.rows[3].included


def test_a_round_of_absurd_updates_alone_keeps_the_model(files: Files) -> None:
    for index in range(CLIENTS):
        lie(files, index, 1e9)
    result = closed(files)
    assert (result.files, len(result.rows)) == (None, CLIENTS)
    assert result.weightless is not None
    assert "more than 1000 times" in result.weightless


def agree(files: Files) -> None:
    """Honest updates have something in common."""
    common = drawn(99)
    for index in range(CLIENTS):
        files.y[index] = {
            n: files.x[n] + common[n] + 0.2 * (t - files.x[n]) if n != "steps" else t
            for n, t in files.y[index].items()
        }
        files.updates[index] = files.write(index)


def test_a_thousandfold_update_stands_out_and_honest_ones_do_not(files: Files) -> None:
    agree(files)
    assert find_outliers(closed(files, "honest").rows) == {}
    lie(files, 1, 1000.0)
    result = closed(files, max_norm=1e6)
    found = find_outliers(result.rows)
    assert list(found) == [1]
    assert "times the round's median" in found[1]


def test_an_update_against_the_others_stands_out(tmp_path: Path) -> None:
    files = Files(tmp_path)
    agree(files)
    lie(files, 4, -1.0)
    found = find_outliers(closed(files, "lied").rows)
    assert list(found) == [4]
    assert "it points against the others (cosine -" in found[4]


@dataclass
class Row:
    index: int
    norm: float
    cosine: float


def test_two_updates_are_too_few_for_outliers() -> None:
    assert find_outliers([Row(0, 1.0, -1.0), Row(1, 1000.0, -1.0)]) == {}


@pytest.mark.parametrize(
    ("cosines", "unusual"),
    [
        ((-0.50, -0.08, -0.41, -0.29, -0.38, 0.05), []),  # each draws the model to its own classes
        ((0.08, 0.01, -0.30, -0.01, -0.72, -0.05), [4]),
        ((0.6, 0.5, 0.55, 0.5, -0.15, 0.6), [4]),
        ((0.6, 0.5, 0.55, 0.5, -0.05, 0.6), []),  # another direction, not the opposite one
    ],
)
def test_where_all_differ_nobody_stands_out_by_that(cosines: tuple[float, ...], unusual: list[int]) -> None:
    assert list(find_outliers([Row(i, 1.0, each) for i, each in enumerate(cosines)])) == unusual


@by_rule
def test_a_liar_under_a_rule_and_a_cap_does_not_spoil_the_round(files: Files, rule: Any) -> None:
    agree(files)
    settings = {"aggregation": rule.model_dump(), "max_norm": 1e6, "max_weight": 0.2}
    honest = closed(files, "honest", **settings)
    lie(files, 0, 1000.0)
    lied = closed(files, "lied", **settings)
    assert honest.files is not None
    assert lied.files is not None
    apart = read(lied.files.model.path, PARAMETERS) - read(honest.files.model.path, PARAMETERS)
    moved = read(honest.files.model.path, PARAMETERS) - flat(files.x, PARAMETERS)
    assert np.linalg.norm(apart) < 0.7 * np.linalg.norm(moved)
    mean = closed(files, "mean", max_norm=1e6)
    assert mean.files is not None
    spoilt = read(mean.files.model.path, PARAMETERS) - read(honest.files.model.path, PARAMETERS)
    assert np.linalg.norm(spoilt) > 50 * np.linalg.norm(moved)


def test_the_ledger_tells_the_share_of_each_update(files: Files) -> None:
    rows = closed(files, aggregation={"kind": "multi-krum", "keep": 3}).rows
    shares = [row.share for row in rows if row.share is not None]
    assert len(shares) == CLIENTS
    assert sum(shares) == pytest.approx(1)
    assert sorted(shares)[:3] == [0, 0, 0]
    assert all(replace(row, share=None).share is None for row in rows)
    assert {row.share for row in closed(files, "mean").rows} == {None}

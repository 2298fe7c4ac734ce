"""Secure rounds of every algorithm: the model of the clear round; with and without masks the same bits."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from shared import wire
from shared.aggregation import Aggregated, aggregate_sums
from shared.aggregation.round_end import Arrived, Start, close_round
from shared.aggregation.secure_sums import (
    Plan,
    SecureRound,
    add_up_totals,
    decode_totals,
    encode_totals,
    score_of,
    totals_length,
)
from shared.algorithms import available, load_algorithm
from shared.algorithms.base import Combined, ServerRound, UpdateInfo
from shared.algorithms.fedavg import FedAvg
from shared.config import AlgorithmChoice, RunConfig
from shared.discrepancy import discrepancy
from shared.problems import InvalidConfiguration, ModelDiverged
from shared.schemas import TensorKind, TensorSpec
from shared.secure.faults import AttemptAbandoned
from shared.weightings import Contribution
from shared.weightings.disco import weights
from tests.helpers.secure_parties import Party

MANIFEST = (
    TensorSpec(name="w", shape=(7, 5), dtype="F32"),
    TensorSpec(name="double", shape=(3,), dtype="F64"),
    TensorSpec(name="scalar", shape=(), dtype="F32"),
    TensorSpec(name="running", shape=(4,), dtype="F32", kind=TensorKind.BUFFER),
    TensorSpec(name="fixed", shape=(2,), dtype="F32", kind=TensorKind.FROZEN),
)
ENROLLED = [
    Contribution(0, 120, 0.2),
    Contribution(1, 40, 0.9),
    Contribution(2, 0, None),
    Contribution(3, 260, 0.166),
    Contribution(4, 55, 0.05),
    Contribution(5, 90, 0.4),
]
DRAWN = (5, 0, 3, 1)
GLOBAL = {"kind": "disco", "target": "global", "normalise": "all_clients", "on_all_zero": "raise"}
STEPS = {0: 12, 1: 4, 3: 26, 5: 9}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in available() if load_algorithm(AlgorithmChoice(name=name)).tells == "nothing"),
    ("fedprox", {"mu": 0.1, "normalised": True}),
    ("scaffold", {"dual_weights": "same"}),
    ("feddc", {"gradient_term": False}),
    ("fednova", {"beta": 0.5}),
]


def config(secure: Mapping[str, Any] | None, **changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "sums",
        "min_clients": 5,
        "weighting": {"kind": "disco", "normalise": "all_clients", "on_all_zero": "raise"},
        "secure": secure,
    }
    return RunConfig.model_validate(given | changes)


@dataclass
class Played:
    """A round's files, made up: a model, the server's groups, four updates near the model."""

    folder: Path
    name: str
    parameters: dict[str, Any]

    def __post_init__(self) -> None:
        self.algorithm = load_algorithm(AlgorithmChoice(name=self.name, parameters=self.parameters))
        self.generator = torch.Generator().manual_seed(3)
        self.x = self._tensors(1.0)
        model = self._write("model", {"model": self.x})
        self.start = Start(
            model,
            self._groups("broadcast", self.algorithm.downloads),
            self._groups("private", self.algorithm.private),
        )
        self.arrived = [self._update(index) for index in DRAWN]

    def _tensors(self, size: float, trainable: bool = False) -> dict[str, Tensor]:
        return {
            spec.name: (torch.randn(spec.shape, generator=self.generator, dtype=torch.float64) * size).to(
                torch.float64 if spec.dtype == "F64" else torch.float32
            )
            for spec in MANIFEST
            if not trainable or spec.kind is TensorKind.PARAMETER
        }

    def _write(self, name: str, groups: Mapping[str, Mapping[str, Tensor]]) -> Path:
        return wire.write(self.folder / name, groups).path

    def _groups(self, name: str, groups: tuple[str, ...]) -> Path | None:
        if not groups:
            return None
        return self._write(name, {group: self._tensors(0.01, True) for group in groups})

    def _update(self, index: int) -> Arrived:
        moved = {
            name: self.x[name] + change for name, change in self._tensors(0.1).items() if name != "fixed"
        }
        uploads = {group: self._tensors(0.1, True) for group in self.algorithm.uploads}
        path = self._write(f"update-{index}", {"model": moved, **uploads})
        own = ENROLLED[index]
        return Arrived(UpdateInfo(index, own.examples, 1.0, STEPS[index]), path, own)

    def config(self, secure: Mapping[str, Any] | None, **changes: Any) -> RunConfig:
        return config(secure, algorithm={"name": self.name, "parameters": self.parameters}, **changes)

    def close(self, given: RunConfig, into: str, arrived: list[Arrived] | None = None) -> Aggregated:
        folder = self.folder / into
        folder.mkdir()
        end = close_round(given, MANIFEST, self.start, arrived or self.arrived, ENROLLED, folder, number=1)
        assert end.files is not None
        return end.files


def values(path: Path, group: str, names: list[str]) -> dict[str, Tensor]:
    return wire.read_group(path, group, names)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS)
@pytest.mark.parametrize("bits", [32, 64])
def test_a_secure_round_is_the_clear_one_but_for_the_fixed_point(
    name: str, parameters: dict[str, Any], bits: int, tmp_path: Path
) -> None:
    played = Played(tmp_path, name, parameters)
    clear = played.close(played.config(None), "clear")
    secure = played.close(played.config({"bits": bits, "clip": 2}), "secure")
    again = played.close(played.config({"bits": bits, "clip": 2}), "again", played.arrived[::-1])
    tolerance = 3e-6 if bits == 64 else 5e-5
    trainable = [spec.name for spec in MANIFEST if spec.kind is TensorKind.PARAMETER]
    for one, two, three, groups, names in (
        (clear.model, secure.model, again.model, ("model",), [spec.name for spec in MANIFEST]),
        (clear.scored, secure.scored, again.scored, ("model",), [spec.name for spec in MANIFEST]),
        (clear.broadcast, secure.broadcast, again.broadcast, played.algorithm.downloads, trainable),
        (clear.private, secure.private, again.private, played.algorithm.private, trainable),
    ):
        for group in groups:
            assert one is not None
            assert two is not None
            assert three is not None
            assert two.digest == three.digest
            expected, found = values(one.path, group, names), values(two.path, group, names)
            for tensor in names:
                torch.testing.assert_close(found[tensor], expected[tensor], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "bits"), [("feddc", 64), ("fednova", 32)])
def test_the_protocol_gives_the_same_model_bit_for_bit(name: str, bits: int, tmp_path: Path) -> None:
    """Every client computes its vector from the totals alone; masked, one drops out, unmasked."""
    played = Played(tmp_path, name, {})
    given = played.config({"bits": bits, "clip": 2})
    plan, totals = Plan(given, played.algorithm, MANIFEST, len(DRAWN)), add_up_totals(given, ENROLLED)
    vectors = {
        update.info.index: plan.encode(
            played.start.model,
            update.path,
            score_of(given, ENROLLED[update.info.index], totals),
            update.info.steps,
        )
        for update in played.arrived
    }
    party = Party(vectors, plan.ring)
    with pytest.raises(AttemptAbandoned, match="mask was not removed"):
        plan.decode(sum_of_uploads(party), len(DRAWN))
    party = Party(vectors, plan.ring)
    sums = plan.decode(party.play({1: "upload"}, party.restart), 3)
    folder = tmp_path / "masked"
    folder.mkdir()
    masked = aggregate_sums(
        sums,
        algorithm=played.algorithm,
        manifest=MANIFEST,
        model=played.start.model,
        broadcast=played.start.broadcast,
        private=played.start.private,
        clients=len(ENROLLED),
        local=given.local,
        folder=folder,
    )
    # the ring is that of the clients drawn, whoever arrives
    total = plan.ring.zeros(plan.length)
    for index in (0, 3, 5):
        total += vectors[index]
    (folder / "plain").mkdir()
    plain = aggregate_sums(
        plan.decode(total, 3),
        algorithm=played.algorithm,
        manifest=MANIFEST,
        model=played.start.model,
        broadcast=played.start.broadcast,
        private=played.start.private,
        clients=len(ENROLLED),
        local=given.local,
        folder=folder / "plain",
    )
    assert (masked.model.digest, masked.scored.digest) == (plain.model.digest, plain.scored.digest)
    whole = Party(vectors, plan.ring).play()
    (folder / "whole").mkdir()
    everybody = aggregate_sums(
        plan.decode(whole, 4),
        algorithm=played.algorithm,
        manifest=MANIFEST,
        model=played.start.model,
        broadcast=played.start.broadcast,
        private=played.start.private,
        clients=len(ENROLLED),
        local=given.local,
        folder=folder / "whole",
    )
    assert everybody.model.digest == played.close(given, "simulated").model.digest


def sum_of_uploads(party: Party) -> Any:
    party.play()
    return party.plain_sum(party.uploads)


def test_clipped_entries_are_counted_over_all_clients(tmp_path: Path) -> None:
    played = Played(tmp_path, "fedavg", {})
    given = played.config({"clip": 0.1})
    plan, totals = Plan(given, played.algorithm, MANIFEST, 4), add_up_totals(given, ENROLLED)
    total, expected = plan.ring.zeros(plan.length), 0
    for update in played.arrived:
        own = score_of(given, ENROLLED[update.info.index], totals)
        total += plan.encode(played.start.model, update.path, own, update.info.steps)
        for name in ("w", "double", "scalar", "running"):
            y = wire.read_group(update.path, "model", [name])[name].double()
            expected += int(((y - played.x[name].double()).abs() > 0.1).sum())
    assert plan.decode(total, 4).clipped == expected > 0


def test_an_update_that_is_not_finite_is_not_sent(tmp_path: Path) -> None:
    played = Played(tmp_path, "fedavg", {})
    broken = {name: value.clone() for name, value in played.x.items() if name != "fixed"}
    broken["w"][0, 0] = torch.nan
    path = wire.write(tmp_path / "broken", {"model": broken}).path
    plan = Plan(played.config({}), played.algorithm, MANIFEST, 4)
    with pytest.raises(ModelDiverged):
        plan.encode(played.start.model, path, 0.5, 3)


class Undeclared(FedAvg):
    def combine(self, server: ServerRound) -> Combined:
        server.mean_over_clients("model")
        return super().combine(server)


class OwnWeights(FedAvg):
    def combine(self, server: ServerRound) -> Combined:
        return Combined(model=server.updates.weighted_sum({0: 1.0}))


@pytest.mark.parametrize(
    ("kind", "why"), [(Undeclared, "does not declare"), (OwnWeights, "weights of its own")]
)
def test_an_algorithm_gets_the_sums_that_it_declares_and_no_other(
    kind: type[FedAvg], why: str, tmp_path: Path
) -> None:
    played = Played(tmp_path, "fedavg", {})
    given = played.config({})
    algorithm = kind(FedAvg.Parameters())
    plan, total = Plan(given, algorithm, MANIFEST, 4), None
    for update in played.arrived:
        vector = plan.encode(played.start.model, update.path, 0.25, update.info.steps)
        total = vector if total is None else total + vector
    assert total is not None
    server = SecureRound.of(plan.decode(total, 4), played.x, {}, 6, given.local, number=1, seed=0)
    with pytest.raises(InvalidConfiguration, match=why):
        algorithm.combine(server)


@given(
    rows=st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 3)), min_size=1, max_size=20),
    a=st.floats(0, 2),
    b=st.floats(-0.5, 2),
    missing=st.integers(0, 19),
)
def test_scores_computed_alone_are_discos_weights(
    rows: list[tuple[int, float]], a: float, b: float, missing: int
) -> None:
    everyone = [Contribution(index, n, d) for index, (n, d) in enumerate(rows)]
    weighting = {"kind": "disco", "a": a, "b": b}
    given = config({}, weighting=weighting)
    totals = add_up_totals(given, everyone)
    there = [row for row in everyone if row.index != missing or len(everyone) == 1]
    scores = np.array([score_of(given, row, totals) for row in there])
    assert (scores <= given.weighting.largest_score).all()
    if scores.sum() < 1e-6 or sum(d for _, d in rows) < 1e-6:
        return
    present = [row in there for row in everyone]
    expected = weights([n for n, _ in rows], [d for _, d in rows], a, b, "all_clients", present=present)[
        present
    ]
    assert scores / scores.sum() == pytest.approx(expected, abs=1e-4 / len(rows))


@pytest.mark.parametrize("kind", ["sizes", "uniform"])
def test_sizes_and_uniform_scores(kind: str) -> None:
    given = config({}, weighting={"kind": kind})
    totals = add_up_totals(given, ENROLLED)
    scores = [score_of(given, row, totals) for row in ENROLLED]
    expected = [row.examples / 565 if kind == "sizes" else float(row.examples > 0) for row in ENROLLED]
    assert scores == pytest.approx(expected, abs=1e-12)
    assert totals.examples == 565
    assert totals.discrepancy == pytest.approx(1.716, abs=1e-11)


@given(st.lists(st.lists(st.integers(0, 5000), min_size=4, max_size=4).filter(any), min_size=3, max_size=20))
def test_the_global_target_and_all_discrepancies_to_it_follow_from_one_sum(labels: list[list[int]]) -> None:
    given = config({}, weighting=GLOBAL)
    everyone = [Contribution(at, sum(row), counts=tuple(row)) for at, row in enumerate(labels)]
    totals = add_up_totals(given, everyone)
    assert totals.counts == tuple(sum(column) for column in zip(*labels, strict=True))
    assert totals.examples == sum(map(sum, labels))
    together = [share / totals.examples for share in totals.counts]
    expected = sum(discrepancy(row, together) for row in labels)
    assert totals.discrepancy == pytest.approx(expected, abs=1e-9)
    vectors = [encode_totals(given, row) for row in everyone]
    assert {len(vector) for vector in vectors} == {totals_length(given, 4)}
    total = functools.reduce(np.add, vectors)
    assert decode_totals(given, total, len(vectors)) == totals, "bit for bit, in whatever order"


def test_a_target_that_is_nobodys_sum_is_not_known() -> None:
    asked = config({}, weighting=GLOBAL).weighting.discrepancy
    assert asked is not None
    for nothing in (None, (0, 0)):
        with pytest.raises(InvalidConfiguration, match="the label counts have not been summed"):
            asked.resolve(nothing)
    with pytest.raises(InvalidConfiguration, match="'global' is no distribution"):
        discrepancy([1, 2], "global")  # type: ignore[arg-type]


def test_a_class_that_the_target_lacks_gives_no_score() -> None:
    everyone = [Contribution(0, 10, float("inf")), Contribution(1, 10, 0.5)]
    totals = add_up_totals(config({}), everyone)
    assert [score_of(config({}), row, totals) for row in everyone] == [0.0, pytest.approx(0.1)]


# ---------------------------------------------------------------- what is refused, and what is filled in


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"weighting": {"kind": "disco", "normalise": "round"}}, "takes the clients of one round"),
        (
            {"weighting": {"kind": "disco", "on_all_zero": "sizes"}},
            "needs single scores or sizes; take raise",
        ),
        (
            {"weighting": {"kind": "disco", "target": "global", "metric": "l2"}},
            "by l2 the discrepancies to the global target follow from no sum; take kl",
        ),
        ({"max_weight": 0.5}, "max_weight limits single weights"),
        ({"max_examples": 500}, "go by single sizes"),
        ({"approve": "sizes"}, "go by single sizes"),
        ({"min_clients": 2}, "a sum of 2 clients tells each the others' numbers"),
        ({"clients_per_round": 2}, "a sum of 2 clients"),
        ({"secure": {"bits": 32, "clip": 1e7}}, "bits after the point in a ring of 32 bits"),
        ({"secure": {"bits": 16}}, "Input should be 32 or 64"),
        ({"secure": {"threshold": 0.5}}, "greater than 0.5"),
        ({"secure": {"clip": 0}}, "greater than 0"),
    ],
)
def test_what_goes_not_with_secure_sums(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        config(**{"secure": {}, **changes})


def test_what_disco_leaves_open_becomes_what_clients_can_compute_alone() -> None:
    for weighting in ({}, {"weighting": {"kind": "disco", "a": 0.3}}):
        given = RunConfig.model_validate({"name": "a", "min_clients": 5, "secure": {}, **weighting})
        assert (given.weighting.model_dump()["normalise"], given.weighting.model_dump()["on_all_zero"]) == (
            "all_clients",
            "raise",
        )
    plain = RunConfig.model_validate({"name": "a", "min_clients": 5})
    assert plain.weighting.model_dump()["normalise"] == "round"

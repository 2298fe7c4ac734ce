"""A run as one process trains it: who begins anew, what the files hold, whose examples they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared import wire
from shared.algorithms.base import Algorithm, AlgorithmParameters, LocalFinish, LocalRound
from shared.config import RunConfig
from shared.problems import InvalidConfiguration, MissingTensor
from shared.training import LocalResult
from shared.training.workbench import ClientTask, Workbench
from shared.wire.tensors import state_of
from tests.helpers.benches import make_bench

pytestmark = pytest.mark.usefixtures("one_thread")


class Forgetful(Algorithm[AlgorithmParameters]):
    """Keeps nothing."""

    citation = "none"

    def begin(self, local: LocalRound) -> None:
        self.began = local.first_time

    def finish(self, local: LocalRound) -> LocalFinish:
        return LocalFinish(kept={group: dict(local.kept[group]) for group in self.keeps})


class Keeping(Forgetful):
    """Keeps two groups, and remembers for the test what it was given of the first."""

    keeps = ("one", "two")

    def begin(self, local: LocalRound) -> None:
        super().begin(local)
        self.given = {group: {float(t.sum()) for t in local.kept[group].values()} for group in self.keeps}


def workbench(algorithm: str = "Forgetful", **changes: Any) -> Workbench:
    fields: dict[str, Any] = {
        "name": "bench",
        "task": "digits",
        "algorithm": f"{__name__}:{algorithm}",
        "partition": "iid:3",
        "local": {"steps": 1, "batch_size": 8},
    }
    config = RunConfig.model_validate(fields | changes)
    return make_bench(config)


def began_anew(bench: Workbench) -> bool:
    assert isinstance(bench.algorithm, Forgetful)
    return bench.algorithm.began


def given_groups(bench: Workbench) -> dict[str, set[float]]:
    assert isinstance(bench.algorithm, Keeping)
    return bench.algorithm.given


def train(bench: Workbench, folder: Path, *, took_part: bool, kept: Path | None = None) -> LocalResult:
    model = folder / "model"
    wire.write(model, {wire.MODEL: state_of(bench.task.build_model(None, 0))})
    return bench.train(ClientTask(2, 1, 1.0, took_part, model, kept=kept), clock=lambda: 0.0)


def kept_file(bench: Workbench, folder: Path, *groups: str) -> Path:
    ones = {name: torch.ones_like(parameter) for name, parameter in bench.model.named_parameters()}
    wire.write(folder / "kept", dict.fromkeys(groups, ones))
    return folder / "kept"


@pytest.mark.parametrize("took_part", [False, True])
def test_who_keeps_nothing_begins_anew_until_an_update_was_aggregated(
    took_part: bool, tmp_path: Path
) -> None:
    bench = workbench()
    train(bench, tmp_path, took_part=took_part)
    assert began_anew(bench) is not took_part


@pytest.mark.parametrize(
    ("took_part", "there", "anew"),
    [(False, False, True), (True, True, False), (True, False, True), (False, True, True)],
)
def test_who_keeps_something_begins_anew_also_if_it_is_lost(
    took_part: bool, there: bool, anew: bool, tmp_path: Path
) -> None:
    """The last case: a coordinator gone back to a backup from before the client took part."""
    bench = workbench("Keeping")
    kept = kept_file(bench, tmp_path, "one", "two") if there else None
    train(bench, tmp_path, took_part=took_part, kept=kept)
    assert began_anew(bench) is anew
    assert (given_groups(bench)["one"] == {0.0}) is anew, "who begins anew has kept nothing"


def test_a_group_that_an_older_version_did_not_keep_is_zero(tmp_path: Path) -> None:
    bench = workbench("Keeping")
    train(bench, tmp_path, took_part=True, kept=kept_file(bench, tmp_path, "one"))
    assert given_groups(bench)["two"] == {0.0}
    assert given_groups(bench)["one"] != {0.0}


def test_half_a_group_is_refused(tmp_path: Path) -> None:
    bench = workbench("Keeping")
    name, parameter = next(iter(bench.model.named_parameters()))
    wire.write(tmp_path / "kept", {"one": {name: torch.ones_like(parameter)}})
    with pytest.raises(MissingTensor, match="one/"):
        train(bench, tmp_path, took_part=True, kept=tmp_path / "kept")


def test_results_outlive_the_files_that_the_training_read(tmp_path: Path) -> None:
    bench = workbench("Keeping")
    kept = kept_file(bench, tmp_path, "one", "two")
    result = train(bench, tmp_path, took_part=True, kept=kept)
    for path in (kept, tmp_path / "model"):
        path.write_bytes(b"")
    assert all(bool((tensor == 1).all()) for tensor in result.kept["one"].values())
    assert all(bool(tensor.isfinite().all()) for tensor in result.tensors["model"].values())


def test_examples_are_the_clients_own(tmp_path: Path) -> None:
    bench = workbench(partition={"kind": "iid", "clients": 3, "held_out": 0.2})
    whole = len(bench.task.load("train", None, 0))
    own = [len(bench.training_examples(index)) for index in range(bench.clients)]
    assert sum(own) + sum(len(bench.own_test_examples(index)) for index in range(3)) == whole
    assert sum(bench.class_counts(1)) == own[1]
    assert len(bench.training_examples(None)) == whole
    for index in (-1, 3):
        with pytest.raises(InvalidConfiguration, match=f"index {index} is outside a partition for 3 clients"):
            bench.training_examples(index)


def test_without_a_partition_all_examples_are_this_processes_own() -> None:
    bench = workbench(partition=None)
    assert len(bench.training_examples(5)) == len(bench.task.load("train", None, 0))
    assert bench.clients == 0

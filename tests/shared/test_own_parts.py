"""Optimizers, schedules, losses, models and partitions: built in, and by import path as documented."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

import feddisco
from shared.config import LocalTraining, RunConfig
from shared.discrepancy import discrepancy
from shared.own_parts import import_part
from shared.problems import InvalidConfiguration
from shared.schedules import Schedule
from shared.tasks import load_task
from shared.training.optimizers import find_loss, make_optimizer
from shared.training.sgd import SGD

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "own-parts.md").read_text()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> str:
    """The documented module, to be imported."""
    blocks = BLOCK.findall(TEXT)
    functions = [part for block in blocks for part in re.split(r"\n(?=def )", block)]
    assert len(blocks) == 2
    assert max(len(part.splitlines()) for part in functions) < 20
    module = ModuleType("ours_training")
    exec("\n".join(blocks), module.__dict__)
    monkeypatch.setitem(sys.modules, "ours_training", module)
    return "ours_training"


def configure(**fields: Any) -> dict[str, Any]:
    local = {"steps": 3, "batch_size": 16, "learning_rate": 0.01, **fields.pop("local", {})}
    return {
        "name": "own",
        "task": "digits",
        "rounds": 2,
        "partition": "niid1:3:0.5",
        "local": local,
        **fields,
    }


def digests(tmp_path: Path, **fields: Any) -> list[str]:
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    return list(feddisco.simulate(configure(**fields), out=out).rounds["model"])


def test_each_part_of_ones_own_changes_the_model(ours: str, tmp_path: Path) -> None:
    plain = digests(tmp_path)
    for part in ("optimizer:rmsprop", "loss:smoothed", "schedule:warm_up"):
        setting, _, name = part.partition(":")
        found = digests(tmp_path, local={setting: f"{ours}:{name}"})
        assert found[-1] != plain[-1], setting
    assert digests(tmp_path, model=f"{ours}:small_net")[0] != plain[0]


def test_a_metric_of_ones_own_measures_the_discrepancy(ours: str, tmp_path: Path) -> None:
    """One of four classes alone is three, two and one step away from the others' quarters."""
    assert discrepancy([5, 0, 0, 0], "uniform", f"{ours}:earth_mover") == pytest.approx((3 + 2 + 1) / 4)
    metric = {"kind": "disco", "metric": f"{ours}:earth_mover"}
    result = feddisco.simulate(configure(weighting=metric), out=tmp_path / "r")
    by_kl = feddisco.simulate(configure(), out=tmp_path / "kl")
    weights = [each.ledger.query("round == 1")["weight"].tolist() for each in (result, by_kl)]
    assert [sum(each) for each in weights] == [pytest.approx(1), pytest.approx(1)]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("given", [-0.1, math.inf, math.nan, "far", None])
def test_a_metric_that_gives_no_distance_is_refused(monkeypatch: pytest.MonkeyPatch, given: object) -> None:
    module = ModuleType("wrong_metrics")
    module.wrong = lambda shares, target: given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wrong_metrics", module)
    with pytest.raises(InvalidConfiguration, match="not a finite number of 0 or more"):
        discrepancy([1, 2], "uniform", "wrong_metrics:wrong")


def test_a_partition_of_ones_own_deals_as_it_says(ours: str, tmp_path: Path) -> None:
    partition = {"kind": f"{ours}:halves", "clients": 4, "options": {"upper": 0.3}}
    result = feddisco.simulate(
        configure(partition=partition, weighting={"kind": "sizes"}), out=tmp_path / "r"
    )
    weights = result.ledger.query("round == 1")["weight"].tolist()
    assert len(weights) == 4
    assert sum(weights[:2]) == pytest.approx(0.3, abs=0.02), "classes 0 to 2 of ten"


def test_what_a_partition_deals_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("wrong_dealers")
    module.twice = lambda targets, classes, clients, random: [[0, 1]] * clients  # type: ignore[attr-defined]
    module.beyond = lambda targets, classes, clients, random: [[k * 10**6] for k in range(clients)]  # type: ignore[attr-defined]
    module.nobody = lambda targets, classes, clients, random: [[]] * clients  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wrong_dealers", module)
    for name in ("twice", "beyond", "nobody"):
        partition = {"kind": f"wrong_dealers:{name}", "clients": 2}
        with pytest.raises(InvalidConfiguration, match="does not deal"):
            feddisco.simulate(configure(partition=partition), out=tmp_path / f"{name}.jsonl")


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_steps_as_pytorchs(optimizer: str) -> None:
    local = LocalTraining.model_validate({"optimizer": optimizer, "learning_rate": 0.1, "weight_decay": 0.01})
    assert local.momentum == 0
    ours, theirs = nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([1.0, -2.0]))
    made = make_optimizer([ours], local, scaled=False)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    other = kind([theirs], lr=0.1, weight_decay=0.01)
    for _ in range(3):
        for parameter, step in ((ours, made), (theirs, other)):
            step.zero_grad(set_to_none=True)
            torch.autograd.backward((parameter**2).sum())
            step.step()
    assert torch.equal(ours, theirs)
    assert isinstance(make_optimizer([ours], LocalTraining(epochs=1), scaled=False), SGD)


def test_a_rate_of_the_schedule_is_the_rate_of_the_round() -> None:
    local = LocalTraining.model_validate(
        {"learning_rate": 0.2, "schedule": {"kind": "step", "every": 3, "factor": 0.5}}
    )
    assert [local.in_round(n, 9).learning_rate for n in (1, 3, 4, 7)] == [0.2, 0.2, 0.1, 0.05]
    constant = LocalTraining(epochs=1)
    assert constant.in_round(5, 9) is constant


def test_balanced_classes_weigh_the_same() -> None:
    """30 examples of one class and 10 of another: 40 / (2 * 30) and 40 / (2 * 10); the rest is not there."""
    task = load_task("digits")
    targets = torch.tensor([0] * 30 + [7] * 10)
    examples = feddisco.Examples(torch.zeros(40, 1, 8, 8), targets)
    local = LocalTraining.model_validate({"class_weights": "balanced"})
    loss = find_loss(task, local, examples, torch.device("cpu"))
    outputs = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    each = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    expected = (each[:30].mean() + each[30:].mean()) / 2
    assert loss(outputs, targets).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"local": {"optimizer": "lion"}}, "optimizer"),
        ({"local": {"optimizer": "adam", "momentum": 0.5}}, "momentum goes with sgd"),
        ({"local": {"schedule": {"kind": "step", "every": 3}}}, "every and factor go with step"),
        ({"local": {"schedule": {"kind": "cosine", "every": 3}}}, "every and factor go with step"),
        ({"local": {"loss": "a:b", "class_weights": "balanced"}}, "leave one of the two out"),
        ({"local": {"class_weights": [1, 2]}, "classes": ["a", "b", "c"]}, "2 for 3 classes"),
        ({"partition": {"kind": "iid", "clients": 2, "options": {"a": 1}}}, "options go with"),
        ({"secure": {}, "min_clients": 3, "local": {"schedule": "cosine"}}, "a schedule changes"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate({"name": "a", **fields})


@pytest.mark.parametrize("algorithm", ["scaffold", "feddc", "fednova"])
def test_algorithms_whose_formulas_are_of_sgd(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{algorithm} takes a step to be"):
        feddisco.simulate(configure(algorithm=algorithm, local={"optimizer": "adam"}), out=tmp_path / "r")


def test_a_part_that_is_none_is_one_sentence() -> None:
    with pytest.raises(InvalidConfiguration, match=r"local\.loss: 'no_such:thing' cannot be imported"):
        import_part("local.loss", "no_such:thing")
    with pytest.raises(InvalidConfiguration, match="which cannot be called"):
        import_part("local.loss", "math:pi")
    with pytest.raises(InvalidConfiguration, match=r"no torch\.optim\.Optimizer"):
        make_optimizer([], LocalTraining.model_validate({"optimizer": "builtins:print"}), scaled=False)
    with pytest.raises(InvalidConfiguration, match="gave '12' for round 1"):
        Schedule(kind=f"{__name__}:two_digits").find_factor(1, 2)


def two_digits(round: int, rounds: int) -> str:
    return f"{round}{rounds}"

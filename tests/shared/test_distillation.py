"""FedDF's step against its formulas, written once more in NumPy; what it must leave alone; refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from shared import wire
from shared.config import RunConfig
from shared.data import Examples
from shared.distillation import Distillation
from shared.problems import InvalidConfiguration
from shared.tasks import task_of
from shared.training.distillation import Distiller, find_divergence
from shared.wire.tensors import load_into, state_of
from tests.helpers.awkward_model import Awkward, build
from tests.helpers.tiny_task import TASK, Tiny

Array = NDArray[np.float64]
INPUTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(3))


def tiny() -> Tiny:
    task = task_of(RunConfig(name="a", task=TASK, classes=Tiny.classes))
    assert isinstance(task, Tiny)
    return task


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def write_models(folder: Path, models: Mapping[str, nn.Module]) -> dict[str, Path]:
    return {
        name: wire.write(folder / name, {wire.MODEL: state_of(model)}).path for name, model in models.items()
    }


def linear(seed: int, scale: float = 1.0) -> nn.Linear:
    made = nn.Linear(4, 3)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return made


def distiller(model: nn.Module | None = None, **fields: Any) -> Distiller:
    return Distiller(tiny(), model or nn.Linear(4, 3), INPUTS, Distillation(**fields), seed=1)


def files(folder: Path, teachers: int = 3) -> tuple[dict[str, Path], dict[int, tuple[Path, float]]]:
    paths = write_models(folder, {"start": linear(0), **{str(k): linear(k) for k in range(1, teachers + 1)}})
    return paths, {k: (paths[str(k)], 1 / teachers) for k in range(1, teachers + 1)}


def test_the_divergence_is_that_of_the_teachers_distribution_from_the_students() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(7, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    p, q = softmax(teacher.numpy()), softmax(student.numpy())
    expected = (p * np.log(p / q)).sum(axis=1).mean()
    assert find_divergence(student, teacher).item() == pytest.approx(expected, rel=1e-12)
    assert find_divergence(teacher, teacher).item() == pytest.approx(0, abs=1e-12)
    certain = torch.tensor([[0.0, -1e30]])
    assert find_divergence(certain, certain).item() == 0


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_steps_are_adams_along_a_cosine_from_the_mean_of_the_logits(
    clip_norm: float | None, tmp_path: Path
) -> None:
    """All examples in one batch, so that their order is of no account."""
    steps, rate = 7, 0.05
    asked: dict[str, Any] = {"steps": steps, "held_out": 0, "batch_size": 60, "clip_norm": clip_norm}
    paths, _ = files(tmp_path)
    shares = {1: 0.5, 2: 0.3, 3: 0.2}
    student = write_models(tmp_path, {"student": linear(9)})["student"]
    teachers = {k: (paths[str(k)], share) for k, share in shares.items()}
    found, how = distiller(**asked, learning_rate=rate).distil(student, paths["start"], teachers, 1)

    x = np.hstack([INPUTS.double().numpy(), np.ones((60, 1))])
    tables = {k: flat(linear(k)) for k in (1, 2, 3, 9)}
    aim = softmax(np.sum([x @ tables[k].T * share for k, share in shares.items()], axis=0))
    w, m, v = tables[9], np.zeros((3, 5)), np.zeros((3, 5))
    for t in range(1, steps + 1):
        slope = (softmax(x @ w.T) - aim).T @ x / len(x)
        norm = math.sqrt((slope**2).sum())
        if clip_norm is not None and norm > clip_norm:
            slope *= clip_norm / norm
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        now = rate * (1 + math.cos(math.pi * (t - 1) / steps)) / 2
        w = w - now * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    assert np.hstack([found["weight"], found["bias"][:, None]]) == pytest.approx(w, abs=2e-5)
    assert (how.steps, how.chosen, how.before) == (steps, steps, None)


def flat(model: nn.Linear) -> Array:
    weight, bias = model.weight.detach().double().numpy(), model.bias.detach().double().numpy()
    return np.hstack([weight, bias[:, None]])


@pytest.mark.long
def test_it_comes_nearer_to_the_ensemble_and_ends_when_it_comes_no_nearer(tmp_path: Path) -> None:
    paths, teachers = files(tmp_path)
    _, how = distiller(steps=5000, patience=200, learning_rate=0.05).distil(
        paths["1"], paths["start"], teachers, 1
    )
    assert how.before is not None
    assert how.after is not None
    assert how.after < how.before / 100
    assert how.steps == how.chosen + 200 < 5000


def test_what_comes_no_nearer_at_all_stays_the_average(tmp_path: Path) -> None:
    """The only teacher's own copy: nothing is nearer. Steps far too long leave it for good."""
    paths, _ = files(tmp_path)
    asked = distiller(steps=300, learning_rate=50.0, clip_norm=None)
    found, how = asked.distil(paths["1"], paths["start"], {1: (paths["1"], 1.0)}, 1)
    assert (how.chosen, how.after) == (0, how.before)
    assert how.before == pytest.approx(0, abs=1e-6)
    assert all(torch.equal(value, state_of(linear(1))[name]) for name, value in found.items())


def test_the_same_bits_every_time_and_others_for_other_seeds_and_rounds(tmp_path: Path) -> None:
    paths, teachers = files(tmp_path)

    def distil(number: int, seed: int = 1) -> Tensor:
        torch.rand(3)  # whatever was drawn before
        made = Distiller(tiny(), nn.Linear(4, 3), INPUTS, Distillation(steps=5, batch_size=8), seed=seed)
        return made.distil(paths["1"], paths["start"], teachers, number)[0]["weight"]

    assert torch.equal(distil(1), distil(1))
    assert not torch.equal(distil(1), distil(2))
    assert not torch.equal(distil(1), distil(1, seed=2))


def test_no_label_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, teachers = files(tmp_path)
    before, _ = distiller(steps=120).distil(paths["1"], paths["start"], teachers, 1)

    def read(_: Examples) -> Tensor:
        raise AssertionError("somebody reads labels")

    monkeypatch.setattr(Examples, "targets", property(read), raising=False)
    after, _ = distiller(steps=120).distil(paths["1"], paths["start"], teachers, 1)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_running_statistics_are_the_teachers_own_and_follow_the_batches_in_the_student(
    tmp_path: Path,
) -> None:
    """Teachers of one function with other statistics say other things; counters and what is frozen stay."""
    start, teacher = build(), build()
    load_into(
        teacher,
        {
            **state_of(teacher),
            "norm.running_mean": torch.full((4,), 2.0),
            "norm.num_batches_tracked": torch.tensor(7),
        },
    )
    paths = write_models(tmp_path, {"start": start})
    sent = {k: v for k, v in state_of(teacher).items() if k not in ("frozen", "norm.num_batches_tracked")}
    update = wire.write(tmp_path / "update", {wire.MODEL: sent}).path
    made = Distiller(tiny(), build(), INPUTS, Distillation(steps=200, learning_rate=0.01), seed=1)
    found, how = made.distil(paths["start"], paths["start"], {0: (update, 1.0)}, 1)

    def say(model: Awkward) -> Tensor:
        with torch.no_grad():
            out: Tensor = model.eval()(INPUTS[54:])
        return out

    assert how.before == pytest.approx(find_divergence(say(start), say(teacher)).item(), rel=1e-5)
    student = build()
    load_into(student, found)
    assert how.after == pytest.approx(find_divergence(say(student), say(teacher)).item(), abs=1e-6)
    assert how.chosen > 0
    assert not torch.equal(found["norm.running_mean"], state_of(start)["norm.running_mean"])
    for name in ("norm.num_batches_tracked", "frozen"):
        assert torch.equal(found[name], state_of(start)[name])


def test_a_model_whose_outputs_are_no_numbers_is_not_in_the_ensemble(tmp_path: Path) -> None:
    paths, teachers = files(tmp_path, 2)
    broken = write_models(tmp_path, {"broken": linear(4, 1e38)})["broken"]
    without, _ = distiller(steps=20).distil(paths["1"], paths["start"], teachers, 1)
    three = {**{k: (path, 0.3) for k, (path, _) in teachers.items()}, 3: (broken, 0.4)}
    found, how = distiller(steps=20).distil(paths["1"], paths["start"], three, 1)
    assert how.left_out == (3,)
    assert found["weight"].numpy() == pytest.approx(without["weight"].numpy(), abs=1e-5)
    kept, how = distiller(steps=20).distil(paths["1"], paths["start"], {3: (broken, 1.0)}, 1)
    assert (how.steps, how.chosen, how.left_out) == (0, 0, (3,))
    assert torch.equal(kept["weight"], linear(1).weight)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"secure": {}, "min_clients": 3}, "of which nobody sees one with secure sums"),
        ({"aggregation": "median"}, "a robust aggregation is of no use"),
        ({"buffers": "keep-local"}, "whose running statistics stay there"),
        ({"distillation": {"steps": 0}}, "greater than or equal to 1"),
        ({"distillation": {"kind": "fedgen"}}, "feddf"),
    ],
)
def test_what_it_cannot_go_with_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate({"name": "a", "distillation": {}, **fields})


def test_outputs_that_are_no_logits_and_too_few_examples_are_refused() -> None:
    regression = task_of(RunConfig(name="a", task="facebook-comments"))
    with pytest.raises(InvalidConfiguration, match="are no logits of its classes"):
        Distiller(regression, nn.Linear(4, 1), INPUTS, Distillation(), seed=1)
    with pytest.raises(InvalidConfiguration, match="1 examples in batches of 128 make no batch of 2"):
        Distiller(tiny(), build(), INPUTS[:2], Distillation(), seed=1)

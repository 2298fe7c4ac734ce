"""FedSkip: between two averages, models travel from client to client, and none is lost on the way."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from shared import wire
from shared.aggregation.round_end import Arrived, Start
from shared.aggregation.travelling import TravellingModel, close_travelling_round
from shared.algorithms.base import UpdateInfo
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.seeds import derive
from shared.tasks import task_of
from shared.travelling import deal_models
from shared.weightings import Contribution
from shared.wire.tensors import manifest_of, state_of
from simulation.jobs import WorkbenchSpec
from simulation.run import simulate
from tests.helpers.awkward_model import build
from tests.helpers.tiny_task import TASK, Tiny

STEPS, RATE, MOMENTUM = 2, 0.2, 0.5


def configure(**fields: Any) -> RunConfig:
    """Seven clients of unequal size, five a round, each with a few steps on all of its examples."""
    given = {
        "name": "skipping",
        "task": TASK,
        "classes": Tiny.classes,
        "rounds": 7,
        "average_every": 3,
        "weighting": {"kind": "sizes"},
        "partition": "niid1:7:2",
        "clients_per_round": 5,
        "local": {
            "steps": STEPS,
            "batch_size": 1000,
            "learning_rate": RATE,
            "momentum": MOMENTUM,
            "weight_decay": 0,
        },
    }
    return RunConfig.model_validate(given | fields)


def run(config: RunConfig, out: Path, **arguments: Any) -> str:
    return simulate(config, source=None, out=out, say=lambda _: None, **arguments)


def rounds(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "round"]


def train_alone(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()


def skip_alone(config: RunConfig, draws: Sequence[Sequence[int]], beta: float) -> list[dict[str, Tensor]]:
    """The method as its authors' program has it: a list of networks, and what each has been trained on.

    Returns what each round's networks average to; ``beta`` is the server's momentum on the averages.
    """
    bench = WorkbenchSpec.of(config).build()
    average = copy.deepcopy(bench.model)
    velocity = {name: torch.zeros_like(value) for name, value in average.state_dict().items()}
    nets: list[nn.Module] = []
    seen: list[int] = []
    found = []
    for number, drawn in enumerate(draws, 1):
        if nets:
            generator = random.Random(derive(config.seed, "scatter", number))
            order = generator.sample(range(len(nets)), len(nets))
        else:
            nets = [copy.deepcopy(average) for _ in drawn]
            seen, order = [0] * len(nets), list(range(len(nets)))
        for place, client in zip(order, sorted(drawn), strict=True):
            own = bench.training_examples(client)
            train_alone(nets[place], own.inputs, own.targets)
            seen[place] += len(own)
        start = average.state_dict()
        mean = {
            name: sum(n / sum(seen) * net.state_dict()[name] for n, net in zip(seen, nets, strict=True))
            for name in start
        }
        moved = {name: beta * velocity[name] + start[name] - mean[name] for name in start}
        found.append({name: start[name] - moved[name] for name in start})
        if number % config.average_every == 0:
            average.load_state_dict(found[-1])
            nets, velocity = [], moved
    return found


@pytest.mark.parametrize(("algorithm", "beta"), [("fedavg", 0.0), ("fedavgm", 0.6)])
def test_it_is_what_a_loop_over_networks_makes(algorithm: str, beta: float, tmp_path: Path) -> None:
    given = {"algorithm": {"name": algorithm, "parameters": {"beta": beta} if beta else {}}}
    config, out, model = configure(**given), tmp_path / "r.jsonl", tmp_path / "model"
    models = []
    for number in range(1, config.rounds + 1):
        run(config, out, until=number, keep_model=model)
        with wire.opened(model) as file:
            models.append({name: file.tensor(wire.MODEL, name).clone() for name in ("weight", "bias")})
    lines = rounds(out)
    expected = skip_alone(config, [line["participants"] for line in lines], beta)
    for found, wanted in zip(models, expected, strict=True):
        for name, value in found.items():
            torch.testing.assert_close(value, wanted[name], rtol=0, atol=2e-6)
    assert [line["averaged"] for line in lines] == [False, False, True, False, False, True, False]
    assert len({tuple(line["participants"]) for line in lines}) > 1, "other clients are drawn"


def test_the_result_says_who_began_from_whose_model(tmp_path: Path) -> None:
    run(configure(), tmp_path / "r.jsonl")
    lines = rounds(tmp_path / "r.jsonl")
    before: list[int] = []
    for line in lines:
        begun = line["started_from"]
        assert begun == [None] * 5 if not before else sorted(begun) == sorted(before)
        now = [model["client"] for model in line["models"]]
        assert sorted(now) == sorted(line["participants"]), "each client of the round trained one"
        for client, from_whom in zip(line["participants"], begun, strict=True):
            assert from_whom is None or now.index(client) == before.index(from_whom), "in its place"
        assert sum(model["weight"] for model in line["models"]) == pytest.approx(1)
        before = [] if line["averaged"] else now
    assert [line["started_from"] for line in lines].count([None] * 5) == 3
    assert all(line["accuracy"] is not None for line in lines), "what the models average to is scored"


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["fedavg", pytest.param("fedopt", marks=pytest.mark.slow)])
def test_an_interrupted_run_gives_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    """After each round all is built anew from the folder, which holds no more than is needed."""
    config = configure(algorithm=algorithm, weighting={"kind": "disco", "a": 0.2, "b": 0.3})
    whole = run(config, tmp_path / "whole.jsonl")
    folder = tmp_path / "pieces.jsonl.checkpoint"
    pieces, travelling = "", []
    for until in range(1, config.rounds + 1):
        pieces = run(config, tmp_path / "pieces.jsonl", until=until, processes=2 if until == 3 else 1)
        if folder.exists():
            travelling.append(len(list(folder.glob("travelling-*"))))
            assert len(list(folder.glob("model-*"))) == 1
    assert travelling == [5, 5, 0, 5, 5, 0]
    assert pieces == whole
    without = [
        [{key: value for key, value in line.items() if key != "seconds"} for line in rounds(tmp_path / name)]
        for name in ("whole.jsonl", "pieces.jsonl")
    ]
    assert without[0] == without[1]


def test_more_rounds_than_first_asked_are_those_of_a_longer_run(tmp_path: Path) -> None:
    """The last round is no exception: a run may end between two averages, and be gone on with."""
    run(configure(rounds=4), tmp_path / "r.jsonl", keep_checkpoint=True)
    longer = run(configure(), tmp_path / "r.jsonl")
    assert longer == run(configure(), tmp_path / "whole.jsonl")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_over_a_cluster_the_same_bits(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'feddisco[sim]'")
    assert run(configure(), tmp_path / "ray.jsonl", engine="ray") == run(configure(), tmp_path / "one.jsonl")


def test_averaging_in_every_round_is_no_other_run(tmp_path: Path) -> None:
    plain, skipping = configure(average_every=1, rounds=2), configure(average_every=2, rounds=2)
    one, other = run(plain, tmp_path / "1.jsonl"), run(skipping, tmp_path / "2.jsonl")
    assert one != other
    first, second = (rounds(tmp_path / f"{n}.jsonl")[0] for n in (1, 2))
    assert first["model"] == second["model"], "all begin from one model"
    assert "started_from" not in first


# ---------------------------------------------------------------- dealing


def test_models_are_dealt_anew_in_each_round() -> None:
    dealt = [deal_models(7, number, models=6, clients=6) for number in range(1, 40)]
    assert all(sorted(order) == list(range(6)) for order in dealt)  # type: ignore[type-var]
    assert len(set(dealt)) > 30
    assert any(order[0] == 0 for order in dealt), "a client may get its own back"
    assert deal_models(7, 3, models=6, clients=6) != deal_models(8, 3, models=6, clients=6)


def test_models_rest_and_clients_begin_anew_where_the_numbers_differ() -> None:
    few = deal_models(0, 2, models=6, clients=4)
    assert len({*few}) == 4
    assert None not in few
    many = deal_models(0, 2, models=3, clients=5)
    assert many.count(None) == 2
    assert {*many} == {None, 0, 1, 2}


# ---------------------------------------------------------------- the end of a round


def test_a_model_stays_where_its_client_sent_nothing_that_counts(tmp_path: Path) -> None:
    """Three models; one is trained, one comes back unbelievable, one rests; and a client begins another."""
    base = build()
    manifest = manifest_of(base)
    sent = {spec.name for spec in manifest if spec.name.split(".")[-1] != "num_batches_tracked"} - {"frozen"}

    def write(name: str, shift: float, *, whole: bool) -> Path:
        state = {
            key: value + shift if value.is_floating_point() else value
            for key, value in state_of(base).items()
            if whole or key in sent
        }
        return wire.write(tmp_path / name, {wire.MODEL: state}).path

    average = write("average", 0.0, whole=True)
    models = [TravellingModel(write(f"m{n}", n / 10, whole=True), n, 4.0) for n in (1, 2, 3)]
    known = [Contribution(index, 10 * (index + 1)) for index in range(3)]
    shifts = [0.5, 1e6, 0.7]  # clients 0 and 1 had models 2 and 0, client 2 the average
    dealt = {0: 2, 1: 0, 2: None}
    arrived = [
        Arrived(
            UpdateInfo(index, own.examples, 1.0, 3),
            write(f"u{index}", shifts[index], whole=False),
            own,
            start=None if dealt[index] is None else models[dealt[index] or 0].path,
        )
        for index, own in enumerate(known)
    ]
    config = configure(max_norm=100.0)
    end = close_travelling_round(
        config, manifest, Start(average), arrived, dealt, models, known, tmp_path, number=2
    )
    assert [row.included for row in end.result.rows] == [True, False, True]
    assert "1e+02 times" in str(end.result.rows[1].reason) or "100 times" in str(end.result.rows[1].reason)
    assert end.models[:2] == tuple(models[:2]), "unbelieved, and at rest"
    assert [model.client for model in end.models] == [1, 2, 0, 2]
    assert [model.earned for model in end.models] == pytest.approx([4.0, 4.0, 4.0 + 10, 30])
    parameters = [value for value in base.parameters() if value.requires_grad]
    length = sum(value.numel() for value in parameters) ** 0.5
    assert end.result.rows[0].norm == pytest.approx((0.5 - 0.3) * length, rel=1e-4), "from its own start"
    assert end.result.rows[2].norm == pytest.approx(0.7 * length, rel=1e-4)
    assert all(row.cosine is None for row in end.result.rows), "they went different ways"
    with wire.opened(end.models[2].path) as file:
        assert torch.equal(file.tensor(wire.MODEL, "frozen"), base.frozen)
        assert torch.equal(file.tensor(wire.MODEL, "head.bias"), state_of(base)["head.bias"] + 0.5)
    assert end.result.files is not None
    with wire.opened(end.result.files.model.path) as file:
        mean = (4 * 0.1 + 4 * 0.2 + 14 * 0.5 + 30 * 0.7) / 52
        for name in ("head.bias", "norm.running_mean"):
            torch.testing.assert_close(file.tensor(wire.MODEL, name), state_of(base)[name] + mean)


# ---------------------------------------------------------------- what does not go with it


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"secure": {}, "min_clients": 7}, "nobody holds a single model"),
        ({"aggregation": "median"}, "a robust rule"),
        ({"compression": "int8"}, "a packed update"),
        ({"shadow": ["uniform"]}, "a shadow"),
        ({"distillation": {}}, "distillation gives the average"),
        ({"calibration": {}}, "calibration measures one model"),
        ({"weighting": {"kind": "qfedavg"}}, "weighting qfedavg looks at the loss of the received model"),
        ({"weighting": {"kind": "fedawa"}}, "weighting fedawa looks at updates of one model"),
        ({"weighting": {"kind": "fedlaw"}}, "weighting fedlaw looks at models that began from one"),
        ({"average_every": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        configure(**fields)


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ("scaffold", "sends more of each client"),
        ("moon", "keeps at each client"),
        ("feddyn", "keeps at each client"),
        ("fednova", "the one model that all received"),
        ({"name": "fedprox", "parameters": {"normalised": True}}, "the one model that all received"),
        ("fedfm", "sends more of each client"),
    ],
)
def test_algorithms_that_do_not_go_with_it_are_refused(algorithm: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        run(configure(algorithm=algorithm), tmp_path / "r.jsonl")


def test_a_twin_averages_in_every_round() -> None:
    twin = configure(also="fedavg").make_twin()
    assert twin is not None
    assert twin.average_every == 1
    assert task_of(twin).classes == Tiny.classes

"""What every algorithm promises, the ones that are added later included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import wire
from shared.aggregation import Aggregated, UpdateFile, aggregate
from shared.algorithms import available, load_algorithm
from shared.algorithms.base import UpdateInfo
from shared.config import AlgorithmChoice
from shared.schemas import TensorKind, TensorSpec
from shared.wire.tensors import load_into, manifest_of, state_of, trainable
from tests.helpers.awkward_model import LOCAL, SIZES, Tame, build, groups_in, local_round

MANIFEST = manifest_of(build())
ALL_NAMES = [spec.name for spec in MANIFEST]
NAMES = [spec.name for spec in MANIFEST if spec.kind is TensorKind.PARAMETER]

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fedavgm", {"damped": True, "nesterov": True}),
    ("fedprox", {"mu": 0.5, "normalised": True}),
    ("scaffold", {"dual_weights": "same"}),
    ("scaffold", {"random_controls": 0}),
    ("feddyn", {"alpha_scaling": "size", "scaled_terms": "linear"}),
    ("fednova", {"normaliser": "steps", "beta": 0.5}),
    ("feddc", {"alpha_scaling": "size", "gradient_term": False}),
    ("fedopt", {"variant": "adagrad"}),
    ("fedopt", {"variant": "yogi"}),
)
CHOICES = [
    *(AlgorithmChoice(name=name) for name in available()),
    *(AlgorithmChoice(name=name, parameters=parameters) for name, parameters in VARIANTS),
]


def _with_every(choices: list[AlgorithmChoice]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "choice", choices, ids=lambda choice: "-".join([choice.name, *map(str, choice.parameters.values())])
    )


every_algorithm = _with_every(CHOICES)


def _method(choice: AlgorithmChoice) -> Any:
    return load_algorithm(choice)


def _first_model(folder: Path) -> Path:
    return wire.write(folder / "initial.safetensors", {"model": state_of(build())}).path


def _path(made: wire.Written | None) -> Path | None:
    return None if made is None else made.path


def _combine(
    method: Any,
    model: Path,
    state: tuple[Path | None, Path | None],
    files: list[UpdateFile],
    folder: Path,
    manifest: tuple[TensorSpec, ...] = MANIFEST,
) -> Aggregated:
    folder.mkdir()
    total = sum(file.info.examples for file in files)
    return aggregate(
        algorithm=method,
        manifest=manifest,
        model=model,
        broadcast=state[0],
        private=state[1],
        updates=files,
        weights={file.info.index: file.info.examples / total for file in files},
        clients=len(SIZES),
        local=LOCAL,
        buffers="average",
        folder=folder,
    )


def _update(
    method: Any, client: int, number: int, model: Path, broadcast: Path | None, kept: Any, folder: Path
) -> tuple[UpdateFile, Any]:
    start = wire.read_group(model, "model", ALL_NAMES)
    received = groups_in(broadcast, method, MANIFEST)
    result = local_round(method, client, start, received, kept, number=number)
    path = wire.write(folder / f"update-{number}-{client}.safetensors", result.tensors).path
    relative_size = len(SIZES) * SIZES[client] / sum(SIZES)
    return UpdateFile(UpdateInfo(client, SIZES[client], relative_size, result.steps), path), result.kept


@every_algorithm
def test_it_says_what_it_is(choice: AlgorithmChoice) -> None:
    method = _method(choice)
    assert len(method.citation) > 40
    assert (type(method).__doc__ or "").strip()
    assert not set(method.downloads) & set(method.private)
    assert "model" not in {*method.downloads, *method.private, *method.uploads, *method.keeps}


@every_algorithm
def test_three_rounds_with_changing_participants(choice: AlgorithmChoice, tmp_path: Path) -> None:
    """Files are as declared, and nothing that is not a trainable parameter is touched by the algorithm."""
    method, model = _method(choice), _first_model(tmp_path)
    state: tuple[Path | None, Path | None] = (None, None)
    kept: list[Any] = [{}, {}, {}]
    for number, present in enumerate([(0, 1), (1, 2), (0, 1, 2)], 1):
        files = []
        for client in present:
            file, kept[client] = _update(method, client, number, model, state[0], kept[client], tmp_path)
            own = method.own_specs(MANIFEST)
            wire.validate(file.path, wire.update_layout(MANIFEST, method.uploads, "average", own))
            assert set(kept[client]) == set(method.keeps)
            assert all(list(group) == NAMES for group in kept[client].values())
            files.append(file)
        done = _combine(method, model, state, files, tmp_path / str(number))
        wire.validate(done.model.path, wire.model_layout(MANIFEST))
        wire.validate(done.scored.path, wire.model_layout(MANIFEST))
        for made, groups in ((done.broadcast, method.downloads), (done.private, method.private)):
            assert (made is not None) == bool(groups)
            if made is not None:
                wire.validate(made.path, wire.groups_layout(MANIFEST, groups, method.own_specs(MANIFEST)))
        before, model = model, done.model.path
        state = (_path(done.broadcast), _path(done.private))
        _check_the_rest(before, model, files)


def _check_the_rest(before: Path, after: Path, files: list[UpdateFile]) -> None:
    old, new = (wire.read_group(path, "model", ALL_NAMES) for path in (before, after))
    assert torch.equal(new["frozen"], old["frozen"])
    assert torch.equal(new["norm.num_batches_tracked"], old["norm.num_batches_tracked"])
    assert new["scale"].shape == ()
    assert all(not torch.equal(new[name], old[name]) for name in NAMES)
    mean, total = torch.zeros(4), sum(file.info.examples for file in files)
    for file in files:
        share = file.info.examples / total
        mean += share * wire.read_group(file.path, "model", ["norm.running_mean"])["norm.running_mean"]
    torch.testing.assert_close(new["norm.running_mean"], mean)
    model = build()
    load_into(model, new)
    assert model.up.weight is model.down.weight


# A random network is drawn module by module, and the two models here have different ones.
@_with_every([choice for choice in CHOICES if "random_controls" not in choice.parameters])
def test_tied_frozen_and_scalar_parameters_change_no_number(choice: AlgorithmChoice, tmp_path: Path) -> None:
    """Beside the same function written without them, three rounds with absent clients and states."""
    awkward = _trained(choice, build, tmp_path / "awkward")
    tame = _trained(choice, Tame, tmp_path / "tame")
    for name in set(ALL_NAMES) - {"frozen"}:
        other = tame[name.replace("up.bias", "up_bias")]
        torch.testing.assert_close(awkward[name], other.reshape(awkward[name].shape), atol=1e-6, rtol=1e-5)


def _trained(choice: AlgorithmChoice, built: Callable[[], nn.Module], folder: Path) -> dict[str, Tensor]:
    """The model after three rounds."""
    folder.mkdir()
    manifest = manifest_of(built())
    names = [spec.name for spec in manifest]
    method, kept = _method(choice), [dict[str, Any]() for _ in SIZES]
    state: tuple[Path | None, Path | None] = (None, None)
    model = wire.write(folder / "initial.safetensors", {"model": state_of(built())}).path
    for number, present in enumerate([(0, 1), (1, 2), (0, 1, 2)], 1):
        start, files = wire.read_group(model, "model", names), []
        received = groups_in(state[0], method, manifest)
        for k in present:
            result = local_round(method, k, start, received, kept[k], number=number, model=built())
            kept[k] = result.kept
            path = wire.write(folder / f"update-{number}-{k}.safetensors", result.tensors).path
            files.append(UpdateFile(UpdateInfo(k, SIZES[k], 1.0, result.steps), path))
        done = _combine(method, model, state, files, folder / str(number), manifest)
        model = done.model.path
        state = (_path(done.broadcast), _path(done.private))
    return wire.read_group(model, "model", names)


@every_algorithm
def test_arrival_order_does_not_change_a_bit(choice: AlgorithmChoice, tmp_path: Path) -> None:
    method, model = _method(choice), _first_model(tmp_path)
    files = [_update(method, client, 1, model, None, {}, tmp_path)[0] for client in range(3)]
    orders = [files, files[::-1], [files[1], files[2], files[0]]]
    found = [
        _combine(_method(choice), model, (None, None), order, tmp_path / str(number))
        for number, order in enumerate(orders)
    ]
    assert len({(d.model.digest, d.scored.digest, d.broadcast and d.broadcast.digest) for d in found}) == 1
    assert len({d.private and d.private.digest for d in found}) == 1


@every_algorithm
def test_one_object_serves_interleaved_clients(choice: AlgorithmChoice, tmp_path: Path) -> None:
    """Client 1 trains a whole round inside each step of client 0: neither notices."""
    start = state_of(build())
    first = [local_round(_method(choice), client, start) for client in (0, 1)]
    alone = [
        local_round(_method(choice), client, start, kept=first[client].kept, number=2) for client in (0, 1)
    ]
    shared_object = _method(choice)
    before = dict(vars(shared_object))
    inner = []

    def meanwhile(_: object) -> None:
        inner.append(local_round(shared_object, 1, start, kept=first[1].kept, number=2))

    outer = local_round(shared_object, 0, start, kept=first[0].kept, number=2, on_progress=meanwhile)
    assert vars(shared_object) == before
    for found, expected in [(outer, alone[0]), *((result, alone[1]) for result in inner)]:
        _same(found.tensors, expected.tensors)
        _same(found.kept, expected.kept)
    assert len(inner) == 3


def _same(found: dict[str, dict[str, Tensor]], expected: dict[str, dict[str, Tensor]]) -> None:
    assert found.keys() == expected.keys()
    for group, tensors in expected.items():
        for name, tensor in tensors.items():
            assert torch.equal(found[group][name], tensor), (group, name)


@every_algorithm
def test_a_round_in_which_nobody_moved_moves_nothing(choice: AlgorithmChoice, tmp_path: Path) -> None:
    """No steps, first round: every update is the model itself, all states are zero."""
    method, model = _method(choice), _first_model(tmp_path)
    still = LOCAL.model_copy(update={"steps": 0})
    files = []
    for client in range(3):
        result = local_round(method, client, wire.read_group(model, "model", ALL_NAMES), local=still)
        assert result.steps == 0
        path = wire.write(tmp_path / f"{client}.safetensors", result.tensors).path
        files.append(UpdateFile(UpdateInfo(client, SIZES[client], 1.0, 0), path))
    done = _combine(method, model, (None, None), files, tmp_path / "round")
    old, new = (wire.read_group(path, "model", ALL_NAMES) for path in (model, done.model.path))
    for tensor in ALL_NAMES:
        torch.testing.assert_close(new[tensor], old[tensor], atol=1e-6, rtol=0)


@every_algorithm
def test_kept_and_uploaded_tensors_are_not_the_live_ones(choice: AlgorithmChoice) -> None:
    """What a client keeps must not change when its model trains on."""
    model, start = build(), state_of(build())
    result = local_round(_method(choice), 0, start, model=model)
    copies = {g: {n: t.clone() for n, t in ts.items()} for g, ts in (result.tensors | result.kept).items()}
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.add_(1)
    _same(result.tensors | result.kept, copies)

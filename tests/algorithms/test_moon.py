from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.algorithms import load_algorithm
from shared.algorithms.moon import contrastive_loss
from shared.config import AlgorithmChoice
from shared.problems import InvalidConfiguration
from shared.training import Stopped
from shared.wire.tensors import load_into, state_of, trainable
from tests.helpers.awkward_model import LOCAL, SIZES, Awkward, build, examples_of, local_round

Z = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
Z_GLOBAL = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
Z_PREVIOUS = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)


def _moon(**parameters: object) -> object:
    return load_algorithm(AlgorithmChoice(name="moon", parameters=parameters))


@pytest.mark.parametrize(
    ("temperature", "first", "second"), [(0.5, 0.21762172, 0.51301525), (1.0, 0.40083353, 0.59813887)]
)
def test_the_term(temperature: float, first: float, second: float) -> None:
    """Independently computed; cosines 0.7071 against 0, and 0.8 against 0.6: ln(1 + e^((far - near) / T))."""
    found = [
        contrastive_loss(Z[i : i + 1], Z_GLOBAL[i : i + 1], Z_PREVIOUS[i : i + 1], temperature)
        for i in (0, 1)
    ]
    assert [loss.item() for loss in found] == pytest.approx([first, second], abs=1e-8)
    both = contrastive_loss(Z, Z_GLOBAL, Z_PREVIOUS, temperature)
    assert both.item() == pytest.approx((first + second) / 2, abs=1e-8)


def test_a_batch_of_one_keeps_its_shape() -> None:
    """Equal cosines give ln 2; features with more axes are flattened."""
    z = torch.randn(1, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    assert contrastive_loss(z, z, z, 0.5).item() == pytest.approx(math.log(2))


def test_without_a_previous_model_it_is_fedavg_and_then_it_is_not() -> None:
    start = state_of(build())
    fedavg = load_algorithm(AlgorithmChoice(name="fedavg"))
    first = local_round(_moon(), 0, start)
    assert torch.equal(
        first.tensors["model"]["head.weight"], local_round(fedavg, 0, start).tensors["model"]["head.weight"]
    )
    second = local_round(_moon(), 0, start, kept=first.kept, number=2)
    plain = local_round(fedavg, 0, start, number=2)
    assert not torch.equal(second.tensors["model"]["down.weight"], plain.tensors["model"]["down.weight"])


def test_it_keeps_the_clients_own_last_model() -> None:
    start = state_of(build())
    result = local_round(_moon(), 0, start)
    for name, tensor in result.kept["previous"].items():
        assert torch.equal(tensor, result.tensors["model"][name])


def test_its_extra_passes_leave_running_statistics_alone() -> None:
    """With mu = 0 the extra forward passes are all that differs from FedAvg."""
    start = state_of(build())
    kept = local_round(_moon(mu=0), 0, start).kept
    fedavg = load_algorithm(AlgorithmChoice(name="fedavg"))
    expected = local_round(fedavg, 0, start, number=2).tensors["model"]
    found = local_round(_moon(mu=0), 0, start, kept=kept, number=2).tensors["model"]
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=0, rtol=0)


def test_a_step_follows_the_loss_of_equation_3() -> None:
    """One batch of all examples, by hand: both other models in evaluation mode, with the buffers received."""
    start, local = state_of(build()), LOCAL.model_copy(update={"steps": 1, "batch_size": SIZES[0]})
    kept = local_round(_moon(), 0, start).kept
    model, received, previous = build(), build().eval(), build().eval()
    load_into(previous, {**start, **kept["previous"]})
    examples = examples_of(0)
    loss = functional.cross_entropy(model(examples.inputs), examples.targets)
    z, towards, away = (_features(found, examples.inputs) for found in (model, received, previous))
    loss = loss + 3 * contrastive_loss(z, towards.detach(), away.detach(), 0.5)
    weights = trainable(model)
    gradients = torch.autograd.grad(loss, list(weights.values()))
    found = local_round(_moon(mu=3), 0, start, kept=kept, local=local, number=2).tensors["model"]
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        step = gradient + local.weight_decay * weight.detach()
        torch.testing.assert_close(found[name], weight.detach() - local.learning_rate * step)


def _features(model: Awkward, inputs: Tensor) -> Tensor:  # (B, 4) -> (B, 4), what the head is given
    features: Tensor = model.scale * (model.up(model.norm(model.down(inputs)).relu()) + model.frozen)
    return features


def test_modes_of_modules_come_back() -> None:
    model, start = build(), state_of(build())
    kept = local_round(_moon(), 0, start).kept
    local_round(_moon(), 0, start, kept=kept, model=model, on_progress=lambda _: _check_training(model))


def _check_training(model: Awkward) -> None:
    assert all(module.training for module in model.modules())


def test_a_stopped_round_leaves_nothing_behind_on_the_model() -> None:
    model, start = build(), state_of(build())
    with pytest.raises(Stopped):
        local_round(_moon(), 0, start, model=model, should_stop=lambda: True)
    model(torch.zeros(2, 4))  # the listener finds its round gone
    assert not model.head._forward_pre_hooks


def test_the_features_layer_can_be_named() -> None:
    start = state_of(build())
    kept = local_round(_moon(), 0, start).kept
    at_head = local_round(_moon(classifier="head"), 0, start, kept=kept).tensors["model"]
    last_linear = local_round(_moon(), 0, start, kept=kept).tensors["model"]
    earlier = local_round(_moon(classifier="up"), 0, start, kept=kept).tensors["model"]
    assert torch.equal(at_head["down.weight"], last_linear["down.weight"])
    assert not torch.equal(at_head["down.weight"], earlier["down.weight"])


def test_a_model_without_such_a_layer_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"no module 'tail' .*norm"):
        local_round(_moon(classifier="tail"), 0, state_of(build()))
    model = nn.Sequential(nn.LayerNorm(4))
    with pytest.raises(InvalidConfiguration, match="no linear layer"):
        local_round(_moon(), 0, state_of(model), model=model)

"""Our SGD against PyTorch's, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from shared.training.sgd import SGD


def two_models() -> tuple[torch.nn.Module, torch.nn.Module]:
    models = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        models.append(model)
    return models[0], models[1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_bits_as_torchs_own(momentum: float, weight_decay: float, dtype: torch.dtype) -> None:
    ours, theirs = (model.to(dtype) for model in two_models())
    own = SGD(list(ours.parameters()), 0.1, momentum, weight_decay)
    reference = torch.optim.SGD(theirs.parameters(), 0.1, momentum, weight_decay=weight_decay, fused=True)
    inputs = torch.linspace(-1, 1, 4 * 7, dtype=dtype).reshape(4, 7)
    for step in range(5):
        for model, optimizer in ((ours, own), (theirs, reference)):
            optimizer.zero_grad(set_to_none=True)
            model(inputs * (step + 1)).square().mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_parameter_whose_first_gradient_comes_later_begins_then() -> None:
    early, late = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = SGD([early, late], learning_rate=0.5, momentum=0.5)
    early.grad = torch.ones(2)
    optimizer.step()  # early: m = 1, w = 0.5
    assert late.tolist() == [1, 1]
    optimizer.zero_grad()
    early.grad, late.grad = torch.ones(2), torch.ones(2)
    optimizer.step()  # early: m = 1.5, w = -0.25; late: m = 1, w = 0.5
    assert early.tolist() == [-0.25, -0.25]
    assert late.tolist() == [0.5, 0.5]


def test_training_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\nfrom shared.training.sgd import SGD\n"
        "p = torch.nn.Parameter(torch.ones(1)); p.sum().backward(); SGD([p], 0.1, 0.9).step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

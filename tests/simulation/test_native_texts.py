"""The native kernels on texts: the same maxima over time and the same training, but for rounding."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.data import Examples
from shared.data.tokens import VOCABULARY
from shared.models.textcnn import Features
from shared.tasks.base import Split
from shared.tasks.texts import TextOptions, TextTask
from simulation.jobs import WorkbenchSpec
from simulation.kernels.native import accelerate
from tests.simulation.test_native import config, final


def features(vocabulary: int, dimensions: int, outputs: int, widths: list[int], padding: int = 0) -> Features:
    """Smaller ones than the model's."""
    made = Features()
    made.embedding = nn.Embedding(vocabulary, dimensions, padding_idx=padding)
    made.convolutions = nn.ModuleList(nn.Conv1d(dimensions, outputs, width) for width in widths)
    return made


def pair(
    seed: int, vocabulary: int, dimensions: int, outputs: int, *, widths: list[int], padding: int = 0
) -> tuple[Features, Features]:
    """An accelerated one and a plain one with the same parameters."""
    torch.manual_seed(seed)
    ours, plain = (features(vocabulary, dimensions, outputs, widths) for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    assert accelerate(ours) is None
    assert "maxima" in vars(ours)
    return ours, plain


def gradients(of: Features, tokens: Tensor, wanted: Tensor) -> list[Tensor]:
    """What came out, and of every parameter."""
    of.zero_grad()
    out = of.maxima(tokens)
    out.backward(wanted)  # type: ignore[no-untyped-call]
    return [out.detach(), *(p.grad for p in of.parameters() if p.grad is not None)]


def is_decided(features: Features, tokens: Tensor) -> bool:
    """Whether rounding cannot decide which window has a maximum, nor whether it is above zero."""
    exact = copy.deepcopy(features).double()
    embedded = exact.embedding(tokens).transpose(1, 2)
    for convolution in exact.convolutions:
        values = convolution(embedded)
        behind = values.amax(dim=2, keepdim=True) - values
        if bool(((behind > 1e-12) & (behind < 1e-5)).any() or (values.amax(dim=2).abs() < 1e-5).any()):
            return False
    return True


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    longest=st.integers(5, 30),
    dimensions=st.integers(1, 40),
    outputs=st.integers(1, 150),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    padding_counts=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_maxima_and_their_gradients(
    lengths: list[int],
    longest: int,
    dimensions: int,
    outputs: int,
    widths: list[int],
    padding_counts: bool,
    seed: int,
) -> None:
    ours, plain = pair(seed, 200, dimensions, outputs, widths=widths)
    tokens = torch.randint(1, 200, (len(lengths), longest))
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = 0
    if padding_counts:  # its vector is zero in training, but nothing here relies on that
        for each in (ours, plain):
            each.embedding.weight.data[0] = torch.linspace(-1, 1, dimensions)
    assume(is_decided(plain, tokens))
    wanted = torch.randn(len(lengths), outputs * len(widths))
    both = (gradients(each, tokens, wanted) for each in (ours, plain))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


def test_the_model_as_it_is() -> None:
    torch.manual_seed(0)
    ours, plain = Features(), Features()
    plain.load_state_dict(ours.state_dict())
    accelerate(ours)
    tokens = torch.randint(0, VOCABULARY, (64, 200), dtype=torch.int32)
    tokens[:, 60:] = 0
    both = (gradients(each, tokens, torch.ones(64, 300)) for each in (ours, plain))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert not ours.embedding.weight.grad[0].any(), "padding does not learn"  # type: ignore[index]


def test_equal_input_gives_equal_bits() -> None:
    ours, _ = pair(0, 500, 32, 100, widths=[3, 4, 5])
    tokens, wanted = torch.randint(0, 500, (64, 50)), torch.randn(64, 300)
    first, *others = (gradients(ours, tokens, wanted) for _ in range(3))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_of_equal_windows_the_first_gets_the_gradient() -> None:
    """Repeated text: the sum over the equal windows' tokens is what the plain model gives them too."""
    ours, plain = pair(1, 10, 4, 6, widths=[2])
    tokens, wanted = torch.tensor([[3, 4, 3, 4, 3, 4]]), torch.ones(1, 6)
    both = (gradients(each, tokens, wanted) for each in (ours, plain))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_no_number_stays_none() -> None:
    ours, _ = pair(0, 10, 4, 6, widths=[2, 3])
    ours.embedding.weight.data[7] = torch.nan
    out = ours.maxima(torch.tensor([[1, 2, 3, 4, 0], [1, 2, 7, 4, 0]]))
    assert [bool(row.isnan().all()) for row in out] == [False, True]
    assert not out[0].isnan().any()


@pytest.mark.parametrize(("token", "said"), [(10, "from 1 to 10, expected 0 to 9"), (-1, "from -1 to 3")])
def test_a_token_without_a_vector_is_refused(token: int, said: str) -> None:
    ours, _ = pair(0, 10, 4, 6, widths=[2])
    with pytest.raises(IndexError, match=said):
        ours.maxima(torch.tensor([[1, 2, 3, token, 1]]))


def test_other_numbers_are_refused() -> None:
    ours, _ = pair(0, 10, 4, 6, widths=[2])
    ours.double()
    with pytest.raises(TypeError, match=r"float32 on the CPU, got torch\.float64"):
        ours.maxima(torch.tensor([[1, 2, 3, 4, 5]]))


class Words(TextTask):
    """The class is the token that comes most."""

    name = "words"
    Options = TextOptions
    classes = ("a", "b", "c")
    input_shape = (12,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        draw = torch.Generator().manual_seed(seed + len(split))
        labels = torch.randint(0, 3, (240,), generator=draw)
        tokens = torch.randint(1, 40, (240, 12), generator=draw)
        often = torch.rand(240, 12, generator=draw) < 0.6
        tokens = torch.where(often, 100 + labels[:, None], tokens)
        tokens[::3, 7:] = 0
        return Examples(tokens.to(torch.int16), labels)


TASK = Words


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "moon"])
def test_training(algorithm: str, tmp_path: Path) -> None:
    given = config(
        task="tests.simulation.test_native_texts:Words", classes=Words.classes, algorithm=algorithm
    )
    plain = final(given, tmp_path / "plain", "torch")
    native = final(given, tmp_path / "native", "native")
    torch.testing.assert_close(native, plain, rtol=1e-3, atol=1e-4)
    start = WorkbenchSpec.of(given).build().model.state_dict()
    assert any((native[0][name] - start[name]).abs().max() > 1e-3 for name in start), "it has learnt"

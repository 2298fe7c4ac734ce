"""Private training at one client: drawn samples, clipped gradients of single examples, noise on their sum.

DP-SGD of Abadi et al. (2016, arXiv:1607.00133): each step draws every example with the same probability,
clips each drawn example's gradient to ``clip``, adds Gaussian noise to the sum and divides by the *expected*
size of the sample. What an optimizer, momentum or an algorithm then does with this gradient loses nothing
more: it sees no example.

Samples and noise come of one key: of 32 bytes that nobody but the site has, or in a simulation of the run's
seed. PyTorch's generator is seeded with 32 bits, which can be tried out, so the stream is AES-256 in counter
mode, and the normal numbers are made of it (Box and Muller) as sums of four, against what the last bits of a
single one tell (Holohan and Braghin, 2021, arXiv:2107.10138).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from shared.training.accountant import Spending

__all__ = ["KEY_BYTES", "NoiseStream", "PrivateGradients", "PrivateRound", "draw_samples", "seeded_key"]

KEY_BYTES: Final = 32
_SUMMED: Final = 4
_BELOW: Final = 1 - 2.0**-20  # rounding to float32 then makes no gradient longer than clip
_MOST_NUMBERS: Final = 1 << 26
"""In the gradients of single examples that are made at once."""


@dataclass(frozen=True)
class PrivateRound:
    """What a client's round of private training goes by; ``key`` is 32 bytes, used for nothing else."""

    spending: Spending
    clip: float
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a key of {len(self.key)} bytes, not {KEY_BYTES}")


def seeded_key(seed: int, round: int, index: int) -> bytes:
    """The key of a simulated client: whoever knows the run's seed knows its noise."""
    return hashlib.sha256(f"private training, {seed}, {round}, {index}".encode()).digest()


_Each = Callable[..., Any]
"""Of (parameters, inputs, targets): gradients by name and losses, of one example or stacked."""


class NoiseStream:
    """Random numbers of a key; the same key gives the same numbers."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> Tensor:
        """``count`` float64 numbers above 0 and up to 1, of 53 bits each."""
        words = bytearray(self._stream.update(bytes(8 * count)))
        if not count:
            return torch.empty(0, dtype=torch.float64)
        bits = torch.frombuffer(words, dtype=torch.int64) & ((1 << 53) - 1)
        return (bits + 1).double() * 2.0**-53

    def choose(self, examples: int, rate: float) -> Tensor:
        """Positions of a Poisson sample: each of ``examples`` with probability ``rate``, int64."""
        return torch.nonzero(self.uniform(examples) <= rate).flatten()

    def normal(self, count: int, deviation: float) -> Tensor:
        """``count`` normal numbers, float64, around 0."""
        pairs = _SUMMED // 2
        length = torch.sqrt(-2 * torch.log(self.uniform(pairs * count)))
        angle = 2 * math.pi * self.uniform(pairs * count)
        both = length * (torch.cos(angle) + torch.sin(angle))  # two numbers of each pair of uniform ones
        return both.view(pairs, count).sum(0) * (deviation / math.sqrt(_SUMMED))


def draw_samples(
    stream: NoiseStream, spending: Spending, examples: int, epoch_steps: int
) -> Iterator[tuple[int, Tensor]]:
    """For each step the epoch (from 1) that it would be in, and the positions of its sample."""
    for step in range(spending.steps):
        yield 1 + step // max(1, epoch_steps), stream.choose(examples, spending.rate)


class PrivateGradients:
    """Puts a noised gradient into the parameters' ``grad``, sample after sample."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        loss: Callable[[Tensor, Tensor], Tensor],
        private: PrivateRound,
        stream: NoiseStream,
        examples: int,
    ) -> None:
        self._model, self._stream = model, stream
        wanted = {id(parameter) for parameter in parameters}
        self._parameters = {name: each for name, each in model.named_parameters() if id(each) in wanted}
        self._clip = private.clip
        self._deviation = private.spending.noise_multiplier * private.clip
        self._expected = private.spending.rate * examples
        self._numbers = sum(parameter.numel() for parameter in parameters)
        self._each: _Each

        def lose(values: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            return loss(functional_call(model, values, (one.unsqueeze(0),)), target.unsqueeze(0))

        each = grad_and_value(lose)
        if getattr(model, "gradients_at_once", True):
            self._each = vmap(each, in_dims=(None, 0, 0), randomness="different")
        else:
            self._each = partial(_one_after_another, each)

    def fill(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """One sample; returns its mean loss, which no noise hides (None: nothing was drawn)."""
        values = {name: parameter.detach() for name, parameter in self._parameters.items()}
        sums = {name: torch.zeros_like(value) for name, value in values.items()}
        losses = []
        for first in range(0, len(inputs), self._chunk):
            part = slice(first, first + self._chunk)
            gradients, lost = self._each(values, inputs[part], targets[part])
            _add_clipped(sums, gradients, self._clip)
            losses.append(lost.detach())
        for name, parameter in self._parameters.items():
            noise = self._stream.normal(parameter.numel(), self._deviation).to(parameter)
            parameter.grad = (sums[name] + noise.view_as(parameter)) / self._expected
        return torch.cat(losses).mean() if losses else None

    @property
    def _chunk(self) -> int:
        return max(1, _MOST_NUMBERS // self._numbers)


def _one_after_another(
    each: _Each, values: dict[str, Tensor], inputs: Tensor, targets: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Like ``vmap(each)``, for models whose code looks at values, as those of transformers do at masks."""
    made = [each(values, one, target) for one, target in zip(inputs, targets, strict=True)]
    gradients = {name: torch.stack([found[name] for found, _ in made]) for name in values}
    return gradients, torch.stack([lost for _, lost in made])


def _add_clipped(sums: dict[str, Tensor], gradients: dict[str, Tensor], clip: float) -> None:
    """Add each example's gradient, no longer than ``clip`` whatever it is: no number counts as 0."""
    length = _lengths(gradients)
    if not torch.isfinite(length).all():
        gradients = {name: torch.nan_to_num(each, 0.0, 0.0, 0.0) for name, each in gradients.items()}
        length = _lengths(gradients)
    factors = torch.clamp(clip * _BELOW / length.clamp(min=1e-30), max=1.0)
    for name, each in gradients.items():
        sums[name] += torch.einsum("i,i...->...", factors.to(each.dtype), each)


def _lengths(gradients: dict[str, Tensor]) -> Tensor:
    """The Euclidean length of each example's whole gradient, float64, summed in one pass without a copy."""
    rows = (each.reshape(len(each), -1) for each in gradients.values())
    parts = [torch.linalg.vector_norm(row, dim=1, dtype=torch.float64) for row in rows]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return whole

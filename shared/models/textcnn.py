"""A convolutional network for texts (Kim, EMNLP 2014), sized after reference 5."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.data.tokens import VOCABULARY
from shared.models.base import Model
from shared.problems import InvalidConfiguration

__all__ = ["MODEL", "TextCNN"]

WIDTHS = (3, 4, 5)
ROUND_UP = 16


class TextCNN(Model):
    """embedding 32 - convolutions over 3, 4, 5 tokens (100 channels each) - ReLU - max over time - dropout.

    1,063,904 parameters for four classes, of which 1,024,000 embed the 32,000 buckets of tokens. The
    padding's vector is zero and stays so.
    """

    takes = "texts"

    def __init__(self, classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        if len(input_shape) != 1 or input_shape[0] < max(WIDTHS):
            raise InvalidConfiguration(
                f"model: textcnn takes texts of at least {max(WIDTHS)} tokens, shape (tokens,), "
                f"the task gives {input_shape}."
            )
        self.features = Features()
        self.classifier = nn.Linear(100 * len(WIDTHS), classes)


class Features(nn.Module):
    """(B, tokens) to (B, 300)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(32, 100, width) for width in WIDTHS)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.maxima(tokens)))

    def maxima(self, tokens: Tensor) -> Tensor:
        """Each channel's largest value over all windows of a text, (B, 300)."""
        embedded = self.embedding(_without_needless_padding(tokens)).transpose(1, 2)  # (B, 32, tokens)
        best = [functional.relu(convolution(embedded)).amax(dim=2) for convolution in self.convolutions]
        return torch.cat(best, dim=1)


def _is_exported() -> bool:
    """Whether the model is being written down for other programs, for texts of every length."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return traced or torch.compiler.is_exporting()


def _without_needless_padding(tokens: Tensor) -> Tensor:
    """The batch cut behind its longest text and a window of padding: the same maxima in a third of the time.

    Beyond that every window would see padding only, as the last one left does. The length is rounded up,
    because the convolutions prepare themselves anew for every length they have not seen.
    """
    if _is_exported():
        return tokens
    longest = int((tokens != 0).sum(dim=1).max()) if len(tokens) else 0
    return tokens[:, : math.ceil((longest + max(WIDTHS)) / ROUND_UP) * ROUND_UP]


MODEL = TextCNN

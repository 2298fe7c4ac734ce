"""What text classification tasks share: texts to token numbers, joined columns, TextCNN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from shared.config import Frozen
from shared.data.tokens import encode
from shared.tasks.base import Task

__all__ = ["Length", "TextOptions", "TextTask", "encoded"]

Length = Annotated[int, Field(ge=5, le=10_000, description="tokens to which a text is cut or padded")]


class TextOptions(Frozen):
    """Texts are cut or padded to ``length`` tokens."""

    length: Length = 200


class TextTask(Task):
    """Token numbers, int16 (B, length); see :mod:`shared.data.tokens`."""

    tokens = True
    default_model = "textcnn"

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Token numbers as the embedding takes them, int32; never augmented."""
        return inputs.int()


def encoded(texts: Iterable[str], length: int) -> Tensor:
    """Token numbers, int16 (N, length)."""
    return torch.from_numpy(encode(texts, length))

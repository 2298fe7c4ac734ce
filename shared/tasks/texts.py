"""What text classification tasks share: texts to token numbers, joined columns, TextCNN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from shared.config import Frozen
from shared.data import FileList, Unlabelled, describe_fault
from shared.data.tokens import VOCABULARY, encode
from shared.left_out import Reason
from shared.tasks.base import Task

__all__ = ["Length", "TextOptions", "TextTask", "describe_texts", "encoded"]

Length = Annotated[int, Field(ge=5, le=10_000, description="tokens to which a text is cut or padded")]


class TextOptions(Frozen):
    """Texts are cut or padded to ``length`` tokens."""

    length: Length = 200


class TextTask(Task):
    """Token numbers, int16 (B, length); see :mod:`shared.data.tokens`."""

    tokens = True
    default_model = "textcnn"

    def read_inputs(self, files: Sequence[Path]) -> Unlabelled:
        """Each file is one text, UTF-8."""
        archive = FileList(files)
        texts: dict[str, str] = {}
        for name in archive.names:
            try:
                texts[name] = archive.read_bytes(name).decode("utf-8-sig")
            except OSError as error:
                reason, why = describe_fault(error)
                archive.left_out.add(reason, name, why)
            except UnicodeDecodeError as error:
                archive.left_out.add(Reason.BROKEN, name, f"is not UTF-8: {error}")
        return Unlabelled(tuple(texts), encoded(texts.values(), self.input_shape[0]), archive.left_out)

    def describe_inputs(self) -> dict[str, Any]:
        """A text's way to the model."""
        return describe_texts(self.input_shape[0])

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Token numbers as the embedding takes them, int32; never augmented."""
        return inputs.int()


def describe_texts(length: int) -> dict[str, Any]:
    """How token numbers are made from a text, in plain values."""
    return {
        "kind": "texts",
        "shape": [length],
        "tokens": r"runs of \w, in lower case",
        "number": f"1 + CRC-32 of the token's UTF-8 modulo {VOCABULARY - 1}",
        "padding": 0,
    }


def encoded(texts: Iterable[str], length: int) -> Tensor:
    """Token numbers, int16 (N, length)."""
    return torch.from_numpy(encode(texts, length))

"""Texts in a table, classified by a language model from transformers, whole or by adapters (LoRA)."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from shared.config import Frozen
from shared.models.pretrained import BaseName, Lora, build_pretrained, load_tokenizer
from shared.reproducible import reproducible
from shared.seeds import derive
from shared.tasks.csv import CSV, CSVOptions
from shared.tasks.pretrained import PretrainedMixin

__all__ = ["TASK", "HFText"]


class HFTextOptions(CSVOptions):
    """Those of a table of texts; ``base`` is the model to begin from, ``lora`` None trains all of it."""

    kind: Literal["text"] = "text"
    length: int = Field(128, ge=5, le=10_000, description="tokens to which a text is cut or padded")
    base: BaseName
    lora: Lora | None = None

    @model_validator(mode="after")
    def _classes_alone(self) -> Self:
        if self.classes is None or self.edges is not None:
            raise ValueError("give classes; edges, a regression's, are for the task csv")
        return self


class HFText(PretrainedMixin, CSV):
    """The columns of each row joined to one text; token numbers int32 (N, length) by the base's tokenizer."""

    name = "hf-text"
    Options: ClassVar[type[Frozen]] = HFTextOptions

    def __init__(self, options: HFTextOptions) -> None:
        super().__init__(options)
        self.set_base(options.base)
        self.lora = options.lora
        self.default_model = PretrainedMixin.default_model

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Raises InvalidConfiguration: see :func:`shared.models.pretrained.find_base`."""
        return load_tokenizer(self.find_base())

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        """The base model with adapters, if there are any, and a classifier drawn from the seed."""
        self.refuse_model(model)
        folder, length = self.find_base(), self.settings.length
        with reproducible(derive(seed, "initial-model"), torch.device("cpu")):
            return build_pretrained(
                folder, "texts", self.classes, self.lora, pad=self.tokenizer.pad_token_id, length=length
            )

    def prepare(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Token numbers int32, cut behind the batch's longest text: the rest would be computed in vain."""
        if _is_exported() or not len(inputs):
            return inputs.int()
        longest = int((inputs != self.tokenizer.pad_token_id).sum(dim=1).max())
        return inputs[:, : max(1, longest)].int()

    def describe_inputs(self) -> dict[str, Any]:
        """A row's way to the model."""
        return {
            "kind": "texts",
            "shape": [self.settings.length],
            "columns": list(self.settings.columns),
            "joined by": " ",
            "tokens": f"by the tokenizer of {self.base}",
            "padding": self.tokenizer.pad_token_id,
            "range": [0, len(self.tokenizer) - 1],
        }

    def _inputs(self, texts: list[str], numbers: list[list[float]]) -> Tensor:
        length = self.settings.length
        if not texts:
            return torch.empty((0, length), dtype=torch.int32)
        found = self.tokenizer(texts, padding="max_length", truncation=True, max_length=length)
        return torch.tensor(found["input_ids"], dtype=torch.int32)


TASK = HFText


def _is_exported() -> bool:
    """Whether the model is being written down for other programs, for texts of every length."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return traced or torch.compiler.is_exporting()

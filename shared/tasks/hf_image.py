"""Images in folders, classified by a vision model from transformers, whole or by adapters (LoRA)."""

from __future__ import annotations

import functools
import json
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from shared.config import Frozen
from shared.models.pretrained import BaseName, Lora, build_pretrained
from shared.problems import InvalidConfiguration
from shared.reproducible import reproducible
from shared.seeds import derive
from shared.tasks.imagefolder import ImageFolder, ImageFolderOptions, Side
from shared.tasks.pretrained import PretrainedMixin

__all__ = ["TASK", "HFImage"]

PREPROCESSOR = "preprocessor_config.json"


class HFImageOptions(ImageFolderOptions):
    """Those of ``imagefolder`` in colour; ``base`` is what it begins from, ``lora`` None trains it all."""

    size: tuple[Side, Side] = (224, 224)
    channels: int = Field(3, ge=3, le=3)  # type: ignore[assignment]
    base: BaseName
    lora: Lora | None = None


class HFImage(PretrainedMixin, ImageFolder):
    """Images as ``imagefolder`` reads them, scaled by the means and deviations of its base."""

    name = "hf-image"
    Options: ClassVar[type[Frozen]] = HFImageOptions

    def __init__(self, options: HFImageOptions) -> None:
        super().__init__(options)
        self.set_base(options.base)
        self.lora = options.lora

    @functools.cached_property
    def _scale(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of pixels / 255 by channel; a half where the base states none."""
        file = self.find_base() / PREPROCESSOR
        try:
            stated = json.loads(file.read_bytes()) if file.is_file() else {}
            mean, deviation = (
                [float(number) for number in stated.get(name, [0.5] * 3)]
                for name in ("image_mean", "image_std")
            )
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InvalidConfiguration(f"base: {file} cannot be read: {error}") from error
        if len(mean) != 3 or len(deviation) != 3 or min(deviation) <= 0:
            raise InvalidConfiguration(f"base: {file} has no three means and positive deviations.")
        return mean, deviation

    def normalisation(self) -> tuple[Tensor, Tensor]:
        mean, deviation = self._scale
        return 255 * torch.tensor(mean), 1 / (255 * torch.tensor(deviation))

    def build_model(self, model: str | None, seed: int) -> nn.Module:
        """The base model with adapters, if there are any, and a classifier drawn from the seed."""
        self.refuse_model(model)
        folder = self.find_base()
        with reproducible(derive(seed, "initial-model"), torch.device("cpu")):
            return build_pretrained(folder, "images", self.classes, self.lora, size=self.size)

    def describe_inputs(self) -> dict[str, Any]:
        mean, deviation = self._scale
        return super().describe_inputs() | {"mean": mean, "deviation": deviation}


TASK = HFImage

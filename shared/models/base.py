"""What a model of a run is: features, then a linear classifier."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

from torch import Tensor, nn

__all__ = ["Model"]


class Model(nn.Module):
    """``forward(x) = classifier(features(x))``: methods that look at the representation (MOON) find it there.

    ``takes`` says what the inputs are: images (B, C, H, W), any measured numbers (B, ...), or texts as
    token numbers (B, tokens). Subclasses are made from the number of classes and the shape of one input,
    and raise InvalidConfiguration for inputs that they can't take. ``gradients_at_once`` says
    whether torch.func.vmap goes through it, so that ``dp`` makes the gradients of single examples together;
    otherwise it makes one after another.
    """

    takes: ClassVar[Literal["images", "numbers", "texts"]]
    gradients_at_once: bool = True
    features: nn.Module
    classifier: nn.Module

    def forward(self, inputs: Tensor) -> Tensor:
        """A batch to logits (B, classes)."""
        return cast(Tensor, self.classifier(self.features(inputs)))

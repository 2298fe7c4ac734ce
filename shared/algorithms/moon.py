"""MOON: local features are drawn to the global model's and pushed off the client's last model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from shared.algorithms.base import Algorithm, AlgorithmParameters, Batch, LocalFinish, LocalRound
from shared.features import FEATURES, evaluating, listen, stop_listening
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Moon", "MoonParameters", "contrastive_loss"]


class MoonParameters(AlgorithmParameters):
    mu: float = Field(1.0, ge=0, description="weight of the contrastive term; 0 is FedAvg at a higher cost")
    temperature: float = Field(0.5, gt=0)
    classifier: str | None = Field(
        None, description="module whose input are the features; None: the model's last linear layer"
    )


class Moon(Algorithm[MoonParameters]):
    """The client adds ``mu l_con`` to its loss (eq. 3), on the features before the classifier.

    Features of the global and of the client's previous model are taken without gradient and in evaluation
    mode (two more forward passes a batch); both use the buffers received, since a client keeps parameters
    only. At a first participation there is no previous model and the term is 0.
    """

    citation: ClassVar[str] = "Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021."
    Parameters = MoonParameters
    keeps = ("previous",)

    def begin(self, local: LocalRound) -> None:
        """Listens at the classifier, so that the batch's own features cost no further pass."""
        listen(local, _classifier(local.model, self.parameters.classifier))
        local.scratch["buffers"] = {name: value.clone() for name, value in local.model.named_buffers()}

    def extra_loss(self, local: LocalRound, batch: Batch) -> Tensor | None:
        if local.first_time:
            return None
        features = local.scratch[FEATURES]
        with evaluating(local.model):
            towards = _features(local, local.start, batch.inputs)
            away = _features(local, local.kept["previous"], batch.inputs)
        return self.parameters.mu * contrastive_loss(features, towards, away, self.parameters.temperature)

    def finish(self, local: LocalRound) -> LocalFinish:
        stop_listening(local)
        previous = {name: parameter.detach().clone() for name, parameter in local.parameters.items()}
        return LocalFinish(kept={"previous": previous})


def contrastive_loss(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """``-log(e^(cos(z, near)/T) / (e^(cos(z, near)/T) + e^(cos(z, far)/T)))``, mean over the batch (eq. 2).

    near is ``towards``, far is ``away``. All three of shape (B, ...), flattened to (B, D), and widened to
    float32: cosines of half precision are coarse.
    """
    from torch import float32, promote_types
    from torch.nn.functional import cosine_similarity, softplus

    z, near, far = (
        value.flatten(1).to(promote_types(value.dtype, float32)) for value in (features, towards, away)
    )
    # -log(e^s / (e^s + e^o)) = softplus(o - s)
    return softplus((cosine_similarity(z, far) - cosine_similarity(z, near)) / temperature).mean()


def _classifier(model: nn.Module, name: str | None) -> nn.Module:
    from torch import nn

    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise InvalidConfiguration(
                f"moon: the model has no module {name!r} (parameter classifier)",
                hint=f"Its modules are {', '.join(found for found in modules if found)}.",
            )
        return modules[name]
    linear: list[nn.Module] = [found for found in modules.values() if isinstance(found, nn.Linear)]
    if not linear:
        raise InvalidConfiguration(
            "moon: the model has no linear layer whose input could be the features",
            hint="Name the module in the parameter classifier.",
        )
    return linear[-1]


def _features(local: LocalRound, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    from torch.func import functional_call

    functional_call(local.model, {**local.scratch["buffers"], **parameters}, (inputs,))
    found: Tensor = local.scratch[FEATURES]
    return found

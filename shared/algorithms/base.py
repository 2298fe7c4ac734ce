"""What an algorithm is: two halves, with FedAvg in every hook.

A method overrides what differs and nothing else; the loop (``shared.training``) and the sums
(``shared.aggregation``) are written once. No half remembers anything: what survives a round is
returned, what is missing at a first participation is zero.

Tensor groups are declared: the wire format, the worker's journal and the traffic figures follow
from the declaration. A group is shaped like the model's trainable parameters, unless ``own_specs``
says otherwise.

What happens beside the average is declared as well: rounds in which clients do not train (``trains``),
and what updates tell of the features of each class (``tells``, with :mod:`shared.features`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic import Field

from shared.config import Frozen
from shared.problems import InvalidConfiguration
from shared.schemas import TensorKind, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    Tensors = dict[str, Tensor]
    Groups = dict[str, Tensors]

__all__ = [
    "Algorithm",
    "AlgorithmParameters",
    "Batch",
    "Combined",
    "DynamicParameters",
    "LocalFinish",
    "LocalRound",
    "ServerRound",
    "Sum",
    "Told",
    "UpdateInfo",
    "Updates",
    "effective_steps",
]


Told = Literal["nothing", "means", "covariances"]
"""What updates tell of each class at a site, beside the model: of its features, from least to most."""


class AlgorithmParameters(Frozen):
    """Base of an algorithm's own settings; none by default."""


P = TypeVar("P", bound=AlgorithmParameters)


class DynamicParameters(AlgorithmParameters):
    """Of the methods with a regulariser that changes from round to round (FedDyn, FedDC)."""

    alpha: float = Field(0.01, gt=0, description="strength of the regulariser")
    alpha_scaling: Literal["common", "size"] = Field(
        "common",
        description="common: one alpha, tends to the minimiser of the unweighted mean, as in the papers; "
        "size: alpha over the client's relative size, tends to the size-weighted one, as in their code",
    )

    def scale(self, local: LocalRound) -> float:
        """What alpha is divided by at this client: 1, or its relative size (1 too if that is not known)."""
        by_size = self.alpha_scaling == "size" and local.relative_size > 0
        return local.relative_size if by_size else 1.0


@dataclass(frozen=True)
class Batch:
    """One local batch: ``inputs`` of shape (B, ...), ``targets`` of shape (B,), ``outputs`` of the model."""

    inputs: Tensor
    targets: Tensor
    outputs: Tensor


_SHORTEST_PATH: Final = 3e-39
"""float32 has nothing above 3.4e38."""


@dataclass
class LocalRound:
    """What a client half may see and use during one round.

    ``parameters`` are the live trainable parameters by name; ``start`` are detached copies of the values
    received; ``received`` and ``kept`` hold the declared groups (zeros where nothing is there yet).
    ``look`` goes once over all of the client's examples, as they are scored: inputs as the model takes them,
    and targets, batch by batch.
    """

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    start: Mapping[str, Tensor]
    received: Mapping[str, Mapping[str, Tensor]]
    kept: Mapping[str, Mapping[str, Tensor]]
    first_time: bool
    relative_size: float
    learning_rate: float
    momentum: float
    steps: int = 0
    scratch: dict[str, Any] = field(default_factory=dict)
    round: int = 1
    manifest: Sequence[TensorSpec] = ()
    look: Callable[[], Iterator[tuple[Tensor, Tensor]]] = lambda: iter(())

    @property
    def inverse_path(self) -> float:
        """``1 / (tau lr)`` of the ``tau`` steps taken: a displacement times this is a mean gradient.

        Raises:
            InvalidConfiguration: 32 bits cannot hold it.
        """
        path = self.steps * self.learning_rate
        if path < _SHORTEST_PATH:
            raise InvalidConfiguration(
                f"local.learning_rate is {self.learning_rate:g} in round {self.round}: the algorithm divides "
                "the steps taken by it, which 32 bits cannot hold",
                hint="Let the schedule end at a larger learning rate, or take an algorithm like fedavg.",
            )
        return 1 / path


@dataclass(frozen=True)
class LocalFinish:
    """What a client half returns: the declared upload groups and the declared kept groups."""

    uploads: Groups = field(default_factory=dict)
    kept: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class UpdateInfo:
    """The numbers of one update; ``index`` is the client's index in the run, the order of all sums."""

    index: int
    examples: int
    relative_size: float
    steps: int


class Updates(Protocol):
    """The round's updates as a stream, always in index order; each pass maps one file at a time."""

    @property
    def infos(self) -> Sequence[UpdateInfo]: ...

    def weighted_sum(self, coefficients: Mapping[int, float], group: str = "model") -> Tensors:
        """``sum_k coefficients[k] * group_k`` over the group's tensors, in float32 or wider.

        Clients without a coefficient, or with 0, are skipped.
        """
        ...


@dataclass(frozen=True)
class ServerRound:
    """What a server half may see: ``model`` is x (the model that was sent), trainable parameters only.

    ``weights`` are the aggregation weights p_k by client index (they sum to one over the round);
    ``clients`` is N, all trainers enrolled; ``momentum`` and ``learning_rate`` are the clients' own.
    """

    model: Mapping[str, Tensor]
    state: Mapping[str, Mapping[str, Tensor]]
    weights: Mapping[int, float]
    updates: Updates
    clients: int
    learning_rate: float
    momentum: float
    round: int = field(default=1, kw_only=True)
    seed: int = field(default=0, kw_only=True)  # the run's

    def total(self, group: str) -> Tensors:
        """``sum_{k in S} group_k``, whatever the weights: of what clients have counted."""
        return self.updates.weighted_sum({info.index: 1.0 for info in self.updates.infos}, group)

    def mean(self, group: str = "model", scale: float = 1.0) -> Tensors:
        """``scale sum_k p_k group_k``."""
        coefficients = {index: scale * weight for index, weight in self.weights.items()}
        return self.updates.weighted_sum(coefficients, group)

    def mean_over_clients(self, group: str) -> Tensors:
        """``1/N sum_{k in S} group_k``: those that did not take part count as zero."""
        uniform = {info.index: 1 / self.clients for info in self.updates.infos}
        return self.updates.weighted_sum(uniform, group)

    def normalised_mean(self, algorithm: Algorithm[Any]) -> Tensors:
        """``x - tau_eff sum_k p_k (x - y_k) / |a_k|`` with ``tau_eff = sum_k p_k |a_k|``.

        ``|a_k|`` is :meth:`Algorithm.norm`. A client of norm 0 made no step and sent x itself: nothing to
        normalise, and 0 in ``tau_eff``.
        """
        norms = {
            info.index: algorithm.norm(info.steps, self.learning_rate, self.momentum)
            for info in self.updates.infos
        }
        effective = effective_steps(self.weights, norms)
        coefficients = {
            index: effective * p / norms[index] for index, p in self.weights.items() if norms[index] > 0
        }
        model = self.updates.weighted_sum(coefficients)
        remaining = 1 - sum(coefficients.values())
        for name, total in model.items():
            total.add_(self.model[name], alpha=remaining)
        return model

    def mean_displacement(self) -> Tensors:
        """``1/N sum_{k in S} (y_k - x)``: over all clients, those that did not take part moved by nothing."""
        infos = self.updates.infos
        moved = self.updates.weighted_sum({info.index: 1 / self.clients for info in infos})
        for name, total in moved.items():
            total.sub_(self.model[name], alpha=len(infos) / self.clients)
        return moved


def effective_steps(weights: Mapping[int, float], norms: Mapping[int, float]) -> float:
    """``tau_eff = sum_k p_k |a_k|``."""
    return sum(p * norms[index] for index, p in weights.items())


@dataclass(frozen=True)
class Combined:
    """``model`` goes to the clients, ``score`` is evaluated (None: the same), ``state`` is kept."""

    model: Tensors
    score: Tensors | None = None
    state: Groups = field(default_factory=dict)


class Sum(NamedTuple):
    """A sum over a round's clients that a server half asks for: of a group, by weight or each by 1/N."""

    group: str
    by: Literal["weight", "clients"]


class Algorithm(Generic[P]):
    """FedAvg in every hook (McMahan et al., AISTATS 2017, algorithm 1)."""

    citation: ClassVar[str]
    Parameters: ClassVar[type[AlgorithmParameters]] = AlgorithmParameters
    assumes_sgd: ClassVar[bool] = False  # whether its formulas take a step to be learning rate times gradient

    # Where they depend on the parameters, __init__ sets them for the instance.
    downloads: tuple[str, ...] = ()  # server groups that every client receives beside the model
    private: tuple[str, ...] = ()  # server groups that stay on the server
    uploads: tuple[str, ...] = ()  # groups that a client sends beside its model
    keeps: tuple[str, ...] = ()  # groups that a client keeps for its next round
    sums: tuple[Sum, ...] = (Sum("model", "weight"),)  # all that combine asks of the updates
    tells: Told = "nothing"  # what updates tell of the features of each class, beside the model

    def __init__(self, parameters: P) -> None:
        self.parameters = parameters

    def trains(self, round: int) -> bool:
        """Whether clients train in this round (from 1). Otherwise they make no step: ``finish`` measures."""
        return True

    def own_specs(self, manifest: Sequence[TensorSpec]) -> Mapping[str, Sequence[TensorSpec]]:
        """Of the groups that have tensors of their own, not one for each trainable parameter: which."""
        return {}

    def specs_of(self, group: str, manifest: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        """The tensors of a declared group."""
        parameters = tuple(spec for spec in manifest if spec.kind is TensorKind.PARAMETER)
        return self.own_specs(manifest).get(group, parameters)

    # ------------------------------------------------------------ client half

    def begin(self, local: LocalRound) -> None:
        """Before the first step."""

    def extra_loss(self, local: LocalRound, batch: Batch) -> Tensor | None:
        """A term added to the batch's loss."""
        return None

    def on_gradient(self, local: LocalRound) -> None:
        """After ``backward``, before clipping and the optimizer."""

    def on_step(self, local: LocalRound) -> None:
        """After the optimizer's step (``local.steps`` counts it already)."""

    def finish(self, local: LocalRound) -> LocalFinish:
        """After the last step."""
        return LocalFinish()

    def norm(self, steps: int, learning_rate: float, momentum: float) -> float:
        """What a client's displacement is divided by before it is summed by weight (FedNova's ``|a_k|``)."""
        return 1.0

    @property
    def divides_by_steps(self) -> bool:
        """Whether :meth:`norm` depends on the steps, of which each client says how many it took."""
        return type(self).norm is not Algorithm.norm

    # ------------------------------------------------------------ server half

    def combine(self, server: ServerRound) -> Combined:
        """``x <- sum_k p_k y_k``. Server groups that are not there yet are zeros in ``server.state``."""
        return Combined(model=server.mean())

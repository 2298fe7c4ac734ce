"""The configuration of a run, validated at birth and frozen.

One file (YAML or JSON) describes a run for the service and for the simulation alike.
Extra fields are refused; every message names the field and the value received.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "AlgorithmChoice",
    "DiscoWeighting",
    "Frozen",
    "LocalTraining",
    "Partition",
    "RunConfig",
    "SizesWeighting",
    "Slug",
    "UniformWeighting",
    "Weighting",
]

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="lower case, 1 to 63 characters")]
Metric = Literal["kl", "l1", "l2", "cosine"]


class Frozen(BaseModel):
    """Base of all configuration: immutable, no extra fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SizesWeighting(Frozen):
    """Weights in proportion to the number of examples (FedAvg, McMahan et al. 2017)."""

    kind: Literal["sizes"] = "sizes"


class UniformWeighting(Frozen):
    """The same weight for every client of the round."""

    kind: Literal["uniform"] = "uniform"


class DiscoWeighting(Frozen):
    """FedDisco (Ye et al., ICML 2023, eq. 6): ``p_k = ReLU(n_k - a d_k + b) / sum``."""

    kind: Literal["disco"] = "disco"
    a: float = Field(0.5, ge=0, description="how much a discrepancy costs")
    b: float = Field(0.1, description="what every client is given")
    metric: Metric = "kl"
    normalise: Literal["round", "all_clients", "none"] = Field(
        "round", description="over whom the discrepancies (and sizes) are made to sum to one"
    )
    on_all_zero: Literal["sizes", "uniform", "raise"] = "sizes"
    target: Literal["uniform"] | tuple[Annotated[float, Field(ge=0)], ...] = Field(
        "uniform", description="the label distribution to be near to: uniform, or one share a class"
    )

    @field_validator("target")
    @classmethod
    def _target_has_mass(cls, target: str | tuple[float, ...]) -> str | tuple[float, ...]:
        if not isinstance(target, str) and (len(target) < 2 or sum(target) <= 0):
            raise ValueError("an explicit target needs at least two shares, not all zero")
        return target


Weighting = Annotated[SizesWeighting | UniformWeighting | DiscoWeighting, Field(discriminator="kind")]


class AlgorithmChoice(Frozen):
    """An algorithm by name (``shared/algorithms/NAME.py``) or import path, and its parameters."""

    name: str = Field("fedavg", pattern=r"^([a-z][a-z0-9_]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class LocalTraining(Frozen):
    """What each client does in a round: SGD for some epochs, or for some steps.

    The last incomplete batch of an epoch is dropped (as in the paper) unless it is the only one.
    """

    epochs: int | None = Field(None, ge=0, le=10_000)
    steps: int | None = Field(None, ge=0, le=10_000_000)
    batch_size: int = Field(64, ge=1)
    drop_last: bool = True
    learning_rate: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0)
    clip_norm: float | None = Field(None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _one_epoch_unless_said(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("epochs") is None and value.get("steps") is None:
            return {**value, "epochs": 1}
        return value

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"give epochs or steps, not both (epochs={self.epochs}, steps={self.steps})")
        return self


class Partition(Frozen):
    """How one data set is dealt to clients in a demo or an experiment (reference 4).

    Short form: ``iid:6``, ``niid1:10`` (beta 0.5), ``niid1:10:0.1``, ``niid2:5+1``.
    """

    kind: Literal["iid", "niid1", "niid2"]
    clients: int = Field(ge=1, description="how many clients share the data")
    beta: float = Field(0.5, gt=0, description="niid1: concentration of the Dirichlet draw")
    unbiased: int = Field(0, ge=0, description="niid2: how many of the clients see every class")
    seed: int | None = Field(None, description="None: the run's seed")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if match := re.fullmatch(r"niid2:(\d+)\+(\d+)", value):
            biased, unbiased = int(match[1]), int(match[2])
            return {"kind": "niid2", "clients": biased + unbiased, "unbiased": unbiased}
        if match := re.fullmatch(r"niid1:(\d+)(?::([0-9.]+))?", value):
            return {"kind": "niid1", "clients": int(match[1]), "beta": float(match[2] or 0.5)}
        if match := re.fullmatch(r"iid:(\d+)", value):
            return {"kind": "iid", "clients": int(match[1])}
        raise ValueError(f"{value!r} is none of iid:N, niid1:N, niid1:N:BETA, niid2:BIASED+UNBIASED")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "niid2" and (self.clients - self.unbiased) % 5:
            raise ValueError(f"niid2 needs a multiple of 5 biased clients, not {self.clients - self.unbiased}")
        if self.unbiased > self.clients:
            raise ValueError(f"{self.unbiased} unbiased clients of {self.clients} in all")
        return self


class RunConfig(Frozen):
    """One federated training job."""

    name: Slug = Field(description="the run's id: unique on a coordinator")
    task: str = Field("digits", min_length=1, max_length=200, description="built-in name or module:attribute")
    task_options: dict[str, Any] = Field(default_factory=dict)
    model: str | None = Field(None, max_length=200, description="None: the task's own choice")
    classes: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] | None = Field(
        None, description="the class contract; None: the built-in task's"
    )
    rounds: int = Field(20, ge=1, le=1_000_000)
    seed: int = Field(0, ge=0, lt=2**63)
    algorithm: AlgorithmChoice = Field(default_factory=lambda: AlgorithmChoice(name="fedavg"))
    weighting: Weighting = Field(default_factory=DiscoWeighting)
    local: LocalTraining = Field(default_factory=lambda: LocalTraining(epochs=1))
    partition: Partition | None = Field(None, description="demos and experiments only")
    min_clients: int = Field(
        2, ge=1, description="the run starts by itself when so many trainers are ready; partition: all of its clients"
    )
    autostart: bool = True
    clients_per_round: int | None = Field(None, ge=1, description="None: every ready client")
    quorum: int = Field(1, ge=1, description="updates without which a round is abandoned at its deadline")
    round_deadline_seconds: float = Field(3600.0, gt=0, le=30 * 86400)
    max_attempts: int = Field(3, ge=1, description="draws of one round before the run pauses")
    evaluate_every: int = Field(1, ge=0, description="0: never")
    buffers: Literal["average", "keep-local"] = "average"

    @model_validator(mode="before")
    @classmethod
    def _everybody_of_a_partition(cls, value: Any) -> Any:
        """A run on a dealt data set starts with all of its clients, unless it says otherwise."""
        if isinstance(value, dict) and value.get("partition") is not None and "min_clients" not in value:
            return {**value, "min_clients": Partition.model_validate(value["partition"]).clients}
        return value

    @field_validator("classes")
    @classmethod
    def _distinct(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes is not None and (len(set(classes)) != len(classes) or len(classes) < 2):
            raise ValueError(f"needs at least two distinct class names, received {list(classes)}")
        return classes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        drawn = self.clients_per_round if self.clients_per_round is not None else self.min_clients
        if self.quorum > drawn:
            raise ValueError(f"quorum {self.quorum} is more than the {drawn} clients of a round")
        if self.clients_per_round is not None and self.clients_per_round > self.min_clients:
            raise ValueError(f"clients_per_round {self.clients_per_round} exceeds min_clients {self.min_clients}")
        target = getattr(self.weighting, "target", "uniform")
        if self.classes is not None and not isinstance(target, str) and len(target) != len(self.classes):
            raise ValueError(f"the target has {len(target)} shares for {len(self.classes)} classes")
        return self

    @property
    def needs_discrepancy(self) -> bool:
        """Whether clients are asked for ``d_k`` (only when a weight depends on it: least disclosure)."""
        return self.weighting.kind == "disco"

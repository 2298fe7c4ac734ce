"""How a configuration says that one data set is dealt to clients; ``shared.data.partition`` deals it."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from shared.frozen import Frozen
from shared.own_parts import OwnPath, is_own

__all__ = ["Partition"]


class Partition(Frozen):
    """How one data set is dealt to clients in a demo or an experiment (reference 4).

    Short forms, with what may be left out in brackets:

    ==========================  ==========================================================================
    ``iid:N``                   equal shares at random
    ``niid1:N[:BETA[:RHO]]``    Dirichlet (0.5); with RHO the last class is thinned to one in RHO
    ``niid2:B+U[:CLASSES]``     B clients with CLASSES classes each (a fifth of all), U with every class
    ``neighbours:N[:CLASSES]``  log-normal sizes, each client CLASSES (5) classes that follow each other
    ``by-key:N``                by writer, or by the key column of one's own data
    ==========================  ==========================================================================
    """

    kind: Literal["iid", "niid1", "niid2", "neighbours", "by-key"] | OwnPath
    options: dict[str, Any] = Field(default_factory=dict, description="of a partition of one's own")
    clients: int = Field(ge=1, description="how many clients share the data")
    beta: float = Field(0.5, gt=0, description="niid1: concentration of the Dirichlet draw")
    rho: float = Field(1.0, ge=1, description="niid1: how many times rarer the last class is than the first")
    unbiased: int = Field(0, ge=0, description="niid2: how many of the clients see every class")
    classes_per_client: int | None = Field(
        None, ge=1, description="niid2: of a biased client (None: a fifth); neighbours: of each (None: 5)"
    )
    held_out: float = Field(
        0.0, ge=0, lt=1, description="share of each client's examples kept for a test of its own"
    )
    test_rho: float = Field(1.0, ge=1, description="thins the common test set as rho does the training set")
    validation: int = Field(
        0, ge=0, description="training examples that no client is dealt: a simulation scores models on them"
    )
    seed: int | None = Field(None, description="None: the run's seed")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        for pattern in _SHORT_FORMS:
            if match := re.fullmatch(pattern, value):
                return _spelled_out({name: text for name, text in match.groupdict().items() if text})
        raise ValueError(
            f"{value!r} is none of iid:N, niid1:N[:BETA[:RHO]], niid2:BIASED+UNBIASED[:CLASSES], "
            "neighbours:N[:CLASSES], by-key:N"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        biased = self.clients - self.unbiased
        if self.options and not is_own(self.kind):
            raise ValueError(f"options go with a partition of one's own, not with {self.kind}")
        if biased < 0:
            raise ValueError(f"{self.unbiased} unbiased clients of {self.clients} in all")
        if self.kind == "niid2" and self.classes_per_client is None and biased % 5:
            raise ValueError(f"niid2 needs a multiple of 5 biased clients, not {biased}")
        if self.rho != 1 and self.kind != "niid1":
            raise ValueError(f"rho {self.rho:g} goes with niid1, not with {self.kind}")
        if self.classes_per_client is not None and self.kind not in ("niid2", "neighbours"):
            raise ValueError(
                f"classes_per_client {self.classes_per_client} goes with niid2 and neighbours, "
                f"not with {self.kind}"
            )
        return self


_NUMBER = r"\d*\.?\d+"
_SHORT_FORMS = (
    r"(?P<kind>iid|by-key):(?P<clients>\d+)",
    rf"(?P<kind>niid1):(?P<clients>\d+)(:(?P<beta>{_NUMBER})(:(?P<rho>{_NUMBER}))?)?",
    r"(?P<kind>niid2):(?P<clients>\d+)\+(?P<unbiased>\d+)(:(?P<classes_per_client>\d+))?",
    r"(?P<kind>neighbours):(?P<clients>\d+)(:(?P<classes_per_client>\d+))?",
)


def _spelled_out(found: dict[str, str]) -> dict[str, Any]:
    """The fields of a short form; niid2 counts its biased clients, the field counts all."""
    if found["kind"] == "niid2":
        return {**found, "clients": int(found["clients"]) + int(found["unbiased"])}
    return dict(found)

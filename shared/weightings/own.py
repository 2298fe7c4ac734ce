"""A weighting of somebody's own, by import path; what it asks of sites stands in the configuration."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, ValidationError

from shared.frozen import Frozen
from shared.own_parts import import_attribute
from shared.problems import InvalidConfiguration
from shared.vocabulary import AnyMetric
from shared.weightings.base import Discrepancy, Need, Target, Weighed, Weighting, WeightingRound

__all__ = ["OwnWeighting"]

_OF_SITES = {Need.NUMBER, Need.START_LOSS, Need.END_LOSS}


class Asked(Frozen):
    """The discrepancy that sites are asked for."""

    metric: AnyMetric = "kl"
    target: Target = "uniform"


class OwnWeighting(Weighting):
    """``package.module:attribute``, a subclass of :class:`Weighting`; ``options`` are its fields.

    Sites read this and import nothing: what they are asked for is said here, and compared with what the class
    needs when a run is created.
    """

    citation: ClassVar[str] = "of your own"

    kind: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    options: dict[str, Any] = Field(default_factory=dict)
    asked: Asked | None = Field(None, description="the discrepancy that it needs, if it needs one")
    losses: bool = Field(False, description="whether it needs clients' losses before and after training")

    @property
    def needs(self) -> frozenset[Need]:
        """Of sites only: nothing is imported to know it."""
        number = {Need.NUMBER} if self.asked is not None else set()
        return frozenset(number | ({Need.START_LOSS, Need.END_LOSS} if self.losses else set()))

    @property
    def discrepancy(self) -> Discrepancy | None:
        return None if self.asked is None else Discrepancy(self.asked.metric, self.asked.target)

    def weigh(self, round: WeightingRound) -> Weighed:
        return self.load().weigh(round)

    def load(self) -> Weighting:
        """The class with its options.

        Raises:
            InvalidConfiguration: it cannot be imported, is no Weighting, has other options, or needs of sites
                what is not said here.
        """
        found = self._import()
        try:
            loaded = found.model_validate({"kind": self.kind, **self.options})
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise InvalidConfiguration(
                f"options of weighting {self.kind!r}: {where}: {fault['msg']}"
            ) from error
        if unsaid := sorted(loaded.needs & _OF_SITES - self.needs):
            raise InvalidConfiguration(
                f"weighting {self.kind!r} needs what its configuration does not say: {', '.join(unsaid)}",
                hint="Say `asked: {metric: kl}` for number, and `losses: true` for losses.",
            )
        return loaded

    def _import(self) -> type[Weighting]:
        found = import_attribute("weighting", self.kind, "where rounds are aggregated")
        if not (isinstance(found, type) and issubclass(found, Weighting)):
            raise InvalidConfiguration(
                f"{self.kind!r} is {found!r}, not a weighting",
                hint="Name a subclass of shared.weightings.base.Weighting.",
            )
        return found

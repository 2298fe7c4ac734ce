"""Shadows: the models that other weightings would have made of a round's updates.

They are scored and nothing else: the run goes on from its own model, so a shadow is one step away from
what the run's weighting made, never a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from shared.aggregation.round_end import (
    Arrived,
    RoundResult,
    Start,
    combine_updates,
    explain_weightless,
    weigh_updates,
)
from shared.config import RunConfig
from shared.problems import Problem
from shared.schemas import TensorKind, TensorSpec
from shared.weightings import Contribution, LedgerEntry
from shared.weightings.base import Weighting
from shared.wire import Written

if TYPE_CHECKING:
    from shared.aggregation.distilled import ModelDistiller
    from shared.aggregation.proxy import ProxyExamples

__all__ = ["Shadow", "ShadowMaker"]


@dataclass(frozen=True)
class Shadow:
    """``scored`` is the model's file; None: there is none, and ``reason`` says why."""

    name: str
    rows: tuple[LedgerEntry, ...]
    scored: Written | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class ShadowMaker:
    """Makes the shadows of one round. All else is as for :func:`shared.aggregation.round_end.close_round`.

    ``result`` is what that function returned: updates that it did not believe are in no shadow either.
    """

    config: RunConfig
    manifest: Sequence[TensorSpec]
    start: Start
    result: RoundResult
    all_clients: Sequence[Contribution]
    number: int
    proxy: ProxyExamples | None = None
    distiller: ModelDistiller | None = None

    def make(self, weighting: Weighting, path: Path) -> Shadow:
        """The model under ``weighting``, at ``path``; what is wrong with it does not touch the round."""
        believed: Sequence[Arrived] = self.result.believed
        parameters = [spec for spec in self.manifest if spec.kind is TensorKind.PARAMETER]
        rows: tuple[LedgerEntry, ...] = ()
        try:
            weighed = weigh_updates(
                self.config,
                weighting,
                parameters,
                self.start,
                believed,
                self.all_clients,
                number=self.number,
                proxy=self.proxy,
            )
            rows = tuple(weighed.rows)
            if not any(row.weight > 0 for row in rows):
                return Shadow(weighting.label, rows, None, explain_weightless(rows))
            with TemporaryDirectory(dir=path.parent) as folder:
                made = combine_updates(
                    self.config,
                    self.manifest,
                    self.start,
                    believed,
                    len(self.all_clients),
                    weighed,
                    Path(folder),
                    number=self.number,
                    distiller=self.distiller,
                )
                made.scored.path.replace(path)
            return Shadow(weighting.label, rows, replace(made.scored, path=path), None)
        except Exception as error:  # a model that is not finite, or whatever somebody's own rule raises
            why = error.detail if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
            return Shadow(weighting.label, rows, None, why)

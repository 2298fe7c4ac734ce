"""Finding runs among many: by words, state and tag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.schemas import RunSummary

__all__ = ["PINNED", "RunSearch"]

PINNED = "pinned"
"""The tag of runs that stand first, whenever they were created."""


@dataclass(frozen=True)
class RunSearch:
    """What is looked for; an empty text asks for nothing."""

    words: str = ""
    state: str = ""
    tag: str = ""

    @property
    def is_narrow(self) -> bool:
        return bool(self.words.split() or self.state or self.tag)

    def find(self, runs: Iterable[RunSummary]) -> list[RunSummary]:
        """Those that fit, in their order, but pinned ones first."""
        found = [run for run in runs if self._fits(run)]
        return sorted(found, key=lambda run: PINNED not in run.tags)

    def _fits(self, run: RunSummary) -> bool:
        if self.state and run.status.value != self.state:
            return False
        if self.tag and self.tag not in run.tags:
            return False
        return self.fits_words(run.run, run.task, run.algorithm, run.weighting, *run.tags)

    def fits_words(self, *texts: str) -> bool:
        """Whether each word is in one of the texts, in capitals or not."""
        known = [text.casefold() for text in texts]
        return all(any(word in text for text in known) for word in self.words.casefold().split())

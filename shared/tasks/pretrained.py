"""What the tasks on a model of transformers share: which one it is, and how it is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.models.pretrained import find_base
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from shared.models.pretrained import BaseName

__all__ = ["MODEL", "PretrainedMixin"]

MODEL = "pretrained"
"""How these tasks call their model, which their option ``base`` chooses."""


class PretrainedMixin:
    """Comes before the task that reads the data."""

    base: BaseName
    same_model: str
    default_model = MODEL

    def set_base(self, base: BaseName) -> None:
        """Take it, and say what a site does whose model is not the run's."""
        self.base = base
        self.same_model = (
            f"Copy the run's base model {base!r} here, every file of it: base_sha256_ names the SHA-256 of "
            "its files."
        )

    def find_base(self) -> Path:
        """The folder of the base model on this machine. Raises InvalidConfiguration."""
        return find_base(self.base)

    def refuse_model(self, model: str | None) -> None:
        """Raise InvalidConfiguration if the run names another model than the base."""
        if model not in (None, MODEL):
            raise InvalidConfiguration(
                f"model: {model!r}, but this task's model is its option base: {self.base!r}.",
                hint="Leave model out.",
            )

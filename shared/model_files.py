"""A model taken home: its tensors, and in the file's metadata what one needs to use it.

The coordinator's blobs carry tensors alone, so that equal models have equal digests. Whoever downloads one
writes it anew with its facts (decision 17); without them, the same tensors give the stored digest again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared import wire
from shared.problems import InvalidConfiguration, NotSafetensors, Truncated
from shared.wire.header import read_header

if TYPE_CHECKING:
    from torch import Tensor

    from shared.wire import Written

__all__ = ["LARGEST_BYTES", "ModelFacts", "read_facts", "read_tensors", "write_model"]

KEY = "feddisco"
LARGEST_BYTES = 2**20
"""Of the facts in a file, as JSON: much more than any model needs, little for whoever opens it."""


class ModelFacts(BaseModel):
    """What a model file says of itself. Fields that a newer program added are passed over.

    ``preprocessing`` is :meth:`shared.tasks.base.Task.describe_inputs`; empty where the task was not at hand.
    ``model_digest`` is the SHA-256 of the tensors as the coordinator keeps them, ``tied`` the names that the
    file has twice, and of which tensor.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    run: str
    round: int = Field(ge=0, description="0 is the initial model")
    rounds: int
    task: str
    task_options: dict[str, Any] = Field(default_factory=dict)
    model: str | None = Field(None, description="None: the task's own")
    classes: tuple[str, ...]
    input_shape: tuple[int, ...] | None = None
    preprocessing: dict[str, Any] = Field(default_factory=dict)
    algorithm: str
    weighting: str
    scores: dict[str, float] = Field(default_factory=dict, description="over all evaluators")
    per_category: dict[str, float] = Field(default_factory=dict)
    test_examples: int = 0
    model_digest: str
    tied: dict[str, str] = Field(default_factory=dict)
    data_licence: str | None = None
    made_with: dict[str, str] = Field(default_factory=dict, description="versions")


def write_model(path: Path, tensors: Mapping[str, Tensor], facts: ModelFacts) -> Written:
    """Write the tensors, those under two names twice, with their facts.

    Raises :class:`InvalidConfiguration` where the facts are larger than :data:`LARGEST_BYTES`.
    """
    both = {name: tensors[first] for name, first in facts.tied.items()}
    return wire.write(path, {wire.MODEL: {**tensors, **both}}, metadata=_metadata(facts))


def _metadata(facts: ModelFacts) -> dict[str, str]:
    text = facts.model_dump_json(exclude_defaults=True)
    if len(text.encode()) > LARGEST_BYTES and facts.per_category:
        text = facts.model_copy(update={"per_category": {}}).model_dump_json(exclude_defaults=True)
    if len(text.encode()) > LARGEST_BYTES:
        raise InvalidConfiguration(
            f"what the model file would say of itself takes {len(text.encode())} bytes, "
            f"allowed are {LARGEST_BYTES}.",
            hint="The task's options or classes are that large; take the tensors alone (--plain).",
        )
    return {"format": "pt", KEY: text}  # other programs look for `format`


def read_facts(path: Path) -> ModelFacts:
    """What a model file says of itself.

    Raises:
        InvalidConfiguration: no such file, no safetensors file, or one that says nothing of itself.
    """
    try:
        with path.open("rb") as file:
            metadata = read_header(file).metadata
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}.") from None
    except (NotSafetensors, Truncated) as problem:
        raise InvalidConfiguration(f"{path} is no model file: {problem.detail}.") from problem
    text = metadata.get(KEY)
    if text is None or len(text.encode()) > LARGEST_BYTES:
        raise InvalidConfiguration(
            f"{path} holds tensors, but does not say what they are of.",
            hint="Download the model with `feddisco run model RUN FILE`, which writes that into the file.",
        )
    try:
        return ModelFacts.model_validate(json.loads(text))
    except (ValueError, RecursionError, ValidationError) as error:
        raise InvalidConfiguration(f"{path}: what it says of itself cannot be read: {error}") from None


def read_tensors(path: Path, tied: Collection[str] = ()) -> dict[str, Tensor]:
    """Copies of a model file's tensors, without the ``tied`` names: each once, as at the coordinator."""
    with wire.opened(path) as file:
        return {name: file.tensor(wire.MODEL, name).clone() for name in file.names if name not in tied}

"""Taking in an assistant's answer: check whether it is asked for, validate it, keep the file, commit.

In the order of an update (:mod:`server.runs.intake`): the file is durable before the transaction that
names it.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.blobs import BlobStore, Incoming
from server.blobs.integrity import BlobIntegrity
from server.database.assistances import Asked, Key
from server.database.store import Store
from server.runs.assistance import LEARNED, NUMBERS, answer_layout
from server.runs.blob_faults import BlobFaults
from server.runs.runner import Runner
from server.runs.space import Space
from shared.assistance import LARGEST_LEARNED
from shared.config import RunConfig
from shared.problems import Forbidden, NotFound, OutOfBounds
from shared.schemas import AssistReport, Failure, TensorKind, TensorSpec
from shared.wire import largest_bytes, opened
from shared.wire.validation import validate

__all__ = ["AnswerIntake", "WantedAnswer"]

MOST_SHRINKING: Final = math.log(20.0)
"""A weighting that learned to make the model 20 times longer or shorter is not believed."""


@dataclass(frozen=True)
class WantedAnswer:
    """What an answer has to be; ``start`` is the model that the round started from."""

    key: Key
    client: str
    asked: Asked
    config: RunConfig
    manifest: Sequence[TensorSpec]
    start: str
    max_bytes: int


@dataclass(frozen=True)
class AnswerIntake:
    """What comes in from assistants. ``max_bytes``: no answer may be larger, whatever its layout allows."""

    store: Store
    blobs: BlobStore
    integrity: BlobIntegrity
    faults: BlobFaults
    runner: Runner
    space: Space
    max_bytes: int
    clock: Callable[[], dt.datetime]

    def check(self, key: Key, client: str, announced_bytes: int | None) -> WantedAnswer:
        """Before the body is read.

        Raises Forbidden to whom is not the run's assistant, NotFound where nothing is asked, and
        QuotaExceeded where there is no room.
        """
        given = self.store.aggregation_input(*key)
        found = given.assistance
        if not self.store.is_assistant(key[0], client):
            raise Forbidden(f"{client!r} is not the assistant of run {key[0]!r}")
        if found is None:
            raise NotFound(
                f"nothing is asked of {client!r} in attempt {key[2]} of round {key[1]} of {key[0]!r}"
            )
        limit = min(largest_bytes(answer_layout(found.asked, given.manifest)), self.max_bytes)
        self.space.check(key[0], announced_bytes or limit)
        return WantedAnswer(key, client, found.asked, given.config, given.manifest, given.start_model, limit)

    def accept(self, wanted: WantedAnswer, report: AssistReport, incoming: Incoming) -> None:
        """Validate the file, make it durable, and only then commit the transaction that names it.

        Raises UpdateInvalid, OutOfBounds, or UpdateRefused where it comes too late.
        """
        try:
            self._validate(wanted, incoming.path)
            self.blobs.keep(incoming)
        finally:
            self.blobs.discard(incoming)
        self.integrity.remember(incoming.digest)
        told = report.model_dump(mode="json", exclude={"attempt"})
        is_new = self.store.add_assistance(
            wanted.key, wanted.client, incoming.digest, incoming.bytes, told, self.clock()
        )
        if is_new:
            self.space.note(wanted.key[0], incoming.bytes)
            self.runner.note_assistance(*wanted.key)
        else:
            self.faults.mend(incoming.digest)

    def note_fault(self, key: Key, client: str, failure: Failure) -> None:
        """The assistant says that it will not answer; the round goes on without it. Raises as ``check``."""
        if self.store.add_assistance_fault(key, client, failure.reason, failure.code, self.clock()):
            self.runner.note_assistance(*key)

    def _validate(self, wanted: WantedAnswer, path: Path) -> None:
        is_model = wanted.asked.work == "distil"
        largest = wanted.config.max_entry if is_model else LARGEST_LEARNED
        validate(path, answer_layout(wanted.asked, wanted.manifest), max_entry=largest)
        if is_model:
            self._check_move(wanted, path)
        else:
            _check_learned(path)

    def _check_move(self, wanted: WantedAnswer, path: Path) -> None:
        """It is held to the bound of updates: an assistant that lies moves the model no further."""
        from shared.aggregation.figures import find_excess, measure_move

        parameters = [spec for spec in wanted.manifest if spec.kind is TensorKind.PARAMETER]
        with self.blobs.local(wanted.start) as start:
            move = measure_move(start, path, parameters)
        if (excess := find_excess(move, wanted.config.max_norm)) is not None:
            raise OutOfBounds(f"{excess}: the answer is not believed (max_norm)", norm=move.norm)


def _check_learned(path: Path) -> None:
    with opened(path) as file:
        last = float(file.tensor(LEARNED, NUMBERS)[-1])
    if abs(last) > MOST_SHRINKING:
        raise OutOfBounds(
            f"the answer multiplies the model by e^{last:.4g}: it is not believed", norm=math.exp(last)
        )

"""``feddisco replay``: a round's model once more, from its stored updates; the digests must agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

from server.blobs import BlobStore
from server.database.facts import AggregationInput, Update
from server.database.session import make_engine
from server.database.store import Store
from server.settings import Settings
from shared.algorithms.base import UpdateInfo
from shared.closing import Arrived, Start, close_round
from shared.problems import IllegalTransition, NotFound
from shared.schemas import RoundStatus
from shared.weighting import Contribution

__all__ = ["replay_round"]


def replay_round(settings: Settings, run: str, number: int) -> tuple[bool, str]:
    """Whether the recomputed model is the stored one, and a sentence with both digests.

    Reads the coordinator's database and blobs, writes to neither. Raises NotFound for an unknown run or
    round and for updates that are no longer kept, IllegalTransition if the round is not completed,
    StorageUnavailable if a stored file is damaged.
    """
    engine = make_engine(settings.database)
    try:
        return _replayed(Store(engine), BlobStore(settings.data_folder / "blobs"), run, number)
    finally:
        engine.dispose()


def _replayed(store: Store, blobs: BlobStore, run: str, number: int) -> tuple[bool, str]:
    view = store.round_view(run, number)
    if view.status is not RoundStatus.COMPLETED:
        raise IllegalTransition(
            f"Round {number} of {run} is {view.status.value}: there is no model to compare with.",
            hint="Only completed rounds can be replayed.",
        )
    given = store.aggregation_input(run, number, view.attempt)
    with tempfile.TemporaryDirectory(prefix="feddisco-replay-") as folder:
        model, scored = _recomputed(given, blobs, Path(folder))
    same = (model, scored) == (view.model, view.scored_model)
    sentence = f"Round {number} of {run}, from {len(given.updates)} stored updates: model {model}, " + (
        "the same as stored." if same else f"stored was {view.model}: NOT the same."
    )
    return same, sentence


def _recomputed(given: AggregationInput, blobs: BlobStore, folder: Path) -> tuple[str | None, str | None]:
    """Digests of the model to send and the model to score; None for a round without weight."""

    def verified(digest: str) -> Path:
        blobs.verify(digest)
        return blobs.path(digest)

    def optional(digest: str | None) -> Path | None:
        return None if digest is None else verified(digest)

    start = Start(verified(given.start_model), optional(given.start_broadcast), optional(given.start_private))
    arrived = [
        Arrived(
            UpdateInfo(update.index, update.examples, update.relative_size, update.steps),
            _stored(given, update, blobs),
            update.discrepancy,
        )
        for update in given.updates
    ]
    everyone = [
        Contribution(trainer.index, trainer.examples, trainer.discrepancy) for trainer in given.trainers
    ]
    made = close_round(given.config, given.manifest, start, arrived, everyone, folder).made
    return (None, None) if made is None else (made.model.digest, made.scored.digest)


def _stored(given: AggregationInput, update: Update, blobs: BlobStore) -> Path:
    try:
        blobs.verify(update.digest)
    except NotFound:
        if given.config.keep_updates is None:
            raise
        raise NotFound(
            f"The update of {update.client} in round {given.round} of {given.run} is no longer kept.",
            hint=f"keep_updates of this run is {given.config.keep_updates}: replay a newer round.",
        ) from None
    return blobs.path(update.digest)

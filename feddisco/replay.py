"""``feddisco replay``: a round's model once more, from its stored updates; the digests must agree."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from feddisco.verify import open_store
from server.blobs import BlobStore, open_blobs
from server.database.aggregations import AggregationInput, Update
from server.database.join_tokens import ERASED
from server.database.store import Store
from server.runs.aggregation import close_stored
from server.settings import Settings
from shared.problems import IllegalTransition, NotFound
from shared.schemas import RoundStatus

__all__ = ["replay_round"]


def replay_round(settings: Settings, run: str, number: int) -> tuple[bool, str]:
    """Whether the recomputed model is the stored one, and a sentence with both digests.

    Reads the coordinator's database and blobs, writes to neither. Raises NotFound for an unknown run or
    round and for updates that are no longer kept, IllegalTransition if the round is not completed,
    StorageUnavailable if there is no such database or a stored file is damaged.
    """
    with open_store(settings) as store:
        return _replay(store, open_blobs(settings, store, create=False), run, number)


def _replay(store: Store, blobs: BlobStore, run: str, number: int) -> tuple[bool, str]:
    view = store.round_view(run, number)
    if view.status is not RoundStatus.COMPLETED:
        raise IllegalTransition(
            f"Round {number} of {run} is {view.status.value}: there is no model to compare with.",
            hint="Only completed rounds can be replayed.",
        )
    given = store.aggregation_input(run, number, view.attempt)
    with tempfile.TemporaryDirectory(prefix="feddisco-replay-") as folder, ExitStack() as held:
        model, scored = _recompute(given, blobs, Path(folder), held)
    same = (model, scored) == (view.model, view.scored_model)
    sentence = f"Round {number} of {run}, from {len(given.updates)} stored updates: model {model}, " + (
        "the same as stored." if same else f"stored was {view.model}: NOT the same."
    )
    return same, sentence


def _recompute(
    given: AggregationInput, blobs: BlobStore, folder: Path, held: ExitStack
) -> tuple[str | None, str | None]:
    """Digests of the model to send and the model to score; None for a round without weight."""

    def fetch_verified(digest: str) -> Path:
        blobs.verify(digest)
        return held.enter_context(blobs.local(digest))

    for update in given.updates:
        _check_kept(given, update, blobs)
    if not all(blobs.exists(model.model) for model in given.travelling):
        raise NotFound(
            f"Models that travelled when round {given.round} of {given.run} began are no longer kept.",
            hint="Replay a newer round: keep_updates says how long, and who withdraws takes its own.",
        )
    files = close_stored(given, given.updates, fetch_verified, folder).result.files
    return (None, None) if files is None else (files.model.digest, files.scored.digest)


def _check_kept(given: AggregationInput, update: Update, blobs: BlobStore) -> None:
    if update.client.startswith(ERASED) and not blobs.exists(update.digest):
        raise NotFound(
            f"The update of {update.client} in round {given.round} of {given.run} was erased.",
            hint="Its client withdrew: replay a round without it.",
        )
    if given.config.keep_updates is not None and not blobs.exists(update.digest):
        raise NotFound(
            f"The update of {update.client} in round {given.round} of {given.run} is no longer kept.",
            hint=f"keep_updates of this run is {given.config.keep_updates}: replay a newer round.",
        )

"""What is measured of an update at its upload is what its round's end says of it, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from server.runs.aggregation import close_stored
from server.runs.moves import Moves
from shared.aggregation.figures import measure_move
from shared.schemas import TensorSpec
from tests.helpers.live_coordinator import SHAPES, enrolled, live, sha256

PARAMETERS = [TensorSpec(name=name, shape=shape, dtype="F32") for name, shape in SHAPES.items()]


def make_file(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return save({name: np.asarray(rng.normal(size=shape), "<f4") for name, shape in SHAPES.items()})


def write(folder: Path, seed: int) -> tuple[str, Path]:
    body = make_file(seed)
    path = folder / sha256(body)
    path.write_bytes(body)
    return sha256(body), path


def test_what_is_remembered_is_what_would_be_measured(tmp_path: Path) -> None:
    moves, model = Moves(), write(tmp_path, 0)
    for update in (write(tmp_path, 1), write(tmp_path, 2)):  # the second finds the model's norm
        assert moves.find(model[0], update[0], PARAMETERS) is None
        measured = moves.measure(*model, *update, PARAMETERS)
        assert measured == measure_move(model[1], update[1], PARAMETERS)
        assert moves.find(model[0], update[0], PARAMETERS) == measured


def test_over_other_tensors_it_is_measured_anew(tmp_path: Path) -> None:
    moves, model, update = Moves(), write(tmp_path, 0), write(tmp_path, 1)
    whole = moves.measure(*model, *update, PARAMETERS)
    assert moves.find(model[0], update[0], PARAMETERS[:1]) is None
    part = moves.measure(*model, *update, PARAMETERS[:1])
    assert part.norm < whole.norm
    assert part.start < whole.start


def test_the_ledger_is_that_of_a_process_which_remembers_nothing(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=3, rounds=1, weighting={"kind": "sizes"})
        for place, site in enumerate(enrolled(at, (10, 20, 30))):
            assert site.upload("demo", 1, make_file(place)).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        store, blobs = at.coordinator.store, at.coordinator.blobs
        given = store.aggregation_input("demo", 1, 1)
        again = close_stored(given, given.updates, blobs.path, tmp_path)
        told = store.round_view("demo", 1, 1).ledger
    assert len(told) == 3
    assert [(row.norm, row.largest_entry, row.cosine) for row in told] == [
        (row.norm, row.largest_entry, row.cosine) for row in again.result.rows
    ]

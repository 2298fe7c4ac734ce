"""A replay of rounds whose updates are kept, and of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feddisco.replay import replay_round
from server.settings import Settings
from shared.problems import NotFound, StorageUnavailable
from tests.helpers.live_coordinator import Live, enrolled, file_of, live


def played(at: Live, keep_updates: int) -> None:
    """Two rounds of two clients, no update equal to a model; then a collection for which all is old."""
    at.create(min_clients=2, rounds=2, weighting={"kind": "sizes"}, keep_updates=keep_updates)
    sites = enrolled(at, (10, 10))
    for number in (1, 2):
        for place, site in enumerate(sites):
            assert site.until("train")["round"] == number
            body = file_of(10.0 * number + 2 * place)
            assert site.upload("demo", number, body).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    for path in at.coordinator.blobs.folder.glob("[0-9a-f][0-9a-f]/*"):
        os.utime(path, (0, 0))
    at.coordinator.runner.collect_unneeded()


def test_rounds_whose_updates_are_no_longer_kept_say_so(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        played(at, keep_updates=1)
        settings = at.coordinator.settings
        assert replay_round(settings, "demo", 2)[0]
        with pytest.raises(NotFound, match="update of site-0 in round 1 of demo is no longer kept") as caught:
            replay_round(settings, "demo", 1)
        assert "keep_updates of this run is 1" in caught.value.hint


def test_where_no_coordinator_was_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="there is no database"):
        replay_round(Settings(data_folder=tmp_path), "demo", 1)
    assert list(tmp_path.iterdir()) == []

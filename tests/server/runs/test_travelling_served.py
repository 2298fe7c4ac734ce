"""FedSkip in the service: a site's model is not handed on to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.live_coordinator import live


def test_models_do_not_travel_here(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        with pytest.raises(AssertionError, match="a site's model reaches the coordinator and nobody else"):
            at.create(average_every=3, weighting={"kind": "sizes"})
        assert at.admin.get("/runs").json() == []

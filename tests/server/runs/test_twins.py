"""``also: fedavg``: a second run beside the first, and the way to compare the two."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.config import RunConfig
from tests.helpers.live_coordinator import CLASSES, TASK, live


def test_a_twin_differs_in_how_it_averages_and_in_nothing_else(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create("skin", min_clients=2, seed=5, algorithm="fedprox", shadow=["uniform"], also="fedavg")
        first, twin = at.run("skin"), at.run("skin-fedavg")
        assert twin["initial_model"] == first["initial_model"]
        differ = {name for name, value in first["config"].items() if twin["config"][name] != value}
        assert differ == {"name", "algorithm", "weighting", "shadow", "also"}
        assert twin["config"]["weighting"] == {"kind": "sizes"}
        assert twin["config"]["algorithm"]["name"] == "fedavg"

        for run, other in (("skin", "skin-fedavg"), ("skin-fedavg", "skin")):
            page = at.http().get(f"{at.url}/runs/{run}").text
            address = f"/compare?runs={run},{other}&amp;baseline=skin-fedavg"
            assert address in page
            assert at.http().get(f"{at.url}{address.replace('amp;', '')}").status_code == 200

        site = at.site("north")
        assert {site.enrol(run, 10).status_code for run in ("skin", "skin-fedavg")} == {200}


def test_a_run_that_only_has_such_a_name_is_nobodys_twin(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create("skin")
        at.create("skin-fedavg")
        for run in ("skin", "skin-fedavg"):
            assert "twin" not in at.http().get(f"{at.url}/runs/{run}").text


def test_neither_is_created_if_one_of_the_names_is_taken(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create("skin-fedavg")
        config = {"name": "skin", "task": TASK, "classes": CLASSES, "also": "fedavg"}
        answer = at.admin.post("/runs", json={"config": config})
        assert (answer.status_code, answer.json()["detail"]) == (409, "there is a run 'skin-fedavg' already")
        assert [run["run"] for run in at.admin.get("/runs").json()] == ["skin-fedavg"]


def test_neither_is_created_if_the_database_goes_between_the_two(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        inserted: list[str] = []

        def refuse(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
            if statement.startswith("INSERT INTO runs "):
                inserted.append(statement)
                if len(inserted) == 2:
                    raise sa.exc.OperationalError("INSERT", None, Exception("gone"))

        sa.event.listen(at.coordinator.store.engine, "before_cursor_execute", refuse)
        with pytest.raises(AssertionError, match="does not answer"):
            at.create("skin", also="fedavg")
        assert len(inserted) == 2
        assert at.admin.get("/runs").json() == []
        at.create("skin", also="fedavg")
        assert {run["run"] for run in at.admin.get("/runs").json()} == {"skin", "skin-fedavg"}


def test_a_name_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="56 characters at most"):
        RunConfig(name="n" * 57, also="fedavg")


def test_a_twin_is_fedavg_and_nothing_else() -> None:
    more = {"distillation": {}, "assistant": "judge", "calibration": "ccvr"}
    twin = RunConfig.model_validate({"name": "skin", "also": "fedavg", **more}).make_twin()
    assert twin is not None
    assert [twin.distillation, twin.assistant, twin.calibration] == [None, None, None]

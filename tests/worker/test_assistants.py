"""A run's assistant: real workers and a real coordinator; the models of a simulation, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feddisco.replay import replay_round
from shared.config import RunConfig
from simulation.run import simulate
from tests.helpers.live_coordinator import Live, live, settings_for
from tests.helpers.worker_crew import Member, create, keep, worker

PARTITION = {"kind": "niid1", "clients": 2, "beta": 0.5, "validation": 200}
CONFIG: dict[str, Any] = {
    "partition": PARTITION,
    "local": {"steps": 4, "batch_size": 16, "learning_rate": 0.05},
    "weighting": {"kind": "sizes"},
}
DISTILS = {**CONFIG, "distillation": {"steps": 120, "held_out": 0.2}}
LEARNS = {**CONFIG, "weighting": {"kind": "fedlaw", "examples": 100, "epochs": 2}}

pytestmark = pytest.mark.usefixtures("one_thread")


def simulated(folder: Path, config: RunConfig) -> str:
    return simulate(config, source=None, out=folder / "simulated.jsonl", say=lambda _: None)


def create_assisted(at: Live, folder: Path, **fields: Any) -> RunConfig:
    """The judge has registered before: the worker finds its token in its state folder."""
    keep(at, folder, at.site("judge"))
    return create(at, assistant="judge", **fields)


def crew(at: Live, folder: Path, *, policy: Path | None = None) -> list[Member]:
    """Two trainers of the dealt data."""
    more: dict[str, Any] = {"partition": "run"} | ({} if policy is None else {"policy": policy})
    return [worker(at, folder, name, **more) for name in ("north", "south")]


def judge(at: Live, folder: Path, **more: Any) -> Member:
    return worker(at, folder, "judge", role="evaluator", partition="run", **more)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        DISTILS,
        {**DISTILS, "algorithm": "feddyn", "compression": "int8"},
        LEARNS,
    ],
    ids=["distil", "distil-feddyn-packed", "learn"],
)
def test_the_service_makes_the_models_of_a_simulation(
    fields: dict[str, Any], database_url: str, tmp_path: Path
) -> None:
    with live(database_url, tmp_path / "data") as at:
        config = create_assisted(at, tmp_path, **fields)
        judge(at, tmp_path)
        crew(at, tmp_path)
        at.wait_for(lambda: at.run()["status"] == "completed", 60)
        rounds = [at.admin.get(f"/runs/demo/rounds/{n}").json() for n in (1, 2)]
        assert rounds[-1]["scored_model"] == simulated(tmp_path, config)
        assert [each["assistance"]["outcome"] for each in rounds] == ["used", "used"]
    for number in (1, 2):
        same, sentence = replay_round(settings_for(database_url, tmp_path / "data"), "demo", number)
        assert same, sentence


# ---------------------------------------------------------------- without an answer


def plain_digest(folder: Path, fields: dict[str, Any]) -> str:
    config = RunConfig.model_validate({"name": "demo", "task": "digits", "rounds": 2, **fields})
    return simulated(folder, config)


def test_an_assistant_whose_policy_says_no_is_not_waited_for(database_url: str, tmp_path: Path) -> None:
    """The round takes the plain average; the page and the log say why, and the judge goes on scoring."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("assistant: false\n")
    with live(database_url, tmp_path / "data") as at:
        create_assisted(at, tmp_path, **DISTILS)
        asked = worker(at, tmp_path, "judge", role="evaluator", partition=PARTITION, policy=policy)
        crew(at, tmp_path)
        at.wait_for(lambda: at.run()["status"] == "completed", 60)
        asked.join()
        found = at.admin.get("/runs/demo/rounds/2").json()
        assert found["assistance"]["outcome"] == "missed"
        assert found["assistance"]["reason"] == (
            "The site's policy does not allow to work as the run's assistant."
        )
        assert found["model"] == plain_digest(tmp_path, {**CONFIG})
        assert len(found["evaluations"]) == 1
        page = at.http().get(f"{at.url}/runs/demo/rounds/2").text
        assert "The round went on without judge, its assistant, by the plain average" in page
        kinds = [event["kind"] for event in at.events() if event["kind"].startswith("assist")]
        assert kinds == ["assistance_asked", "assistance_failed", "assistance_missed"] * 2
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 2)[0]


def test_an_answer_that_is_refused_is_not_made_again(database_url: str, tmp_path: Path) -> None:
    """It would be the same, and the run would wait for each of them. Others' updates do not stay here."""
    diverges = {**LEARNS, "weighting": {**LEARNS["weighting"], "learning_rate": 50.0, "epochs": 1}}
    with live(database_url, tmp_path / "data") as at:
        create_assisted(at, tmp_path, **{**diverges, "rounds": 2, "evaluate_every": 0})
        asked = judge(at, tmp_path)
        crew(at, tmp_path)
        at.wait_for(lambda: at.run()["current_round"], 60)
        assert at.admin.post("/runs/demo/pause", json={"reason": "look"}).status_code in (200, 204)
        at.wait_for(lambda: at.run()["completed_rounds"] == 1, 60)
        found = at.admin.get("/runs/demo/rounds/1").json()
        assert found["assistance"]["reason"].startswith("The coordinator refused what the site sent (422)")
        assert "Trying again" not in asked.log
        at.wait_for(lambda: asked.log.count("no answer (refused)") == 1)
        updates = {row["update"] for row in found["ledger"]}
        assert len(updates) == 2
        at.wait_for(lambda: not updates & {path.name for path in (tmp_path / "judge").rglob("*")}, 5)
        assert at.admin.post("/runs/demo/stop", json={"reason": "seen"}).status_code in (200, 204)
        asked.join()


def test_a_trainer_declines_unless_its_policy_allows_an_assistant(database_url: str, tmp_path: Path) -> None:
    """Of data of its own; the default is no, and nothing is imported or trained before."""
    allows = tmp_path / "allows.yaml"
    allows.write_text("assistant: true\nfewest_trainers: 1\n")
    fields = {**DISTILS, "partition": None, "min_clients": 1}
    with live(database_url, tmp_path / "data") as at:
        create_assisted(at, tmp_path, **fields)
        first = worker(at, tmp_path, "north", partition="niid1:2:0.5", exit_when_finished=False)
        at.wait_for(lambda: at.run()["enrolments"], 30)
        (row,) = at.run()["enrolments"]
        assert (row["status"], row["last_error"]) == ("declined", None)
        assert "its assistant; the site's policy does not allow that" in row["reason"]
        assert "has assistant: false" in first.log
        worker(at, tmp_path, "south", partition="niid1:2:0.5", policy=allows, exit_when_finished=False)
        at.wait_for(lambda: len(at.run()["enrolments"]) == 2, 30)
        statuses = {each["client"]: each["status"] for each in at.run()["enrolments"]}
        assert statuses == {"north": "declined", "south": "ready"}

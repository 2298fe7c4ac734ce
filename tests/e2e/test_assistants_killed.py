"""The assistant and all coordinators are killed while it works: the same models as a simulation's."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.schemas import RunStatus
from simulation.run import simulate
from tests.helpers.processes import Deployment, run_config

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("assistants-killed"),
    pytest.mark.usefixtures("one_thread"),
]

# long enough to be caught in it: nothing is held out, so every step is made
CONFIG = run_config(
    "assisted",
    rounds=2,
    assistant="judge",
    partition={"kind": "niid1", "clients": 3, "beta": 0.3, "validation": 300},
    distillation={"steps": 2000, "held_out": 0, "batch_size": 32},
)


@pytest.fixture(params=["on_sqlite", "on_postgres"])
def system(request: pytest.FixtureRequest) -> Deployment:
    made: Deployment = request.getfixturevalue(request.param)
    return made


def is_asked(system: Deployment, number: int) -> bool:
    current = system.open_round("assisted")
    if current is None or current.round != number or current.assistance is None:
        return False
    assert current.assistance.answered_at is None, "it was faster than this test"
    return True


def test_killed_in_the_middle_of_its_step(system: Deployment, tmp_path: Path) -> None:
    names = list(system.urls)
    system.start_worker("judge", "--role", "evaluator", "--partition", "run", at=names[0])
    system.wait_for(
        lambda: "judge" in {client.client for client in system.admin.clients()}, "the judge has registered"
    )
    system.create(CONFIG)

    system.wait_for(lambda: is_asked(system, 1), "the judge is asked in round 1")
    system.kill("judge")
    for name in names:
        system.kill(name)
    for name in names:
        system.start_coordinator(name)
    system.start_again("judge")

    system.wait_for(lambda: is_asked(system, 2), "the judge is asked in round 2")
    for name in names:  # it works on, and finds them again
        system.kill(name)
        system.start_coordinator(name)

    system.wait_for(lambda: system.status("assisted") is RunStatus.COMPLETED, "the run ends")
    rounds = system.rounds("assisted")
    found = [each.assistance.outcome for each in rounds if each.assistance is not None]
    assert found == ["used", "used"], system.logs()
    alone = simulate(CONFIG, source=None, out=tmp_path / "alone.jsonl", say=lambda _: None)
    assert rounds[-1].scored_model == alone
    system.kill("judge")

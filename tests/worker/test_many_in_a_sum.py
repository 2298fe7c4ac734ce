"""A secure run of more clients than mask with everybody: the sparse graph, over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.schemas import RunStatus
from shared.secure.client import Client
from shared.secure.graph import COMPLETE_UP_TO, degree_for
from shared.secure.messages import Roster
from simulation.run import simulate
from tests.helpers.live_coordinator import Live
from tests.helpers.processes import run_config
from tests.helpers.worker_crew import create, worker

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow, pytest.mark.timeout(500)]

CLIENTS = 66


def read_roster(path: Path) -> Roster | None:
    """Whom a site masks with, once it knows; its file is replaced whole."""
    try:
        return Client.model_validate_json(path.read_bytes()).roster
    except FileNotFoundError:
        return None


def test_sixty_six_clients_mask_in_a_sparse_graph_and_the_sum_is_exact(at: Live, tmp_path: Path) -> None:
    assert CLIENTS > COMPLETE_UP_TO
    config = run_config(
        "many",
        rounds=1,
        partition=f"iid:{CLIENTS}",
        secure={"step_deadline_seconds": 400},
        local={"steps": 1, "batch_size": 8},
    )
    create(at, **config.model_dump(mode="json"))
    crew = [worker(at, tmp_path, f"site-{i}", partition="run", index=i) for i in range(CLIENTS)]
    roster = at.wait_for(lambda: read_roster(tmp_path / "site-0" / "runs" / "many" / "secure.json"), 400)
    assert len(roster.members) == CLIENTS
    assert len(roster.graph(2 / 3).neighbours(roster.members[0])) == degree_for(CLIENTS) < CLIENTS - 1
    at.wait_for(lambda: at.run("many")["status"] == RunStatus.COMPLETED, 450)
    assert at.run("many")["totals"]["clients"] == CLIENTS
    digest = simulate(config, source=None, out=tmp_path / "result.jsonl", say=lambda line: None)
    assert at.run("many")["model"] == digest
    for member in crew:
        member.join()

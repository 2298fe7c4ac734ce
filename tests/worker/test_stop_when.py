"""A run that stops when nothing becomes better: the service and the simulation make the same rounds."""

from __future__ import annotations

from pathlib import Path

from shared.schemas import Role
from simulation.run import Results, simulate
from tests.helpers.live_coordinator import Live
from tests.helpers.worker_crew import create, worker

LOCAL = {"steps": 20, "batch_size": 16, "learning_rate": 0.3}


def test_service_and_simulation_stop_in_the_same_round(at: Live, tmp_path: Path, one_thread: None) -> None:
    given = create(
        at,
        rounds=12,
        local=LOCAL,
        partition="niid1:2:0.3",
        weighting={"kind": "sizes"},
        stop_when={"patience": 2},
        keep="best",
    )
    part = {"partition": "run"}
    crew = [worker(at, tmp_path, f"site-{index}", index=index, **part) for index in range(2)]
    crew.append(worker(at, tmp_path, "judge", role=Role.EVALUATOR, **part))
    assert [member.join(120) for member in crew] == [0, 0, 0], crew[0].log
    digest = simulate(given, source=None, out=tmp_path / "run.jsonl", say=lambda line: None)
    *rounds, end = Results(tmp_path / "run.jsonl").lines()[1:]
    view, made = at.run(), at.admin.get("/runs/demo/rounds").json()
    assert (view["status"], view["completed_rounds"]) == ("completed", len(rounds))
    assert len(rounds) < 12
    assert [one["scored_model"] for one in made] == [line["model"] for line in rounds]
    assert view["model"] == digest == made[end["round"] - 1]["scored_model"]
    assert [event["kind"] for event in at.events()].count("run_stopped_early") == 1

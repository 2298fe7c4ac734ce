"""Workers that deal one data set among them: by key, and an evaluator with a thinned test set."""

from __future__ import annotations

from pathlib import Path

from server.database.migrations import upgrade
from tests.helpers.live_coordinator import live
from tests.helpers.worker_crew import create, worker

ROWS = [(f"w{number % 3}", number / 60, "yes" if number % 4 else "no") for number in range(60)]


def test_each_worker_is_a_key_and_the_evaluator_sees_a_thin_test_set(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "test"):
        lines = ["writer,number,label", *(f"{w},{n},{label}" for w, n, label in ROWS)]
        (data / f"{split}.csv").write_text("\n".join(lines[: 46 if split == "train" else None]))
    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    upgrade(url)
    with live(url, tmp_path / "coordinator") as at:
        create(
            at,
            task="csv",
            task_options={
                "columns": ["number"], "target": "label", "classes": ["yes", "no"], "key": "writer",
            },
            partition={"kind": "by-key", "clients": 3, "test_rho": 5},
            local={"steps_range": [1, 3]},
            rounds=1,
            min_clients=3,
        )  # fmt: skip
        judge = worker(at, tmp_path, "judge", task="csv", data=data, role="evaluator")
        at.wait_for(lambda: "demo: enrolled" in judge.log)
        crew = [
            worker(at, tmp_path, f"site-{number}", task="csv", data=data, partition="run")
            for number in range(3)
        ]
        assert [member.join() for member in (*crew, judge)] == [0] * 4
        trainers = [row for row in at.run()["enrolments"] if row["role"] == "trainer"]
        assert [row["examples"] for row in trainers] == [15] * 3
        (last,) = at.admin.get("/runs/demo/rounds").json()
        assert all(1 <= row["steps"] <= 3 for row in last["ledger"])
        assert [row["examples"] for row in last["evaluations"]] == [45 + 15 // 5]

"""Private training at sites: counted before it begins, over all runs, by the policy, told where allowed."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.problems import InvalidConfiguration
from shared.training.accountant import Spending, find_epsilon
from simulation.run import simulate
from tests.helpers.live_coordinator import JOIN, Live
from tests.helpers.worker_crew import create, worker
from worker.privacy_account import OWN_DATA, PrivacyAccount, spent_lines
from worker.told import told_lines

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[2]
ROUND = Spending(1.0, 0.01, 50)
PRIVATE: dict[str, Any] = {
    "dp": {"epsilon": 4.0, "delta": 1e-4},
    "local": {"steps": 3, "batch_size": 32, "learning_rate": 0.1},
    "weighting": {"kind": "sizes"},
}


def policy(folder: Path, name: str, **keys: Any) -> Path:
    path = folder / f"{name}.yaml"
    lines = {"disclosure": "exact", "fewest_trainers": 1} | keys
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items()), "utf-8")
    return path


def spent(state: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((state / "privacy-spent.json").read_text("utf-8"))["spent"]
    return found


# ---------------------------------------------------------------- the account


def test_rounds_are_counted_by_run_and_data_and_survive_the_process(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path)
    charges = [("a", OWN_DATA, "1"), ("a", OWN_DATA, "1"), ("b", OWN_DATA, "2"), ("a", "part", "1")]
    for run, data, version in charges:
        assert account.charge(run, data, version, ROUND, None, 1e-5) is None
    again = PrivacyAccount(tmp_path)
    assert again.list_spent(OWN_DATA, "a") == (Spending(1.0, 0.01, 100),)
    assert again.list_spent(OWN_DATA) == (Spending(1.0, 0.01, 100), ROUND)  # changed data count on
    assert again.list_spent("part") == (ROUND,)
    assert again.list_others(OWN_DATA, "a") == (ROUND,)
    assert [each.rounds for each in again.list_entries()] == [2, 1, 1]
    assert stat.S_IMODE((tmp_path / "privacy-spent.json").stat().st_mode) == 0o600


def test_a_round_beyond_the_limit_is_not_counted(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path)
    most = find_epsilon([Spending(1.0, 0.01, 100)], 1e-5)
    assert account.charge("a", OWN_DATA, "1", ROUND, most, 1e-5) is None
    assert account.charge("b", OWN_DATA, "1", ROUND, most, 1e-5) is None
    beyond = account.charge("c", OWN_DATA, "1", ROUND, most, 1e-5)
    assert beyond is not None
    assert beyond > most
    assert account.charge("c", "a part", "1", ROUND, most, 1e-5) is None  # other examples
    assert [each.run for each in account.list_entries()] == ["a", "b", "c"]
    assert account.list_spent(OWN_DATA, "c") == ()


def test_an_account_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "privacy-spent.json").write_text('{"spent": [', "utf-8")
    for use in (
        lambda: PrivacyAccount(tmp_path).list_spent(OWN_DATA),
        lambda: PrivacyAccount(tmp_path).charge("a", OWN_DATA, "1", ROUND, None, 1e-5),
    ):
        with pytest.raises(InvalidConfiguration, match="Restore it from a backup"):
            use()


def test_what_was_spent_is_told_in_words(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path)
    account.charge("a", OWN_DATA, "1", ROUND, None, 1e-5)
    account.charge("b", OWN_DATA, "1", ROUND, None, 1e-5)
    one, both = (find_epsilon(number * [ROUND], 1e-5) for number in (1, 2))
    assert list(spent_lines(tmp_path)) == [
        f"private training on the site's own data: epsilon {both:.3g} at delta 1e-05 in all runs together",
        f"  a: epsilon {one:.3g} in 1 round begun",
        f"  b: epsilon {one:.3g} in 1 round begun",
    ]


# ---------------------------------------------------------------- real workers


def test_a_run_is_counted_told_where_allowed_and_tells_no_loss(at: Live, tmp_path: Path) -> None:
    config = create(at, **PRIVATE)
    open_ = policy(tmp_path, "open", tell_epsilon=True)
    crew = [
        worker(at, tmp_path, "open", partition="iid:2", index=0, policy=open_),
        worker(at, tmp_path, "shut", partition="iid:2", index=1),
    ]
    assert [member.join() for member in crew] == [0, 0]
    rows = ledger(at, 2)
    assert rows["open"]["loss"] is None
    assert rows["shut"]["epsilon"] is None
    assert rows["open"]["epsilon"] == pytest.approx(4.0, abs=0.01)
    assert 0 < ledger(at, 1)["open"]["epsilon"] < 4
    assert "epsilon 4.00 so far" in at.admin.get(f"{at.url}/runs/demo/rounds/2").text
    assert re.search(r"3 steps, \d+\.\d s, epsilon (4|3\.99) so far", crew[1].log)
    [entry] = spent(tmp_path / "shut")
    assert (entry["run"], entry["data"], entry["rounds"], entry["steps"]) == ("demo", OWN_DATA, 2, 6)
    sent = (tmp_path / "shut" / "told.jsonl").read_text("utf-8")
    assert "loss" not in sent
    assert '"epsilon"' not in sent
    assert any("own data: epsilon" in line for line in spent_lines(tmp_path / "shut"))
    assert any(re.search(r"epsilon (4\.0|3\.99)", line) for line in told_lines(tmp_path / "open"))
    # the noise is the sites' own: nobody who knows the run's seed can make it again
    dealt = config.change({"partition": "iid:2"})
    digest = simulate(dealt, source=None, out=tmp_path / "out.jsonl", say=lambda line: None)
    assert at.run()["model"] != digest


def test_an_update_that_was_kept_tells_what_the_policy_allows_when_it_leaves(
    at: Live, tmp_path: Path
) -> None:
    create(at, **PRIVATE | {"rounds": 1, "min_clients": 1})
    file, tried = policy(tmp_path, "site", tell_epsilon=True), []

    class Broken(httpx.HTTPTransport):
        """Whoever answers for the data changes their mind while the first upload fails."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/update"):
                tried.append("epsilon" in request.url.params)
                if len(tried) == 1:
                    policy(tmp_path, "site", tell_epsilon=False)
                    raise httpx.ConnectError("refused")
            return super().handle_request(request)

    member = worker(at, tmp_path, "site", partition="iid:2", index=0, policy=file, transport=Broken())
    assert member.join() == 0
    assert tried == [True, False]
    assert "trained already, sending the finished update again" in member.log
    assert ledger(at, 1)["site"]["epsilon"] is None


def ledger(at: Live, round: int) -> dict[str, dict[str, Any]]:
    answer = at.admin.get(f"/runs/demo/rounds/{round}")
    return {row["client"]: row for row in answer.json()["ledger"]}


def test_runs_beyond_the_policy_are_declined_with_a_sentence(at: Live, tmp_path: Path) -> None:
    strict = policy(tmp_path, "strict", most_epsilon=4.2, epsilon_delta=1e-4)
    create(at, **PRIVATE)
    create(at, name="plain", local={"steps": 3})
    crew = [
        worker(at, tmp_path, "strict", partition="iid:2", index=0, policy=strict),
        worker(at, tmp_path, "other", partition="iid:2", index=1, run="demo"),
    ]
    crew[1].join()
    crew[0].join()
    create(at, name="again", **PRIVATE)
    more = worker(at, tmp_path, "strict", partition="iid:2", index=0, policy=strict)
    said = at.wait_for(lambda: declined(at, "again", "strict"), 60)
    assert "cost the site's examples more privacy than its policy leaves" in said
    assert "training without differential privacy; " in crew[0].log
    assert "which this one does not (dp)" in declined(at, "plain", "strict")
    more.join()
    words = r"\(epsilon [4-7]\.\d+ at delta 0.0001 in all runs together; .*most_epsilon: 4.2\)"
    assert re.search(words, more.log)
    assert {entry["run"] for entry in spent(tmp_path / "strict")} == {"demo"}


def declined(at: Live, run: str, client: str) -> str:
    rows = [row for row in at.run(run)["enrolments"] if row["client"] == client]
    return str(rows[0]["reason"] or "") if rows and rows[0]["status"] == "declined" else ""


@pytest.mark.long
def test_secure_sums_of_private_updates(at: Live, tmp_path: Path) -> None:
    create(at, **PRIVATE | {"secure": {}, "min_clients": 3, "rounds": 1})
    crew = [worker(at, tmp_path, f"site-{i}", partition="iid:3", index=i) for i in range(3)]
    assert [member.join() for member in crew] == [0, 0, 0]
    assert all(row["epsilon"] is None and row["loss"] is None for row in ledger(at, 1).values())
    assert [entry["rounds"] for entry in spent(tmp_path / "site-0")] == [1]


@pytest.mark.long
def test_a_worker_killed_while_it_trains_has_counted_the_round(at: Live, tmp_path: Path) -> None:
    task = "tests.helpers.own_tasks:Slow"
    create(
        at,
        **PRIVATE
        | {
            "task": task,
            "task_options": {"seconds_a_step": 0.2},
            "rounds": 1,
            "min_clients": 1,
            "local": {"steps": 20, "batch_size": 16},
        },
    )
    state = tmp_path / "killed"
    command = [
        *(sys.executable, "-m", "feddisco", "worker", "--url", at.url, "--name", "killed"),
        *("--state", str(state), "--task", task, "--partition", "iid:2", "--index", "0"),
        *("--policy", str(policy(tmp_path, "alone")), "--device", "cpu", "--threads", "1"),
    ]
    environment = {**os.environ, "FEDDISCO_JOIN_TOKEN": JOIN, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        at.wait_for(lambda: (state / "privacy-spent.json").exists(), 60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [entry["rounds"] for entry in spent(state)] == [1]
    assert at.run()["completed_rounds"] == 0
    finished = worker(
        at, tmp_path, "killed", partition="iid:2", index=0, task=task, policy=policy(tmp_path, "alone")
    )
    assert finished.join() == 0
    entries = spent(state)
    assert sum(entry["rounds"] for entry in entries) == 2
    # the run's epsilon is kept to all the same: what was lost is made up for by more noise
    noises = [entry["noise_multiplier"] for entry in entries]
    assert noises == sorted(set(noises))
    total = [Spending(e["noise_multiplier"], e["rate"], e["steps"]) for e in entries]
    assert find_epsilon(total, 1e-4) <= 4.0 * (1 + 1e-6)

"""Runs and clients over a Ray cluster: the same models, also when processes are killed in between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.problems import InvalidConfiguration
from simulation.checkpoints import claim_checkpoint
from simulation.cluster import check_node, connect, locate_data
from simulation.results import Results, checkpoint_of, versions
from simulation.run import simulate
from simulation.snapshot import Snapshot
from simulation.sweep import Planned, claim_results
from simulation.sweep.ray import claim_run, sweep_over_nodes
from tests.helpers.pictures import Pictures
from tests.simulation.test_simulate import config, quiet, timeless

LONG = {"rounds": 6, "local": {"steps": 60, "batch_size": 16, "learning_rate": 0.05}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster that others started, and its address; one for all tests (it takes seconds to start)."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'feddisco[sim]'")
    head = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.ray_head"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with head, pytest.MonkeyPatch.context() as environment:
        assert head.stdout is not None
        address, token = head.stdout.readline().split()
        environment.setenv("RAY_AUTH_MODE", "token")
        environment.setenv("RAY_AUTH_TOKEN", token)
        environment.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it listens on loopback
        with connect(address, quiet):
            yield address
        assert head.poll() is None, "another's cluster is not stopped"
        head.communicate()


on_ray = [pytest.mark.usefixtures("cluster"), pytest.mark.xdist_group("ray"), pytest.mark.slow]


def busy(process: psutil.Process, task: str) -> list[psutil.Process]:
    """Ray's processes below ``process`` that carry out ``task`` now: their command lines say so."""
    found = []
    for child in process.children(recursive=True):
        try:
            if child.cmdline()[:1] and child.cmdline()[0].startswith(f"ray::{task}"):
                found.append(child)
        except psutil.Error:
            continue
    return found


def until_true(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def rounds(out: Path) -> int:
    return sum(line["kind"] == "round" for line in Results(out).lines())


class TestEngine:
    pytestmark = on_ray

    def test_the_same_models_as_in_process(self, tmp_path: Path) -> None:
        out, other = tmp_path / "ray.jsonl", tmp_path / "one.jsonl"
        simulate(config(), source=None, out=out, engine="ray", until=2, say=quiet)
        assert Results(out).lines()[0]["machine"]["engine"] == "ray"
        digest = simulate(config(), source=None, out=out, say=quiet)  # either goes on with the other's file
        assert digest == simulate(config(), source=None, out=other, say=quiet)
        assert timeless(out) == timeless(other)

    def test_missing_data_name_the_node(self, tmp_path: Path) -> None:
        import ray

        on_a_node = ray.remote(locate_data)
        with pytest.raises(
            InvalidConfiguration, match=f"the node .* has (no|neither) {tmp_path}/cifar10.zip"
        ):
            ray.get(on_a_node.remote(tmp_path / "cifar10.zip"))

    def test_a_killed_process_costs_only_its_client(self, tmp_path: Path, cluster: str) -> None:
        given = config(**LONG | {"rounds": 2})
        killed: list[int] = []

        def kill_one() -> None:
            until_true(lambda: busy(psutil.Process(), "train_on_node"))
            victim = busy(psutil.Process(), "train_on_node")[0]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)

        killer = threading.Thread(target=kill_one)
        killer.start()
        digest = simulate(given, source=None, out=tmp_path / "ray.jsonl", engine="ray", say=quiet)
        killer.join()
        assert killed
        assert digest == simulate(given, source=None, out=tmp_path / "one.jsonl", say=quiet)


class TestSweep:
    pytestmark = on_ray

    def test_as_on_this_machine_and_one_failure_stops_no_other(self, tmp_path: Path, cluster: str) -> None:
        here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
        bad, taken = config(name="bad", min_clients=5), config(name="taken")
        pictures = config(name="pictures", task="tests.helpers.pictures:Pictures", classes=Pictures.classes)
        runs = [
            Planned(bad, tmp_path / "bad.jsonl"),
            Planned(config(), there),
            Planned(taken, tmp_path / "taken.jsonl"),
            Planned(pictures, tmp_path / "pictures.jsonl", until=1, kernels="native"),
        ]
        said: list[str] = []
        with claim_results(tmp_path / "taken.jsonl"):
            ended = sweep_over_nodes(runs, address=cluster, say=said.append)
        digest = simulate(config(), source=None, out=here, say=quiet)
        assert [swept.state for swept in ended] == ["failed", "done", "busy", "done"]
        assert "4 clients, min_clients 5" in ended[0].detail
        assert ended[1].detail == digest
        assert timeless(there) == timeless(here)
        assert "small  round    3/3" in "\n".join(said)
        assert not checkpoint_of(there).exists(), "done"
        assert rounds(tmp_path / "pictures.jsonl") == 1
        assert checkpoint_of(tmp_path / "pictures.jsonl").exists(), "it can go on"
        assert Results(tmp_path / "pictures.jsonl").lines()[0]["machine"]["kernels"] == "native"

    def test_a_killed_process_costs_a_round_at_most(self, tmp_path: Path, cluster: str) -> None:
        out, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
        said: list[str] = []

        def kill_after_the_second(line: str) -> None:
            said.append(line)
            if "round    2/" in line:
                (actor,) = busy(psutil.Process(), "Runner")
                actor.send_signal(signal.SIGKILL)

        given = config(**LONG)
        (ended,) = sweep_over_nodes([Planned(given, out)], address=cluster, say=kill_after_the_second)
        assert any("its process or node died" in line for line in said)
        assert ended.detail == simulate(given, source=None, out=whole, say=quiet)
        assert timeless(out) == timeless(whole)
        trained = [line.split()[2] for line in said if "  round " in line]
        assert trained == [f"{number}/6" for number in range(1, 7)], "none was told twice"

    def test_going_on_after_the_driver_was_killed(self, tmp_path: Path, cluster: str) -> None:
        given = config(**LONG)
        (tmp_path / "config.json").write_text(given.model_dump_json())
        out, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(tmp_path / "config.json"), str(out)],
            env=os.environ | {"RAY_ADDRESS": cluster},
        )
        with driver:
            until_true(lambda: driver.poll() is not None or rounds(out) >= 2)
            driver.send_signal(signal.SIGKILL)
        assert 2 <= rounds(out) < given.rounds
        said: list[str] = []
        (ended,) = sweep_over_nodes([Planned(given, out)], address=cluster, say=said.append)
        assert not any("round    1/" in line for line in said), "counted, so not trained again"
        assert ended.detail == simulate(given, source=None, out=whole, say=quiet)
        assert timeless(out) == timeless(whole)


DRIVER = """
import sys
from pathlib import Path
from shared.config import RunConfig
from simulation.sweep.ray import sweep_over_nodes
from simulation.sweep import Planned

if __name__ == "__main__":
    config = RunConfig.model_validate_json(Path(sys.argv[1]).read_bytes())
    sweep_over_nodes([Planned(config, Path(sys.argv[2]))], address=None)
"""


class TestSnapshot:
    def test_a_run_goes_on_from_what_travelled(self, tmp_path: Path) -> None:
        here, there = tmp_path / "here" / "r.jsonl", tmp_path / "there" / "r.jsonl"
        known: frozenset[str] = frozenset()
        for until in (1, 2, None):
            digest = simulate(config(), source=None, out=here, until=until, say=quiet)
            snapshot = Snapshot.of(here, known)
            known = snapshot.names
            snapshot.store(there)
            assert {path.name for path in checkpoint_of(there).glob("*")} == known
        assert timeless(there) == timeless(here)
        assert not checkpoint_of(there).exists()
        assert Results(there).lines()[-1] == {"kind": "end", "model": digest}

    def test_it_is_not_stored_over_a_run_that_is_being_simulated(self, tmp_path: Path) -> None:
        out = tmp_path / "r.jsonl"
        folder = checkpoint_of(out)
        with claim_checkpoint(folder, out), ExitStack() as sweep:
            assert not claim_run(sweep, out)
        with ExitStack() as sweep:
            assert claim_run(sweep, out)
            for snapshot in (Snapshot(b"a", frozenset({"old"}), {"old": b"1"}), Snapshot(b"ab")):
                snapshot.store(out)
                with (
                    pytest.raises(InvalidConfiguration, match="is simulating"),
                    claim_checkpoint(folder, out),
                ):
                    pass
            assert out.read_bytes() == b"ab"
        assert not folder.exists()

    @pytest.mark.parametrize("writes", range(8))
    def test_a_driver_killed_while_it_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
    ) -> None:
        """Before the write of that number; the node was a round further."""
        here, there = tmp_path / "here" / "r.jsonl", tmp_path / "there" / "r.jsonl"
        simulate(config(), source=None, out=here, until=1, say=quiet)
        first = Snapshot.of(here)
        first.store(there)
        simulate(config(), source=None, out=here, until=2, say=quiet)
        news = Snapshot.of(here, first.names)
        with monkeypatch.context() as disk, suppress(KeyboardInterrupt):
            disk.setattr(os, "replace", dying_after(writes))
            news.store(there)
        assert (Snapshot.of(there) == Snapshot.of(here)) is (writes > len(news.files))
        digest = simulate(config(), source=None, out=there, say=quiet)
        assert digest == simulate(config(), source=None, out=here, say=quiet)
        assert timeless(there) == timeless(here)


def dying_after(writes: int) -> Callable[[str, Path], None]:
    done: list[Path] = []
    before = os.replace

    def replace(path: str, target: Path) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(target)
        before(path, target)

    return replace


class TestRefusals:
    def test_without_ray(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(
            InvalidConfiguration, match=r"Ray is not installed. .*pip install 'feddisco\[sim\]'"
        ):
            simulate(config(), source=None, out=tmp_path / "r.jsonl", engine="ray", say=quiet)
        assert not (tmp_path / "r.jsonl").exists()

    def test_an_address_without_a_cluster(self, tmp_path: Path) -> None:
        if find_spec("ray") is None:
            pytest.skip("Ray is not installed: pip install 'feddisco[sim]'")
        (tmp_path / "config.json").write_text(config().model_dump_json())
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        command = ["simulate", str(tmp_path / "config.json"), "--out", str(tmp_path / "r.jsonl")]
        ended = subprocess.run(
            [sys.executable, "-m", "feddisco", *command, "--engine", "ray", "--address", address],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"feddisco: address: no Ray cluster can be reached at {address}: ")
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]  # nothing is left behind
        assert not (tmp_path / "r.jsonl").exists()

    def test_an_address_for_another_engine(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfiguration, match="address: processes trains on this machine"):
            simulate(
                config(), source=None, out=tmp_path / "r.jsonl", engine="processes", address="auto", say=quiet
            )

    def test_another_version_names_the_node(self) -> None:
        check_node(versions())
        with pytest.raises(InvalidConfiguration, match=r"the node .* has torch .*, this machine 1\.0"):
            check_node(versions() | {"torch": "1.0"})

    def test_data_lie_elsewhere_on_a_node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "set.zip").touch()
        monkeypatch.setenv("FEDDISCO_DATA", str(tmp_path))
        assert locate_data(None) is None
        assert locate_data(Path("/on/the/driver/set.zip")) == tmp_path / "set.zip"
        assert locate_data(tmp_path / "set.zip") == tmp_path / "set.zip"
        with pytest.raises(InvalidConfiguration, match=r"neither /on/other\.zip nor other\.zip in FEDDISCO"):
            locate_data(Path("/on/other.zip"))

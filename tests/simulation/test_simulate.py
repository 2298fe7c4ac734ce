"""A run without HTTP: resumable after kill -9, the same models from one process or several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from feddisco.result_tables import read_results
from shared.config import RunConfig, StopWhen
from shared.problems import InvalidConfiguration
from simulation.engines import EngineName
from simulation.kernels import KernelsName
from simulation.run import Results, Setup, Simulation, simulate
from tests.helpers.first_time import GENTLE_START


def config(**changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "small",
        "task": "digits",
        "rounds": 3,
        "algorithm": "scaffold",  # state at both ends
        "weighting": {"kind": "disco"},
        "partition": "niid1:4:0.3",
        "clients_per_round": 3,
        "local": {"steps": 5, "batch_size": 16, "learning_rate": 0.05},
    }
    return RunConfig.model_validate(given | changes)


def quiet(line: str) -> None:
    pass


def run(given: RunConfig, out: Path, processes: int = 1) -> str:
    return simulate(given, source=None, out=out, processes=processes, say=quiet)


def timeless(out: Path) -> list[dict[str, Any]]:
    """The lines, without what may differ: how long a round took, and on what it ran."""
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "machine")}
        for line in Results(out).lines()
    ]


def test_a_file_is_gone_on_with_on_its_own_kind_of_device(tmp_path: Path) -> None:
    given = config()
    out = tmp_path / "run.jsonl"
    simulate(given, source=None, out=out, until=1, say=quiet)
    assert Results(out).lines()[0]["machine"]["device"].startswith("cpu (")
    setup = Setup(device=torch.device("cuda", 1))  # nobody asks the card: the file is refused before
    with pytest.raises(InvalidConfiguration, match="was begun on cpu, whose results differ from cuda's"):
        Simulation(given, setup, out, quiet)


@pytest.mark.parametrize(("engine", "kernels"), [("in-process", "native"), ("processes", "torch")])
def test_only_in_process_and_torch_train_on_a_gpu(
    engine: EngineName, kernels: KernelsName, tmp_path: Path
) -> None:
    setup = Setup(engine=engine, kernels=kernels, device=torch.device("cuda"))
    message = f"the engine {engine} with {kernels} kernels trains on the CPU, received cuda"
    with pytest.raises(InvalidConfiguration, match=message):
        Simulation(config(), setup, tmp_path / "run.jsonl", quiet)


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    with pytest.raises(InvalidConfiguration, match=r"--device cuda:99: this machine has .*cpu"):
        simulate(config(), source=None, out=out, device="cuda:99", say=quiet)
    assert not out.exists()


def test_a_result_file_says_what_ran_and_how_it_went(tmp_path: Path) -> None:
    said: list[str] = []
    digest = simulate(config(), source=None, out=tmp_path / "r.jsonl", say=said.append)
    head, *rounds, end = Results(tmp_path / "r.jsonl").lines()
    assert RunConfig.model_validate(head["config"]) == config()
    assert set(head["versions"]) >= {"feddisco", "torch", "python"}
    assert [line["round"] for line in rounds] == [1, 2, 3]
    for line in rounds:
        assert len(line["participants"]) == len(line["weights"]) == len(line["steps"]) == 3
        assert sum(line["weights"]) == pytest.approx(1.0)
        assert line["steps"] == [5, 5, 5]
        assert 0 <= line["accuracy"] <= 1
    assert end == {"kind": "end", "model": digest}
    assert rounds[-1]["model"] == digest
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"], "the checkpoint is gone"
    assert len(said) == 3


def test_a_finished_one_is_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    digest = run(config(rounds=1), out)
    before = out.read_bytes()
    assert run(config(rounds=1), out) == digest
    assert out.read_bytes() == before


@pytest.mark.parametrize("keep", [True, False], ids=["ended", "interrupted"])
def test_more_rounds_than_first_asked_are_those_of_a_longer_run(tmp_path: Path, keep: bool) -> None:
    out, at_once = tmp_path / "r.jsonl", tmp_path / "once.jsonl"
    until = None if keep else 1
    simulate(config(rounds=2), source=None, out=out, until=until, keep_checkpoint=keep, say=lambda line: None)
    assert run(config(rounds=3), out) == run(config(rounds=3), at_once)
    shown = [[line["model"] for line in Results(path).lines()[1:]] for path in (out, at_once)]
    assert shown[0] == shown[1]
    assert Results(out).lines()[0]["config"]["rounds"] == 3


def test_a_run_interrupted_before_its_calibration_ends_as_one_that_was_not(tmp_path: Path) -> None:
    given, out = config(rounds=2, calibration={"epochs": 1}), tmp_path / "r.jsonl"
    simulate(given, source=None, out=out, until=1, say=lambda line: None)
    assert run(given, out) == run(given, tmp_path / "once.jsonl")


def test_rounds_that_cannot_be_added_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run(config(rounds=1), out)
    before = out.read_bytes()
    with pytest.raises(InvalidConfiguration, match="what a further one would start from was not kept"):
        run(config(rounds=2), out)
    cosine = {"local": config().local.model_dump(mode="json") | {"schedule": "cosine"}}
    for name, changes in {"c": cosine, "d": {"calibration": {"epochs": 1}}}.items():
        run(config(rounds=2, **changes), tmp_path / f"{name}.jsonl")
        with pytest.raises(InvalidConfiguration, match="another configuration"):
            run(config(rounds=3, **changes), tmp_path / f"{name}.jsonl")
    assert out.read_bytes() == before


@pytest.mark.long
def test_several_processes_give_the_same_models(tmp_path: Path) -> None:
    one = run(config(rounds=2), tmp_path / "one.jsonl")
    assert run(config(rounds=2), tmp_path / "two.jsonl", processes=2) == one
    assert timeless(tmp_path / "one.jsonl") == timeless(tmp_path / "two.jsonl")


def test_who_takes_part_for_the_first_time_is_known_though_nothing_is_kept(tmp_path: Path) -> None:
    given = config(algorithm=GENTLE_START, clients_per_round=2, rounds=4)
    whole = run(given, tmp_path / "whole.jsonl")
    assert whole != run(config(algorithm="fedavg", clients_per_round=2, rounds=4), tmp_path / "plain.jsonl")
    out = tmp_path / "resumed.jsonl"
    for until in (1, 3):
        simulate(given, source=None, out=out, until=until, say=quiet)
    assert run(given, out) == whole
    rounds = [line for line in Results(out).lines() if line["kind"] == "round"]
    assert {*rounds[0]["participants"]} != {*rounds[1]["participants"]}, "somebody is new in the second round"


@pytest.mark.parametrize(
    "admission",
    [{"participants": ["north", "south", "east", "west"]}, {"approve": "sizes"}, {"max_examples": 1}],
)
def test_who_is_admitted_is_no_matter_of_a_simulation(tmp_path: Path, admission: dict[str, Any]) -> None:
    """Of a file that the service takes, too."""
    plain = run(config(rounds=1), tmp_path / "plain.jsonl")
    assert run(config(rounds=1, **admission), tmp_path / "admitted.jsonl") == plain


def test_a_learning_rate_that_fades_to_nothing_says_where(tmp_path: Path) -> None:
    local = {"steps": 1, "schedule": {"kind": "step", "every": 1, "factor": 1e-20}}
    for algorithm in ("scaffold", "feddc"):
        with pytest.raises(InvalidConfiguration, match=r"local.learning_rate is 1e-42 in round 3") as refused:
            run(config(rounds=4, algorithm=algorithm, local=local), tmp_path / f"{algorithm}.jsonl")
        assert "schedule" in refused.value.hint


def test_the_seed_decides(tmp_path: Path) -> None:
    digests = {run(config(rounds=1, seed=seed), tmp_path / f"{seed}.jsonl") for seed in (0, 1)}
    assert len(digests) == 2


def test_scored_when_due_and_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run(config(evaluate_every=2), out)
    assert [line["accuracy"] is not None for line in Results(out).lines()[1:-1]] == [False, True, True]


def test_another_configuration_in_the_same_file_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run(config(rounds=1), out)
    before = out.read_bytes()
    with pytest.raises(InvalidConfiguration, match=r"r\.jsonl holds the results of another configuration"):
        run(config(rounds=1, seed=1), out)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"# notes of mine\n",
        b"without a line's end",
        b"\n",
        b"\x80\xff\x00",
        b"{}\n",
        b"5\n",
        b"null\n",
        b'["kind"]\n',
        b'{"kind": "round"}\n',
        b'{"kind": "run", "config": 5}\n',
        b'{"kind": "run", "config": {}}\n{}\n',
    ],
)
def test_another_kind_of_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "mine"
    out.write_bytes(content)
    for reader in (lambda: run(config(rounds=1), out), lambda: read_results(out)):
        with pytest.raises(InvalidConfiguration, match="mine is no result file of a simulation"):
            reader()
    assert out.read_bytes() == content
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_and_a_configuration_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="is no result file"):
        run(config(rounds=1), tmp_path)
    out = tmp_path / "r.jsonl"
    run(config(rounds=1), out)
    out.write_bytes(out.read_bytes().replace(b'"rounds": 1', b'"rounds": 1, "from_the_future": 1', 1))
    before = out.read_bytes()
    for reader in (lambda: run(config(rounds=1), out), lambda: read_results(out)):
        with pytest.raises(InvalidConfiguration, match="this version cannot read: from_the_future"):
            reader()
    assert out.read_bytes() == before


def test_a_damaged_line_is_named_and_no_later_one_forgotten(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run(config(), out)
    first, second, *others = out.read_bytes().splitlines(keepends=True)
    damaged = b"".join((first, second[: len(second) // 2], b"\n", *others))
    out.write_bytes(damaged)
    with pytest.raises(InvalidConfiguration, match=r"r\.jsonl is damaged: line 2 is no JSON"):
        run(config(), out)
    assert out.read_bytes() == damaged


@pytest.mark.parametrize("length", [0, 1, 15, 300])
def test_a_first_line_that_a_crash_cut_short_is_written_anew(tmp_path: Path, length: int) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "r.jsonl"
    digest = run(config(rounds=1), whole)
    out.write_bytes(whole.read_bytes()[:length])
    assert run(config(rounds=1), out) == digest
    assert timeless(out) == timeless(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": None, "min_clients": 4}, "partition: a simulation has to be told"),
        ({"min_clients": 5}, "4 clients, min_clients 5"),
        ({"autostart": False}, "the run does not start"),
    ],
)
def test_a_configuration_that_cannot_be_simulated(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        run(config(**changes), tmp_path / "r.jsonl")


@pytest.mark.long
def test_going_on_after_kill_9(tmp_path: Path) -> None:
    """Killed between two rounds or within one, wherever it happens to be after the second."""
    given = config(rounds=8, local={"steps": 40, "batch_size": 16, "learning_rate": 0.05})
    (tmp_path / "config.json").write_text(given.model_dump_json())
    out = tmp_path / "killed.jsonl"
    killed_after_a_round(tmp_path / "config.json", out, 2)
    assert 2 <= sum(line["kind"] == "round" for line in Results(out).lines()) < 8
    assert Results(out).lines()[-1]["kind"] == "round"
    with out.open("a") as file:
        file.write('{"kind": "round", "rou')  # a line that the crash cut short
    digest = run(given, out)
    assert digest == run(given, tmp_path / "whole.jsonl")
    assert timeless(out) == timeless(tmp_path / "whole.jsonl")
    assert json.loads(out.read_text().splitlines()[-1])["model"] == digest


def killed_after_a_round(config: Path, out: Path, round: int) -> None:
    """``feddisco simulate`` as a process, killed as soon as the file has that round."""
    process = subprocess.Popen(
        [sys.executable, "-m", "feddisco", "simulate", str(config), "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        end = time.monotonic() + 120
        while not (out.exists() and f'"round": {round},' in out.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)


FAST = {"steps": 20, "batch_size": 16, "learning_rate": 0.3}


def test_it_stops_when_nothing_becomes_better_and_keeps_the_best(tmp_path: Path) -> None:
    whole = config(rounds=12, algorithm="fedavg", local=FAST)
    run(whole, tmp_path / "whole.jsonl")
    curve = [line["accuracy"] for line in Results(tmp_path / "whole.jsonl").lines()[1:-1]]
    best, last = 0, 0
    for place, accuracy in enumerate(curve):
        best = place if accuracy > curve[best] else best
        last = place
        if last - best == 2:
            break
    assert last < 11, "the curve has to fall for this test"
    given = whole.model_copy(update={"stop_when": StopWhen(patience=2), "keep": "best"})
    out = tmp_path / "stopped.jsonl"
    simulate(given, source=None, out=out, until=2, say=quiet)  # goes on with the scores in the file
    digest = run(given, out)
    *rounds, end = Results(out).lines()[1:]
    assert [line["accuracy"] for line in rounds] == curve[: last + 1]
    assert end == {"kind": "end", "model": rounds[best]["model"], "round": best + 1}
    assert digest == rounds[best]["model"]
    assert run(given, out) == digest


@pytest.mark.long
def test_secure_sums_give_the_same_bits_in_every_process_and_nearly_the_clear_model(tmp_path: Path) -> None:
    """Fixed point of 64 bits and what the service will unmask; clients that drop in and out are drawn."""
    disco = {"kind": "disco", "normalise": "all_clients", "on_all_zero": "raise"}
    secure = config(secure={"clip": 4}, weighting=disco)
    digest = run(secure, tmp_path / "one.jsonl")
    simulate(secure, source=None, out=tmp_path / "two.jsonl", until=1, say=quiet)
    assert run(secure, tmp_path / "two.jsonl", processes=2) == digest
    clear = config(weighting=disco)
    assert run(clear, tmp_path / "clear.jsonl") != digest
    losses = [
        [line["loss"] for line in timeless(tmp_path / name) if line["kind"] == "round"]
        for name in ("one.jsonl", "clear.jsonl")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)

"""Every benchmark in its short form, and how it ends when a process declines, dies or gets a signal."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.helpers.marked_process import MarkedProcess, running_module

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SHORT = {
    "aggregation": ("aggregation", {"seconds", "reference_seconds", "peak_models"}),
    "coordinator": ("coordinator", {"cpu_seconds_a_round", "seconds_a_round", "end_seconds"}),
    "coordinator --large": ("coordinator, large", {"cpu_seconds_a_round", "end_seconds"}),
    "overhead": ("overhead", {"seconds_a_round", "bytes_a_round", "coordinator_cpu_seconds_a_round"}),
    "overhead --large": ("overhead, large", {"seconds_a_round", "bytes_a_round"}),
    "secure": (
        "secure sums",
        {"coordinator_cpu_to_plain", "bytes_to_float16", "masks_gb_per_core_second", "plain_seconds_a_round"},
    ),
    "polling": ("polling", {"share_of_a_core", "last_seconds_to_assignment"}),
    "viewers": ("viewers", {"added_share", "alone", "watched", "bytes_a_viewer"}),
    "load": ("load", {"loads", "many"}),
    "transfer": ("transfer", {"growth_bytes", "update_mb_per_second"}),
    "simulation": ("simulation", {"speed", "difference"}),
    "simulation --task texts": ("simulation", {"speed", "difference"}),
}
LONG = {  # without an end of its own, short to start
    "aggregation": ("--repeats", "1000000"),
    "coordinator": ("--rounds", "1000000"),
    "overhead": ("--rounds", "1000000"),
    "secure": ("--rounds", "1000000"),
    "polling": ("--seconds", "100000"),
    "viewers": ("--rounds", "100000"),
    "load": ("--rounds", "100000"),
    "transfer": ("--mib", "2048"),
    "simulation": ("--rounds", "100000", "--processes", "2"),
}


def benchmark(folder: Path, name: str, *flags: str) -> AbstractContextManager[MarkedProcess]:
    module, *own = name.split()
    environment = {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return running_module(f"benchmarks.{module}", *own, "--short", *flags, environment=environment)


def roles(command_lines: Iterable[list[str]]) -> list[str]:
    """What each process is: the subcommand of feddisco, ``pool`` for a simulation's."""
    found = []
    for line in command_lines:
        if "feddisco" in line:
            found.append(line[line.index("feddisco") + 1])
        elif any("spawn_main" in word for word in line):
            found.append("pool")
    return found


def has_started(name: str, command_lines: list[list[str]]) -> bool:
    expected = {
        "overhead": ["server", "worker", "worker"],
        "secure": ["server", *3 * ["worker"]],
        "simulation": ["pool"] * 6,
        "aggregation": [],
    }
    return sorted(roles(command_lines)) == expected.get(name, ["server"])


def assert_nothing_is_left(ended: MarkedProcess, folder: Path) -> None:
    psutil.wait_procs(ended.alive(), timeout=10)  # multiprocessing's tracker ends by itself, a moment later
    assert ended.alive() == []
    # PyTorch's cache, which all its programs share
    assert [path for path in folder.iterdir() if not path.name.startswith("torchinductor_")] == []


def test_make_bench_runs_all_of_them_and_so_does_this_file() -> None:
    recipe = re.search(r"^bench:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert recipe is not None
    parts = re.search(r"for part in ([a-z ]+);", recipe[1])
    assert parts is not None
    rest = re.findall(r"-m benchmarks\.(\w+ --.+)", recipe[1])
    assert {*parts[1].split(), *rest} == set(SHORT)
    modules = {p.stem for p in (ROOT / "benchmarks").glob("*.py") if "__main__" in p.read_text("utf-8")}
    counting = {"candidates"}  # the table of docs/privacy.md: counts, not seconds (test_candidates)
    counting |= {"load_generators", "crew"}  # the processes of load and secure
    assert modules - counting == {name.split()[0] for name in SHORT} == set(LONG)


def mostly_slow(cases: Iterable[tuple[str, ...]]) -> list[object]:
    """Every run of CI has the benchmark with the most kinds of processes, and the shortest."""
    quick = ("overhead", "aggregation")
    return [
        pytest.param(*case, marks=() if case[0] in quick else pytest.mark.slow, id=case[0]) for case in cases
    ]


@pytest.mark.parametrize("name", mostly_slow((name,) for name in SHORT))
def test_the_short_form_gives_the_numbers(tmp_path: Path, name: str) -> None:
    with benchmark(tmp_path, name) as started:
        assert started.wait() == 0, started.output
        assert_nothing_is_left(started, tmp_path)
    numbers = json.loads(started.output.splitlines()[-1])
    title, expected = SHORT[name]
    assert numbers["benchmark"].endswith(title)
    assert expected | {"cores", "load", "python"} <= set(numbers)


INTERRUPTED = (130, -signal.SIGINT)
"""Both are 130 to a shell: Python ends by SIGINT where the signal came while it executed a text, as a
dataclass is made of, whatever is done with the exception afterwards."""

CUT_SHORT = re.compile(
    r"Traceback \(most recent call last\):\n  File \"<string>\", line 1, in <module>\n"
    r"(?:  .*\n)+EOFError: Ran out of input\n"
)
"""What Python prints of a pool's process that was still being started when its parent ended."""


@pytest.mark.parametrize("name", mostly_slow((name,) for name in LONG))
def test_a_sigterm_leaves_nothing(tmp_path: Path, name: str) -> None:
    with benchmark(tmp_path, name, *LONG[name]) as started:
        started.wait_for_descendants(lambda lines: has_started(name, lines))
        started.signal(signal.SIGTERM)
        code = started.wait()
        assert_nothing_is_left(started, tmp_path)
    assert code in INTERRUPTED or name == "aggregation", started.output
    assert "Traceback" not in CUT_SHORT.sub("", started.output), started.output


@pytest.mark.slow
def test_a_worker_that_declines_ends_it_with_the_reason(tmp_path: Path) -> None:
    with benchmark(tmp_path, "overhead", "--", "--algorithms", "somebody.elses:*") as started:
        assert started.wait() == 1
        assert_nothing_is_left(started, tmp_path)
    assert re.search(
        r"The client worker-0\d has declined the run overhead: .* does not allow the run's algorithm",
        started.output,
    )
    assert "Traceback" not in started.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "role", "sentence"),
    mostly_slow(
        [
            ("overhead", "worker", r"worker-0\d ended early \(exit code -9\)"),
            ("polling", "server", r"A client has lost the coordinator: \w+|coordinator ended early"),
            ("simulation", "pool", r"A process of a pool ended early"),
        ]
    ),
)
def test_a_killed_process_ends_it_with_a_message(tmp_path: Path, name: str, role: str, sentence: str) -> None:
    with benchmark(tmp_path, name, *LONG[name]) as started:
        found = started.wait_for_descendants(lambda lines: has_started(name, lines))
        next(process for process in found if roles([process.cmdline()]) == [role]).kill()
        assert started.wait() == 1, started.output
        assert_nothing_is_left(started, tmp_path)
    assert re.search(sentence, started.output)

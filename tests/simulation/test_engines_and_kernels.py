"""Engines and kernels are two choices: every pair works, and only the kernels change a bit."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from simulation.engines import EngineName, choose_engine
from simulation.kernels import KernelsName
from simulation.results import MadeWith, made_with
from simulation.run import Results, simulate
from tests.helpers.pictures import Pictures

SLOW = [("ray", "native"), ("ray", "torch"), ("processes", "torch")]
"""Pairs whose halves are in every run of the suite: a cluster with torch in `test_ray`."""
PAIRS = [
    pytest.param(engine, kernels, marks=pytest.mark.slow if (engine, kernels) in SLOW else ())
    for kernels in get_args(KernelsName)
    for engine in get_args(EngineName)
]


def config(algorithm: str = "scaffold") -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "pair",
            "task": "tests.helpers.pictures:Pictures",
            "classes": Pictures.classes,
            "rounds": 2,
            "algorithm": algorithm,
            "partition": "niid1:4:0.5",
            "local": {"steps": 3, "batch_size": 8, "learning_rate": 0.05},
        }
    )


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def digests() -> dict[KernelsName, str]:
    """The final model of each kernels, by whichever engine came first."""
    return {}


@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(("engine", "kernels"), PAIRS)
def test_every_pair(
    engine: EngineName, kernels: KernelsName, tmp_path: Path, digests: dict[KernelsName, str]
) -> None:
    if engine == "ray" and find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'feddisco[sim]'")
    out = tmp_path / "r.jsonl"
    processes = 2 if engine == "processes" else 1
    digest = simulate(
        config(), source=None, out=out, engine=engine, kernels=kernels, processes=processes, say=quiet
    )
    machine = Results(out).lines()[0]["machine"]
    assert (machine["engine"], machine["kernels"]) == (engine, kernels)
    assert digests.setdefault(kernels, digest) == digest
    assert len(set(digests.values())) == len(digests)


def test_an_engine_is_chosen_by_what_it_needs() -> None:
    assert choose_engine(None, 1, None) == "in-process"
    assert choose_engine(None, 2, None) == "processes"
    assert choose_engine(None, 1, "auto") == "ray"
    assert choose_engine("processes", 1, None) == "processes"
    with pytest.raises(
        InvalidConfiguration, match="in-process does not take a number of processes, received 2"
    ):
        choose_engine("in-process", 2, None)
    with pytest.raises(InvalidConfiguration, match="ray does not take a number of processes, received 2"):
        choose_engine(None, 2, "auto")
    with pytest.raises(InvalidConfiguration, match="address: processes trains on this machine"):
        choose_engine("processes", 1, "auto")


# ---------------------------------------------------------------- files from before there were two choices


def written_by_an_old_version(out: Path, engine: str, kernels: KernelsName) -> None:
    """A file after its first round, whose header is that of the time when ``native`` was an engine."""
    simulate(config(), source=None, out=out, kernels=kernels, until=1, say=quiet)
    first, *others = Results(out).lines()
    del first["machine"]["kernels"]
    first["machine"]["engine"] = engine
    Results(out).rewrite([first, *others])


def test_a_file_of_the_engine_native_is_one_of_native_kernels(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    written_by_an_old_version(out, "native", "native")
    assert made_with(Results(out).lines()[0]) == MadeWith("in-process", "native")
    with pytest.raises(
        InvalidConfiguration, match="begun with native kernels, torch ones differ by rounding"
    ):
        simulate(config(), source=None, out=out, say=quiet)
    digest = simulate(config(), source=None, out=out, kernels="native", processes=2, say=quiet)
    assert digest == simulate(config(), source=None, out=tmp_path / "new.jsonl", kernels="native", say=quiet)


def test_a_file_of_the_engine_processes_is_one_of_torch_kernels(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    written_by_an_old_version(out, "processes", "torch")
    with pytest.raises(InvalidConfiguration, match="begun with torch kernels"):
        simulate(config(), source=None, out=out, kernels="native", say=quiet)
    assert simulate(config(), source=None, out=out, say=quiet)


@pytest.mark.parametrize("kernels", get_args(KernelsName))
def test_a_file_of_the_engine_grouped_is_refused(kernels: KernelsName, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    written_by_an_old_version(out, "grouped", "torch")
    before = out.read_bytes()
    with pytest.raises(
        InvalidConfiguration, match=r"r\.jsonl was begun with the engine grouped, which is no more"
    ):
        simulate(config(), source=None, out=out, kernels=kernels, say=quiet)
    assert out.read_bytes() == before
    assert json.loads(before.splitlines()[0])["machine"]["engine"] == "grouped"

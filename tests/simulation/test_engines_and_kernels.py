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
from simulation.kernels.native import library
from simulation.results import MadeWith, commit, made_with
from simulation.run import Results, simulate
from tests.helpers.pictures import Pictures

LATER = {
    ("ray", "native"): pytest.mark.slow,
    ("ray", "torch"): pytest.mark.slow,
    ("processes", "torch"): pytest.mark.slow,
    ("processes", "native"): pytest.mark.long,
}
"""Pairs with a cluster, which takes half a minute to start; those of processes, one of which is enough."""
PAIRS = [
    pytest.param(engine, kernels, marks=LATER.get((engine, kernels), ()))
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


@pytest.mark.long
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


# ---------------------------------------------------------------- native kernels of another version


def begun_with_native_kernels(out: Path, **changes: object) -> None:
    """A file after its first round, its header's ``machine`` and ``commit`` changed; None: left out."""
    simulate(config(), source=None, out=out, kernels="native", until=1, say=quiet)
    first, *others = Results(out).lines()
    assert first["machine"]["kernels_digest"] == library.digest_kernels()
    for name, value in changes.items():
        place = first if name == "commit" else first["machine"]
        place[name] = value
        if value is None:
            del place[name]
    Results(out).rewrite([first, *others])


@pytest.fixture(scope="module")
def newest() -> str:
    """The commit of this checkout."""
    found = str(commit()).rstrip("+")
    if len(found) != 40:
        pytest.skip("not in a checkout")
    return found


def test_a_file_of_other_native_kernels_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    begun_with_native_kernels(out, kernels_digest="0" * 16, commit="f" * 40)
    before = out.read_bytes(), sorted((tmp_path / "r.jsonl.checkpoint").iterdir())
    with pytest.raises(InvalidConfiguration, match=r"begun with other native kernels \(commit f{40}\)"):
        simulate(config(), source=None, out=out, kernels="native", say=quiet)
    assert before == (out.read_bytes(), sorted((tmp_path / "r.jsonl.checkpoint").iterdir()))


def test_what_the_kernels_are_made_of_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r.jsonl"
    begun_with_native_kernels(out, commit="f" * 40)
    (tmp_path / "other.hpp").write_text("// another")
    with monkeypatch.context() as patched:
        patched.setattr(library, "HEADERS", (tmp_path / "other.hpp",))
        with pytest.raises(InvalidConfiguration, match="other native kernels"):
            simulate(config(), source=None, out=out, kernels="native", say=quiet)
    with monkeypatch.context() as patched:
        patched.setattr(library, "vector_flags", lambda: "avx sse2")
        with pytest.raises(InvalidConfiguration, match="other native kernels"):
            simulate(config(), source=None, out=out, kernels="native", say=quiet)
    digest = simulate(config(), source=None, out=out, kernels="native", say=quiet)
    assert digest == simulate(config(), source=None, out=tmp_path / "new.jsonl", kernels="native", say=quiet)
    with monkeypatch.context() as patched:
        patched.setattr(library, "vector_flags", lambda: "avx sse2")
        assert simulate(config(), source=None, out=out, kernels="native", say=quiet) == digest, "it is done"


def test_a_file_without_a_digest_goes_on_if_its_commit_had_the_same_sources(
    tmp_path: Path, newest: str
) -> None:
    begun_with_native_kernels(tmp_path / "r.jsonl", kernels_digest=None, commit=newest)
    assert simulate(config(), source=None, out=tmp_path / "r.jsonl", kernels="native", say=quiet)


@pytest.mark.parametrize(
    "changes", [{"commit": "f" * 40}, {"commit": None}, {"commit": "--output=x"}, {"vectors": "sse2"}]
)
def test_a_file_without_a_digest_is_refused_otherwise(
    tmp_path: Path, newest: str, changes: dict[str, object]
) -> None:
    out = tmp_path / "r.jsonl"
    begun_with_native_kernels(out, **({"kernels_digest": None, "commit": newest} | changes))
    with pytest.raises(InvalidConfiguration, match="begun with other native kernels"):
        simulate(config(), source=None, out=out, kernels="native", say=quiet)


def test_a_checkpoint_whose_results_were_removed_is_begun_anew(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    begun_with_native_kernels(out)
    out.unlink()
    simulate(config(), source=None, out=out, say=quiet)
    assert [line.get("round") for line in Results(out).lines()] == [None, 1, 2, None]
    alone = simulate(config(), source=None, out=tmp_path / "new.jsonl", say=quiet)
    assert Results(out).lines()[-1]["model"] == alone

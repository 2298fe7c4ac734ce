"""A simulation goes on from what it wrote, or says what is damaged: never from something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from simulation.checkpoints import claim_checkpoint
from simulation.run import Results, simulate

CONFIG = RunConfig.model_validate(
    {
        "name": "probe",
        "task": "digits",
        "rounds": 3,
        "algorithm": "scaffold",
        "partition": "iid:2",
        "local": {"steps": 2, "batch_size": 8, "learning_rate": 0.05},
    }
)
NAMED = ("checkpoint.json", "model-2", "broadcast-2", "kept-0-2", "kept-1-2")

Damage = Callable[[Path], object]


def run(out: Path, until: int | None = None) -> str:
    return simulate(CONFIG, source=None, out=out, until=until, say=lambda line: None)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the final model, undisturbed."""
    return run(tmp_path_factory.mktemp("whole") / "r.jsonl")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of which two rounds are completed."""
    folder = tmp_path_factory.mktemp("stopped")
    run(folder / "r.jsonl", until=2)
    return folder


@pytest.fixture
def out(stopped: Path, tmp_path: Path) -> Path:
    """The same run's result file, whose checkpoint may be damaged."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    return tmp_path / "r.jsonl"


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (Path.unlink, flip_a_bit, cut, make_folder, lambda path: path.write_bytes(b""))


def test_these_are_the_files(out: Path) -> None:
    checkpoint = json.loads((out.parent / "r.jsonl.checkpoint/checkpoint.json").read_text())
    assert {*checkpoint["digests"], "checkpoint.json"} == set(NAMED)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMED)
def test_a_damaged_file_is_named_and_nothing_changed(
    out: Path, digest: str, name: str, damage: Damage
) -> None:
    if (name, damage) == ("checkpoint.json", Path.unlink):  # without the list of files no round is completed
        assert run(out) == digest
        return
    damage(out.parent / "r.jsonl.checkpoint" / name)
    before = out.read_bytes()
    with pytest.raises(InvalidConfiguration, match=f"{name} is missing or damaged") as refused:
        run(out)
    assert out.read_bytes() == before
    assert "Remove" in str(refused.value.hint)
    shutil.rmtree(out.parent / "r.jsonl.checkpoint")
    assert run(out) == digest


@pytest.mark.parametrize("name", ["update-0", "made/model.safetensors"])
@pytest.mark.parametrize("damage", [Path.unlink, flip_a_bit, cut])
def test_what_no_round_starts_from_is_not_missed(out: Path, digest: str, name: str, damage: Damage) -> None:
    damage(out.parent / "r.jsonl.checkpoint" / name)
    assert run(out) == digest


def test_a_checkpoint_of_an_older_version_has_no_digests(out: Path, digest: str) -> None:
    path = out.parent / "r.jsonl.checkpoint/checkpoint.json"
    known = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: known[name] for name in known if not name.startswith(("digests", "own"))})
    )
    assert run(out) == digest


def test_results_of_completed_rounds_are_not_left_out(out: Path) -> None:
    first, _, *others = out.read_bytes().splitlines(keepends=True)
    lacking = first + b"".join(others)
    for content, said in ((lacking, "r.jsonl lacks round 1"), (b"", "r.jsonl has lost its lines")):
        out.write_bytes(content)
        with pytest.raises(InvalidConfiguration, match=said):
            run(out)
        assert out.read_bytes() == content


def test_without_its_results_a_run_begins_anew(out: Path, digest: str) -> None:
    out.unlink()
    assert run(out) == digest
    assert [line["kind"] for line in Results(out).lines()] == ["run", *["round"] * 3, "end"]


def test_two_processes_do_not_write_one_file(out: Path, digest: str) -> None:
    """A lock belongs to an open file: of another process, or like here of this one."""
    folder = out.parent / "r.jsonl.checkpoint"
    before = out.read_bytes(), sorted(path.name for path in folder.iterdir())
    with (
        claim_checkpoint(folder, out),
        pytest.raises(InvalidConfiguration, match=r"is simulating .*r\.jsonl"),
    ):
        run(out)
    assert before == (out.read_bytes(), sorted(path.name for path in folder.iterdir()))
    assert run(out) == digest
    assert not folder.exists()


def test_a_claim_leaves_no_empty_folder_and_hides_no_fault(tmp_path: Path) -> None:
    folder = tmp_path / "r.jsonl.checkpoint"
    with pytest.raises(FileNotFoundError), claim_checkpoint(folder, tmp_path / "r.jsonl"):
        (tmp_path / "nothing").read_bytes()
    assert not folder.exists()

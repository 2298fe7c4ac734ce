"""The journal's promises: nothing finished is trained twice, nothing that was not taken is believed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from shared import wire
from shared.schemas import Train, UpdateReport
from tests.helpers.journal_child import assignment, record
from worker.journal import Journal

ROOT = Path(__file__).resolve().parents[2]


def _fail(text: str) -> None:
    pytest.fail(f"unexpected warning: {text}")


def _journal(folder: Path) -> Journal:
    return Journal(folder, _fail)


def _control(journal: Journal, work: Train) -> float | None:
    """The kept state that a training of ``work`` would start from."""
    run = journal.open_run("demo")
    state = run.find_kept(work)
    path = run.kept_path(state)
    return None if path is None else float(wire.read_group(path, "control", ["w"])["w"][0])


def test_a_new_run_has_nothing(tmp_path: Path) -> None:
    run = _journal(tmp_path).open_run("demo")
    assert run.find_finished(assignment(1, 0)) is None
    assert run.find_kept(assignment(1, 0)) is None
    assert run.kept_path(None) is None


def test_the_same_assignment_finds_its_finished_update_after_a_restart(tmp_path: Path) -> None:
    record(_journal(tmp_path), assignment(1, 0))
    update = _journal(tmp_path).open_run("demo").find_finished(assignment(1, 0))
    assert update is not None
    assert update.report == UpdateReport(attempt=1, steps=1, examples=1, loss=0.1, seconds=0.1)
    values = wire.read_group(tmp_path / "runs" / "demo" / update.file, "model", ["w"])["w"]
    assert torch.equal(values, torch.ones(5))


@pytest.mark.parametrize("work", [assignment(2, 1), assignment(1, 0, attempt=2)])
def test_another_round_or_attempt_is_trained(tmp_path: Path, work: Train) -> None:
    record(_journal(tmp_path), assignment(1, 0))
    assert _journal(tmp_path).open_run("demo").find_finished(work) is None


def test_kept_state_counts_only_when_its_round_took_the_update(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    record(journal, assignment(1, 0))
    assert _control(journal, assignment(2, 1)) == 1.0  # round 1 took it
    assert _control(journal, assignment(1, 0, attempt=2)) is None  # round 1 was abandoned: as at first
    record(journal, assignment(2, 1))
    assert _control(journal, assignment(3, 2)) == 2.0
    assert _control(journal, assignment(3, 1)) == 1.0  # round 2 was done without this client's update


def test_an_abandoned_attempt_does_not_advance_the_state(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    record(journal, assignment(1, 0))
    for attempt in (1, 2, 3):
        record(journal, assignment(2, 1, attempt))
        assert _control(journal, assignment(2, 1, attempt + 1)) == 1.0
    assert _control(journal, assignment(3, 2)) == 2.0


def test_only_the_files_that_count_are_left(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for number in (1, 2, 3):
        record(journal, assignment(number, number - 1))
    names = {path.name for path in (tmp_path / "runs" / "demo").iterdir()}
    kept = {"kept-2-1.safetensors", "kept-3-1.safetensors"}
    assert names == {"blobs", "entry.json", "update-3-1.safetensors", *kept}


def test_an_algorithm_that_keeps_nothing_still_has_taken_part(tmp_path: Path) -> None:
    run = _journal(tmp_path).open_run("demo")
    report = UpdateReport(attempt=1, steps=1, examples=1)
    run.record(assignment(1, 0), None, {"model": {"w": torch.ones(1)}}, {}, report)
    state = run.find_kept(assignment(2, 1))
    assert state is not None
    assert run.kept_path(state) is None


# ---------------------------------------------------------------- damage


def test_an_unreadable_entry_is_set_aside_with_a_warning(tmp_path: Path) -> None:
    record(_journal(tmp_path), assignment(1, 0))
    entry = tmp_path / "runs" / "demo" / "entry.json"
    entry.write_text(entry.read_text()[:50])
    warnings: list[str] = []
    assert Journal(tmp_path, warnings.append).open_run("demo").find_finished(assignment(1, 0)) is None
    assert "entry.json cannot be read" in warnings[0]
    assert entry.with_name("entry.json.unreadable").exists()
    record(_journal(tmp_path), assignment(1, 0))  # and the next start is without a warning


def test_a_damaged_update_is_trained_again(tmp_path: Path) -> None:
    record(_journal(tmp_path), assignment(1, 0))
    path = tmp_path / "runs" / "demo" / "update-1-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    warnings: list[str] = []
    assert Journal(tmp_path, warnings.append).open_run("demo").find_finished(assignment(1, 0)) is None
    assert "the finished update of round 1 is damaged" in warnings[0]


def test_damaged_kept_state_is_told_and_not_used(tmp_path: Path) -> None:
    record(_journal(tmp_path), assignment(1, 0))
    (tmp_path / "runs" / "demo" / "kept-1-1.safetensors").write_bytes(b"")
    warnings: list[str] = []
    assert Journal(tmp_path, warnings.append).open_run("demo").find_kept(assignment(2, 1)) is None
    assert "kept-1-1.safetensors is damaged" in warnings[0]


@pytest.mark.parametrize(
    ("trained", "words"), [(0, "its state folder is new"), (1, "the folder is an old copy")]
)
def test_a_folder_older_than_the_coordinators_memory_is_told(
    tmp_path: Path, trained: int, words: str
) -> None:
    for number in range(1, trained + 1):
        record(_journal(tmp_path), assignment(number, number - 1))
    warnings: list[str] = []
    Journal(tmp_path, warnings.append).open_run("demo").find_kept(assignment(5, 4))
    assert words in warnings[0]


@pytest.mark.parametrize("run", ["../outside", "a/b", "", ".hidden"])
def test_a_run_is_no_path(tmp_path: Path, run: str) -> None:
    with pytest.raises(ValidationError):
        _journal(tmp_path).open_run(run)


# ---------------------------------------------------------------- blobs


def test_a_blob_is_fetched_once_and_checked_after_a_restart(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    fetched: list[str] = []

    def fetch(digest: str, path: Path) -> int:
        fetched.append(digest)
        return path.write_bytes(b"weights")

    run = _journal(tmp_path).open_run("demo")
    path = run.fetch_blob(digest, fetch)
    assert run.fetch_blob(digest, fetch) == path
    assert _journal(tmp_path).open_run("demo").fetch_blob(digest, fetch) == path
    assert fetched == [digest]
    path.write_bytes(b"wei")  # cut by a power loss
    assert _journal(tmp_path).open_run("demo").fetch_blob(digest, fetch).read_bytes() == b"weights"
    assert fetched == [digest, digest]


def test_old_blobs_go_and_a_half_download_stays_for_its_digest(tmp_path: Path) -> None:
    run = _journal(tmp_path).open_run("demo")
    folder = tmp_path / "runs" / "demo" / "blobs"
    for name in ("a" * 64, "b" * 64 + ".part", "c" * 64 + ".part"):
        (folder / name).write_bytes(b"x")
    run.keep_only({"b" * 64})
    assert [path.name for path in folder.iterdir()] == ["b" * 64 + ".part"]


def test_a_folder_of_a_killed_assistant_goes_at_the_next_start_and_with_the_blobs(tmp_path: Path) -> None:
    run = _journal(tmp_path).open_run("demo")
    folder = tmp_path / "runs" / "demo" / "blobs"

    def unpack_and_be_killed() -> None:
        (folder / "tmpabc").mkdir()
        (folder / "tmpabc" / "whole-0").write_bytes(b"x")
        (folder / ("b" * 64)).write_bytes(b"x")

    unpack_and_be_killed()
    _journal(tmp_path).open_run("demo")
    assert [path.name for path in folder.iterdir()] == ["b" * 64]
    unpack_and_be_killed()
    run.keep_only(set())
    assert not list(folder.iterdir())


# ---------------------------------------------------------------- kill -9


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A state folder for each place at which recording round 2 was killed."""
    parent = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.helpers.journal_child", str(parent)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=100, check=True)
    return sorted((path for path in parent.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


@pytest.mark.long
def test_a_kill_between_any_two_steps_leaves_round_2_whole_or_not_begun(killed: list[Path]) -> None:
    whole = []
    for folder in killed:
        journal = _journal(folder)  # no warning: nothing is damaged
        run = journal.open_run("demo")
        update = run.find_finished(assignment(2, 1))
        whole.append(update is not None)
        if update is not None:
            values = wire.read_group(run.folder / update.file, "model", ["w"])["w"]
            assert torch.equal(values, torch.full((5,), 2.0))
            assert _control(journal, assignment(3, 2)) == 2.0
        # whatever happened: round 2 without the update starts from round 1's state, and can be recorded
        assert _control(journal, assignment(2, 1)) == 1.0
        record(journal, assignment(2, 1))
        assert _control(_journal(folder), assignment(3, 2)) == 2.0
    assert len(killed) >= 8  # 3 files, each opened, renamed, synced; and what is swept
    assert whole == sorted(whole)  # never whole and then not again
    assert set(whole) == {False, True}


def test_nothing_of_a_killed_process_stays_for_ever(killed: list[Path]) -> None:
    for folder in killed:
        run = folder / "runs" / "demo"
        record(_journal(folder), assignment(2, 1))
        kept = {"kept-1-1.safetensors", "kept-2-1.safetensors"}
        assert {path.name for path in run.iterdir()} == {
            "blobs",
            "entry.json",
            "update-2-1.safetensors",
            *kept,
        }

"""The state folder: locked by one process, its credential for its owner's eyes only."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.problems import InvalidConfiguration
from worker.state import (
    StoredCredential,
    lock_folder,
    prepare_token,
    read_credential,
    write_credential,
)

CREDENTIAL = StoredCredential(url="https://coordinator", client="north", token="t0ken")
HOLD = """
import sys, time
from pathlib import Path
from worker.state import lock_folder
with lock_folder(Path(sys.argv[1]), slots=len(sys.argv) > 2) as folder:
    print(folder.name, flush=True)
    time.sleep(60)
"""


@contextmanager
def _holder(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_worker_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with _holder(folder) as process:
        with pytest.raises(InvalidConfiguration, match=f"process {process.pid}"), lock_folder(folder):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with lock_folder(folder) as again:  # the lock died with its process
            assert again == folder


def test_the_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "deep" / "state") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        write_credential(folder, CREDENTIAL)
        assert stat.S_IMODE((folder / "credential.json").stat().st_mode) == 0o600


def test_slots_are_taken_in_order_and_free_ones_again(tmp_path: Path) -> None:
    with lock_folder(tmp_path, slots=True) as first, _holder(tmp_path, "slots") as second:
        assert first.name == "slot-1"
        with lock_folder(tmp_path, slots=True) as third:
            assert third.name == "slot-3"
        os.kill(second.pid, signal.SIGKILL)
        second.wait()
        with lock_folder(tmp_path, slots=True) as again:
            assert again.name == "slot-2"


def test_the_credential_survives(tmp_path: Path) -> None:
    assert read_credential(tmp_path, "https://coordinator") is None
    write_credential(tmp_path, CREDENTIAL)
    assert read_credential(tmp_path, "https://coordinator") == CREDENTIAL
    assert "t0ken" not in repr(CREDENTIAL)


def test_the_credential_of_another_coordinator_is_not_sent_anywhere(tmp_path: Path) -> None:
    write_credential(tmp_path, CREDENTIAL)
    with pytest.raises(InvalidConfiguration, match="belongs to the coordinator https://coordinator"):
        read_credential(tmp_path, "https://other")


def test_a_credential_is_found_whatever_letters_its_address_was_typed_in(tmp_path: Path) -> None:
    """Earlier versions kept the address as it was given."""
    (tmp_path / "credential.json").write_text(
        '{"url": "HTTPS://C.example", "client": "north", "token": "t", "fingerprint": null}'
    )
    found = read_credential(tmp_path, "https://c.example")
    assert found is not None
    assert (found.url, found.client) == ("https://c.example", "north")


def test_an_unreadable_credential_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "credential.json").write_text('{"url": "https://coordi')
    assert read_credential(tmp_path, "https://coordinator") is None
    assert (tmp_path / "credential.json.unreadable").exists()


def test_what_a_killed_worker_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".credential.json.k3x0.partial").write_text('{"url": "https://coordi')
    (tmp_path / "credential.json.unreadable").write_text("kept")
    with lock_folder(tmp_path) as folder:
        assert {file.name for file in folder.iterdir()} == {"lock", "credential.json.unreadable"}


def test_until_the_answer_the_same_token_is_asked_for(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "state") as folder:
        first = prepare_token(folder, "https://coordinator", None)
        assert len(first) == 43
        assert stat.S_IMODE((folder / "registration.json").stat().st_mode) == 0o600
        assert prepare_token(folder, "https://coordinator", None) == first
        other = prepare_token(folder, "https://coordinator", "north")
        assert other != first, "another client"
        assert prepare_token(folder, "https://elsewhere", "north") != other, "another coordinator"
        (folder / "registration.json").write_text("{", encoding="utf-8")
        assert len(prepare_token(folder, "https://coordinator", "north")) == 43
        write_credential(folder, CREDENTIAL)
        assert not (folder / "registration.json").exists()

"""Files appear whole or not at all, whoever is killed, late or told to keep what is there."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shared.files import MODE, PRIVATE, remove_partial, replace_file, replacing
from shared.problems import StorageUnavailable


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("mode", [MODE, PRIVATE])
def test_the_new_content_replaces_the_old(tmp_path: Path, durable: bool, mode: int) -> None:
    path = tmp_path / "file"
    replace_file(path, b"a longer first content", durable=durable, mode=mode)
    replace_file(path, b"second", durable=durable, mode=mode)
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert names(tmp_path) == ["file"]


def test_after_an_exception_the_old_content_stands_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.writelines(b"half of the n" * (1 // left) for left in (1, 0))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_of_many_that_keep_what_is_there_one_wins_and_all_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "token"
    contents = [bytes([place]) * 1000 for place in range(20)]
    found: list[bytes] = []
    start = threading.Barrier(len(contents))

    def make(content: bytes) -> None:
        start.wait()
        replace_file(path, content, overwrite=False)
        found.append(path.read_bytes())

    threads = [threading.Thread(target=make, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == 20
    assert len(set(found)) == 1
    assert found[0] in contents
    assert names(tmp_path) == ["token"]


def test_a_kill_leaves_the_old_content_and_a_partial_file_to_remove(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    program = (
        "import os, signal, sys, pathlib\n"
        "from shared.files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(b'new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    remove_partial(tmp_path)
    assert names(tmp_path) == ["file"]


def test_a_refusal_of_the_system_names_the_folder_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="missing") as refused:
        replace_file(tmp_path / "missing" / "file", b"")
    assert "Create the folder" in str(refused.value.hint)
    assert isinstance(refused.value.__cause__, FileNotFoundError)

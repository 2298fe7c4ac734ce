"""A disk that is full, read-only or damaged when the coordinator starts: one sentence, no traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.database.integrity import check_quickly, find_faults
from server.database.session import make_engine
from server.main import serve
from shared.problems import StorageUnavailable
from tests.helpers.live_coordinator import ROOT, settings_for
from tests.helpers.store_play import Story

SERVE = """
import sys
from pathlib import Path
from server.main import serve
from server.settings import Settings
sys.exit(serve(Settings(data_folder=Path(sys.argv[1]), port=0)))
"""


def on_a_small_disk(folder: Path, prepare: str) -> str:
    """What ``serve`` says in a file system of 300 kB; ``prepare``: shell commands on $DISK before that."""
    mount = 'mount -t tmpfs -o size=300k,mode=700 tmpfs "$DISK"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    environment = {"DISK": str(folder), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    tried = subprocess.run([*command, mount], env=environment, capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("this system lets no user mount a file system of his own")
    script = f"{mount}; {prepare}; exec {sys.executable} -c '{SERVE}' \"$DISK/data\""
    done = subprocess.run(
        [*command, script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2, done
    (said,) = [line for line in done.stderr.splitlines() if "feddisco server:" in line]
    assert "Traceback" not in done.stderr
    return said


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs Linux's unshare")
@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        ("head -c 1m /dev/zero > $DISK/fill || true", "The disk is full"),
        ("mkdir $DISK/data; head -c 200k /dev/zero > $DISK/fill", "The disk is full"),
        ("mkdir $DISK/data; mount -o remount,ro $DISK", "cannot be written: Read-only file system"),
    ],
    ids=["no room for the folder", "no room for the database", "read-only"],
)
def test_a_start_on_a_full_or_read_only_disk_is_one_sentence(
    tmp_path: Path, prepare: str, words: str
) -> None:
    assert words in on_a_small_disk(tmp_path, prepare)


@pytest.mark.parametrize(
    ("position", "words"), [(0, "not a database"), (4096 * 3, "is damaged|malformed")], ids=["header", "page"]
)
def test_a_damaged_database_is_not_started(
    tmp_path: Path, migrated_sqlite: Path, position: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.sqlite"
    content = bytearray(migrated_sqlite.read_bytes())
    content[position : position + 100] = bytes(range(100))
    path.write_bytes(content)
    assert serve(settings_for(f"sqlite:///{path}", tmp_path / "data")) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert any(word in said for word in words.split("|"))
    assert "backup" in said
    with pytest.raises(StorageUnavailable):
        check_quickly(make_engine(f"sqlite:///{path}"))


def test_a_database_in_order_has_no_faults(database_url: str) -> None:
    engine = make_engine(database_url)
    story = Story(engine)
    story.begin("a", "b")
    story.play(1, "ab")
    check_quickly(engine)
    assert find_faults(engine) == []
    engine.dispose()

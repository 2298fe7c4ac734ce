"""The power goes, not only a process: what was answered is there again, whatever the disk has forgotten.

A real coordinator runs under strace. From its calls every state is rebuilt that the disk could have when the
power goes (``disk``); of each it is checked that everything acknowledged before is in it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from feddisco.verify import verify_storage
from server.database.session import make_engine, sqlite_file
from server.database.store import Store
from server.settings import Settings
from shared.files import make_folder
from shared.json_lines import FileLines
from shared.problems import NotFound
from tests.faults.disk import Call, Disk, read_calls, sent_by, strace
from tests.helpers.live_coordinator import (
    ADMIN,
    CLASSES,
    JOIN,
    MANIFEST,
    ROOT,
    TASK,
    ManualClient,
    file_of,
    live,
    sha256,
    upload_headers,
)

ROUNDS, SITES = 2, 2
SAMPLES = 15
"""States in which some of what was not synced is there, at moments drawn at random."""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="strace is for Linux"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@dataclass
class Acknowledged:
    """What clients and operator had been told when the power went."""

    runs: set[str] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)
    updates: set[tuple[str, int, str]] = field(default_factory=set)  # client, round, digest

    def hear(self, answer: bytes) -> None:
        """A piece of what the coordinator sent to somebody."""
        for found in re.finditer(rb"\{.*\}", answer):
            try:
                body = json.loads(found[0])
            except ValueError:
                continue
            if "received_at" in body:
                self.updates.add((body["client"], body["round"], body["digest"]))
            elif "token" in body:
                self.clients.add(body["client"])
            elif "initial_model" in body:
                self.runs.add(body["run"])


@contextmanager
def traced(root: Path, trace: Path) -> Iterator[str]:
    """A coordinator under strace whose data folder is in ``root``, killed at the end; its URL."""
    program = "import json, sys; from server.main import serve; from server.settings import Settings; "
    program += "sys.exit(serve(Settings(**json.loads(sys.argv[1]))))"
    settings = {"data_folder": str(root / "data"), "port": 0, "admin_token": ADMIN, "join_token": JOIN}
    command = [*strace(trace), sys.executable, "-c", program, json.dumps(settings)]
    log = trace.with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stderr=file, stdout=file, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not (found := re.search(r"coordinator on (http://\S+)", log.read_text())):
            if process.poll() is not None and "ptrace" in log.read_text():
                pytest.skip(f"strace may not trace here: {log.read_text()[-200:]}")
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def play(url: str) -> None:
    """Two sites through a run of two rounds; a third one is registered, and revoked."""
    api = f"{url}/api/v1"
    with httpx.Client(base_url=api, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=60) as admin:
        body = file_of(0.0)
        put = admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
        assert put.status_code == 204, put.text
        config = {"name": "demo", "task": TASK, "classes": CLASSES, "rounds": ROUNDS, "min_clients": SITES}
        request = {
            "config": {**config, "weighting": {"kind": "sizes"}},
            "initial": {"digest": sha256(body), "manifest": MANIFEST},
        }
        assert admin.post("/runs", json=request).status_code == 201
        sites = [register(api, f"site-{index}") for index in range(SITES)]
        register(api, "gone").http.close()
        assert admin.delete("/clients/gone").status_code == 204
        for index, site in enumerate(sites):
            assert site.enrol("demo", 10, index=index).status_code == 200
        for number in range(1, ROUNDS + 1):
            for index, site in enumerate(sites):
                assert site.until("train", 60)["round"] == number
                answer = site.upload("demo", number, file_of(10.0 * number + 2 * index))
                assert answer.status_code == 200, answer.text
        for site in sites:
            site.until("finished", 60)
            site.http.close()


def register(api: str, name: str) -> ManualClient:
    join = {"Authorization": f"Bearer {JOIN}"}
    answer = httpx.post(f"{api}/clients", json={"name": name, "version": "test"}, headers=join, timeout=60)
    assert answer.status_code == 201, answer.text
    token = {"Authorization": f"Bearer {answer.json()['token']}"}
    return ManualClient(httpx.Client(base_url=api, headers=token, timeout=60), name)


def find_lost(folder: Path, acknowledged: Acknowledged) -> list[str]:
    """What was acknowledged and is not in what the disk has kept."""
    settings = Settings(data_folder=folder / "data")
    database = sqlite_file(settings.database)
    if database is None or not database.exists():
        return ["the database"] if acknowledged.runs | acknowledged.clients else []
    lost = [str(fault) for fault in verify_storage(settings).faults] if acknowledged.runs else []
    engine = make_engine(settings.database)
    try:
        store = Store(engine)
        if acknowledged.clients:
            lost += sorted(acknowledged.clients - {client.client for client in store.clients()})
        for run in acknowledged.runs:
            try:
                rounds = store.rounds(run)
            except NotFound:
                lost.append(f"run {run}")
                continue
            kept = {(row.client, each.round, row.update) for each in rounds for row in each.ledger}
            lost += [f"the update {update}" for update in acknowledged.updates - kept]
    finally:
        engine.dispose()
    return lost


def test_nothing_acknowledged_is_lost_when_the_power_goes(tmp_path: Path) -> None:
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    with traced(root, trace) as url:
        play(url)
    calls = list(read_calls(trace))
    draws = random.Random(7)
    chosen = set(draws.sample(range(len(calls)), min(SAMPLES, len(calls))))
    disk, told = Disk(root), Acknowledged()
    states = syncs = 0
    last = tmp_path / "state"
    for place, call in enumerate(calls):
        is_kept = disk.do(call)
        syncs += is_kept
        answer = sent_by(call)
        told.hear(answer)
        is_answer = b"HTTP/1.1 20" in answer or b'"received_at"' in answer
        # what was told is checked against what was sure at that moment, and that against what some more is
        if is_answer or place in chosen or place == len(calls) - 1:
            for kept in (None, random.Random(place)):
                shutil.rmtree(last, ignore_errors=True)
                disk.rebuild(last, kept)
                assert find_lost(last, told) == [], f"after call {place}, {call.name}; {told}"
                states += 1
    assert told.runs == {"demo"}
    assert told.clients == {"site-0", "site-1", "gone"}
    assert len(told.updates) == ROUNDS * SITES
    print(f"{len(calls)} calls, {syncs} syncs, {states} states")
    recover(tmp_path, last)


def recover(tmp_path: Path, state: Path) -> None:
    """A coordinator starts on what the disk has kept, and has the run's end."""
    with live(Settings(data_folder=state / "data").database, state / "data") as at:
        assert at.run()["status"] == "completed"
        assert at.run()["model"] == sha256(file_of(10.0 * ROUNDS + 1.0))


# -------------------------------------------------------------------- the disk can forget


def call(name: str, arguments: str, returned: str = "0") -> Call:
    """As strace writes it; a text in braces becomes its hexadecimal form."""
    written = re.sub(
        r"\{(.*?)\}", lambda found: "".join(f"\\x{byte:02x}" for byte in found[1].encode()), arguments
    )
    return Call(name, written, returned)


def kept(disk: Disk, folder: Path) -> dict[str, bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    disk.rebuild(folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    """Content without fsync, a name without fsync of its folder, a rename of which only one is known."""
    root = tmp_path / "root"
    root.mkdir()
    disk, at = Disk(root), tmp_path / "state"
    for done in (
        call("openat", f'AT_FDCWD<{{{tmp_path}}}>, "{{{root}/a}}", O_RDWR|O_CREAT, 0644', f"5<{{{root}/a}}>"),
        call("write", f'5<{{{root}/a}}>, "{{one}}", 3', "3"),
    ):
        disk.do(done)
    assert kept(disk, at) == {}
    disk.do(call("fsync", f"5<{{{root}/a}}>"))
    assert kept(disk, at) == {}, "its name is not known"
    disk.do(call("fsync", f"6<{{{root}}}>"))
    assert kept(disk, at) == {"a": b"one"}
    disk.do(call("pwrite64", f'5<{{{root}/a}}>, "{{two}}", 3, 3', "3"))
    assert kept(disk, at) == {"a": b"one"}
    disk.do(call("rename", f'"{{{root}/a}}", "{{{root}/b}}"'))
    assert kept(disk, at) == {"a": b"one"}
    disk.do(call("fsync", f"5<{{{root}/b}}>"))
    disk.do(call("fsync", f"6<{{{root}}}>"))
    assert kept(disk, at) == {"b": b"onetwo"}
    assert disk.do(call("fsync", f"6<{{{root}}}>")) is False, "nothing was pending"


def test_a_folder_is_kept_when_its_maker_was_killed_before_it_was_synced(tmp_path: Path) -> None:
    """The second one finds the folder there, and its name is in no way sure."""
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    program = (
        "import os, sys; from pathlib import Path; from server.blobs.disk import DiskBlobs; "
        "store = DiskBlobs(Path(sys.argv[1]) / 'blobs'); body = b'x' * 10; "
        "import hashlib; digest = hashlib.sha256(body).hexdigest(); "
        "(store.folder / digest[:2]).mkdir(exist_ok=True); "
        "store.keep(store.take(body, max_bytes=99, expected=digest, announced_bytes=10)); print(digest)"
    )
    command = [*strace(trace), sys.executable, "-c", program, str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr[-200:]}")
    digest = done.stdout.strip()
    disk = Disk(root)
    for each in read_calls(trace):
        disk.do(each)
    assert kept(disk, tmp_path / "state")[f"blobs/{digest[:2]}/{digest}"] == b"x" * 10


# -------------------------------------------------------------------- what a crash may leave


def test_a_line_that_was_cut_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "revocations.jsonl"
    lines = FileLines(path)
    lines.append({"token_hash": "a"})
    with path.open("ab") as file:
        file.write(b'{"token_ha')
    lines.append({"token_hash": "b"})
    lines.append({"token_hash": "c"})
    assert [found["token_hash"] for found in lines.read()] == ["a", "b", "c"]


def test_folders_are_made_with_those_above_them(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c", mode=0o700)
    make_folder(tmp_path / "a" / "b" / "c", mode=0o700)
    assert (tmp_path / "a" / "b" / "c").stat().st_mode & 0o777 == 0o700

"""A disk that forgets what was not synced when the power goes, rebuilt from the system calls of a process.

The rules are those of POSIX and no kinder: ``fsync`` of a file keeps its content, and only ``fsync`` of its
folder its name. What was not synced may be there, or not, or in part. File systems in use keep more.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = ["TRACED", "Call", "Disk", "path_of_handle", "read_calls", "sent_by", "strace"]

TRACED: Final = (
    *("openat", "open", "creat", "write", "pwrite64", "writev", "pwritev", "ftruncate", "lseek"),
    *("fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir", "sendto", "sendmsg"),
)


def strace(trace: Path) -> list[str]:
    """The words before a command that make it leave its calls in a file."""
    program = shutil.which("strace")
    assert program is not None
    return [
        program,
        "-f",
        "-y",
        "-xx",
        "-s",
        "100000000",
        "-o",
        str(trace),
        "-e",
        f"trace={','.join(TRACED)}",
    ]


# -------------------------------------------------------------------- what a process did


@dataclass(frozen=True)
class Call:
    """A call that succeeded: its name, its arguments as strace writes them, and what it returned."""

    name: str
    arguments: str
    returned: str


_DONE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (\S+)")
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (\S+)")


def read_calls(trace: Path) -> Iterator[Call]:
    """In the order in which they returned; what failed is left out."""
    begun: dict[str, str] = {}
    with trace.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            if found := _BEGUN.match(line):
                begun[found[1]] = found[3]
                continue
            if found := _RESUMED.match(line):
                process, name, rest, returned = found.groups()
                arguments = begun.pop(process, "") + rest
            elif found := _DONE.match(line):
                process, name, arguments, returned = found.groups()
            else:
                continue
            if not returned.startswith(("-", "?")):
                yield Call(name, arguments, returned)


def unescape(text: str) -> bytes:
    r"""What strace wrote as \x41\x42."""
    return bytes.fromhex(text.replace("\\x", ""))


_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"^(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*|[^>]*)>")


def _strings(arguments: str) -> list[bytes]:
    return [unescape(found) for found in _STRING.findall(arguments)]


def path_of_handle(arguments: str) -> str:
    """Of the file, folder or connection that the first argument is a handle of; nothing if it is none."""
    found = _HANDLE.match(arguments)
    if found is None:
        return ""
    return unescape(found[1]).decode() if found[1].startswith("\\x") else found[1]


def sent_by(call: Call) -> bytes:
    """What it sent over a connection, if it did."""
    is_sent = call.name in ("write", "writev", "sendto", "sendmsg")
    if not is_sent or not path_of_handle(call.arguments).startswith("socket:"):
        return b""
    return b"".join(_strings(call.arguments))


# -------------------------------------------------------------------- what was on the disk


@dataclass
class _File:
    """``durable`` is what is sure, ``pending`` what was done since: writes at an offset, cuts to a length."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.content(len(self.pending))
        self.pending.clear()

    def content(self, kept: int | set[int]) -> bytes:
        """With the first so many of what is pending, or with these."""
        chosen = range(kept) if isinstance(kept, int) else sorted(kept)
        data = bytearray(self.durable)
        for place in chosen:
            offset, piece = self.pending[place]
            if piece is None:
                data[offset:] = bytes(max(0, offset - len(data)))
                continue
            data.extend(bytes(max(0, offset - len(data))))
            data[offset : offset + len(piece)] = piece
        return bytes(data)


@dataclass
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    current: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[str, int | None]] = field(default_factory=list)

    def put(self, name: str, what: int | None) -> None:
        if what is None:
            self.current.pop(name, None)
        else:
            self.current[name] = what
        self.pending.append((name, what))

    def sync(self) -> None:
        self.durable = self.names(len(self.pending))
        self.pending.clear()

    def names(self, kept: int) -> dict[str, int]:
        """With the first so many changes that are pending: a folder's changes are not reordered."""
        found = dict(self.durable)
        for name, what in self.pending[:kept]:
            if what is None:
                found.pop(name, None)
            else:
                found[name] = what
        return found


class Disk:
    """Below ``root``, which is there and empty at the beginning. Feed it calls, and cut the power."""

    def __init__(self, root: Path) -> None:
        self._root = PurePosixPath(os.path.realpath(root))
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {0: _Folder()}
        self._handles: dict[str, int] = {}  # by handle and path: where its next write goes
        self._next = 1

    # ---------------------------------------------------------------- calls

    def do(self, call: Call) -> bool:
        """Whether the call changed what would survive a loss of power."""
        handler = getattr(self, f"_{call.name}", None)
        return bool(handler(call)) if handler is not None else False

    def _relative(self, path: str) -> PurePosixPath | None:
        if path.endswith(" (deleted)"):
            return None
        given = PurePosixPath(path)
        return given.relative_to(self._root) if given.is_relative_to(self._root) else None

    def _find(self, path: PurePosixPath) -> int | None:
        found: int | None = 0
        for part in path.parts:
            folder = self._folders.get(-1 if found is None else found)
            found = None if folder is None else folder.current.get(part)
        return found

    def _folder_of(self, path: PurePosixPath) -> _Folder:
        found = self._find(path.parent)
        assert found is not None, f"{path} is in no folder that is known"
        return self._folders[found]

    def _file_of(self, call: Call) -> _File | None:
        path = self._relative(path_of_handle(call.arguments))
        found = None if path is None else self._find(path)
        return None if found is None else self._files.get(found)

    def _named(self, call: Call) -> list[PurePosixPath | None]:
        """The paths among the arguments, each relative to the handle before it if it is not absolute."""
        base = ""
        found: list[PurePosixPath | None] = []
        pattern = re.compile(r'(?:AT_FDCWD|\d+)<([^>]*)>|"((?:\\x[0-9a-f]{2})*)"')
        for handle, text in pattern.findall(call.arguments):
            if handle:
                base = unescape(handle).decode() if handle.startswith("\\x") else handle
            elif text:
                name = unescape(text).decode(errors="replace")
                found.append(self._relative(name if name.startswith("/") else f"{base}/{name}"))
        return found

    def _create(self, path: PurePosixPath) -> None:
        if self._find(path) is None:
            self._files[self._next] = _File()
            self._folder_of(path).put(path.name, self._next)
            self._next += 1

    def _openat(self, call: Call) -> None:
        (path, *_) = self._named(call) or [None]
        if path is None or not path.parts:
            return
        if "O_APPEND" not in call.arguments:
            self._handles[f"{call.returned.partition('<')[0]} {path}"] = 0
        if "O_CREAT" in call.arguments:
            self._create(path)
        if "O_TRUNC" in call.arguments and (found := self._find(path)) in self._files:
            self._files[found or 0].pending.append((0, None))

    _open = _creat = _openat

    def _key(self, call: Call) -> str:
        return f"{call.arguments.partition('<')[0]} {self._relative(path_of_handle(call.arguments))}"

    def _lseek(self, call: Call) -> None:
        if (key := self._key(call)) in self._handles:
            self._handles[key] = int(call.returned)

    def _write(self, call: Call) -> None:
        file = self._file_of(call)
        if file is None:
            return
        data = b"".join(_strings(call.arguments))[: int(call.returned)]
        key = self._key(call)
        is_appended = key not in self._handles
        at = len(file.content(len(file.pending))) if is_appended else self._handles[key]
        file.pending.append((at, data))
        self._handles[key] = at + len(data)

    _writev = _write

    def _pwrite64(self, call: Call) -> None:
        if (file := self._file_of(call)) is not None:
            offset = int(call.arguments.rpartition(", ")[2])
            file.pending.append((offset, b"".join(_strings(call.arguments))[: int(call.returned)]))

    _pwritev = _pwrite64

    def _ftruncate(self, call: Call) -> None:
        if (file := self._file_of(call)) is not None:
            file.pending.append((int(call.arguments.rpartition(", ")[2]), None))

    def _fsync(self, call: Call) -> bool:
        path = self._relative(path_of_handle(call.arguments))
        found = None if path is None else self._find(path)
        kept = None if found is None else self._files.get(found) or self._folders.get(found)
        if kept is None or not kept.pending:
            return False
        kept.sync()
        return True

    _fdatasync = _fsync

    def _mkdir(self, call: Call) -> None:
        (path, *_) = self._named(call)
        if path is not None and path.parts:
            self._folders[self._next] = _Folder()
            self._folder_of(path).put(path.name, self._next)
            self._next += 1

    _mkdirat = _mkdir

    def _unlink(self, call: Call) -> None:
        (path, *_) = self._named(call)
        if path is not None and path.parts:
            self._folder_of(path).put(path.name, None)

    _unlinkat = _rmdir = _unlink

    def _rename(self, call: Call) -> None:
        source, target = self._named(call)
        if source is None or target is None:
            return
        found = self._find(source)
        self._folder_of(target).put(target.name, found)
        self._folder_of(source).put(source.name, None)

    _renameat = _renameat2 = _rename

    def _link(self, call: Call) -> None:
        source, target = self._named(call)
        if source is not None and target is not None:
            self._folder_of(target).put(target.name, self._find(source))

    _linkat = _link

    # ---------------------------------------------------------------- the power goes

    def rebuild(self, folder: Path, draws: random.Random | None = None) -> None:
        """What is there when the power is back: what was synced, and of the rest what ``draws`` keep."""
        self._rebuild(0, folder, draws)

    def _rebuild(self, number: int, folder: Path, draws: random.Random | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        here = self._folders[number]
        names = here.names(0 if draws is None else draws.randint(0, len(here.pending)))
        for name, what in names.items():
            if what in self._folders:
                self._rebuild(what, folder / name, draws)
                continue
            file = self._files[what]
            kept = set[int]()
            if draws is not None:
                kept = {place for place in range(len(file.pending)) if draws.random() < 0.5}
            (folder / name).write_bytes(file.content(kept))

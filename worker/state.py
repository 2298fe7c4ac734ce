"""The state folder: who this worker is, and a lock so that no other process is the same client.

::

    STATE/lock               held while a worker runs, names its process
    STATE/credential.json    coordinator, client id, bearer token (mode 0600)
    STATE/registration.json  the same before the coordinator has answered, to ask again as the same client
    STATE/runs/RUN/          see worker.journal

With slots (``--state-slots``) several workers share STATE: each takes the first of ``STATE/slot-1``,
``STATE/slot-2`` ... that is not locked, and continues with the identity it finds there.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import Field, ValidationError

from shared.files import PRIVATE, remove_partial, replace_file
from shared.problems import InvalidConfiguration
from shared.schemas import Body

__all__ = [
    "StoredCredential",
    "find_credential",
    "lock_folder",
    "prepare_token",
    "read_credential",
    "set_aside",
    "write_credential",
]


class StoredCredential(Body):
    """Whose token this is, and for which coordinator, with the fingerprint of a pinned certificate."""

    url: str
    client: str
    token: str = Field(repr=False)
    fingerprint: str | None = None


class PendingRegistration(Body):
    """A registration that was sent and may not have been answered."""

    url: str
    name: str | None
    token: str = Field(repr=False)


@contextmanager
def lock_folder(folder: Path, *, slots: bool = False) -> Iterator[Path]:
    """The state folder to use, made (mode 0700) and locked until the end of the context.

    Raises :class:`InvalidConfiguration` that names the process which has locked it.
    """
    with _folder_faults(folder):
        _make_folder(folder)
    for path in (folder / f"slot-{number}" for number in itertools.count(1)) if slots else (folder,):
        with _folder_faults(path):
            _make_folder(path)
            descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _folder_faults(path):
                if locked := _try_lock(descriptor):
                    _check_writable(path)
                    remove_partial(path)
            if locked:
                yield path
                return
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    raise InvalidConfiguration(
        f"the state folder {folder} is in use by another worker (process {holder or 'unknown'}).",
        hint="One process a client: stop that one, or give this one another folder with --state.",
    )


@contextmanager
def _folder_faults(folder: Path) -> Iterator[None]:
    """A state folder that cannot be used is a setting to change, not a fault to wait out."""
    try:
        yield
    except OSError as error:
        raise InvalidConfiguration(
            f"the state folder {folder} cannot be used: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}.",
            hint="Make it a folder that this user may read and write, or choose another with --state.",
        ) from error


def _check_writable(folder: Path) -> None:
    probe = folder / ".writable"
    probe.write_bytes(b"")
    probe.unlink()


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _try_lock(descriptor: int) -> bool:
    """The lock ends with its process, even after kill -9; the number in the file is for people."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return True


def find_credential(folder: Path) -> StoredCredential | None:
    """The credential of an earlier start, or None. One that cannot be read is set aside."""
    path = folder / "credential.json"
    try:
        with _folder_faults(folder):
            content = path.read_bytes() if path.exists() else None
        return None if content is None else StoredCredential.model_validate_json(content)
    except ValidationError:
        set_aside(path)
        return None


def read_credential(folder: Path, url: str, fingerprint: str | None = None) -> StoredCredential | None:
    """The same for the coordinator at ``url``, with this address and this fingerprint.

    A coordinator with the certificate that is pinned is the same one, wherever it has moved.

    Raises :class:`InvalidConfiguration` if the credential belongs to another coordinator.
    """
    credential = find_credential(folder)
    if credential is None:
        return None
    has_moved = fingerprint is not None and credential.fingerprint == fingerprint
    if credential.url != url and not has_moved:
        raise InvalidConfiguration(
            f"the state folder {folder} belongs to the coordinator {credential.url}, not to {url}.",
            hint="Use one folder a coordinator (--state); if the coordinator has moved, edit url in "
            f"{folder / 'credential.json'} (never send that file to anybody: it holds the token).",
        )
    return credential.model_copy(update={"url": url, "fingerprint": fingerprint or credential.fingerprint})


def write_credential(folder: Path, credential: StoredCredential) -> None:
    replace_file(folder / "credential.json", credential.model_dump_json().encode(), mode=PRIVATE)
    (folder / "registration.json").unlink(missing_ok=True)


def prepare_token(folder: Path, url: str, name: str | None) -> str:
    """A new token, or the one that ``name`` was asked for with before: the answer may have been lost."""
    path = folder / "registration.json"
    with suppress(FileNotFoundError, ValidationError), _folder_faults(folder):
        pending = PendingRegistration.model_validate_json(path.read_bytes() if path.exists() else b"")
        if (pending.url, pending.name) == (url, name):
            return pending.token
    pending = PendingRegistration(url=url, name=name, token=secrets.token_urlsafe(32))
    replace_file(path, pending.model_dump_json().encode(), mode=PRIVATE)
    return pending.token


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be read, so that it is neither lost nor met again."""
    aside = path.with_name(path.name + ".unreadable")
    with suppress(FileNotFoundError):
        path.replace(aside)
    return aside

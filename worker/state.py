"""The state folder: who this worker is, and a lock so that no other process is the same client.

::

    STATE/lock               held while a worker runs, names its process
    STATE/credential.json    coordinator, client id, bearer token (mode 0600)
    STATE/registration.json  the same before the coordinator has answered, to ask again as the same client
    STATE/identity.key       this client's private Ed25519 key, hexadecimal (mode 0600)
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
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from shared.addresses import spell_address
from shared.files import PRIVATE, make_folder, remove_partial, replace_file
from shared.fingerprints import fingerprint_of, format_fingerprint
from shared.problems import InvalidConfiguration
from shared.schemas import Body
from shared.secure.keys import identity_of, make_identity

__all__ = [
    "StoredCredential",
    "describe_identity",
    "find_credential",
    "find_identities",
    "lock_folder",
    "obtain_identity",
    "prepare_token",
    "read_credential",
    "set_aside",
    "write_credential",
]


IDENTITY = "identity.key"


_Address = Annotated[str, AfterValidator(spell_address)]
"""Earlier versions kept an address as it was typed."""


class StoredCredential(Body):
    """Whose token this is, and for which coordinator, with the fingerprint of a pinned certificate."""

    url: _Address
    client: str
    token: str = Field(repr=False)
    fingerprint: str | None = None


class PendingRegistration(Body):
    """A registration that was sent and may not have been answered."""

    url: _Address
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
    make_folder(folder, mode=0o700)


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


def obtain_identity(folder: Path) -> bytes:
    """This client's private identity key, made at its first start.

    Raises :class:`InvalidConfiguration` if there is one that cannot be read: by another the others of its
    secure runs would not know this client.
    """
    path = folder / IDENTITY
    with _folder_faults(folder):
        if not path.exists():
            replace_file(path, make_identity().hex().encode(), mode=PRIVATE)
        return _read_identity(path)


def find_identities(state: Path) -> dict[str, bytes]:
    """The private keys of the clients of a state folder, by their credentials' names."""
    found = {}
    for folder in (state, *sorted(state.glob("slot-*"))):
        credential = find_credential(folder)
        if credential is not None and (folder / IDENTITY).exists():
            found[credential.client] = _read_identity(folder / IDENTITY)
    return found


def _read_identity(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
        identity_of(key)
    except ValueError as error:
        raise InvalidConfiguration(
            f"the identity key {path} cannot be read.",
            hint="Restore it from a backup. With another key the client has to be registered anew.",
        ) from error
    return key


def describe_identity(private: bytes) -> str:
    """The fingerprint of the public key, as it is compared by telephone."""
    return format_fingerprint(fingerprint_of(identity_of(private)))


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be read, so that it is neither lost nor met again."""
    aside = path.with_name(path.name + ".unreadable")
    with suppress(FileNotFoundError):
        path.replace(aside)
    return aside

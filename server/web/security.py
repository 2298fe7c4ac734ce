"""Who is asking: bearer tokens, of which only SHA-256 hashes are kept.

A token is 256 random bits, so a slow hash would add no safety, and would let every poll keep
the coordinator busy. Hashes are compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cachetools import TTLCache
from fastapi import Request
from pydantic import SecretStr

from server.settings import Reading, Settings
from shared.addresses import is_loopback
from shared.files import PRIVATE, replace_file, storage_errors
from shared.problems import Forbidden, MissingToken, RevokedToken, StorageUnavailable, WrongToken

__all__ = [
    "ADMIN_FILE",
    "VIEWER_FILE",
    "Asking",
    "Guard",
    "KnownClient",
    "find_bearer",
    "hash_token",
    "is_local",
    "load_admin_token",
    "load_viewer_token",
    "make_token",
    "read_bearer",
    "read_viewer_password",
]

CACHE_SECONDS = 2.0
CACHE_ENTRIES = 10_000
FAMILIAR_SECONDS = 3600.0
ADMIN = "admin"
ADMIN_FILE, VIEWER_FILE = "admin-token", "viewer-token"
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers that proxies add."""


def make_token() -> str:
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """SHA-256 of the token, hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def are_same(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


def read_bearer(authorization: str | None) -> str:
    """The token of an ``Authorization: Bearer`` header; raises :class:`MissingToken` if there is none."""
    token = find_bearer(authorization)
    if token is None:
        raise MissingToken(
            "the request has no `Authorization: Bearer` header",
            hint="Clients get a token at registration; the admin token is in the coordinator's data folder.",
        )
    return token


def find_bearer(authorization: str | None) -> str | None:
    """The token of an ``Authorization: Bearer`` header, if there is one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def read_viewer_password(authorization: str | None) -> str:
    """The password of a browser's Basic dialogue (any user name), or else a bearer token."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return read_bearer(authorization)
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # not ASCII, not base64, or not UTF-8
        raise MissingToken("the `Authorization: Basic` header cannot be read") from None


def load_admin_token(settings: Settings) -> str:
    """The configured admin token, or that in ``<data folder>/admin-token``, made at the first start."""
    return _load_token(settings.admin_token, settings.data_folder / ADMIN_FILE)


def load_viewer_token(settings: Settings) -> str | None:
    """The same for viewers; None where everybody may read."""
    if settings.reading == "open":
        return None
    return _load_token(settings.viewer_token, settings.data_folder / VIEWER_FILE)


def _load_token(given: SecretStr | None, path: Path) -> str:
    if given is not None:
        return given.get_secret_value()
    try:
        return _read_or_make(path)
    except StorageUnavailable as error:
        name = path.name.replace("-", " ")
        raise StorageUnavailable(
            f"the {name} cannot be kept in {path}: {error.detail}",
            hint=f"Make the data folder writable, or set FEDDISCO_{path.name.upper().replace('-', '_')}.",
        ) from error


def _read_or_make(path: Path) -> str:
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # kept if another process makes one at the same moment: both first starts end up with one token
            replace_file(path, f"{make_token()}\n".encode(), mode=PRIVATE, overwrite=False)
        return path.read_text().strip()


@dataclass(frozen=True)
class Asking:
    """What a request says of who reads: its header, the token's hash of its session, and whence it came."""

    authorization: str | None
    session: str | None
    is_local: bool

    @property
    def has_no_token(self) -> bool:
        """Where reading is open, a password (Basic) is meant for a proxy in front."""
        return self.authorization is None or self.authorization[:6].lower() == "basic "


def is_local(request: Request) -> bool:
    """Whether the request was made on this machine, by this machine's name, and not passed on by a proxy.

    A proxy on this machine connects from it, too; the name keeps a web page of somebody else's, whose own
    name was made to lead here, from reading through the browser of somebody on this machine.
    """
    if any(name in request.headers for name in PASSED_ON):
        return False
    try:
        return is_loopback(urlsplit(f"//{request.headers.get('host', '')}").hostname or "")
    except ValueError:
        return False


def _forbid_client(client: str | None) -> None:
    if client is not None:
        raise Forbidden(
            f"client {client!r} reads its own rows only, and this shows those of others",
            hint="GET /api/v1/runs/RUN has what a client may read; for the rest ask for a viewer token.",
        )


@dataclass(frozen=True)
class KnownClient:
    """What the guard needs to know about the owner of a token."""

    client: str
    revoked: bool


class Guard:
    """Tells admin, client and viewer tokens apart, and says who reads without one.

    ``find`` looks a client up by its token's hash, ``is_join_code`` says of a hash whether it was ever one of
    a join token. Answers are remembered for :data:`CACHE_SECONDS`, so a
    revocation made by another coordinator process takes effect after that time at the latest; one made
    here takes effect at once (:meth:`forget`).
    """

    def __init__(
        self,
        *,
        admin: str,
        viewer: str | None,
        reading: Reading,
        find: Callable[[str], Awaitable[KnownClient | None]],
        is_join_code: Callable[[str], Awaitable[bool]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = hash_token(admin)
        self._viewer = hash_token(viewer) if viewer is not None else None
        self._reading = reading
        self._find = find
        self._is_join_code = is_join_code
        self._familiar: TTLCache[str, None] = TTLCache(CACHE_ENTRIES, FAMILIAR_SECONDS, timer=monotonic)
        self._known: TTLCache[str, str] = TTLCache(CACHE_ENTRIES, CACHE_SECONDS, timer=monotonic)

    def is_admin(self, token: str) -> bool:
        return are_same(hash_token(token), self._admin)

    async def require_admin(self, token: str) -> str:
        """The actor "admin"; Forbidden for a client's token, WrongToken for an unknown one."""
        if self.is_admin(token):
            return ADMIN
        client = await self.require_client(token)
        raise Forbidden(f"client {client!r} may not do this", hint="This call needs the admin token.")

    async def require_client(self, token: str) -> str:
        """The id of the client that owns the token."""
        hashed = hash_token(token)
        known = self._known.get(hashed)
        if known is None:
            known = self._known[hashed] = await self._look_up(hashed)
            self._familiar[hashed] = None
        return known

    async def require_join_code(self, token: str) -> None:
        """Whether a registration is worth reading; it may be used up or revoked."""
        hashed = hash_token(token)
        if hashed not in self._familiar:
            if not await self._is_join_code(hashed):
                raise WrongToken("the join code is not known here", hint="Ask the coordinator's operator.")
            self._familiar[hashed] = None

    def remember(self, token: str) -> None:
        """It was made here just now."""
        self._familiar[hash_token(token)] = None

    def is_familiar(self, token: str) -> bool:
        """Whether it is no guess: it was right within the last hour, or is the admin's or the viewers'."""
        hashed = hash_token(token)
        return hashed in self._familiar or self._reads_all(hashed)

    async def require_client_or_admin(self, token: str) -> str | None:
        """The client's id, None for the admin."""
        return None if self.is_admin(token) else await self.require_client(token)

    async def require_reader(self, asking: Asking) -> str | None:
        """Who reads: the client's id for a client's token, which reads its own; None for who reads all."""
        if self._is_open_to(asking) and asking.has_no_token:
            return None
        if asking.session is not None and self._reads_all(asking.session):
            return None
        return await self.identify_reader(read_viewer_password(asking.authorization))

    async def require_viewer(self, asking: Asking) -> None:
        """What shows all clients' rows: Forbidden for a client."""
        _forbid_client(await self.require_reader(asking))

    async def check_viewer_token(self, token: str) -> None:
        """Forbidden for a client's token, WrongToken for an unknown one."""
        _forbid_client(await self.identify_reader(token))

    async def identify_reader(self, token: str) -> str | None:
        return None if self._reads_all(hash_token(token)) else await self.require_client(token)

    def _is_open_to(self, asking: Asking) -> bool:
        return self._reading == "open" or (self._reading == "local" and asking.is_local)

    def _reads_all(self, hashed: str) -> bool:
        is_viewer = self._viewer is not None and are_same(hashed, self._viewer)
        return is_viewer or are_same(hashed, self._admin)

    def forget(self, client: str) -> None:
        for hashed in [key for key in self._known if self._known.get(key) == client]:
            self._known.pop(hashed, None)

    async def _look_up(self, hashed: str) -> str:
        found = await self._find(hashed)
        if found is None:
            raise WrongToken(
                "the token belongs to no client of this coordinator",
                hint="Check the coordinator's address; to register anew, remove the worker's credential.",
            )
        if found.revoked:
            raise RevokedToken(
                f"the token of client {found.client!r} has been revoked",
                hint="Ask the coordinator's operator for a new join token.",
            )
        return found.client

"""Who is asking: bearer tokens, of which only SHA-256 hashes are kept.

A token is 256 random bits, so a slow hash would add no safety, and would let every poll keep
the coordinator busy. Hashes are compared in constant time.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from cachetools import TTLCache
from fastapi import Request
from pydantic import SecretStr

from server.clock import utc_now
from server.settings import Reading, Settings, check_token
from shared.addresses import is_loopback
from shared.files import PRIVATE, replace_file, storage_errors
from shared.problems import (
    Forbidden,
    InvalidConfiguration,
    MissingToken,
    RevokedToken,
    StorageUnavailable,
    Unauthorised,
    WrongToken,
)
from shared.schemas import UserRole, UserView

__all__ = [
    "ADMIN",
    "ADMIN_FILE",
    "ANYBODY",
    "VIEWER_FILE",
    "Asking",
    "Guard",
    "KnownClient",
    "Owner",
    "Person",
    "Visit",
    "check_right",
    "find_secret",
    "hash_token",
    "is_basic",
    "is_local",
    "load_admin_token",
    "load_tokens",
    "load_viewer_token",
    "make_key",
    "make_person",
    "make_token",
    "read_bearer",
    "read_viewer_password",
    "require_client",
]

CACHE_SECONDS = 2.0
SOLE_SECONDS = 3600.0
"""Where no other process revokes anything, or it is found: clients that poll every half minute are seldom
looked up."""
CACHE_ENTRIES = 100_000
FAMILIAR_SECONDS = 3600.0
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
    token = _find_bearer(authorization)
    if token is None:
        raise MissingToken(
            "the request has no `Authorization: Bearer` header",
            hint="Clients get a token at registration; the admin token is in the coordinator's data folder.",
        )
    return token


def _find_bearer(authorization: str | None) -> str | None:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def find_secret(authorization: str | None) -> str | None:
    """The password of a browser's Basic dialogue (any user name), or else a bearer token; None without."""
    if not is_basic(authorization):
        return _find_bearer(authorization)
    try:
        return base64.b64decode((authorization or "")[6:], validate=True).decode().partition(":")[2] or None
    except ValueError:  # not ASCII, not base64, or not UTF-8
        return None


def is_basic(authorization: str | None) -> bool:
    """Whether it is of a browser's dialogue, or of a proxy's."""
    return (authorization or "").partition(" ")[0].lower() == "basic"


def read_viewer_password(authorization: str | None) -> str:
    """:func:`find_secret`; raises :class:`MissingToken` if there is none."""
    if not is_basic(authorization):
        return read_bearer(authorization)
    password = find_secret(authorization)
    if password is None:
        raise MissingToken("the `Authorization: Basic` header has no password, or cannot be read")
    return password


def load_tokens(settings: Settings, find_holder: Callable[[str], str | None]) -> tuple[str, str | None]:
    """The admin token and that of viewers (None where everybody may read), each nobody else's.

    The settings are compared where they are read; what a file holds is known only now. ``find_holder`` says
    by the database who else has the token of a hash.

    Raises:
        InvalidConfiguration: with one of them a viewer or a site would be an admin, or a site a viewer.
    """
    admin, viewer = load_admin_token(settings), load_viewer_token(settings)
    for token, given, file in (
        (admin, settings.admin_token, ADMIN_FILE),
        (viewer, settings.viewer_token, VIEWER_FILE),
    ):
        if token is None:
            continue
        if file == ADMIN_FILE and token == viewer:
            holder: str | None = "the viewers"
        else:
            holder = "a join code" if token in settings.join_tokens else find_holder(hash_token(token))
        if holder is not None:
            raise _make_shared(given, settings.data_folder / file, holder)
    return admin, viewer


def _make_shared(given: SecretStr | None, path: Path, holder: str) -> InvalidConfiguration:
    where = f"in {path}" if given is None else _variable(path)
    return InvalidConfiguration(
        f"the {_name(path)} {where} is also that of {holder}: they are for different people.",
        hint="Give another."
        if given
        else "Write another there, or delete the file: the next start makes one.",
    )


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
        raise StorageUnavailable(
            f"the {_name(path)} cannot be kept in {path}: {error.detail}",
            hint=f"Make the data folder writable, or set {_variable(path)}.",
        ) from error


def _name(path: Path) -> str:
    return path.name.replace("-", " ")


def _variable(path: Path) -> str:
    return f"FEDDISCO_{path.name.upper().replace('-', '_')}"


def _read_or_make(path: Path) -> str:
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # kept if another process makes one at the same moment: both first starts end up with one token
            replace_file(path, f"{make_token()}\n".encode(), mode=PRIVATE, overwrite=False)
        content = path.read_bytes()
    try:
        return check_token(content.decode("ascii", "replace"))
    except ValueError as fault:  # an empty one would let everybody in
        raise InvalidConfiguration(
            f"the {_name(path)} in {path} cannot be used: {fault}.",
            hint="Write one there, or delete the file: the next start makes a new one.",
        ) from None


@dataclass(frozen=True)
class Asking:
    """What a request says of who reads: its header, its session (hash of the cookie), and whence it came."""

    authorization: str | None
    session: str | None
    is_local: bool

    @property
    def has_no_token(self) -> bool:
        """Where reading is open, a password (Basic) is meant for a proxy in front."""
        return self.authorization is None or is_basic(self.authorization)


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


@dataclass(frozen=True)
class KnownClient:
    """What the guard needs to know about the worker that owns a token."""

    client: str
    revoked: bool

    @property
    def key(self) -> str:
        return make_key("client", self.client)


@dataclass(frozen=True)
class Person:
    """Who acts or reads, and what for. ``runs``: the only ones that it is for; None: all.

    ``actor``: what logs call the person: ``user:NAME``, ``admin`` and ``viewer`` for the tokens of the
    settings, ``anybody`` without one. ``until``: when the session ends by which the person reads.
    """

    actor: str
    role: UserRole
    runs: frozenset[str] | None = None
    revoked: bool = False
    until: dt.datetime | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        return self.actor

    def may(self, role: UserRole, run: str | None) -> bool:
        """``run`` None: what concerns all of them."""
        return self.role.includes(role) and (self.runs is None or run in self.runs)

    def operates(self, run: str | None) -> bool:
        return self.may(UserRole.OPERATOR, run)

    def reads(self, run: str) -> bool:
        return self.runs is None or run in self.runs


@dataclass(frozen=True)
class Visit:
    """Who looks at a page. ``session``: the hash of its cookie, of who has signed in."""

    person: Person
    session: str | None


Owner = KnownClient | Person
ADMIN = Person("admin", UserRole.ADMIN)
VIEWER = Person("viewer", UserRole.VIEWER)
ANYBODY = Person("anybody", UserRole.VIEWER)


def make_person(user: UserView) -> Person:
    runs = None if user.runs is None else frozenset(user.runs)
    return Person(make_key("user", user.name), user.role, runs, user.revoked_at is not None)


def make_key(kind: str, name: str) -> str:
    """By which open requests are found when a client, user or session is not accepted any more."""
    return f"{kind}:{name}"


def _forbid_client(owner: Owner) -> Person:
    if isinstance(owner, KnownClient):
        raise Forbidden(
            f"client {owner.client!r} reads its own rows only, and this shows those of others",
            hint="GET /api/v1/runs/RUN has what a client may read; for the rest ask for a viewer token.",
        )
    return owner


def require_client(owner: Owner) -> str:
    """The client's id; WrongToken for a person."""
    if isinstance(owner, Person):
        raise _make_wrong_token()
    return owner.client


_NEEDS = {
    UserRole.VIEWER: "a viewer's token",
    UserRole.OPERATOR: "the token of an operator or the admin token",
    UserRole.ADMIN: "the admin token",
}


def check_right(owner: Owner, role: UserRole, run: str | None) -> Person:
    """The person, if it may act in this role on this run (None: on all); otherwise :class:`Forbidden`."""
    where = f"run {run!r}" if run is not None else "all runs"
    if isinstance(owner, KnownClient):
        raise Forbidden(f"client {owner.client!r} may not do this", hint=f"This call needs {_NEEDS[role]}.")
    if not owner.may(role, run):
        raise Forbidden(
            f"{owner.actor} is {owner.role.value} for {_name_runs(owner)} and may not do this",
            hint=f"This call needs {_NEEDS[role]}, for {where}.",
        )
    return owner


def _name_runs(person: Person) -> str:
    return "all runs" if person.runs is None else ", ".join(sorted(person.runs))


class Guard:
    """Tells whose a token is: a worker's, a person's, or one of the settings; and who reads without one.

    ``find`` looks an owner up by the token's hash, ``find_session`` a token's hash by that of a session, with
    the session's end by ``clock``, ``is_join_code`` says of a hash whether it was ever one of a join token.
    Answers are remembered for :data:`CACHE_SECONDS`, so a revocation made by another coordinator process
    takes effect after that time at the latest; one made here takes effect at once (:meth:`forget`).
    ``is_sole``: there is no other process, and the owner of a token is remembered for longer. So is a client
    while ``is_watched``: which others have revoked or erased is found within that time
    (:meth:`forget_clients`).
    """

    def __init__(
        self,
        *,
        admin: str,
        viewer: str | None,
        reading: Reading,
        find: Callable[[str], Awaitable[Owner | None]],
        find_session: Callable[[str], Awaitable[tuple[str, dt.datetime] | None]],
        is_join_code: Callable[[str], Awaitable[bool]],
        is_sole: bool = False,
        is_watched: Callable[[], bool] = lambda: False,
        clock: Callable[[], dt.datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = hash_token(admin)
        self._viewer = hash_token(viewer) if viewer is not None else None
        self._reading = reading
        self._find = find
        self._find_session = find_session
        self._is_join_code = is_join_code
        self._familiar: TTLCache[str, None] = TTLCache(CACHE_ENTRIES, FAMILIAR_SECONDS, timer=monotonic)
        self._is_watched = is_watched
        seconds = SOLE_SECONDS if is_sole else CACHE_SECONDS
        self._known: TTLCache[str, Owner] = TTLCache(CACHE_ENTRIES, seconds, timer=monotonic)
        self._clients: TTLCache[str, KnownClient] = TTLCache(CACHE_ENTRIES, SOLE_SECONDS, timer=monotonic)
        self._revocations = 0
        self._clock = clock
        self._sessions: TTLCache[str, tuple[str, dt.datetime]] = TTLCache(
            CACHE_ENTRIES, CACHE_SECONDS, timer=monotonic
        )

    # ------------------------------------------------------------ whose token

    async def identify(self, token: str) -> Owner:
        """Raises WrongToken and RevokedToken."""
        return await self._identify_hash(hash_token(token))

    async def require_client(self, token: str) -> str:
        """The id of the client that owns the token; WrongToken for a person's, too."""
        return require_client(await self.identify(token))

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
        return hashed in self._familiar or self._find_in_settings(hashed) is not None

    # ------------------------------------------------------------ who reads

    async def require_reader(self, asking: Asking) -> Owner:
        """Who reads: a worker its own rows, a person all of them, or those of its runs."""
        if asking.has_no_token and (person := await self.find_session_owner(asking.session)) is not None:
            return person
        return await self._find_without_session(asking)

    async def _find_without_session(self, asking: Asking) -> Owner:
        if asking.has_no_token and self.is_open_to(asking):
            return ANYBODY
        return await self.identify(read_viewer_password(asking.authorization))

    async def require_viewer(self, asking: Asking) -> Visit:
        """Who looks at what shows all clients' rows: Forbidden for a client."""
        signed_in = await self.find_session_owner(asking.session)
        if asking.has_no_token and signed_in is not None:
            return Visit(signed_in, asking.session)
        person = _forbid_client(await self._find_without_session(asking))
        return Visit(person, None if signed_in is None else asking.session)

    async def find_session_owner(self, session: str | None) -> Person | None:
        """The person who signed in, by the hash of the cookie; None if the session or the token is over."""
        if session is None:
            return None
        while True:
            revocations = self._revocations
            person = await self._look_up_session(session)
            if revocations == self._revocations:  # or it may have ended meanwhile: it is looked up again
                return person

    async def _look_up_session(self, session: str) -> Person | None:
        found = self._sessions.get(session)
        if found is None:
            revocations = self._revocations
            found = await self._find_session(session)
            if found is not None and revocations == self._revocations:
                self._sessions[session] = found  # not at a hit: each would put off the next look-up
        if found is None or found[1] <= self._clock():
            return None
        token_hash, ends_at = found
        try:
            owner = await self._identify_hash(token_hash)
        except Unauthorised:
            return None
        return replace(owner, until=ends_at) if isinstance(owner, Person) else None

    async def check_viewer_token(self, token: str) -> Person:
        """Forbidden for a client's token, WrongToken for an unknown one."""
        return _forbid_client(await self.identify(token))

    def is_open_to(self, asking: Asking) -> bool:
        """Whether it may read without a token."""
        return self._reading == "open" or (self._reading == "local" and asking.is_local)

    # ------------------------------------------------------------ what is remembered

    def forget(self, key: str) -> None:
        """What is not accepted any more: see :func:`make_key`."""
        self._revocations += 1
        for cache in (self._known, self._clients):
            for hashed in [hashed for hashed, owner in cache.items() if owner.key == key]:
                cache.pop(hashed, None)
        kind, _, name = key.partition(":")
        if kind == "session":
            self._sessions.pop(name, None)

    def forget_clients(self) -> None:
        """Another process may have revoked or erased one."""
        self._revocations += 1
        self._known.clear()
        self._clients.clear()

    def _find_in_settings(self, hashed: str) -> Person | None:
        if are_same(hashed, self._admin):
            return ADMIN
        return VIEWER if self._viewer is not None and are_same(hashed, self._viewer) else None

    async def _identify_hash(self, hashed: str) -> Owner:
        owner = self._find_in_settings(hashed) or self._recall(hashed)
        while owner is None:
            revocations = self._revocations
            found = await self._look_up(hashed)
            self._familiar[hashed] = None
            if revocations == self._revocations:  # or what was read may be over already: it is read again
                owner = self._known[hashed] = found
                if isinstance(found, KnownClient) and self._is_watched():
                    self._clients[hashed] = found
        return owner

    def _recall(self, hashed: str) -> Owner | None:
        found = self._known.get(hashed)
        return self._clients.get(hashed) if found is None and self._is_watched() else found

    async def _look_up(self, hashed: str) -> Owner:
        found = await self._find(hashed)
        if found is None:
            raise _make_wrong_token()
        if found.revoked:
            who = f"client {found.client!r}" if isinstance(found, KnownClient) else found.actor
            raise RevokedToken(
                f"the token of {who} has been revoked",
                hint="Ask the coordinator's operator for a new one.",
            )
        return found


def _make_wrong_token() -> WrongToken:
    return WrongToken(
        "the token belongs to no client of this coordinator",
        hint="Check the coordinator's address; to register anew, remove the worker's credential.",
    )

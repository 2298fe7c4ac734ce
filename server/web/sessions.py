"""Sign-in of browsers: a cookie in place of the token, and forms that other sites cannot send.

A cookie holds 256 random bits, of which the coordinator keeps the hash beside that of the token. At each
request the guard decides anew what that token's owner may; signing out ends the session at the coordinator.
"""

from __future__ import annotations

import base64
import datetime as dt
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from fastapi import Request, Response

from server.web.security import hash_token, make_token

__all__ = ["SESSION_HOURS", "Sessions", "choose_next"]

SESSION_HOURS = 12
ATTEMPT_MINUTES = 10
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_OWN = ("same-origin", "none")
"""What a browser says in Sec-Fetch-Site of a request that no other site has caused."""

Keep = Callable[[str, str, dt.datetime, str], Awaitable[None]]
"""Keeps a session: its hash, the token's hash, when it ends, who it is."""


class Sessions:
    """``secret``: what only coordinators of one deployment know, the admin token."""

    def __init__(self, secret: str, clock: Callable[[], dt.datetime], keep: Keep) -> None:
        self._key = hmac.digest(secret.encode(), b"feddisco sessions", "sha256")
        self._clock = clock
        self._keep = keep
        # one host name may have several coordinators on its ports, and cookies know no ports
        self._name = f"feddisco-{self._sign('name', '')[:8]}"

    # ------------------------------------------------------------ the session

    async def start(self, request: Request, response: Response, token_hash: str, actor: str) -> None:
        """Let the browser that gave this token go on for :data:`SESSION_HOURS`."""
        secret = make_token()
        ends_at = self._clock() + dt.timedelta(hours=SESSION_HOURS)
        await self._keep(hash_token(secret), token_hash, ends_at, actor)
        self._set(request, response, "session", secret)

    def read(self, request: Request) -> str | None:
        """The hash of the session's cookie; None if there is none. Whether it goes on, the guard says."""
        found = self._get(request, "session")
        return hash_token(found) if _COOKIE.fullmatch(found) else None

    def forget(self, request: Request, response: Response) -> None:
        """Let the browser forget the cookie; the session itself is ended by its hash."""
        name = self._cookie(request, "session")
        response.delete_cookie(name, secure=_is_secure(request), httponly=True, samesite="strict")

    # ------------------------------------------------------------ forms

    def protect_form(self, request: Request) -> tuple[str, str]:
        """Nonce and seal of a form: one for a cookie (:meth:`keep_nonce`), one for a field.

        Another site can neither read the cookie nor make a seal that fits it; and a seal fits one session.
        """
        nonce = self._get(request, "form")
        nonce = nonce if _NONCE.fullmatch(nonce) else secrets.token_hex(16)
        return nonce, self._seal(request, nonce)

    def has_nonce(self, request: Request) -> bool:
        """Whether the browser holds one, so that the seals of its pages stay right."""
        return _NONCE.fullmatch(self._get(request, "form")) is not None

    def keep_nonce(self, request: Request, response: Response, nonce: str) -> None:
        self._set(request, response, "form", nonce)

    def is_own_form(self, request: Request, seal: str) -> bool:
        nonce = self._get(request, "form")
        is_own = request.headers.get("sec-fetch-site", "none") in _OWN
        expected = self._seal(request, nonce)
        return (
            is_own
            and bool(_NONCE.fullmatch(nonce))
            and hmac.compare_digest(expected.encode(), seal.encode("utf-8", "replace"))
        )

    def _seal(self, request: Request, nonce: str) -> str:
        return self._sign("form", f"{nonce}:{self.read(request) or ''}")

    # ------------------------------------------------------------ an attempt to sign in elsewhere

    def keep_attempt(self, request: Request, response: Response, attempt: Mapping[str, str]) -> None:
        """Let the browser keep what its return will be compared with.

        Other sites lead back here, to which a browser sends only cookies that are not strict.
        """
        ends_at = self._clock() + dt.timedelta(minutes=ATTEMPT_MINUTES)
        text = json.dumps({**attempt, "ends_at": ends_at.isoformat()})
        packed = base64.urlsafe_b64encode(text.encode()).decode()
        response.set_cookie(
            self._cookie(request, "attempt"),
            f"{packed}.{self._sign('attempt', packed)}",
            max_age=ATTEMPT_MINUTES * 60,
            secure=_is_secure(request),
            httponly=True,
            samesite="lax",
        )

    def read_attempt(self, request: Request) -> dict[str, str] | None:
        """None: it was not begun here, or too long ago."""
        packed, _, seal = self._get(request, "attempt").partition(".")
        if not hmac.compare_digest(self._sign("attempt", packed).encode(), seal.encode("utf-8", "replace")):
            return None
        attempt: dict[str, str] = json.loads(base64.urlsafe_b64decode(packed))
        is_over = self._clock() > dt.datetime.fromisoformat(attempt.pop("ends_at"))
        return None if is_over else attempt

    def forget_attempt(self, request: Request, response: Response) -> None:
        name = self._cookie(request, "attempt")
        response.delete_cookie(name, secure=_is_secure(request), httponly=True, samesite="lax")

    # ------------------------------------------------------------ cookies

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), "sha256").hexdigest()

    def _cookie(self, request: Request, kind: str) -> str:
        """With ``__Host-`` no neighbour under the same domain can set it."""
        return f"{'__Host-' if _is_secure(request) else ''}{self._name}-{kind}"

    def _get(self, request: Request, kind: str) -> str:
        return request.cookies.get(self._cookie(request, kind), "")

    def _set(self, request: Request, response: Response, kind: str, value: str) -> None:
        response.set_cookie(
            self._cookie(request, kind),
            value,
            max_age=SESSION_HOURS * 3600,
            secure=_is_secure(request),
            httponly=True,
            samesite="strict",
        )


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


def choose_next(wanted: str) -> str:
    """Where to go after the sign-in: an address of this coordinator, whatever was asked for.

    >>> choose_next("/runs/demo?log-before=9"), choose_next("//evil.example/x"), choose_next("https://a")
    ('/runs/demo?log-before=9', '/', '/')
    """
    parts = urlsplit(wanted) if re.fullmatch(r"/(?![/\\])[!-~]{0,500}", wanted) else urlsplit("/")
    return parts._replace(scheme="", netloc="", fragment="").geturl()

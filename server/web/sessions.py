"""Sign-in of browsers: a signed cookie in place of the token, and forms that other sites cannot send.

A cookie holds the hash of the token that was given, when it ends, and a signature. Nothing is stored: every
coordinator with the same admin token reads it, and a new one ends every session. At each request the guard
decides anew what the hash's owner may read.
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import Request, Response

__all__ = ["SESSION_HOURS", "Sessions", "choose_next"]

SESSION_HOURS = 12
_COOKIE = re.compile(r"(?P<end>[0-9]{1,12})\.(?P<token>[0-9a-f]{64})\.(?P<mac>[0-9a-f]{64})", re.ASCII)
_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Sessions:
    """``secret``: what only coordinators of one deployment know, the admin token."""

    def __init__(self, secret: str, clock: Callable[[], dt.datetime]) -> None:
        self._key = hmac.digest(secret.encode(), b"feddisco sessions", "sha256")
        self._clock = clock
        # one host name may have several coordinators on its ports, and cookies know no ports
        self._name = f"feddisco-{self._sign('name', '')[:8]}"

    # ------------------------------------------------------------ the session

    def start(self, request: Request, response: Response, token_hash: str) -> None:
        """Let the browser that gave this token read on for :data:`SESSION_HOURS`."""
        end = self._clock() + dt.timedelta(hours=SESSION_HOURS)
        text = f"{int(end.timestamp())}.{token_hash}"
        self._set(request, response, "session", f"{text}.{self._sign('session', text)}")

    def read(self, request: Request) -> str | None:
        """The hash of the token that was given at the sign-in; None if there is no session, or it is over."""
        found = _COOKIE.fullmatch(self._get(request, "session"))
        if found is None or int(found["end"]) < self._clock().timestamp():
            return None
        signed = self._sign("session", f"{found['end']}.{found['token']}")
        return found["token"] if hmac.compare_digest(signed, found["mac"]) else None

    def end(self, request: Request, response: Response) -> None:
        name = self._cookie(request, "session")
        response.delete_cookie(name, secure=_is_secure(request), httponly=True, samesite="strict")

    # ------------------------------------------------------------ forms

    def protect_form(self, request: Request) -> tuple[str, str]:
        """Nonce and seal of a form: one for a cookie (:meth:`keep_nonce`), one for a field.

        Another site can neither read the cookie nor make a seal that fits it.
        """
        nonce = self._get(request, "form")
        nonce = nonce if _NONCE.fullmatch(nonce) else secrets.token_hex(16)
        return nonce, self._sign("form", nonce)

    def keep_nonce(self, request: Request, response: Response, nonce: str) -> None:
        self._set(request, response, "form", nonce)

    def is_own_form(self, request: Request, seal: str) -> bool:
        nonce = self._get(request, "form")
        expected = self._sign("form", nonce)
        return bool(_NONCE.fullmatch(nonce)) and hmac.compare_digest(expected.encode(), seal.encode())

    def protect_sign_out(self, request: Request) -> str | None:
        """The seal of the form that ends this browser's session; None if it has none."""
        nonce = self._get(request, "form")
        return self._sign("form", nonce) if nonce and self.read(request) is not None else None

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

    >>> choose_next("/runs/demo?show=everything"), choose_next("//evil.example/x"), choose_next("https://a")
    ('/runs/demo?show=everything', '/', '/')
    """
    parts = urlsplit(wanted) if re.fullmatch(r"/(?![/\\])[!-~]{0,500}", wanted) else urlsplit("/")
    return parts._replace(scheme="", netloc="", fragment="").geturl()

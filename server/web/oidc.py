"""Signing in through an identity provider: OpenID Connect 1.0, authorisation code flow with PKCE.

The provider says who somebody is; who may do what is said here (``feddisco users``). Its tokens are looked at
once, when it answers, and not kept.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import httpx

from server.settings import Settings
from shared.addresses import check_address, is_loopback
from shared.problems import InvalidConfiguration

__all__ = ["CALLBACK", "Attempt", "IdentityProvider", "NotSignedIn", "make_provider"]

CALLBACK = "/sign-in/oidc/callback"
ALGORITHMS = ["RS256", "PS256", "ES256"]
"""Signed with the provider's private key: never with a secret that others know, never with none."""
LEEWAY_SECONDS = 60
KNOWN_SECONDS = 3600.0
TIMEOUT_SECONDS = 10.0
WELL_KNOWN = "/.well-known/openid-configuration"


class NotSignedIn(Exception):
    """Why somebody is not signed in, in a sentence for the page."""


@dataclass(frozen=True)
class Attempt:
    """What the browser keeps while it is at the provider. ``next``: the page that was asked for."""

    state: str
    nonce: str
    verifier: str
    next: str


class IdentityProvider:
    """One issuer. ``clock``: the time that its tokens are measured by. Used on the event loop."""

    def __init__(self, settings: Settings, clock: Callable[[], dt.datetime]) -> None:
        from joserfc.jwk import KeySet

        self._issuer = settings.oidc_issuer or ""
        self._client_id = settings.oidc_client_id or ""
        self._secret = settings.oidc_client_secret
        self._claim = settings.oidc_name_claim
        self._callback = f"{settings.public_url}{CALLBACK}"
        self._clock = clock
        self._addresses: dict[str, str] = {}
        self._keys = KeySet([])
        self._known_until = 0.0

    @property
    def name(self) -> str:
        """What the page calls it: its host."""
        return httpx.URL(self._issuer).host

    async def begin(self, wanted: str) -> tuple[str, Attempt]:
        """Where the browser goes to, and what it keeps meanwhile. Raises :class:`NotSignedIn`."""
        attempt = Attempt(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), wanted
        )
        await self._learn()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._callback,
            "scope": "openid profile email",
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return str(httpx.URL(self._addresses["authorization_endpoint"]).copy_merge_params(asked)), attempt

    async def finish(self, attempt: Attempt, answer: dict[str, str]) -> str:
        """The name that the provider gives to who came back. Raises :class:`NotSignedIn`."""
        if not secrets.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise NotSignedIn(
                "The answer of the identity provider belongs to another attempt (state). Try again."
            )
        if answer.get("iss", self._issuer) != self._issuer:
            raise NotSignedIn("The answer is of another identity provider (iss).")
        if "code" not in answer:
            raise NotSignedIn(f"The identity provider has not let you in: {_quote(answer.get('error'))}.")
        await self._learn()
        return self._name_of(await self._decode(await self._exchange(attempt, answer["code"]), attempt.nonce))

    async def _exchange(self, attempt: Attempt, code: str) -> str:
        """The ID token for a code."""
        given = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": self._client_id,
            "code_verifier": attempt.verifier,
        }
        auth = None
        if self._secret is not None:  # RFC 6749, section 2.3.1: both are encoded as in a form
            auth = httpx.BasicAuth(quote_plus(self._client_id), quote_plus(self._secret.get_secret_value()))
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, auth=auth) as client:
                answer = (await client.post(self._addresses["token_endpoint"], data=given)).json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error
        if not isinstance(answer, dict) or "error" in answer:
            said = answer.get("error") if isinstance(answer, dict) else None
            raise NotSignedIn(f"The identity provider refuses the code: {_quote(said)}.")
        if not isinstance(answer.get("id_token"), str):
            raise NotSignedIn("The identity provider has sent no ID token.")
        return str(answer["id_token"])

    async def _decode(self, id_token: str, nonce: str) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        try:
            try:
                token = jwt.decode(id_token, self._keys, algorithms=ALGORITHMS)
            except InvalidKeyIdError:  # it has new ones
                await self._learn(anew=True)
                token = jwt.decode(id_token, self._keys, algorithms=ALGORITHMS)
            wanted = {"iss": self._issuer, "aud": self._client_id, "nonce": nonce}
            options: dict[str, Any] = {claim: {"essential": True} for claim in ("exp", "iat", "sub")}
            options |= {claim: {"essential": True, "value": value} for claim, value in wanted.items()}
            jwt.JWTClaimsRegistry(
                now=int(self._clock().timestamp()),
                leeway=LEEWAY_SECONDS,
                **options,
            ).validate(token.claims)
        except (JoseError, ValueError) as error:
            raise NotSignedIn(_explain(error)) from error
        claims: dict[str, Any] = token.claims
        if claims.get("azp", self._client_id) != self._client_id:
            raise NotSignedIn(_FAULTS["aud"])
        return claims

    def _name_of(self, claims: dict[str, Any]) -> str:
        name = claims.get(self._claim)
        if not isinstance(name, str) or not name:
            raise NotSignedIn(f"The identity provider says no {self._claim} of you.")
        if self._claim == "email" and claims.get("email_verified") is not True:
            raise NotSignedIn("The identity provider has not verified your e-mail address.")
        return name

    async def _learn(self, *, anew: bool = False) -> None:
        """The provider's addresses and keys, once an hour."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        if time.monotonic() < self._known_until and not anew:
            return
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                found = (await client.get(f"{self._issuer}{WELL_KNOWN}")).raise_for_status().json()
                if found["issuer"] != self._issuer:
                    raise NotSignedIn(f"The identity provider calls itself {_quote(found['issuer'])} (iss).")
                names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
                addresses = {name: _check_safe(found[name]) for name in names}
                keys = (await client.get(addresses["jwks_uri"])).raise_for_status().json()
            self._addresses, self._keys = addresses, KeySet.import_key_set(keys)
        except (httpx.HTTPError, KeyError, TypeError, ValueError, JoseError) as error:
            raise self._unreachable(error) from error
        self._known_until = time.monotonic() + KNOWN_SECONDS

    def _unreachable(self, error: Exception) -> NotSignedIn:
        return NotSignedIn(
            f"The identity provider {self.name} does not answer as it should ({type(error).__name__}). "
            "Try again in a moment, or sign in with a token."
        )


_FAULTS = {
    "iss": "The ID token is of another identity provider (iss).",
    "aud": "The ID token is meant for another application (aud).",
    "nonce": "The ID token belongs to another attempt (nonce). Try again.",
    "exp": "The ID token has expired (exp). Try again; if it stays so, a clock is wrong.",
    "iat": "The ID token is of the future (iat): a clock is wrong.",
}


def _explain(error: Exception) -> str:
    from joserfc.errors import ExpiredTokenError

    claim = "exp" if isinstance(error, ExpiredTokenError) else getattr(error, "claim", None)
    return _FAULTS.get(str(claim), "The ID token is not one that the identity provider has signed.")


def _check_safe(address: str) -> str:
    parsed = httpx.URL(check_address(address))
    if parsed.scheme != "https" and not is_loopback(parsed.host):
        raise ValueError(f"{address} would send codes and tokens in clear")
    return address


def _quote(word: object) -> str:
    """Somebody else's words, on one line and short."""
    return ascii(str(word)[:100])


def make_provider(settings: Settings, clock: Callable[[], dt.datetime]) -> IdentityProvider | None:
    """None where none is set. Raises InvalidConfiguration without the package."""
    if settings.oidc_issuer is None:
        return None
    try:
        return IdentityProvider(settings, clock)
    except ModuleNotFoundError:
        raise InvalidConfiguration(
            "oidc_issuer needs the package joserfc", hint="Install it: pip install 'feddisco[oidc]'."
        ) from None

"""An identity provider (OpenID Connect) as a process of its own on loopback, with keys of its own.

``python -m tests.helpers.oidc_provider PORT`` runs it. Whoever comes is the person of the last ``POST /_be``,
whose JSON says also what is wrong with the next ID tokens: ``{"name": "maria", "claims": {"nonce": "x"}}``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from tests.helpers.http_servers import closed_port

__all__ = ["CLIENT", "CLIENT_SECRET", "Provider", "oidc_provider"]

CLIENT, CLIENT_SECRET = "feddisco-tests", "client-secret-of-the-tests"
ROOT = Path(__file__).resolve().parent.parent.parent


class Provider:
    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def be(self, name: str, **more: Any) -> None:
        """Who comes from now on; ``claims``, ``key``: what is wrong with the ID tokens."""
        httpx.post(f"{self.issuer}/_be", json={"name": name, **more}).raise_for_status()


@contextlib.contextmanager
def oidc_provider(folder: Path) -> Iterator[Provider]:
    port, log = closed_port(), folder / "oidc.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.oidc_provider", str(port)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
        )
    provider = Provider(f"http://127.0.0.1:{port}")
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(provider.issuer)
                break
            assert process.poll() is None, log.read_text(errors="replace")
            time.sleep(0.1)
        yield provider
    finally:
        process.kill()
        process.wait()


class Handler(BaseHTTPRequestHandler):
    issuer = ""
    being: ClassVar[dict[str, Any]] = {}
    codes: ClassVar[dict[str, dict[str, str]]] = {}
    keys: ClassVar[dict[str, RSAKey]] = {
        kid: RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}) for kid in ("old", "new", "foreign")
    }
    published: ClassVar[list[str]] = ["old"]

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        if address.path == "/.well-known/openid-configuration":
            self._answer(
                {
                    "issuer": self.issuer,
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                    "jwks_uri": f"{self.issuer}/keys",
                }
            )
        elif address.path == "/keys":
            self._answer(KeySet([self.keys[kid] for kid in self.published]).as_dict(private=False))
        elif address.path == "/authorize":
            self._authorize(asked)
        else:
            self._answer({}, 404)

    def _authorize(self, asked: dict[str, str]) -> None:
        answer = {"state": asked["state"]}
        if self.being.get("denied"):
            answer["error"] = "access_denied"
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self.codes[answer["code"]] = asked
        self.send_response(302)
        self.send_header("Location", f"{asked['redirect_uri']}?{urlencode(answer)}")
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/_be":
            Handler.being = json.loads(body)
            Handler.published = self.being.get("published", ["old"])
            self._answer({})
            return
        given = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        asked = self.codes.pop(given["code"], None)  # once
        digest = hashlib.sha256(given["code_verifier"].encode()).digest()
        basic = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
        if (
            asked is None
            or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]
            or self.headers["Authorization"] != f"Basic {basic}"
            or given["redirect_uri"] != asked["redirect_uri"]
        ):
            self._answer({"error": "invalid_grant"}, 400)
            return
        self._answer({"access_token": "unused", "token_type": "Bearer", "id_token": self._make(asked)})

    def _make(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": asked["client_id"],
            "sub": "1",
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "preferred_username": self.being["name"],
        }
        key = self.being.get("key", "old")
        header = {"alg": "RS256", "kid": self.being.get("kid", key)}
        return jwt.encode(header, claims | self.being.get("claims", {}), self.keys[key])

    def _answer(self, body: object, status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    Handler.issuer = f"http://127.0.0.1:{sys.argv[1]}"
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

"""HTTP by hand: requests that are begun and not ended, or that never should have been sent."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

__all__ = ["Connection", "head"]


def head(method: str, path: str, token: str | None = None, **headers: object) -> bytes:
    """A request's beginning; ``content_length=5`` becomes a header."""
    lines = [f"{method} {path} HTTP/1.1", "Host: coordinator"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@dataclass
class Connection:
    """A TCP connection to ``url``; with ``tls``, whoever answers there is believed."""

    url: str
    receive_buffer: int | None = None
    tls: bool = False
    socket: socket.socket = field(init=False)
    _unread: bytes = b""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.socket = socket.socket()
        if self.receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        self.socket.settimeout(20.0)
        self.socket.connect((parts.hostname, parts.port))
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the next answer, which gives its length."""
        while b"\r\n\r\n" not in self._unread:
            self._receive()
        start, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *rest = start.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest)
        length = int(headers.get("content-length", 0))
        while len(self._unread) < length:
            self._receive()
        body, self._unread = self._unread[:length], self._unread[length:]
        return int(first.split()[1]), json.loads(body) if body else {}

    def _receive(self) -> None:
        got = self.socket.recv(65536)
        if not got:
            raise ConnectionResetError("closed")
        self._unread += got

    def closed_after(self) -> float:
        """Seconds until the other end has closed, whatever it sends before."""
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        return time.monotonic() - began

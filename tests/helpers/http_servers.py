"""Small real servers for the worker's tests: scripted HTTP, with or without TLS, and a silent socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

__all__ = ["Answer", "Request", "closed_port", "http_server", "listening", "transport"]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """``cut``: close the connection after so many bytes of the body, whatever Content-Length said."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


@contextmanager
def http_server(answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server on a free port; yields its address. Every request goes to ``answer``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(Request(self.command, self.path, headers, self.rfile.read(length)))
            self.send_response(reply.status)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(reply.body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body[: reply.cut])
            if reply.cut is not None:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that hangs up, or speaks no TLS, is what the tests are about

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def transport(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.MockTransport:
    """The network as a function, whose answers are yet to be read, as those of a socket are."""

    def unread(request: httpx.Request) -> httpx.Response:
        made = answer(request)
        return httpx.Response(made.status_code, headers=made.headers, stream=httpx.ByteStream(made.content))

    return httpx.MockTransport(unread)


@contextmanager
def listening() -> Iterator[str]:
    """A port that takes connections (the kernel does) and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])

"""What stands between a worker and its coordinator: a proxy that refuses, cuts, or answers itself."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.helpers.http_servers import Answer

__all__ = ["Cut", "Exchange", "Rule", "pour", "proxy"]

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


class Cut:
    """Reset the connection in the middle of the body."""


Rule = Callable[[str, str, int], Answer | Cut | None]
"""From method, path and length of the body to what the proxy does; None: it passes the request on."""


def _pass_all(_method: str, _path: str, _length: int) -> None:
    return None


@dataclass(frozen=True)
class Exchange:
    """A request that was passed on; ``answer`` is None if none came back."""

    method: str
    path: str
    headers: Mapping[str, str]
    answer: Answer | None


def _ignore(_exchange: Exchange) -> None:
    pass


@contextmanager
def proxy(
    upstream: str,
    rule: Rule = _pass_all,
    idle_seconds: float = 60.0,
    listener: Callable[[Exchange], None] = _ignore,
) -> Iterator[str]:
    """A reverse proxy; an answer that takes longer than ``idle_seconds`` becomes a page of status 504.

    ``listener`` is told, on any thread, of what was passed on, before the answer is handed back.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            decided = rule(self.command, self.path, length)
            if isinstance(decided, Cut):
                self.rfile.read(length // 2)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()  # unread data and no lingering: a reset
                self.close_connection = True
                return
            body = self.rfile.read(length)
            self._write(decided or self._forward(body))

        def _forward(self, body: bytes) -> Answer:
            given = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            try:
                reply = client.request(self.command, upstream + self.path, headers=given, content=body)
            except httpx.TransportError as error:
                listener(Exchange(self.command, self.path, given, None))
                if not isinstance(error, httpx.ReadTimeout):
                    raise
                return Answer(504, b"<h1>504 Gateway Time-out</h1>", {"Content-Type": "text/html"})
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in HOP_BY_HOP}
            answer = Answer(reply.status_code, reply.content, kept)
            listener(Exchange(self.command, self.path, given, answer))
            return answer

        def _write(self, reply: Answer) -> None:
            self.send_response_only(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status not in (204, 304):
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_CONNECT = _serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a connection that was reset, here or there

    with httpx.Client(timeout=httpx.Timeout(10.0, read=idle_seconds), trust_env=False) as client:
        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def pour(head: bytes, piece: bytes, pieces: int) -> Iterator[tuple[str, list[int]]]:
    """A server that answers every request with ``head`` and then ``piece`` again and again.

    Yields its address, and a list of how many bytes went out by each connection, the newest last.
    """
    poured: list[int] = []

    def serve(connection: socket.socket) -> None:
        number = len(poured)
        poured.append(0)
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(head)
                for _ in range(pieces):
                    connection.sendall(piece)
                    poured[number] += len(piece)
            except OSError:
                return  # the other end has had enough

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", poured
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)

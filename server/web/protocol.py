"""What happens on a connection before and after a request: bounds for connections, headers and dead ends.

Uvicorn bounds none of these; in all else it does as before. The application sees nothing of them, but for
the :class:`Line` that each request's scope has under :data:`LINE`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import httptools
from uvicorn.middleware.proxy_headers import _TrustedHosts
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.settings import Settings
from server.web.large_bodies import LARGE_BYTES, LargeBody
from server.web.limits import Places
from server.web.numbers import LARGEST_ANNOUNCED, parse_whole
from shared.addresses import is_loopback
from shared.problems import Busy, HeadersTooLarge, Problem, RequestTimeout, TooManyRequests

__all__ = ["HEADER_BYTES", "LINE", "Connections", "Line", "bound_protocol"]

HEADER_BYTES = 2**16
"""Of a request line with its headers."""
TCP_INFO_BYTES, BYTES_ACKNOWLEDGED = 128, 120
"""Of Linux's ``struct tcp_info`` as much as is needed, and where ``tcpi_bytes_acked`` is in it."""


LINE = "feddisco.line"


class Line:
    """The other end of a connection, for a request that waits: what to do when it hangs up.

    To hear of that by ASGI takes a task that waits for the next message, which costs a poll more than its
    answer does. It knows nothing of the connection: a scope that outlives it keeps nothing alive.
    """

    __slots__ = ("is_cut", "on_cut")

    def __init__(self) -> None:
        self.is_cut = False
        self.on_cut: Callable[[], None] | None = None

    def cut(self) -> None:
        self.is_cut = True
        if self.on_cut is not None:
            self.on_cut()


class Connections:
    """The places for connections in one process, and how long one may stand still.

    ``note`` is called with each problem that ends a connection.
    """

    def __init__(self, settings: Settings, note: Callable[[Problem], None]) -> None:
        self.places = Places(
            "connections",
            most=settings.max_connections,
            setting="max_connections",
            most_each=settings.max_connections_per_address,
            setting_each="max_connections_per_address",
        )
        self.header_seconds = settings.header_seconds
        self.stall_seconds = settings.stall_seconds
        self.note = note


def bound_protocol(connections: Connections) -> type[HttpToolsProtocol]:
    """Uvicorn's HTTP/1.1, within the bounds of ``connections``."""

    class Bounded(_BoundedProtocol):
        bounds = connections

    return Bounded


def _make_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """As uvicorn makes it for a new connection."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _count_read(transport: asyncio.Transport) -> int:
    """A number that grows as the other end reads: of bytes that it has acknowledged.

    Our own buffer empties in leaps of megabytes only, as the kernel's does.
    """
    found = transport.get_extra_info("socket")
    if found is None:  # it is closed already
        return 0
    if sys.platform != "linux":
        return -transport.get_write_buffer_size()
    info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    (acknowledged,) = struct.unpack_from("Q", info, BYTES_ACKNOWLEDGED)
    return int(acknowledged)


@lru_cache
def _read_trusted(proxies: str) -> _TrustedHosts:
    """As uvicorn reads them, whose word they are: addresses, networks, or all."""
    return _TrustedHosts(proxies)


class _BoundedProtocol(HttpToolsProtocol):
    """One connection. A timer runs while headers are awaited, a refused body goes on, or nobody reads."""

    bounds: Connections

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._place = ExitStack()
        self._line = Line()
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0
        self._request_ended = False
        self._body_remaining = 0  # of a length that the headers gave; less than 0 in one of chunks

    # ------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._place.enter_context(self.bounds.places.hold(self._find_crowd()))
        except (Busy, TooManyRequests) as problem:
            self._refuse(problem)
        else:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        self._place.close()
        super().connection_lost(exc)
        self._line.cut()

    def _find_crowd(self) -> str | None:
        """The other end's address; None for a proxy that is trusted to say whom it speaks for."""
        address = self.client[0] if self.client else ""
        proxies = self.config.forwarded_allow_ips
        trusted = _read_trusted(proxies if isinstance(proxies, str) else ",".join(proxies))
        return None if is_loopback(address) or address in trusted else address

    # ------------------------------------------------------------ in

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._request_ended:  # also by stray bytes between requests
            self._begin_head()
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._body_remaining > LARGE_BYTES and not self.transport.is_closing():
            self._receive_by(LargeBody(self, self._body_remaining))
        elif self._in_head and self._head_bytes > HEADER_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"the headers have more than {HEADER_BYTES} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[LINE] = self._line  # type: ignore[literal-required]
        if not self._in_head:  # one that follows in the same packet
            self._begin_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        self._body_remaining = self._find_length()

    def _find_length(self) -> int:
        """Bytes of the body that begins; 0 if the headers do not say. The parser refuses two lengths."""
        if self.parser.should_upgrade():
            return 0
        for name, value in self.headers:
            if name == b"content-length":
                return parse_whole(value.decode("latin-1"), LARGEST_ANNOUNCED) or 0
        return 0

    def on_body(self, body: bytes) -> None:
        self._body_remaining -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._body_remaining = 0
        self._request_ended = True
        if self.cycle is not None and self.cycle.response_complete:  # refused before its body was here
            self._start_timer(self.timeout_keep_alive, self._close)

    def _receive_by(self, protocol: asyncio.BaseProtocol) -> None:
        """Hear the transport through ``protocol`` from the next byte on."""
        if not self.flow.read_paused:  # uvloop keeps to the old one as long as it reads
            self.transport.pause_reading()
        self.transport.set_protocol(protocol)
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def end_large_body(self) -> None:
        """The parser, which still waits for the body, is replaced."""
        self._receive_by(self)
        self.parser = _make_parser(self)
        self.on_message_complete()

    def note_traffic(self) -> None:
        """Whoever still sends is not idle."""
        self._unset_keepalive_if_required()

    def _begin_head(self) -> None:
        self._in_head, self._head_bytes, self._request_ended = True, 0, False
        self._start_timer(self.bounds.header_seconds, self._refuse_slow_head)

    def _refuse_slow_head(self) -> None:
        self._refuse(
            RequestTimeout(
                f"no whole headers came within {self.bounds.header_seconds:g} s of their beginning"
            )
        )

    # ------------------------------------------------------------ out

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._request_ended and not self._in_head:  # the rest of the body is thrown away as it comes
            self._start_timer(self.bounds.stall_seconds, self._close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def _watch_reader(self) -> None:
        self._stop_write_timer()
        read = _count_read(self.transport)
        self._write_timer = self.loop.call_later(self.bounds.stall_seconds, self._check_reader, read)

    def _check_reader(self, read_before: int) -> None:
        if _count_read(self.transport) > read_before:  # slowly, but steadily
            self._watch_reader()
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    # ------------------------------------------------------------ ends

    def _refuse(self, problem: Problem) -> None:
        self.bounds.note(problem)
        self._stop_timer()
        body = json.dumps(problem.as_json()).encode()
        head = [
            STATUS_LINE[problem.status],
            b"content-type: application/problem+json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def _close(self) -> None:
        self._stop_timer()
        self.transport.close()

    def _start_timer(self, seconds: float, end: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

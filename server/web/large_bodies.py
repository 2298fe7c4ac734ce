"""A large body on its way from the socket to the application: past the HTTP parser, in large pieces.

Once the headers have said how long a body is there is nothing to parse in it. Through httptools and uvicorn
each packet of it is copied four times and wakes the application; here it is copied once, and the application
is woken once for each megabyte.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["LARGE_BYTES", "Connection", "LargeBody"]

LARGE_BYTES = 2**20
"""A body that is longer comes this way, in pieces of so many bytes."""
HAND_OVER_SECONDS = 0.5
"""So long a byte waits at most for its piece to be full: whoever sends slowly is heard in time, too."""


class Connection(Protocol):
    """Whose body it is; ``cycle`` is the request that it belongs to."""

    cycle: RequestResponseCycle
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def end_large_body(self) -> None: ...
    def note_traffic(self) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class LargeBody(asyncio.BufferedProtocol):
    """Stands in for ``connection`` at its transport until ``remaining`` bytes have come, and not one more."""

    def __init__(self, connection: Connection, remaining: int) -> None:
        self._connection = connection
        self._remaining = remaining
        self._piece = memoryview(bytearray(min(remaining, LARGE_BYTES)))
        self._filled = 0
        self._timer: asyncio.TimerHandle | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece[self._filled : self._filled + self._remaining]

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.note_traffic()
        self._filled += nbytes
        self._remaining -= nbytes
        if self._remaining == 0:
            self._hand_over()
            self._connection.end_large_body()
        elif self._filled == len(self._piece):
            self._hand_over()
        elif self._timer is None:
            self._timer = self._connection.loop.call_later(HAND_OVER_SECONDS, self._hand_over)

    def _hand_over(self) -> None:
        """What has come, to the application; nothing more is read until it asks for it."""
        self._stop_timer()
        cycle, piece = self._connection.cycle, bytes(self._piece[: self._filled])
        self._filled = 0
        if cycle.response_complete:  # refused: the rest is thrown away
            return
        # as bytes, of which uvicorn makes no copy when it hands them on
        cycle.body = bytes(cycle.body) + piece if cycle.body else piece  # type: ignore[assignment]
        self._connection.flow.pause_reading()
        cycle.message_event.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------ what the connection hears as before

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._connection.connection_lost(exc)

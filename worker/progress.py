"""What the worker prints for the person who started it: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from shared.texts import escape_line

if TYPE_CHECKING:
    from shared.training import TrainProgress

__all__ = ["Reporter"]

Show = Callable[["TrainProgress"], None]


class Reporter:
    """Lines with a UTC time. ``terminal`` None: whatever the stream is. ``now`` gives aware times."""

    def __init__(
        self, stream: TextIO, now: Callable[[], dt.datetime], *, terminal: bool | None = None
    ) -> None:
        self._stream = stream
        self._now = now
        self._terminal = stream.isatty() if terminal is None else terminal
        self._waiting_for = ""

    def say(self, text: str) -> None:
        """Print one line about something that happened."""
        self._waiting_for = ""
        self._write_line(text)

    def say_waiting(self, text: str) -> None:
        """Print what is being waited for, unless it is the same as last time."""
        if text and text != self._waiting_for:
            self._write_line(text)
            self._waiting_for = text

    def _write_line(self, text: str) -> None:
        moment = self._now().astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        self._stream.write(f"{moment}  {escape_line(text)}\n")  # others wrote parts of it
        self._stream.flush()

    @contextmanager
    def show_training(self, title: str) -> Iterator[Show]:
        """A bar for one round's training; nothing without a terminal."""
        if not self._terminal:
            yield lambda _: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total}  loss {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        with Progress(
            *columns, console=Console(file=self._stream, force_terminal=True), transient=True
        ) as bars:
            bar = bars.add_task(title, total=None, loss="-")

            def show(progress: TrainProgress) -> None:
                loss = "-" if progress.loss is None else f"{progress.loss:.4f}"
                bars.update(bar, completed=progress.step, total=progress.steps, loss=loss)

            yield show

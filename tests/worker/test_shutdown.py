"""Signals: at once where nothing is lost, after the batch while training."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from worker.shutdown import Shutdown, ShutdownRequested


def _signal(number: signal.Signals = signal.SIGTERM) -> None:
    """Send it to this process; its handler has run when this returns (or raises)."""
    os.kill(os.getpid(), number)
    threading.Event().wait(0.01)


def _deferred(shutdown: Shutdown, signals: int, seen: list[bool], *, error: bool = False) -> None:
    """A training during which so many signals come; ``seen``: what it read after each."""
    with shutdown.handle_signals(), shutdown.defer():
        for _ in range(signals):
            _signal()
            seen.append(shutdown.requested)
        if error:
            raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_interrupts_what_waits(number: signal.Signals) -> None:
    shutdown = Shutdown()
    with shutdown.handle_signals(), pytest.raises(ShutdownRequested):
        _signal(number)
    assert shutdown.requested


def test_while_deferred_it_is_only_noted_and_raised_at_the_end() -> None:
    seen: list[bool] = []
    with pytest.raises(ShutdownRequested):
        _deferred(Shutdown(), 1, seen)
    assert seen == [True]


def test_the_second_signal_does_not_wait() -> None:
    seen: list[bool] = []
    with pytest.raises(ShutdownRequested):
        _deferred(Shutdown(), 2, seen)
    assert seen == [True]  # the loop did not come to its second look


def test_an_error_inside_is_not_hidden_by_a_signal() -> None:
    with pytest.raises(ZeroDivisionError):
        _deferred(Shutdown(), 1, [], error=True)


def test_without_a_signal_nothing_is_raised_and_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    shutdown = Shutdown()
    with shutdown.handle_signals(), shutdown.defer():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    assert not shutdown.requested


def test_in_another_thread_the_handlers_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with Shutdown().handle_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]

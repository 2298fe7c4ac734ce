"""A signal ends what it interrupts, also where a library takes it for a fault of its own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from feddisco.demo import raise_on_signals


def build_something() -> None:
    """As pydantic does when it is interrupted while it builds a serializer."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except KeyboardInterrupt:
        raise ValueError("cannot be built") from None


def test_an_interruption_that_was_taken_for_a_fault_is_one() -> None:
    with pytest.raises(KeyboardInterrupt), raise_on_signals():
        build_something()


def test_other_faults_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="its own"), raise_on_signals():
        raise ValueError("its own")

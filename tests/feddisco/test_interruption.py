"""A signal ends what it interrupts, also where a library takes it for a fault of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


IGNORED = """
import os, signal, sys, time, weakref
from feddisco.demo import raise_on_signals
from worker.shutdown import Shutdown, ShutdownRequested

class Thing:
    def __del__(self):
        if sys.argv[2] == "finaliser":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

def forgotten(_reference):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)

def wait():
    thing = Thing()
    reference = weakref.ref(thing, forgotten if sys.argv[2] == "callback" else None)
    del thing
    print("waits", flush=True)
    time.sleep(60)

try:
    with raise_on_signals() if sys.argv[1] == "demo" else Shutdown().handle_signals():
        wait()
except (KeyboardInterrupt, ShutdownRequested) as ended:
    print("ended by", type(ended).__name__)
"""


@pytest.mark.parametrize("place", ["finaliser", "callback"])
@pytest.mark.parametrize(("who", "raised"), [("demo", "KeyboardInterrupt"), ("worker", "ShutdownRequested")])
def test_a_signal_that_comes_where_exceptions_are_forgotten_is_heard(
    who: str, raised: str, place: str
) -> None:
    """In a process of its own: here the timeout of tests has the alarm."""
    done = subprocess.run(
        [sys.executable, "-c", IGNORED, who, place], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout.split("\n") == ["waits", f"ended by {raised}", ""]
    assert (done.returncode, done.stderr) == (0, "")

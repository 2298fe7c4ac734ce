"""Version and machine, as results and answers name them."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from shared.versions import (
    VERSION,
    describe_machine,
    find_versions,
    processor_flags,
    processor_name,
    vector_flags,
)


def test_versions_are_those_installed() -> None:
    assert find_versions("torch") == {
        "feddisco": VERSION,
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    assert version("feddisco") == VERSION


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["processor"] == f"{platform.machine()}, {processor_name()}"
    assert machine["vectors"] == vector_flags()
    assert 1 <= machine["cores"] <= (os.cpu_count() or 1)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the processor is read from Linux's /proc")
def test_the_processor_is_the_one_that_the_system_tells() -> None:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    (flags, *_) = re.findall(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    assert set(processor_flags()) == set(flags.split())
    assert set(vector_flags().split()) <= set(processor_flags())
    if named := re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE):
        assert processor_name().startswith(named[0].strip())

"""What a result or an answer was made with: this program's version, its packages, the machine.

Sums of floats, and so digests, hold on one kind of processor.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = [
    "VERSION",
    "describe_machine",
    "find_versions",
    "processor_flags",
    "processor_name",
    "vector_flags",
]

try:
    VERSION = version("feddisco")
except PackageNotFoundError:  # run from a checkout that was not installed
    VERSION = "0+unknown"

VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "sve", "neon")
"""How the names of instructions on several numbers at once begin, on x86 and Arm."""


def find_versions(*packages: str) -> dict[str, str]:
    """By name: Python's version, this program's, and those of the installed ``packages``."""
    found = {"feddisco": VERSION} | {name: version(name) for name in packages}
    return found | {"python": platform.python_version()}


def describe_machine() -> dict[str, Any]:
    """Processor, its vector instructions, and how many of its cores this process may use."""
    return {
        "processor": f"{platform.machine()}, {processor_name()}",
        "vectors": vector_flags(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def processor_name() -> str:
    """As the maker calls it and numbers it, where the system tells; otherwise the architecture."""
    fields = _read_cpuinfo()
    name = fields.get("model name") or platform.processor() or platform.machine()
    kind = [f"{field} {fields[field]}" for field in ("cpu family", "model", "stepping") if field in fields]
    return f"{name} ({', '.join(kind)})" if kind else name


def processor_flags() -> list[str]:
    """All that the processor can do, in alphabetical order; empty where the system does not tell."""
    fields = _read_cpuinfo()
    return sorted(set((fields.get("flags") or fields.get("Features") or "").split()))


def vector_flags() -> str:
    """Its instructions on vectors, in alphabetical order; empty where the system does not tell."""
    return " ".join(flag for flag in processor_flags() if flag.startswith(VECTORS))


@cache
def _read_cpuinfo() -> dict[str, str]:
    """The fields of the first core."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}

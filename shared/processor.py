"""What kind of processor this is: sums of floats, and so digests, hold on one kind."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

__all__ = ["model_name", "vector_flags"]

VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "sve", "neon")
"""How the names of instructions on several numbers at once begin, on x86 and Arm."""


def model_name() -> str:
    """As the maker calls it and numbers it, where the system tells; otherwise the architecture."""
    told = _cpuinfo()
    name = told.get("model name") or platform.processor() or platform.machine()
    kind = [f"{field} {told[field]}" for field in ("cpu family", "model", "stepping") if field in told]
    return f"{name} ({', '.join(kind)})" if kind else name


def vector_flags() -> str:
    """Its instructions on vectors, in alphabetical order; empty where the system does not tell."""
    flags = (_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split()
    return " ".join(sorted(flag for flag in set(flags) if flag.startswith(VECTORS)))


@cache
def _cpuinfo() -> dict[str, str]:
    """The fields of the first core."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}

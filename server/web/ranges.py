"""The Range header (RFC 9110, 14): one range of bytes; several are answered with the whole file."""

from __future__ import annotations

import re

from fastapi import Request

from shared.problems import RangeNotSatisfiable

__all__ = ["choose_range", "parse_range"]

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII | re.IGNORECASE)


def choose_range(request: Request, size: int, digest: str) -> tuple[int, int, int]:
    """First byte, one past the last byte, and the status: 200 for the whole file, 206 for a part."""
    condition = request.headers.get("if-range")
    if condition is not None and condition.strip() != f'"{digest}"':
        return 0, size, 200
    found = parse_range(request.headers.get("range"), size)
    return (0, size, 200) if found is None else (*found, 206)


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and one past the last; None for no header, or one that may be ignored.

    Raises :class:`RangeNotSatisfiable` for a range that lies outside the file.

    >>> parse_range("bytes=2-3", 10), parse_range("bytes=-3", 10), parse_range("bytes=8-", 10)
    ((2, 4), (7, 10), (8, 10))
    """
    match = _RANGE.fullmatch(header.strip()) if header is not None else None
    if match is None or (match[1] == "" and match[2] == ""):
        return None
    if match[1] == "":
        start, stop = max(size - int(match[2]), 0), size
    else:
        start = int(match[1])
        stop = min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None  # not a valid range: the header is ignored
    if start >= stop:
        raise RangeNotSatisfiable(f"received {header!r}, the file has {size} bytes", bytes=size)
    return start, stop

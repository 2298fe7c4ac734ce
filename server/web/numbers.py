"""Whole numbers in headers and addresses, from people who may send anything."""

from __future__ import annotations

__all__ = ["LARGEST_ANNOUNCED", "parse_whole"]

LARGEST_ANNOUNCED = 2**63 - 1
"""Bytes of a body that a header may announce."""


def parse_whole(text: str, largest: int) -> int | None:
    """The number from 0 to ``largest`` that ``text`` writes in ASCII digits; None for anything else.

    Python's ``int`` alone also reads signs, white space and other scripts' digits, and raises beyond 4300.

    >>> parse_whole("007", 10), parse_whole("11", 10), parse_whole("+1", 10), parse_whole("9" * 5000, 10)
    (7, None, None, None)
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 40):
        return None
    number = int(text)
    return number if number <= largest else None

"""Texts for people, and the characters that no database or terminal should be given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = [
    "escape_controls",
    "escape_line",
    "find_nearest",
    "find_unstorable",
    "format_count",
    "format_seconds",
    "format_size",
    "inflect",
]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tab and line feed, C1, marks that turn the direction of writing, lone surrogates."""


def find_nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The names, at most ``most``, that somebody who wrote ``name`` may have meant, the likeliest first.

    Capitals and spaces around are no matter.

    >>> find_nearest("Nevi", ["melanoma", "nevus"]), find_nearest("   A ", ["a", "b"])
    (['nevus'], ['a'])
    """
    import difflib  # rarely needed

    by_fold = {one.strip().casefold(): one for one in known}
    near = difflib.get_close_matches(name.strip().casefold(), by_fold, most, cutoff=0.5)
    return [by_fold[fold] for fold in near]


def escape_controls(text: str) -> str:
    r"""The text with control characters written out, so that a terminal shows them and does not obey.

    >>> escape_controls("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROLS.sub(_write_out, text)


def escape_line(text: str, longest: int = 4000) -> str:
    r"""The text as one line of a log: nobody can add a line by what is repeated of his words, or an essay.

    >>> escape_line("left\n2026-11-28 12:00:00Z  all is well")
    'left\\n2026-11-28 12:00:00Z  all is well'
    """
    cut = text if len(text) <= longest else f"{text[:longest]} ..."
    return escape_controls(cut).replace("\n", "\\n")


def _write_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def find_unstorable(document: Any, where: str = "") -> str | None:
    """The first place in a JSON document whose text has no form in UTF-8 or in PostgreSQL; None if all have.

    Names of fields count too. The place is written with dots, as problem documents write it.
    """
    left = [(where, document)]
    while left:
        place, value = left.pop()
        if isinstance(value, str):
            if _UNSTORABLE.search(value):
                return place
        elif isinstance(value, dict):
            for name, item in value.items():
                if isinstance(name, str) and _UNSTORABLE.search(name):
                    return place
                left.append((f"{place}.{name}".lstrip("."), item))
        elif isinstance(value, list | tuple):
            left.extend((f"{place}.{number}".lstrip("."), item) for number, item in enumerate(value))
    return None


def format_count(number: int, noun: str) -> str:
    """
    >>> format_count(1, "round"), format_count(0, "round"), format_count(20, "round")
    ('1 round', '0 rounds', '20 rounds')
    """
    return f"{number} {inflect(number, noun)}"


def inflect(number: int | None, noun: str) -> str:
    """The noun as it follows the number, which may be written in any way: ``round``, or ``rounds``."""
    return noun if number == 1 else f"{noun}s"


def format_seconds(seconds: float) -> str:
    """Roughly, in the two largest units.

    >>> [format_seconds(each) for each in (7.2, 245, 7380, 100_000)]
    ['7 s', '4 min 05 s', '2 h 03 min', '1 d 03 h']
    """
    whole = round(seconds)
    for large, small, size, unit in (("d", "h", 86_400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size} {large} {whole % size // unit:02d} {small}"
    return f"{whole} s"


def format_size(count: int) -> str:
    """Bytes for people.

    >>> format_size(532), format_size(248_024), format_size(44_880_528)
    ('532 B', '248.0 kB', '44.9 MB')
    """
    if count < 1000:
        return f"{count} B"
    number = float(count)
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 1000:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:.1f} TB"

"""How numbers, times and names are written on the pages. Pure functions; templates use them as filters."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

from server.web.security import Person
from shared.fingerprints import format_fingerprint
from shared.left_out import Reason
from shared.texts import inflect

__all__ = [
    "ABSENT",
    "FILTERS",
    "amount",
    "counted",
    "digest",
    "duration",
    "indexed",
    "left_out",
    "moment",
    "named",
    "number",
    "percent",
    "plain",
    "sentence",
    "size",
]

ABSENT = "–"
"""Stands where there is no value: a dash is not mistaken for zero."""

_GAP = "\u202f"  # narrow no-break space between a number and its unit
_MINUS = "\u2212"
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def number(value: float | None, digits: int = 4, *, sign: bool = False) -> str:
    """``0.16666`` -> ``0.1667``; infinity is ``∞``; ``sign`` writes the plus too.

    What rounds to zero has no sign: ``-0.0000`` would be wrong.
    """
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    if value < 0:
        return _MINUS + text
    return f"+{text}" if sign else text


def figure(value: float | None) -> str:
    """Four digits that count, whatever the size: ``0.01234``, ``12.34``, ``1.234e+30``."""
    if value is None or math.isnan(value):
        return ABSENT
    return "∞" if math.isinf(value) else f"{value:.4g}"


def percent(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A share from 0 to 1 as ``91.3 %``."""
    if value is None or math.isnan(value):
        return ABSENT
    return f"{number(100 * value, digits, sign=sign)}{_GAP}%"


def amount(value: int | None) -> str:
    """A count with its thousands separated: ``62 006``."""
    return ABSENT if value is None else f"{value:,}".replace(",", _GAP)


def counted(value: int | None, noun: str) -> str:
    """A count and what is counted: ``1 round``, ``62 006 parameters``."""
    return f"{amount(value)} {inflect(value, noun)}"


def left_out(counts: Mapping[str, int]) -> str:
    """What a client did not train on, by reason: ``left out: 3 hidden, 1 broken files``."""
    words = {reason.value: reason.words for reason in Reason}
    told = (f"{amount(number)} {words.get(reason, reason)}" for reason, number in counts.items())
    return f"left out: {', '.join(told)}"


def size(count: int | None) -> str:
    """Bytes in decimal units: ``248 kB``, ``44.7 MB``."""
    if count is None:
        return ABSENT
    if count < 1000:
        return f"{count}{_GAP}B"
    value, unit = float(count), "B"
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007 - the unit at which the loop stops is used
        value /= 1000
        if value < 999.5:
            break
    return f"{value:.{1 if value < 99.5 else 0}f}{_GAP}{unit}"


def duration(seconds: float | None) -> str:
    """``0.42 s``, ``12.3 s``, ``4 min 05 s``, ``2 h 03 min``, ``3 d 4 h``."""
    if seconds is None:
        return ABSENT
    if seconds < 59.95:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f}{_GAP}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{_GAP}min {whole % 60:02d}{_GAP}s"
    if whole < 86_400:
        return f"{whole // 3600}{_GAP}h {whole % 3600 // 60:02d}{_GAP}min"
    return f"{whole // 86_400}{_GAP}d {whole % 86_400 // 3600}{_GAP}h"


def moment(value: dt.datetime | None) -> str:
    """``2026-11-28 12:30:05 UTC``; every time on the pages is UTC and says so."""
    return ABSENT if value is None else value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock(value: dt.datetime | None) -> str:
    """Only the time of day, ``12:30:05``; the full time stands in the element's ``title``."""
    return ABSENT if value is None else value.astimezone(dt.UTC).strftime("%H:%M:%S")


def distance(value: dt.datetime | None, now: dt.datetime) -> str:
    """``in 4 min 05 s`` or ``12 s ago``, in whole seconds, which the script keeps counting."""
    if value is None:
        return "never"
    seconds = round((value - now).total_seconds())
    text = f"{abs(seconds)}{_GAP}s" if abs(seconds) < 60 else duration(abs(seconds))
    return f"in {text}" if seconds > 0 else f"{text} ago"


def digest(value: str | None) -> str:
    """The first twelve digits of a SHA-256; the whole stands in the element's ``title``."""
    return ABSENT if value is None else value[:12]


def plain(word: str) -> str:
    """An identifier as words: ``timed_out`` -> ``timed out``."""
    return word.replace("_", " ")


def _shorten(text: str) -> str:
    """Digests to twelve digits, times to seconds: a log is read by people."""
    text = _DIGEST.sub(lambda found: digest(found[0]), text)
    return _TIME.sub(lambda found: moment(dt.datetime.fromisoformat(found[0])), text)


def sentence(text: str) -> str:
    """With a capital letter in front and a full stop at the end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".") if text else ""


SHORT_REASON = 240


def fold(text: str) -> tuple[str, str]:
    """The first line of a reason, and the rest of it; lines that are too long end at a word.

    >>> fold("the loss is NaN\\nat step 3")
    ('the loss is NaN', 'at step 3')
    """
    first, _, rest = detail(text).strip().partition("\n")
    if len(first) <= SHORT_REASON:
        return first, rest.strip()
    at = first.rfind(" ", 0, SHORT_REASON)
    cut = at if at > 0 else SHORT_REASON
    return f"{first[:cut]} …", f"… {first[cut:].strip()}" + (f"\n{rest.strip()}" if rest.strip() else "")


def indexed(text: str) -> Markup:
    """The index of a symbol set as a real subscript, which fonts draw better than the small letter."""
    return escape(text).replace("ₖ", Markup("<sub>k</sub>"))


_TONES = {
    "wait": {"enrolling", "invited", "awaiting_approval", "awaiting_discrepancy"},
    "go": {"running", "training", "collecting", "aggregating"},
    "done": {"completed", "aggregated", "uploaded", "ready", "finished"},
    "hold": {"waiting", "paused", "away", "timed_out"},
    "end": {"stopped", "left", "declined", "abandoned", "rewound"},
    "bad": {"failed", "rejected", "refused"},
}
_TONE = {status: tone for tone, statuses in _TONES.items() for status in statuses}


def tone(status: str) -> str:
    """Which shape and colour go with a state's word; the word itself is always written too."""
    return _TONE[status]


def detail(value: Any) -> str:
    """Any value on one line: ``participants: a, b · attempt: 2``."""
    if isinstance(value, Mapping):
        return " · ".join(f"{plain(str(key))}: {detail(item)}" for key, item in value.items())
    if isinstance(value, str):
        return _shorten(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Iterable):
        return ", ".join(detail(item) for item in value)
    return ABSENT if value is None else str(value)


def named(person: Person) -> str:
    """``user:maria`` -> ``maria``; the tokens of the settings by what they are for."""
    words = {"admin": "the admin token", "viewer": "the viewer token"}
    return words.get(person.actor, person.actor.removeprefix("user:"))


FILTERS = {
    "amount": amount,
    "clock": clock,
    "counted": counted,
    "detail": detail,
    "digest": digest,
    "distance": distance,
    "duration": duration,
    "figure": figure,
    "fold": fold,
    "indexed": indexed,
    "left_out": left_out,
    "moment": moment,
    "named": named,
    "number": number,
    "percent": percent,
    "plain": plain,
    "sentence": sentence,
    "size": size,
    "telephone": format_fingerprint,
    "tone": tone,
}

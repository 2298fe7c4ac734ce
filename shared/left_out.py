"""What a site's data hold that is not trained on, by reason: names for the site, numbers for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from shared.problems import InvalidConfiguration

__all__ = ["MEND_OR_SKIP", "LeftOut", "OnBroken", "Reason", "printable"]

OnBroken = Literal["decline", "skip"]
"""What a site does about files and rows that should be examples but cannot be read."""

_NAMED = 5


class Reason(StrEnum):
    """Why something is left out. Only these words and their numbers leave the site."""

    HIDDEN = "hidden"
    NOT_AN_IMAGE = "not-an-image"
    OTHER_FOLDER = "other-folder"
    UNLISTED = "unlisted"
    OTHER_CLASS = "other-class"
    FURTHER_FRAMES = "further-frames"
    EMPTY_ROWS = "empty-rows"
    EMPTY = "empty"
    BROKEN = "broken"
    UNREADABLE = "unreadable"
    NO_RANGE = "no-range"
    BROKEN_ROWS = "broken-rows"

    @property
    def words(self) -> str:
        """For people, after a number."""
        return _WORDS[self]

    @property
    def is_fault(self) -> bool:
        """It should have been an example: a site is asked whether to go on without it."""
        return self in _FAULTS


MEND_OR_SKIP = "Mend or remove what is named, or have it left out and counted: --on-broken skip."
"""What to do about files and rows that cannot be read."""

_WORDS: Mapping[Reason, str] = {
    Reason.HIDDEN: "hidden",
    Reason.NOT_AN_IMAGE: "no image by the name's ending",
    Reason.OTHER_FOLDER: "in neither train nor test",
    Reason.UNLISTED: "not in the list of images",
    Reason.OTHER_CLASS: "of a class that the run does not have",
    Reason.FURTHER_FRAMES: "further frames of an image with several",
    Reason.EMPTY_ROWS: "empty rows",
    Reason.EMPTY: "empty files",
    Reason.BROKEN: "broken files",
    Reason.UNREADABLE: "not readable by the worker's user",
    Reason.NO_RANGE: "of a depth whose range is not given",
    Reason.BROKEN_ROWS: "rows with a missing or wrong cell",
}
_FAULTS = frozenset({Reason.EMPTY, Reason.BROKEN, Reason.UNREADABLE, Reason.NO_RANGE, Reason.BROKEN_ROWS})


@dataclass(frozen=True)
class _Item:
    reason: Reason
    name: str
    why: str
    times: int

    def text(self) -> str:
        return f"{printable(self.name)} {self.why}".rstrip()


@dataclass
class LeftOut:
    """Collects while data are read. Names and sentences in it stay at the site."""

    items: list[_Item] = field(default_factory=list)

    def add(self, reason: Reason, name: str, why: str = "", times: int = 1) -> None:
        """``name`` is a file, or a file and a line; ``why`` says after it what is wrong ("is empty")."""
        self.items.append(_Item(reason, name, why, times))

    def extend(self, other: LeftOut) -> None:
        self.items.extend(other.items)

    def has(self, reason: Reason) -> bool:
        return any(item.reason is reason for item in self.items)

    def counts(self) -> dict[str, int]:
        """Numbers by reason, in the order of :class:`Reason`: all that leaves the site."""
        numbers = dict.fromkeys(Reason, 0)
        for item in self.items:
            numbers[item.reason] += item.times
        return {reason.value: number for reason, number in numbers.items() if number}

    def sentences(self) -> list[str]:
        """For the site's log: each reason with its number and some of the names."""
        return [
            f"left out, {Reason(reason).words}: {number} "
            f"({_some(item.text() for item in self.items if item.reason == reason)})"
            for reason, number in self.counts().items()
        ]

    def name_each(self) -> list[str]:
        """A sentence for each file or row, for whoever named them: what is wrong with it."""
        return [item.text() if item.why else f"{item.text()}: {item.reason.words}" for item in self.items]

    def refuse_faults(self, where: object) -> None:
        """Raise :class:`InvalidConfiguration` that names what should be examples but cannot be read."""
        faults = [item for item in self.items if item.reason.is_fault]
        if not faults:
            return
        raise InvalidConfiguration(
            f"data: {printable(faults[0].name)} in {where} {faults[0].why}."
            if len(faults) == 1
            else f"data: {len(faults)} files or rows in {where} cannot be read: "
            f"{_some((item.text() for item in faults), '; ')}.",
            hint=MEND_OR_SKIP,
        )

    def packed(self) -> list[tuple[str, str, str, int]]:
        """As plain values, for :meth:`unpacked`."""
        return [(item.reason.value, item.name, item.why, item.times) for item in self.items]

    @classmethod
    def unpacked(cls, values: Iterable[tuple[str, str, str, int]]) -> LeftOut:
        """What :meth:`packed` gave."""
        return cls([_Item(Reason(reason), name, why, times) for reason, name, why, times in values])


def printable(name: str) -> str:
    r"""A name for a log or terminal: bytes that are no UTF-8 and control characters as escapes.

    >>> printable("a\udce4\x1b[2J.png")
    'a\\udce4\\x1b[2J.png'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name
    )


def _some(texts: Iterable[str], between: str = ", ") -> str:
    """The first few."""
    found = list(texts)
    more = f"{between}and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return between.join(found[:_NAMED]) + more

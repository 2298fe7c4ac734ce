"""Texts as rows of token numbers, the same at every site without anybody's words being shared.

A vocabulary counted from the texts would have to be agreed on, and would tell who uses which words.
Instead each token's number is a hash of it: ``1 + CRC-32(UTF-8) mod 31,999``; 0 is padding.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["VOCABULARY", "bucket", "encode", "tokens"]

VOCABULARY = 32_000
"""Token numbers, padding included."""

_WORD = re.compile(r"\w+")


def tokens(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case.

    >>> tokens("Oil hits $50 -- again")
    ['oil', 'hits', '50', 'again']
    """
    return _WORD.findall(text.lower())


def bucket(token: str) -> int:
    """The token's number, from 1 to 31,999.

    >>> bucket("oil")
    2089
    """
    return 1 + zlib.crc32(token.encode()) % (VOCABULARY - 1)


def encode(texts: Iterable[str], length: int) -> NDArray[np.int16]:
    """Token numbers (N, length): the first ``length`` tokens of each text, padded with 0 behind."""
    known: dict[str, int] = {}
    found = [tokens(text)[:length] for text in texts]
    rows = np.zeros((len(found), length), dtype=np.int16)
    for row, words in zip(rows, found, strict=True):
        for word in words:
            if word not in known:
                known[word] = bucket(word)
        row[: len(words)] = [known[word] for word in words]
    return rows

"""Reading CSV files, with errors that name the file and the line; and keys in the order people expect."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from shared.data import Archive
from shared.left_out import LeftOut, Reason, printable
from shared.problems import InvalidConfiguration

__all__ = ["fault", "natural", "rows"]


def rows(
    archive: Archive, name: str, delimiter: str = ",", left_out: LeftOut | None = None
) -> Iterator[tuple[int, list[str]]]:
    """The file's rows (UTF-8, marked or not) with the number of their last line; empty ones left out.

    Those are counted in ``left_out``, if it is given.

    Raises:
        InvalidConfiguration: not UTF-8, or not CSV.
    """
    try:
        text = archive.read(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault(
            archive, name, None, f"is not UTF-8 (byte {error.start + 1})", hint="Save it as CSV in UTF-8."
        ) from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
            elif left_out is not None:
                left_out.add(Reason.EMPTY_ROWS, f"{name}, line {reader.line_num}")
    except csv.Error as error:
        raise fault(archive, name, reader.line_num, str(error)) from error


def fault(
    archive: Archive, name: str, line: int | None, said: str, *, hint: str = ""
) -> InvalidConfiguration:
    """A refusal of a file, or of one of its lines."""
    where = "" if line is None else f", line {line}"
    return InvalidConfiguration(f"data: {printable(name)} in {archive.path}{where}: {said}.", hint=hint)


def natural(key: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts ``client_9`` before ``client_10``, and no two keys alike: ``007`` before ``07``."""
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", key)]
    return parts, key

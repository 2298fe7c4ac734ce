"""AG News: 120,000 + 7,600 short news texts in four classes (Zhang, Zhao, LeCun, NeurIPS 2015).

For research and other non-commercial use.
"""

from __future__ import annotations

from pathlib import Path

import torch

from shared.data import Archive, Examples, find_file, opened
from shared.tasks.base import Split
from shared.tasks.tables import fault, rows
from shared.tasks.texts import TextOptions, TextTask, encoded

__all__ = ["TASK", "AGNews"]


class AGNews(TextTask):
    """Reads the published ``train.csv`` and ``test.csv``: class 1 to 4, title, description.

    Title and description are joined; a backslash stands for a line's end there and counts as white space.
    """

    name = "ag-news"
    Options = TextOptions
    classes = ("World", "Sports", "Business", "Sci/Tech")

    def __init__(self, options: TextOptions) -> None:
        super().__init__(options)
        self.input_shape = (options.length,)

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        """Texts in the order of the file."""
        with opened(source, "AG News (ag_news_csv/train.csv and test.csv)", self.on_broken) as archive:
            found = _read(archive, find_file(archive, [f"{split}.csv"]), len(self.classes))
        inputs = encoded((text for _, text in found), self.input_shape[0])
        targets = torch.tensor([label for label, _ in found], dtype=torch.int64)
        return Examples(inputs, targets, left_out=archive.left_out)


TASK = AGNews


def _read(archive: Archive, name: str, classes: int) -> list[tuple[int, str]]:
    """(label from 0, text) of each row; some copies have a header."""
    found = []
    for line, row in rows(archive, name, left_out=archive.left_out):
        if len(row) != 3:
            raise fault(archive, name, line, f"has {len(row)} fields, not class, title, description")
        if line == 1 and row[0].lower() == "class index":
            continue
        if row[0] not in map(str, range(1, classes + 1)):
            raise fault(archive, name, line, f"the class is {row[0]!r}, not one of 1 to {classes}")
        found.append((int(row[0]) - 1, " ".join(row[1:]).replace("\\", " ")))
    if not found:
        raise fault(archive, name, None, "holds no rows")
    return found

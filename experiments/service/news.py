"""A small table of news for ``hf-text``: the first rows of each class of AG News, with a header.

python -m experiments.service.news ag-news-subset.zip FOLDER
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

from shared.data import find_file, opened
from shared.tasks.ag_news import AGNews
from shared.tasks.tables import rows

__all__ = ["write_tables"]

NUMBERS = {"train": 600, "test": 50}


def write_tables(source: Path, folder: Path) -> None:
    """``train.csv`` of 600 rows a class and ``test.csv`` of 50, in the order of the published files."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in NUMBERS.items():
        taken: Counter[str] = Counter()
        with (
            opened(source, "AG News", "decline") as archive,
            (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.writer(file)
            table.writerow(["class", "title", "description"])
            for _, (label, title, description) in rows(archive, find_file(archive, [f"{split}.csv"])):
                if taken[label] < number:
                    taken[label] += 1
                    table.writerow([AGNews.classes[int(label) - 1], title, description])


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), Path(sys.argv[2]))

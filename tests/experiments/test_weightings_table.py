"""The table of weightings: every one is in it, with what it has to know; and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import figures
from experiments.evidence import gather
from experiments.figures import LEVELS, draw, level_of
from experiments.plan import VARIANTS, Cell, configuration
from experiments.reproduce import RESULTS
from experiments.tables import load_table
from shared.weightings import available
from shared.weightings.base import Need
from tests.helpers.small_table import longer, write_curves


def test_every_weighting_is_in_the_table() -> None:
    """Uniform is sizes where all clients have as many examples, as here."""
    table = load_table("weightings")
    named = {Cell("cifar10-40-10", "fedavg", name).resolved for name in table.weightings}
    assert set(available()) - {"uniform"} <= named
    assert set(VARIANTS) <= named
    for setting in table.settings:
        for name in table.weightings:
            configuration(Cell(setting, "fedavg", name), 0)


def test_every_need_has_its_place() -> None:
    assert set(LEVELS) == {None, *Need}


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("sizes", "sizes"),
        ("a0.9-b0.05", "one number"),
        ("fedpals", "label counts"),
        ("feddgga", "losses"),
        ("qfedavg-q0.1", "updates"),
        ("fedlws-a0.9-b0.05", "updates"),
        ("fedlaw", "data"),
    ],
)
def test_what_counts_is_the_most_that_has_to_be_known(name: str, level: str) -> None:
    assert level_of(Cell("cifar10-40-10", "fedavg", name)) == level


def test_what_looks_at_losses_or_updates_alone_gains_least() -> None:
    """As the table's note says of the committed results."""
    gains: dict[bool, list[float]] = {True: [], False: []}
    for gain in gather(load_table("weightings"), RESULTS).gains:
        needs = configuration(gain.cell, 0).weighting.needs
        alone = needs <= {Need.START_LOSS, Need.END_LOSS, Need.UPDATES}
        if gain.cell.setting == "cifar10-40-10" and (alone or Need.UPDATES not in needs):
            gains[alone].append(gain.over.mean)
    assert max(gains[True]) < min(gains[False])


def test_the_picture_names_each_weighting_over_what_it_has_to_know(tmp_path: Path) -> None:
    table = longer(
        weightings=["base", "entropy", "fedadp"],
        methods=["fedavg"],
        figures=[{"kind": "needs", "title": "Accuracy against what must be known"}],
    )
    curves = {("fedavg", name, 0): [0.1 * at] * 12 for at, name in enumerate(table.weightings, 1)}
    write_curves(tmp_path, curves, table)
    (name,) = draw(gather(table, tmp_path), tmp_path / "pictures")
    text = (tmp_path / "pictures" / name).read_text(encoding="utf-8")
    for word in ("sizes", "entropy", "fedadp", "one number", "updates", "data"):
        assert f">{word}<" in text
    assert figures.pictures(gather(table, tmp_path), "needs") == [name]

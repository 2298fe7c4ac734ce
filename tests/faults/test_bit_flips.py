"""A bit flips in a coordinator's SQLite file: found at the start, found by ``verify``, or harmless - mostly.

What nobody finds are values that are as good as others; the share is in ``docs/reliability.md``. Never a
traceback: whatever is raised but a sentence fails the test.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from server.database.migrations import upgrade
from tests.faults.bit_flips import DATABASE, Flip, Flips
from tests.helpers.live_coordinator import enrolled, file_of, live

FEW, MANY = 10, 600
SMALLEST_SHARE = 0.6
"""Of the flips that change a value: above 0.7 was measured, and tables grow."""


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory) -> Flips:
    """After a run of two rounds with two clients, whose coordinator was stopped."""
    folder = tmp_path_factory.mktemp("played")
    url = f"sqlite:///{folder / DATABASE}"
    upgrade(url)
    with live(url, folder) as at:
        at.create(min_clients=2, rounds=2, weighting={"kind": "disco"})
        sites = enrolled(at, (10, 30), (0.2, 0.4))
        for number in (1, 2):
            for site in sites:
                assert site.until("train")["round"] == number
                assert site.upload("demo", number, file_of(10.0 * number + site.examples)).is_success
        at.wait_for(lambda: at.run()["status"] == "completed")
    return Flips(folder, tmp_path_factory.mktemp("flipped"))


def flip(flips: Flips, seed: int) -> Flip:
    draws = random.Random(f"flip {seed}")
    return flips.try_one(draws.choice(flips.list_used()), draws.randrange(8))


def test_a_flipped_bit_is_a_sentence_or_harmless(flips: Flips) -> None:
    found = [flip(flips, seed) for seed in range(FEW)]
    assert any(each.told for each in found)
    assert all("Traceback" not in each.told for each in found)


def test_a_flipped_header_is_no_database(flips: Flips) -> None:
    told = flips.try_one(0, 0)
    assert told.found == "at the start"
    assert "file is not a database" in told.told


def test_a_date_that_is_none_is_found(flips: Flips) -> None:
    """SQLite itself takes anything for a date: all rows are read as what they are."""
    told = flips.try_one(flips.find_date(), 6)
    assert told.found in ("at the start", "by verify")
    assert "cannot be read" in told.told


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_most_flipped_bits_are_found(flips: Flips) -> None:
    """Prints the figures of ``docs/reliability.md`` (``pytest -s``)."""
    found = [flip(flips, seed) for seed in range(MANY)]
    counts = Counter(each.found for each in found)
    missed = Counter(each.where for each in found if each.found == "nobody")
    print(dict(counts), missed.most_common(), sep="\n")
    changed = len(found) - counts["nobody, and nothing is changed"]
    assert counts["at the start"] + counts["by verify"] > SMALLEST_SHARE * changed

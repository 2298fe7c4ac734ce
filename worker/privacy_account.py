"""What private training has cost the examples here, over all runs of this site.

::

    STATE/privacy-spent.json   what was trained (mode 0600), there before the training begins

A round is counted when it begins and never taken back: one that a crash, a stop or a lost upload ends is
counted though nothing of it may have left the site, and counted again when it is trained again. So the file
may say too much, never too little.

All data of the site's own are counted as one: when they change, many examples are in the old ones and in the
new. Data that a run's partition deals are counted by part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.files import PRIVATE, replace_file
from shared.problems import InvalidConfiguration
from shared.texts import format_count
from shared.training.accountant import Spending, find_epsilon
from worker.locks import locked
from worker.told import ACCOUNT

__all__ = ["OWN_DATA", "PrivacyAccount", "Spent", "spent_lines"]

OWN_DATA = "own"
"""In place of a part's digest."""


class Spent(BaseModel):
    """What a run has trained here with one noise; ``data`` is :data:`OWN_DATA` or a part's digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str
    data: str
    version: str
    noise_multiplier: float
    rate: float
    steps: int
    rounds: int

    @property
    def spending(self) -> Spending:
        return Spending(self.noise_multiplier, self.rate, self.steps)


class _Book(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    spent: tuple[Spent, ...] = ()


class PrivacyAccount:
    """The account of the workers that share the state folder ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / ACCOUNT

    def list_entries(self) -> tuple[Spent, ...]:
        """By run, data and noise, in the order in which they began.

        Raises :class:`InvalidConfiguration` if the file cannot be read: without it too little is counted.
        """
        return self._read()

    def list_others(self, data: str, run: str) -> tuple[Spending, ...]:
        """What runs other than ``run`` have trained on ``data``. Raises as :meth:`list_entries`."""
        return tuple(each.spending for each in self._read() if each.data == data and each.run != run)

    def list_spent(self, data: str, run: str | None = None) -> tuple[Spending, ...]:
        """What was trained on ``data``, in all runs or in one. Raises as :meth:`list_entries`."""
        return tuple(each.spending for each in self._read() if each.data == data and run in (None, each.run))

    def charge(
        self, run: str, data: str, version: str, spending: Spending, most: float | None, delta: float
    ) -> float | None:
        """Count a round, unless ``data`` then have lost more than ``most`` at ``delta``.

        Returns None if it is counted, and on disk; otherwise what they would have lost.
        """
        with locked(self._folder / "privacy-spent.lock"):
            kept = self._read()
            if most is not None:
                before = (each.spending for each in kept if each.data == data)
                lost = find_epsilon((*before, spending), delta)
                if lost > most:
                    return lost
            book = _Book(spent=tuple(_add(kept, run, data, version, spending)))
            replace_file(self._path, book.model_dump_json(indent=1).encode(), mode=PRIVATE)
        return None

    def _read(self) -> tuple[Spent, ...]:
        try:
            return _Book.model_validate_json(self._path.read_bytes()).spent
        except FileNotFoundError:
            return ()
        except ValidationError as error:
            raise InvalidConfiguration(
                f"the account of private training, {self._path}, cannot be read.",
                hint="Restore it from a backup. Without it what was spent would not be counted.",
            ) from error


def _add(kept: Iterable[Spent], run: str, data: str, version: str, spending: Spending) -> Iterator[Spent]:
    """``kept`` with one round more: in the entry of the same run, data, noise and rate, or in a new one."""
    added = False
    for each in kept:
        same = (each.run, each.data, each.version, each.noise_multiplier, each.rate)
        if not added and same == (run, data, version, spending.noise_multiplier, spending.rate):
            added = True
            yield each.model_copy(update={"steps": each.steps + spending.steps, "rounds": each.rounds + 1})
        else:
            yield each
    if not added:
        yield Spent(
            run=run,
            data=data,
            version=version,
            noise_multiplier=spending.noise_multiplier,
            rate=spending.rate,
            steps=spending.steps,
            rounds=1,
        )


def spent_lines(folder: Path, delta: float = 1e-5) -> Iterator[str]:
    """What was spent in ``folder``, in words: in all on each data, then by run."""
    spent = PrivacyAccount(folder).list_entries()
    for data in dict.fromkeys(each.data for each in spent):
        here = [each for each in spent if each.data == data]
        whose = "the site's own data" if data == OWN_DATA else f"the dealt data {data[:12]}"
        lost = find_epsilon([each.spending for each in here], delta)
        yield f"private training on {whose}: epsilon {lost:.3g} at delta {delta:g} in all runs together"
        for run in dict.fromkeys(each.run for each in here):
            mine = [each for each in here if each.run == run]
            rounds = sum(each.rounds for each in mine)
            own = find_epsilon([each.spending for each in mine], delta)
            yield f"  {run}: epsilon {own:.3g} in {format_count(rounds, 'round')} begun"

"""Data that are no longer those with which this client enrolled: noticed before training, and what then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.faults import Fault, FaultCode
from shared.schemas import Role
from worker.disclosure import told_size
from worker.faults import LocalFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.client import CoordinatorClient
    from worker.journal import Journal
    from worker.site import LocalRun, Site

__all__ = ["DataWatch"]

SETTLE_SECONDS = 2.0
"""How long changed files have to stay as they are before they are read."""
LONGEST_WAIT = 15
"""How often that is tried where they go on changing."""
_LEAVING = "leaving"
"""In place of a mark, with the reason: this client is about to leave the run, and to enrol in it anew."""


@dataclass(frozen=True)
class DataWatch:
    """Compares the data with those enrolled, and follows ``on_changed_data`` where they differ."""

    coordinator: CoordinatorClient
    journal: Journal
    site: Site
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep

    def keep(self, local: LocalRun) -> None:
        """This client has just enrolled with the data loaded."""
        number, sizes = str(self.site.count_loaded(local)), self.site.policy_for(local.view).sizes
        mark = " ".join([*self.site.loaded_data_mark(local), number, sizes])
        self.journal.open_run(local.view.run).keep_data_mark(mark)

    def has_changed(self, local: LocalRun) -> bool:
        """Whether the examples are others; where only files are, which may be none of the data, it is kept.

        Then what the run uses has been loaded again.
        """
        mark = self.journal.open_run(local.view.run).data_mark
        files, examples, *_ = _read_mark(mark)
        now = self.site.find_data_mark(local)
        if files == now:
            return False
        self._settle(local, now)
        try:
            self.site.reload_data(local)
        except LocalFault:
            # why, is said when it enrols anew; with no mark to compare with, the round fails and says it
            return mark is not None
        if (
            mark is None or examples == self.site.loaded_data_mark(local)[1]
        ):  # None: an older program enrolled
            self.keep(local)
            return False
        return True

    def _settle(self, local: LocalRun, mark: str) -> None:
        """Wait until nobody writes: half a file would be an example the less, or decline the run."""
        for _ in range(LONGEST_WAIT):
            before, mark = mark, self._look_again(local)
            if mark == before:
                return
        self.say(f"{local.view.run}: the data here are still changing; taking them as they are")

    def _look_again(self, local: LocalRun) -> str:
        self.sleep(SETTLE_SECONDS)
        return self.site.find_data_mark(local)

    def tells_other_sizes(self, local: LocalRun) -> bool:
        """Whether the policy has ``sizes`` told otherwise than when this client enrolled.

        Then an update would not be of the size that the coordinator knows.
        """
        masked = local.view.config.secure is not None and self.site.settings.role is Role.TRAINER
        told = _read_mark(self.journal.open_run(local.view.run).data_mark)[3]
        return not masked and told not in ("", self.site.policy_for(local.view).sizes)

    def may_continue(self, local: LocalRun, index: int | None, enrolled: int | None) -> bool:
        """Whether to go on with the data as they are now; ``enrolled`` is the number that was told then.

        In a secure run a trainer told none: this site's own memory of it counts.
        """
        policy = self.site.policy_for(local.view)
        if policy.on_changed_data != "continue":
            return False
        run = local.view.run
        try:
            number = len(self.site.own_examples(local, index))
        except LocalFault as fault:
            self.say(f"{run}: the data here have changed, and cannot be used: {fault}")
            return False
        if local.view.config.secure is not None and self.site.settings.role is Role.TRAINER:
            mark = self.journal.open_run(run).data_mark
            number, enrolled = self.site.count_loaded(local), _read_mark(mark)[2]
        if number == enrolled or told_size(number, policy.sizes) == enrolled:
            told = "" if number == enrolled else f", told as {enrolled}"
            self.say(f"{run}: the data here have changed; continuing with {number} examples{told} as before")
            self.keep(local)
            return True
        self.say(f"{run}: the data here have changed: {number} examples, enrolled with {enrolled}")
        return False

    def is_leaving(self, run: str) -> bool:
        """Whether this client has begun to leave the run: the coordinator may not have heard of it."""
        return (self.journal.open_run(run).data_mark or "").startswith(_LEAVING)

    def leave_again(self, run: str) -> None:
        """Go on with what a fault or a kill has cut off, whatever has been decided since."""
        why = (self.journal.open_run(run).data_mark or "").removeprefix(_LEAVING).strip()
        self.say(f"{run}: leaving it was cut off ({why}); leaving, and enrolling anew")
        self._leave(run, why)

    def leave(self, local: LocalRun) -> None:
        """Leave the run, to enrol in it anew; LocalFault where the site's policy says to decline it."""
        run = local.view.run
        anew = self.site.policy_for(local.view).on_changed_data == "enrol"
        self.say(
            f"{run}: the data here have changed since this client enrolled; "
            f"{'leaving, and enrolling anew' if anew else 'declining the run'} (on_changed_data)"
        )
        if not anew:
            self.journal.open_run(run).keep_data_mark("")
            raise LocalFault(Fault(FaultCode.DATA_CHANGED))
        self._leave(run, "changed data")

    def leave_to_tell_other_sizes(self, local: LocalRun) -> None:
        """The same where only the number that is told is another."""
        run, sizes = local.view.run, self.site.policy_for(local.view).sizes
        self.say(f"{run}: {self.site.where('sizes')} has sizes: {sizes}; leaving, and enrolling anew")
        self._leave(run, "sizes told otherwise")

    def _leave(self, run: str, why: str) -> None:
        self.journal.open_run(run).keep_data_mark(f"{_LEAVING} {why}")
        self.coordinator.leave(run)
        self.site.forget(run)


def _read_mark(mark: str | None) -> tuple[str, str, int | None, str]:
    """Of the files, of the examples, their number, and how it was told; None or "" where an older program
    enrolled."""
    files, examples, number, sizes, *_ = [*(mark or "").split(" "), "", "", "", ""]
    return files, examples, int(number) if number.isdigit() else None, sizes

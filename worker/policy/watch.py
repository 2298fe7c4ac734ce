"""A policy file that is changed while the worker runs: noticed before anything is sent, and read again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared.problems import InvalidConfiguration
from worker.policy import SitePolicy
from worker.policy.document import format_value, load_policy
from worker.shutdown import ShutdownRequested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from worker.progress import Reporter
    from worker.settings import WorkerSettings
    from worker.shutdown import Shutdown

__all__ = ["PolicyChanged", "PolicyWatch", "list_differences", "read_policy_again"]

SETTLE_SECONDS = 1.0
"""How long a file has to stay as it is before it counts: an editor may write it in parts."""


class PolicyChanged(ShutdownRequested):
    """The work under way ends here, as at a signal, and begins anew under the policy as it is then."""


class PolicyWatch:
    """Remembers a policy file as it is now. ``path`` None: there is none, and nothing changes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp, self._content = self._look(), self._read()

    def check(self) -> None:
        """Raise :class:`PolicyChanged` if the file holds anything else, or cannot be read any more."""
        if self.has_changed():
            raise PolicyChanged(f"The policy {self._path} has been changed.")

    def has_changed(self) -> bool:
        stamp = self._look()
        if stamp == self._stamp:
            return False
        if self._read() != self._content:
            return True
        self._stamp = stamp  # saved again as it was
        return False

    def _look(self) -> tuple[int, ...] | None:
        """What tells another file, or another content, without reading it; None if there is no file."""
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            return None
        # the time of the inode's change tells of permissions, too
        return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _read(self) -> bytes | None:
        try:
            return None if self._path is None else self._path.read_bytes()
        except OSError:
            return None


def read_policy_again(
    settings: WorkerSettings,
    reporter: Reporter,
    shutdown: Shutdown,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[SitePolicy, PolicyWatch]:
    """The policy as its file is now; waits, and says for what, while the file is none."""
    while True:
        shutdown.check()
        watch = PolicyWatch(settings.policy)
        sleep(SETTLE_SECONDS)
        if watch.has_changed():
            continue
        try:
            return load_policy(settings), watch
        except InvalidConfiguration as error:
            reporter.say_waiting(
                f"Nothing is sent, not even a request for work, until the policy is mended: {error}"
            )


def list_differences(before: SitePolicy, now: SitePolicy) -> Iterator[str]:
    """What another policy changes for this site's own data, a sentence a key."""
    old, new = before.own.model_dump(mode="json"), now.own.model_dump(mode="json")
    for key in new:
        if new[key] != old[key]:
            yield f"{key}: {format_value(new[key])} ({now.where(key)}); it had {format_value(old[key])}"

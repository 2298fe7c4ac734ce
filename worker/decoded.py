"""Decoded images, which a site keeps between starts: those that no run has read for a month go."""

from __future__ import annotations

from pathlib import Path

__all__ = ["KEPT_SECONDS", "remove_unused"]

KEPT_SECONDS = 30 * 86400.0


def remove_unused(folder: Path, now: float) -> None:
    """Delete what was neither written nor read since :data:`KEPT_SECONDS` before ``now`` (of the wall clock).

    It is made again from the images when it is needed, so what cannot be deleted is left. Each reading by
    ``shared.data.images`` sets the time of the file's last change.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        try:
            if now - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
        except OSError:
            continue

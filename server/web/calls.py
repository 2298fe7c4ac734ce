"""What kind of call a request is, by method and path alone: before its token or body is looked at."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Call", "brings_list", "classify"]

API = "/api/v1"
BLOBS = f"{API}/blobs/"


class Call(StrEnum):
    """Kinds of calls that differ in what they may cost."""

    POLL = "poll"
    STREAM = "stream"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    REGISTRATION = "registration"
    HEARTBEAT = "heartbeat"
    CHANGE = "change"
    READ = "read"

    @property
    def brings_body(self) -> bool:
        return self in (Call.UPLOAD, Call.REGISTRATION, Call.HEARTBEAT, Call.CHANGE)

    @property
    def needs_token(self) -> bool:
        """A client's or a person's; a registration brings a join code, and reading may be open."""
        return self not in (Call.REGISTRATION, Call.STREAM, Call.READ)


_LONG_ENDINGS = ("/enrolments", "/metrics", "/runs")
"""Calls that bring lists: of classes, of tensors, of accuracies."""


def classify(method: str, path: str) -> Call:
    """The kind of a request; what matches nothing is a page or an error, and counts as reading.

    >>> classify("GET", "/api/v1/work"), classify("PUT", "/api/v1/runs/demo/rounds/1/update")
    (<Call.POLL: 'poll'>, <Call.UPLOAD: 'upload'>)
    """
    if method in ("GET", "HEAD", "OPTIONS") or not path.startswith(f"{API}/"):
        return _classify_reading(path)
    if method == "PUT" and (path.startswith(BLOBS) or path.endswith("/update")):
        return Call.UPLOAD
    if path == f"{API}/clients":
        return Call.REGISTRATION
    return Call.HEARTBEAT if path.endswith("/progress") else Call.CHANGE


def _classify_reading(path: str) -> Call:
    if path == f"{API}/work":
        return Call.POLL
    if path.startswith(BLOBS):
        return Call.DOWNLOAD
    is_stream = path.startswith(f"{API}/") and path.endswith("/events")
    return Call.STREAM if is_stream else Call.READ


def brings_list(path: str) -> bool:
    """Whether the body may be long: it holds an entry for each class, tensor or category."""
    return path.startswith(f"{API}/") and path.endswith(_LONG_ENDINGS)

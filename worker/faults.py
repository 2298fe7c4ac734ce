"""Faults of one run at this site: two texts for each, and what becomes of which exception.

A :class:`LocalFault` ends a run's assignment, never the worker. What concerns the worker or its coordinator
as a whole (the network, the token, a full disk) is no such fault: :func:`concerns_all_runs`.

Importing this doesn't import PyTorch: the loop needs the class before it knows whether there is work.
"""

from __future__ import annotations

import errno
import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import httpx

from shared.device import is_out_of_memory
from shared.faults import Diverged, Doing, Fault, FaultCode
from shared.problems import (
    DataUnfit,
    IncompatibleVersion,
    InvalidConfiguration,
    Problem,
    ServiceFault,
    TooLarge,
    TooManyRequests,
    Unauthorised,
)
from shared.texts import format_size
from worker.answers import UnexpectedAnswer
from worker.shutdown import ShutdownRequested

__all__ = [
    "FAULTS",
    "UPLOAD_BREAKS",
    "LocalFault",
    "concerns_all_runs",
    "describe_broken_upload",
    "describe_fault",
    "is_disk_full",
    "local_faults",
]

_UNFIT: Final = {
    Doing.PREPARING: FaultCode.CONFIGURATION,
    Doing.LOADING_TRAINING_DATA: FaultCode.DATA_UNFIT,
    Doing.LOADING_TEST_DATA: FaultCode.DATA_UNFIT,
    Doing.COUNTING: FaultCode.DATA_UNFIT,
}


class LocalFault(Exception):
    """``told`` is for the coordinator, the message is the full text for this site's log."""

    def __init__(self, told: Fault, detail: str | None = None) -> None:
        super().__init__(detail if detail is not None else told.sentence)
        self.told = told


FAULTS = (Problem, UnexpectedAnswer, LocalFault, httpx.HTTPError, OSError)
"""What a call or a local file may raise in normal operation."""

UPLOAD_BREAKS = (
    UnexpectedAnswer,
    *(httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError),
    *(httpx.ReadTimeout, httpx.WriteTimeout),
)
"""What may end an upload although other requests go through."""


@contextmanager
def local_faults(doing: Doing) -> Iterator[None]:
    """Around code of a task or model: whatever it raises becomes a :class:`LocalFault`.

    Only a full disk passes, which is waited for, and the signal to end.
    """
    try:
        yield
    except (ShutdownRequested, LocalFault):
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a task, too: signals raise neither
        if is_disk_full(error):
            raise
        raise describe_fault(error, doing) from error


def describe_fault(error: BaseException, doing: Doing) -> LocalFault:
    """Both texts for what ended a run's work here."""
    if isinstance(error, LocalFault):
        return error
    if isinstance(error, Diverged):
        return LocalFault(Fault(FaultCode.DIVERGED), _text(error))
    if is_out_of_memory(error):
        _free_memory()
        return LocalFault(Fault(FaultCode.OUT_OF_MEMORY, doing), f"{doing} failed: {_located(error)}")
    if isinstance(error, Problem):
        return _describe_problem(error, doing)
    if isinstance(error, UnexpectedAnswer):
        return _describe_refused_body(error)
    if isinstance(error, OSError):
        return LocalFault(Fault(FaultCode.DATA_UNREADABLE, doing), f"{doing} failed: {_located(error)}")
    return LocalFault(Fault(FaultCode.TASK_ERROR, doing), f"{doing} failed: {_located(error)}")


def describe_broken_upload(error: Exception, sent_bytes: int) -> LocalFault:
    """Both texts for an update that does not arrive, while the coordinator can be reached."""
    if isinstance(error, UnexpectedAnswer) and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return _describe_refused_body(error)
    size, why = format_size(sent_bytes), _text(error) or type(error).__name__
    return LocalFault(
        Fault(FaultCode.UPLOAD_CUT, counts={"bytes": sent_bytes}),
        f"The file of {size} did not arrive ({why}). If other requests go through, a proxy or firewall on "
        "the way cuts what is long or large.",
    )


def _describe_refused_body(error: UnexpectedAnswer) -> LocalFault:
    told = Fault(FaultCode.BODY_REFUSED, counts={"status": error.status, "bytes": error.sent_bytes})
    return LocalFault(told, f"{told.sentence} Its administrator has to let such bodies through.")


def _describe_problem(error: Problem, doing: Doing) -> LocalFault:
    if error.remote:
        return LocalFault(Fault(FaultCode.REFUSED, counts={"status": error.status}), _text(error))
    if isinstance(error, TooLarge):
        return LocalFault(Fault(FaultCode.FILE_TOO_LARGE), _text(error))
    if isinstance(error, DataUnfit):
        return LocalFault(Fault(FaultCode.DATA_UNFIT), _text(error))
    if isinstance(error, InvalidConfiguration):
        return LocalFault(Fault(_UNFIT.get(doing, FaultCode.CONFIGURATION)), _text(error))
    return LocalFault(Fault(FaultCode.TASK_ERROR, doing), f"{doing} failed: {_located(error)}")


def _text(error: BaseException) -> str:
    """The exception's own words; its class where it cannot say them."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _located(error: BaseException) -> str:
    """``ValueError: row 7 has a column too many (line 12 of ourtask.py)``."""
    text = _text(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- not of one run


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk, or this user's part of it, has no space left."""
    if isinstance(error, Problem) and not error.remote and error.__cause__ is not None:
        return is_disk_full(error.__cause__)  # shared.files speaks for both sides
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def concerns_all_runs(error: BaseException) -> bool:
    """Whether the fault is the worker's, its network's or its coordinator's, rather than one run's."""
    if isinstance(error, ShutdownRequested | httpx.HTTPError):
        return True
    if isinstance(error, UnexpectedAnswer):
        return error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if isinstance(error, Problem) and error.remote:
        return isinstance(error, ServiceFault | TooManyRequests | Unauthorised | IncompatibleVersion)
    return isinstance(error, OSError) or (isinstance(error, Problem) and isinstance(error.__cause__, OSError))

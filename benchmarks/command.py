"""What every benchmark does as a command: ``--short``, one JSON line, a sentence when it fails."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddisco.demo import raise_on_signals
from shared.versions import describe_machine, find_versions

__all__ = ["Failed", "machine", "parse", "print_result"]


class Failed(Exception):
    """Why a benchmark cannot be carried out, in words for who called it."""


def parse(parser: argparse.ArgumentParser, short: Mapping[str, Any]) -> argparse.Namespace:
    """The command line. ``--short`` makes ``short`` the defaults: a check, not a measurement."""
    parser.add_argument("--short", action="store_true", help=f"a check, not a measurement: {dict(short)}")
    if parser.parse_known_args()[0].short:
        parser.set_defaults(**short)
    return parser.parse_args()


def print_result(measure: Callable[[Path], dict[str, Any]]) -> None:
    """Print what ``measure`` returns, as JSON; its argument is an empty folder, removed afterwards.

    Ends the process with code 1 and the sentence of a :class:`Failed`, with 130 at Ctrl-C, SIGTERM or SIGHUP.
    """
    try:
        with raise_on_signals(), tempfile.TemporaryDirectory(prefix="feddisco-benchmark-") as folder:
            result = measure(Path(folder))
    except Failed as why:
        sys.exit(str(why))
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    print(json.dumps(result))


def machine() -> dict[str, Any]:
    """What a number depends on: processor, cores that may be used, load of the last minute, versions."""
    return describe_machine() | {"load": round(os.getloadavg()[0], 1)} | find_versions()

"""A result file: JSON lines, of which the first is the run (configuration, versions, machine)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from shared.config import RunConfig, describe_faults
from shared.device import describe
from shared.files import replace_file
from shared.problems import InvalidConfiguration
from shared.versions import describe_machine, find_versions, vector_flags
from simulation.kernels.native.library import digest_kernels, select_vectors

if TYPE_CHECKING:
    from simulation.engines import EngineName
    from simulation.kernels import KernelsName

__all__ = [
    "MadeWith",
    "Results",
    "check_kernels",
    "check_same",
    "checkpoint_of",
    "commit",
    "config_of",
    "has_kernels_of_here",
    "header",
    "is_longer",
    "made_with",
    "same_results",
    "versions",
]

SERVICE_ONLY = (
    *("also", "quorum", "round_deadline_seconds", "max_attempts", "waiting_deadline_seconds"),
    *("keep_updates", "data_licence"),
)
"""Fields that a simulation, whose clients neither fail nor are late, does not heed."""

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = ("torch", "torchvision", "numpy", "safetensors")


BEGINNING = b'{"kind": "run", '
"""Of every result file."""


@dataclass(frozen=True)
class Results:
    """A result file: appended line by line, each written whole."""

    path: Path

    def lines(self) -> list[dict[str, Any]]:
        """What is there, the run's line first; a last line that a crash cut short does not count.

        Raises:
            InvalidConfiguration: it is another kind of file, or damaged before its last line.
        """
        if not self.path.exists():
            return []
        if self.path.is_dir():
            raise self._no_result_file()
        content = self.path.read_bytes()
        *whole, last = content.split(b"\n")
        found = [self._read(number, line) for number, line in enumerate(whole, start=1)]
        with suppress(ValueError):
            found.append(json.loads(last))
        if not found and not (content.startswith(BEGINNING) or BEGINNING.startswith(content)):
            raise self._no_result_file()
        if found and not _is_of_a_run(found):
            raise self._no_result_file()
        return found

    def _read(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError:
            if number == 1:
                raise self._no_result_file() from None
            raise InvalidConfiguration(
                f"{self.path} is damaged: line {number} is no JSON.",
                hint="Restore the file from a copy, or remove it to run it anew.",
            ) from None

    def _no_result_file(self) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self.path} is no result file of a simulation.",
            hint="`feddisco simulate` and `feddisco sweep` write them.",
        )

    def rewrite(self, lines: list[dict[str, Any]]) -> None:
        """Keep only these lines (a crash left more, or less, than the checkpoint)."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        replace_file(self.path, text.encode())

    def append(self, line: dict[str, Any]) -> None:
        """Durably: a checkpoint counts the round only after its line is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _is_of_a_run(lines: list[Any]) -> bool:
    kinds = [line.get("kind") if isinstance(line, dict) else None for line in lines]
    return None not in kinds and kinds[0] == "run" and isinstance(lines[0].get("config"), dict)


def config_of(lines: Sequence[Mapping[str, Any]], path: Path) -> RunConfig:
    """The configuration with which the result file ``path`` was begun, of which these are the ``lines``.

    Raises:
        InvalidConfiguration: this version cannot read it.
    """
    try:
        return RunConfig.model_validate(lines[0]["config"])
    except ValidationError as error:
        raise InvalidConfiguration(
            f"{path} was begun with a configuration that this version cannot read: {describe_faults(error)}",
            hint="Use the version that wrote the file, or give another one.",
        ) from None


def header(
    config: RunConfig, engine: EngineName, kernels: KernelsName, device: torch.device
) -> dict[str, Any]:
    """A result file's first line."""
    of_kernels = {"kernels_digest": digest_kernels()} if kernels == "native" else {}
    return {
        "kind": "run",
        "config": config.model_dump(mode="json"),
        "versions": versions(),
        "machine": describe_machine()
        | {
            "threads": torch.get_num_threads(),
            "engine": engine,
            "kernels": kernels,
            "device": describe(device),
            **of_kernels,
        },
        "commit": commit(),
    }


@cache
def commit() -> str | None:
    """Of the source that runs, with ``+`` behind it if files differ from it; None outside a checkout."""
    head = _ask_git("rev-parse", "HEAD")
    changed = _ask_git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "*.cpp", "*.hpp")
    return None if not head else head.strip() + ("+" if changed else "")


def _ask_git(*words: str) -> str | None:
    """What it says of this checkout; None where it fails, or there is none."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return None
    done = subprocess.run([git, "-C", str(ROOT), *words], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    return None if done.returncode else done.stdout


def versions() -> dict[str, str]:
    """The installed versions of what a result depends on."""
    return find_versions(*PACKAGES)


def same_results(one: RunConfig, other: RunConfig) -> bool:
    """Whether two configurations make the same rounds: they may differ in what only a service heeds."""
    defaults = {name: RunConfig.model_fields[name].get_default() for name in SERVICE_ONLY}
    return one.model_copy(update=defaults) == other.model_copy(update=defaults)


def is_longer(config: RunConfig, begun: RunConfig) -> bool:
    """Whether it asks for more rounds and nothing else, and no past round went by how many there are."""
    by_rounds = (
        config.weighting.goes_by_rounds
        or config.local.schedule.goes_by_rounds
        or config.dp is not None
        or config.calibration is not None
    )
    longer = config.rounds > begun.rounds and not by_rounds
    return longer and same_results(config, begun.model_copy(update={"rounds": config.rounds}))


def check_same(
    config: RunConfig, kernels: KernelsName, device: torch.device, lines: list[dict[str, Any]], out: Path
) -> None:
    """Refuse to go on with another run's file; the engine may change, since it changes no bit."""
    if not lines:
        return
    begun_with = config_of(lines, out)
    if not same_results(begun_with, config) and not is_longer(config, begun_with):
        raise InvalidConfiguration(
            f"{out} holds the results of another configuration.",
            hint="Give another --out, or remove the file.",
        )
    place = lines[0].get("machine", {}).get("device", "cpu").split()[0].split(":")[0]
    if place != device.type:
        raise InvalidConfiguration(
            f"{out} was begun on {place}, whose results differ from {device.type}'s by rounding.",
            hint=f"Go on with --device {place}, or give another --out.",
        )
    begun = made_with(lines[0]).kernels
    if begun == "grouped":
        raise InvalidConfiguration(
            f"{out} was begun with the engine grouped, which is no more.",
            hint="Give another --out, or remove the file; --kernels native is faster.",
        )
    if begun != kernels:
        raise InvalidConfiguration(
            f"{out} was begun with {begun} kernels, {kernels} ones differ by rounding.",
            hint=f"Go on with --kernels {begun}, or give another --out.",
        )


def check_kernels(begun: dict[str, Any], out: Path) -> None:
    """Refuse to go on by other native kernels than those that ``out`` was ``begun`` with: its first line."""
    if made_with(begun).kernels == "native" and not has_kernels_of_here(begun):
        raise InvalidConfiguration(
            f"{out} was begun with other native kernels (commit {begun.get('commit')}), whose results differ "
            "by rounding.",
            hint="Go on with that commit on such a processor, give another --out, or remove the file.",
        )


def has_kernels_of_here(begun: dict[str, Any]) -> bool:
    """Whether a result of native kernels, of which ``begun`` is the first line, was made by these."""
    machine, by = begun.get("machine", {}), str(begun.get("commit"))
    if "kernels_digest" in machine:
        return bool(machine["kernels_digest"] == digest_kernels())
    # of an earlier version: the sources of its commit tell, where they are at hand
    return (
        select_vectors(machine.get("vectors", "")) == select_vectors(vector_flags())
        and re.fullmatch("[0-9a-f]{40}", by) is not None
        and _ask_git("diff", "--quiet", by, "--", "simulation/kernels/native/*.[ch]pp") is not None
    )


@dataclass(frozen=True)
class MadeWith:
    """Engine and kernels of a result file. ``grouped`` are kernels that no program has any more."""

    engine: str
    kernels: str


def made_with(header: dict[str, Any]) -> MadeWith:
    """What a result file's first line says of them.

    Before there were two choices, ``native`` and ``grouped`` were engines, in one process.

    >>> made_with({"machine": {"engine": "native"}})
    MadeWith(engine='in-process', kernels='native')
    """
    machine = header.get("machine", {})
    engine = machine.get("engine", "in-process")
    if engine in ("native", "grouped"):
        return MadeWith("in-process", engine)
    return MadeWith(engine, machine.get("kernels", "torch"))


def checkpoint_of(out: Path) -> Path:
    """A folder beside the result file, so that a later call finds it; removed when the run is done."""
    return out.with_name(out.name + ".checkpoint")

"""Results as they are committed: one JSON line for the run, one for each round, about 30 kB for 100 rounds.

They are made from the result files of the simulation, which stay where the run can go on from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from shared.config import RunConfig
from shared.files import replace_file
from shared.problems import InvalidConfiguration
from simulation.results import Results, config_of, made_with, same_results

__all__ = ["Curve", "Round", "files_of", "publish", "read_curve", "read_lines", "rounds_in"]

DIGITS = 6
HEX = 16
"""Of a round's SHA-256: enough to see whether a machine makes the same models."""


@dataclass(frozen=True)
class Round:
    """A round's scores: accuracies from 0 to 1, by category in the order of ``Curve.categories``."""

    number: int
    accuracy: float | None
    loss: float | None
    per_category: tuple[float, ...]
    per_client: tuple[float, ...]
    validation_accuracy: float | None = None
    participants: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Curve:
    """A run's rounds, from the first on without a gap, and what they were measured with."""

    config: RunConfig
    versions: dict[str, str]
    made_with: str
    categories: tuple[str, ...]
    rounds: tuple[Round, ...]

    def first(self, rounds: int) -> Curve:
        """Only the first ``rounds`` of it."""
        return replace(self, rounds=self.rounds[:rounds])

    @property
    def is_whole(self) -> bool:
        """The run has all of its rounds."""
        return len(self.rounds) == self.config.rounds

    def last_accuracy(self, rounds: int) -> float:
        """The mean of the last ``rounds``, in percent."""
        return 100 * fmean(each.accuracy or 0.0 for each in self.rounds[-rounds:])


def publish(source: Path, target: Path) -> int:
    """Write the compact form of a simulation's result file, unless ``target`` has as many rounds already.

    Returns how many rounds ``target`` has now.
    """
    lines = read_lines(source)
    there, here = rounds_in(target), len(_rounds_of(lines))
    if here <= there:
        return there
    target.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in _compact(lines))
    replace_file(target, text.encode(), durable=False)
    return here


def read_curve(path: Path, config: RunConfig | None = None) -> Curve | None:
    """A committed result, which is to be of ``config`` if that is given; None if there is none.

    Raises:
        InvalidConfiguration: see :func:`read_lines`; or it is not the short form.
    """
    lines = read_lines(path, config)
    if not lines:
        return None
    header = lines[0]
    if "categories" not in header:
        raise InvalidConfiguration(
            f"{path} is a simulation's own result file, not the short form of one.",
            hint="`feddisco reproduce` keeps these in results/.work and writes the short form.",
        )
    rounds = tuple(map(_round, _rounds_of(lines)))
    return Curve(
        config_of(lines, path), header["versions"], _made_with(header), tuple(header["categories"]), rounds
    )


def files_of(folder: Path, stem: str) -> dict[int, Path]:
    """The results of a stem by seed: files ``STEM-sSEED.jsonl``, and no other, such as a copy of one.

    Names of weightings may begin alike, so that the whole name has to match.
    """
    name = re.compile(re.escape(stem) + r"-s(0|[1-9][0-9]*)\.jsonl")
    found = {int(match[1]): path for path in folder.glob("*.jsonl") if (match := name.fullmatch(path.name))}
    return dict(sorted(found.items()))


def read_lines(path: Path, config: RunConfig | None = None) -> list[dict[str, Any]]:
    """The lines of a result file of either form, to be of ``config`` if that is given; none if there is none.

    Raises:
        InvalidConfiguration: the file holds the results of another configuration, or a round is missing or
            there twice.
    """
    lines = Results(path).lines()
    if not lines:
        return []
    ran = config_of(lines, path)
    if config is not None and not same_results(ran.model_copy(update={"name": config.name}), config):
        raise InvalidConfiguration(
            f"{path} holds the results of another configuration than the table's.",
            hint="The table was changed after the run: remove the file to run it anew.",
        )
    # runs are compared by place, so that a round in another's would be taken for that one
    for place, line in enumerate(_rounds_of(lines), start=1):
        if line["round"] != place or place > ran.rounds:
            raise InvalidConfiguration(
                f"{path} is damaged: in place {place} of {ran.rounds} stands round {line['round']}.",
                hint="Restore the file from a copy, or remove it to run it anew.",
            )
    return lines


def _made_with(header: dict[str, Any]) -> str:
    """Engine and kernels, kind of processor and commit, as far as the file names them."""
    machine, made = header.get("machine", {}), made_with(header)
    parts = [f"engine {made.engine}", f"kernels {made.kernels}"]
    parts += [machine["processor"]] if "processor" in machine else []
    parts += [f"commit {header['commit'][:10]}"] if header.get("commit") else []
    return ", ".join(parts)


def rounds_in(path: Path, config: RunConfig | None = None) -> int:
    """How many rounds a result file has (see :func:`read_lines`)."""
    return len(_rounds_of(read_lines(path, config)))


def _rounds_of(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == "round"]


def _compact(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rounds = _rounds_of(lines)
    categories = list(rounds[0]["per_category"])
    header = {**lines[0], "categories": categories}
    ends = [line for line in lines if line["kind"] == "end"]
    return [header, *(_compact_round(line, categories) for line in rounds), *ends]


def _compact_round(line: dict[str, Any], categories: Sequence[str]) -> dict[str, Any]:
    compact: dict[str, Any] = {
        "kind": "round",
        "round": line["round"],
        "accuracy": _rounded(line["accuracy"]),
        "loss": _rounded(line["loss"]),
        "per_category": [round(line["per_category"][name], 4) for name in categories],
        "participants": line["participants"],
        "weights": [round(weight, 4) for weight in line["weights"]],
        "seconds": round(line["seconds"], 1),
        "model": line["model"][:HEX],
    }
    if line.get("validation_accuracy") is not None:
        compact["validation_accuracy"] = _rounded(line["validation_accuracy"])
    if line.get("per_client"):
        compact["per_client"] = [round(score, 4) for score in line["per_client"]]
    return compact


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _round(line: dict[str, Any]) -> Round:
    return Round(
        line["round"],
        line["accuracy"],
        line["loss"],
        tuple(line["per_category"]),
        tuple(line.get("per_client", ())),
        line.get("validation_accuracy"),
        tuple(line.get("participants", ())),
        tuple(line.get("weights", ())),
    )

"""``policy.yaml``: read, joined with the settings beside it, and printed as an example."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from shared import algorithms, models, tasks
from shared.documents import describe_bytes, find_lines, parse_yaml
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration
from shared.texts import find_nearest
from shared.value_faults import list_faults, say_value_fault
from worker.policy import DEALT, OWN, Policy, SitePolicy, allows

if TYPE_CHECKING:
    from worker.settings import WorkerSettings

__all__ = [
    "PolicyFile",
    "format_policy",
    "format_value",
    "list_changes",
    "load_policy",
    "parse_policy",
    "read_policy",
]

SETTINGS = (
    "algorithms",
    "disclosure",
    "epsilon",
    "metrics",
    "sizes",
    "on_broken",
    "on_changed_data",
    "labels",
    "tell",
)
"""Keys that are settings of the worker, too."""

_LARGEST_FILE = 1_000_000  # bytes


@dataclass(frozen=True)
class PolicyFile:
    """A policy as its file states it. ``lines``: of each key that is there."""

    path: Path
    policy: Policy
    lines: Mapping[str, int]

    def where(self, key: str) -> str:
        return f"{self.path} line {self.lines[key]}"


def read_policy(path: Path) -> PolicyFile:
    """The policy in a file.

    Raises:
        InvalidConfiguration: it cannot be read or is not valid; names every line at fault.
    """
    return parse_policy(_read_text(path), path)


def parse_policy(text: str, path: Path) -> PolicyFile:
    """As :func:`read_policy`, of the text that stands at ``path``."""
    document, lines = parse_yaml(text, path), find_lines(text)
    if not isinstance(document, Mapping):
        raise InvalidConfiguration(
            f"{path} line 1: is no mapping of keys to values.",
            hint="`feddisco worker policy --example` prints one.",
        )
    try:
        policy = Policy.model_validate(document)
    except ValidationError as error:
        faults = list_faults(error.errors(include_url=False))
        said = sorted({(_find_line(lines, fault["loc"]), _describe(fault)) for fault in faults})
        raise InvalidConfiguration(
            "; ".join(f"{path} line {line}: {what}" for line, what in said) + "."
        ) from None
    return PolicyFile(path, policy, {key: lines.get((key,), 1) for key in policy.model_fields_set})


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise InvalidConfiguration(f"{path} is larger than 1 MB, which no policy is.")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidConfiguration(
            f"the policy {path} is not there.",
            hint="Give the path of the file; `feddisco worker policy --example` prints one to begin with.",
        ) from None
    except OSError as error:
        raise InvalidConfiguration(
            f"the policy {path} cannot be read: {error.strerror}.",
            hint="Name a file that this user may read.",
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(
            f"the policy {path} {describe_bytes(error)}.", hint="Save it as UTF-8."
        ) from None


def _find_line(lines: Mapping[tuple[str | int, ...], int], place: tuple[str | int, ...]) -> int:
    """Of the item, or of the key that it stands under."""
    return next(lines[place[:end]] for end in range(min(len(place), 2), -1, -1) if place[:end] in lines)


def _describe(fault: Mapping[str, Any]) -> str:
    key = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        near = find_nearest(key, Policy.model_fields)
        return f"there is no key {key!r}" + (f" (did you mean {near[0]}?)" if near else "")
    message = say_value_fault(fault)
    return f"{key}: {message[:1].lower()}{message[1:]}, received {fault['input']!r:.80}"


# ---------------------------------------------------------------- with the settings


def load_policy(settings: WorkerSettings) -> SitePolicy:
    """The policy that holds at this site.

    A key is decided by the file, by its setting, or by default: :data:`worker.policy.DEALT` for data that the
    run's partition deals, :data:`worker.policy.OWN` for others.

    Raises:
        InvalidConfiguration: the file is not valid, or a setting and a key of the file decide the same.
    """
    given = [name for name in SETTINGS if name in settings.model_fields_set]
    values = {name: getattr(settings, name) for name in given}
    if "algorithms" in values:
        values["algorithms"] = (*OWN.algorithms, *settings.algorithms)
    stated = {name: f"--{name.replace('_', '-')}" for name in given}
    if settings.policy is not None:
        file = read_policy(settings.policy)
        for name in given:
            if name in file.lines:
                raise InvalidConfiguration(
                    f"{stated[name]} (FEDDISCO_{name.upper()}) and {file.where(name)} decide the same.",
                    hint="Remove one of the two; neither is preferred.",
                )
        values |= {key: getattr(file.policy, key) for key in file.lines}
        stated |= {key: file.where(key) for key in file.lines}
    return SitePolicy(OWN.model_copy(update=values), DEALT.model_copy(update=values), stated)


# ---------------------------------------------------------------- printed


def list_changes(file: PolicyFile) -> Iterator[str]:
    """What a file changes of the defaults, a line each."""
    stated, default = (policy.model_dump(mode="json") for policy in (file.policy, OWN))
    changed = [key for key in stated if stated[key] != default[key]]
    end = ":" if changed else "."
    yield f"{file.path} is a valid policy. It changes {len(changed)} of {len(default)} keys{end}"
    for key in changed:
        now, before = format_value(stated[key]), format_value(default[key])
        yield f"line {file.lines[key]}: {key}: {now} (default {before})"
    yield from _list_unknown(file)
    yield from _list_contradictions(file)


def _list_unknown(file: PolicyFile) -> Iterator[str]:
    """What no run can be, so that it is perhaps mistyped; another version may have it."""
    known_names = {
        "tasks": tasks.available(),
        "algorithms": algorithms.available(),
        "models": (*models.available(), "default"),
    }
    for key, known in known_names.items():
        for pattern in getattr(file.policy, key):
            if ":" not in pattern and not any(fnmatchcase(name, pattern) for name in known):
                yield (
                    f"line {file.lines[key]}: {key}: {pattern!r} is none of this version, "
                    f"which has {', '.join(known)}"
                )
    for pattern in file.policy.parts:
        if ":" not in pattern:
            yield f"line {file.lines['parts']}: parts: {pattern!r} fits no import path, which has a colon"


def _list_contradictions(file: PolicyFile) -> Iterator[str]:
    """What one key allows, or promises, and another takes back."""
    policy = file.policy
    for metric in filter(is_own, policy.metrics):
        line = file.lines["metrics"]
        if policy.disclosure != "exact":
            yield f"line {line}: metrics: {metric!r} is answered only with disclosure: exact"
        if not allows(policy.parts, metric):
            yield f"line {line}: metrics: {metric!r} is not allowed by parts"
    if policy.sums_only and policy.tell_epsilon:
        yield (
            f"line {file.lines['tell_epsilon']}: tell_epsilon: true tells the number of examples, which "
            "sums_only: true is to hide"
        )
    if policy.assistant and policy.most_epsilon is not None:
        yield (
            f"line {file.lines['assistant']}: assistant: true lets this site's updates be sent to one; with "
            "most_epsilon it does not work as one itself"
        )


def format_policy(policy: Policy = OWN) -> str:
    """A file that states ``policy`` in full, with a comment above each key."""
    return "\n".join(_format_lines(policy))


def _format_lines(policy: Policy) -> Iterator[str]:
    yield "# What this site takes part in, and what it tells: feddisco worker --policy policy.yaml"
    yield "# A key that is left out has the value of `feddisco worker policy --example`; null is no limit."
    for key, value in policy.model_dump(mode="json").items():
        yield ""
        description = str(Policy.model_fields[key].description)
        yield from textwrap.wrap(
            description, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
        yield f"{key}: {format_value(value)}"
    yield ""


def format_value(value: Any) -> str:
    """As YAML, on one line.

    >>> format_value(["*", "ours:*"]), format_value("noised"), format_value(None)
    ("['*', 'ours:*']", 'noised', 'null')
    """
    # PyYAML writes some control characters, such as U+0085, so that it reads others: these are escaped
    readable = json.dumps(value, ensure_ascii=False).isprintable()
    return yaml.safe_dump([value], default_flow_style=True, allow_unicode=readable, width=math.inf)[1:-2]

"""YAML and JSON as people write them: a key that is there twice is refused, not overwritten."""

from __future__ import annotations

import json
from typing import Any

import yaml

from shared.problems import InvalidConfiguration

__all__ = ["parse_json", "parse_yaml"]


def parse_yaml(text: str, where: object) -> Any:
    """The document in ``text``, of plain values only; ``where`` it stands is for the errors.

    Raises:
        InvalidConfiguration: not YAML, or a mapping has a key twice; names both lines.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except _Twice as twice:
        raise InvalidConfiguration(
            f"{where} has the key {twice.key!r} on line {twice.first} and again on line {twice.second}.",
            hint="Remove one of the two; neither is preferred.",
        ) from None
    except yaml.YAMLError as error:
        raise InvalidConfiguration(f"{where} is not YAML: {error}") from None


def parse_json(text: str) -> Any:
    """The document in ``text``; ValueError where it is not JSON, or an object has a key twice."""
    return json.loads(text, object_pairs_hook=_distinct)


class _Twice(Exception):
    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(key)
        self.key, self.first, self.second = key, first, second


class _Loader(yaml.SafeLoader):
    """Looks at keys before merges (``<<``) are carried out, which override on purpose."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            word, line = (key.tag, key.value), key.start_mark.line + 1
            if word in lines:  # also within a line: {a: 1, a: 2}
                raise _Twice(key.value, lines[word], line)
            lines[word] = line
        return node


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found

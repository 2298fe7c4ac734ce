"""YAML and JSON as people write them: a key that is there twice is refused, not overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.reader import Reader

from shared.problems import InvalidConfiguration

__all__ = ["describe_bytes", "find_lines", "parse_json", "parse_yaml"]


def parse_yaml(text: str, where: object) -> Any:
    """The document in ``text``, of plain values only; ``where`` it stands is for the errors.

    Raises:
        InvalidConfiguration: not YAML, a mapping has a key twice (names both lines), or aliases write out too
            much.
    """
    if found := Reader.NON_PRINTABLE.search(text):
        lines = f"{text[: found.start()]}.".splitlines()  # all others there end lines in YAML, too
        raise InvalidConfiguration(
            f"{where} is not YAML (line {len(lines)}, column {len(lines[-1])}): a character "
            f"U+{ord(found[0]):04X}.",
            hint="Remove it, or save the file as UTF-8.",
        )
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except _Twice as twice:
        raise InvalidConfiguration(
            f"{where} has the key {twice.key!r} on line {twice.first} and again on line {twice.second}.",
            hint="Remove one of the two; neither is preferred.",
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        is_tab = "'\\t'" in (error.problem or "")
        raise InvalidConfiguration(
            f"{where} is {'unclear' if isinstance(error, _Unclear) else 'not YAML'}{place}: {error.problem}.",
            hint="Indent with spaces; YAML takes no tabs." if is_tab else "",
        ) from None
    except yaml.YAMLError as error:
        raise InvalidConfiguration(f"{where} is not YAML: {error}") from None
    except RecursionError:
        raise InvalidConfiguration(f"{where} has lists or keys in one another too deeply.") from None


def describe_bytes(error: UnicodeDecodeError) -> str:
    r"""What is wrong with a file that is not UTF-8, and where.

    >>> try:
    ...     b"a: 1\nb: \xe4".decode()
    ... except UnicodeDecodeError as error:
    ...     describe_bytes(error)
    'is not UTF-8 (line 2)'
    """
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"is not UTF-8 (line {line})"


def find_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Lines, from 1, of a YAML document's entries and of the entries in those, by path; () is the document.

    >>> find_lines("runs:\\n- a\\n- b\\nlabels: {mel: melanoma}\\n")
    {(): 1, ('runs',): 1, ('runs', 0): 2, ('runs', 1): 3, ('labels',): 4, ('labels', 'mel'): 4}
    """
    found: dict[tuple[str | int, ...], int] = {(): 1}
    for key, line, value in _find_entries(yaml.compose(text, _Loader)):
        found[(key,)] = line
        found |= {(key, inner): inner_line for inner, inner_line, _ in _find_entries(value)}
    return found


def _find_entries(node: yaml.Node | None) -> Iterator[tuple[str | int, int, yaml.Node]]:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield index, item.start_mark.line + 1, item
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key.start_mark.line + 1, value


def parse_json(text: str) -> Any:
    """The document in ``text``; ValueError where it is not JSON, or an object has a key twice."""
    return json.loads(text, object_pairs_hook=_distinct)


_LONGEST_NUMBER = 64
_MOST_BY_ALIASES = 10_000
"""Values that all aliases of a document may stand for together: few lines can write out billions."""


class _Twice(Exception):
    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(key)
        self.key, self.first, self.second = key, first, second


class _Unclear(yaml.MarkedYAMLError):
    """Read, but hardly as it was meant."""


class _Loader(yaml.SafeLoader):
    """Looks at keys before merges (``<<``) are carried out, which override on purpose."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._by_aliases = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Counts values as if aliases were written out."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias, before = isinstance(event, yaml.AliasEvent), self._values
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if not is_alias:
            self._values += 1
            self._sizes[node] = self._values - before
            return node
        if node not in self._sizes:
            raise _Unclear(None, None, f"*{event.anchor} is within what it stands for", event.start_mark)
        self._values += self._sizes[node]
        self._by_aliases += self._sizes[node]
        if self._by_aliases > _MOST_BY_ALIASES:
            problem = f"aliases stand for more than {_MOST_BY_ALIASES} values"
            raise _Unclear(None, None, problem, event.start_mark)
        return node

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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """PyYAML raises Python's errors for what looks like a value and is none, as `2024-13-45`, and reads
        numbers of any length, which Python then refuses to write into an error.
        """
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if is_number and len(node.value) > _LONGEST_NUMBER:
            raise _find_fault(node, f"a number of {len(node.value)} characters")
        if is_number and (meaning := _find_other_base(node.value)):
            hint = f"write '{node.value}' in quotes for text, or a plain number"
            raise _Unclear(None, None, f"{node.value} is {meaning} to YAML: {hint}", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            raise _find_fault(node, f"{node.value!r:.80} cannot be read as a value") from None


def _find_other_base(number: str) -> str:
    """How YAML 1.1 reads what looks like a plain number or a time; empty for a plain number.

    >>> _find_other_base("0100"), _find_other_base("1:30"), _find_other_base("0.5"), _find_other_base("0x1F")
    ('octal', 'of base 60', '', '')
    """
    digits = number.lstrip("+-").replace("_", "")
    if ":" in digits:
        return "of base 60"
    return "octal" if len(digits) > 1 and digits.isdigit() and digits[0] == "0" else ""


def _find_fault(node: yaml.ScalarNode, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found

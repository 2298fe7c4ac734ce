"""What is wrong with a value, for who wrote it in YAML: pydantic's words are Python's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from shared.own_parts import PATH
from shared.texts import format_count

__all__ = ["list_faults", "say_value_fault"]

_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type")
_NUMBERS = ("int_type", "float_type", "int_parsing", "float_parsing", "int_from_float")
_LONGEST = 60
"""Characters of a value that are repeated at most: what comes to a coordinator may be of any length."""

_BRANCH = re.compile(r"(literal|tuple)\[.*\]|constrained-str")
"""What pydantic puts into a place for one of several types that a value may have."""

_MAPPINGS = ("model_type", "model_attributes_type", "dict_type")


def say_value_fault(fault: Mapping[str, Any]) -> str:
    """One fault of a pydantic ValidationError as a clause, without the value received.

    >>> say_value_fault({"type": "tuple_type", "msg": "Input should be a valid tuple", "input": "skin"})
    'Input should be a list: write [skin]'
    >>> say_value_fault({"type": "int_type", "msg": "Input should be a valid integer", "input": "1e5"})
    'Input should be a valid integer: write 100000'
    >>> say_value_fault({"type": "string_type", "msg": "Input should be a valid string", "input": 10**100})
    'Input should be text: put it in quotes'
    >>> say_value_fault({"type": "too_long", "msg": "", "ctx": {"field_type": "Tuple", "max_length": 20}})
    'Input should be a list of at most 20 items'
    """
    kind, value, message = fault["type"], fault.get("input"), str(fault["msg"]).removeprefix("Value error, ")
    if kind in _MAPPINGS:
        return "has to be keys with values"
    if kind in _LISTS:
        return "Input should be a list" + _show_list(value)
    if kind == "string_type":
        return "Input should be text" + _show_text(value)
    if kind == "string_pattern_mismatch" and fault["ctx"]["pattern"] == f"^{PATH}$":
        return "Input should be package.module:attribute"
    if kind == "too_short":
        fewest = fault["ctx"]["min_length"]
        return f"Input should be a list of at least {format_count(fewest, 'item')}"
    if kind == "too_long" and fault["ctx"]["field_type"] != "Dictionary":
        most = fault["ctx"]["max_length"]
        return f"Input should be a list of at most {format_count(most, 'item')}"
    if kind in _NUMBERS:
        return message.partition(",")[0] + _show_number(value, whole=kind.startswith("int"))
    return message


def list_faults(faults: Sequence[Any]) -> list[dict[str, Any]]:
    """The faults of a pydantic ValidationError that are to be told: one for each place.

    Left out are lists that are too short only because their wrong items do not count; what a value of several
    types is not, is one fault.
    """
    told = list(_join_branches(faults))
    places = [tuple(fault["loc"]) for fault in told]
    return [
        fault
        for fault, place in zip(told, places, strict=True)
        if fault["type"] != "too_short"
        or not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]


def _join_branches(faults: Sequence[Any]) -> Iterator[dict[str, Any]]:
    joined: dict[tuple[int | str, ...], list[dict[str, Any]]] = {}
    for fault in faults:
        place = tuple(fault["loc"])
        end = next((at for at, name in enumerate(place) if _BRANCH.fullmatch(str(name))), len(place))
        joined.setdefault(place[:end], []).append({**fault, "loc": place[:end] + place[end + 1 :]})
    for place, several in joined.items():
        if within := [fault for fault in several if len(fault["loc"]) > len(place)]:
            yield from within  # a list, as it may be: what is wrong is in it
        elif len(several) == 1:
            yield several[0]
        else:
            yield {**several[0], "type": "union", "msg": _say_choices(several)}


def _say_choices(several: Sequence[Mapping[str, Any]]) -> str:
    """
    >>> literal = {"type": "literal_error", "msg": "Input should be 'kl' or 'l1'", "input": 3}
    >>> _say_choices([literal, {"type": "string_type", "msg": "Input should be a valid string", "input": 3}])
    "Input should be 'kl' or 'l1', or package.module:attribute"
    """
    choices = []
    for fault in sorted(several, key=lambda fault: fault["type"] in _LISTS):
        if fault["type"] in _LISTS:
            choices.append("a list")
        elif fault["type"] == "string_type":
            choices.append("package.module:attribute")
        else:
            choices.append(say_value_fault(fault).removeprefix("Input should be "))
    return "Input should be " + ", or ".join(choices)


def _show_list(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST:
        return ""
    plain = value.replace("-", "").replace("_", "").isalnum()
    return f": write [{value}]" if plain else f": write ['{value}']"


def _show_text(value: object) -> str:
    if isinstance(value, bool):
        return ": YAML takes yes, no, on and off for true and false, so put it in quotes"
    if value is None or isinstance(value, Mapping | list | tuple):
        return ""
    return f": put it in quotes, '{value}'" if len(str(value)) <= _LONGEST else ": put it in quotes"


def _show_number(value: object, *, whole: bool) -> str:
    """What to write where the number is there, but not as YAML writes numbers."""
    if isinstance(value, bool) or not isinstance(value, str | float):
        return ""
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return ""
    if not number.is_finite() or not -15 < number.adjusted() < 16 or (whole and number != int(number)):
        return ""
    written = format(number, "f").partition(".")[0] if whole else format(number, "f")
    return f": write {written}" if len(written) <= _LONGEST else ""

"""What is wrong with a value, for who wrote it in YAML: pydantic's words are Python's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["drop_consequences", "say_value_fault"]

_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type")
_NUMBERS = ("int_type", "float_type", "int_parsing", "float_parsing", "int_from_float")
_LONGEST = 60
"""Characters of a value that are repeated at most: what comes to a coordinator may be of any length."""

_MAPPINGS = ("model_type", "model_attributes_type", "dict_type")


def say_value_fault(fault: Mapping[str, Any]) -> str:
    """One fault of a pydantic ValidationError as a clause, without the value received.

    >>> say_value_fault({"type": "tuple_type", "msg": "Input should be a valid tuple", "input": "skin"})
    'Input should be a list: write [skin]'
    >>> say_value_fault({"type": "int_type", "msg": "Input should be a valid integer", "input": "1e5"})
    'Input should be a valid integer: write 100000'
    >>> say_value_fault({"type": "string_type", "msg": "Input should be a valid string", "input": 10**100})
    'Input should be text: put it in quotes'
    """
    kind, value, message = fault["type"], fault["input"], str(fault["msg"]).removeprefix("Value error, ")
    if kind in _MAPPINGS:
        return "has to be keys with values"
    if kind in _LISTS:
        return "Input should be a list" + _show_list(value)
    if kind == "string_type":
        return "Input should be text" + _show_text(value)
    if kind in _NUMBERS:
        return message.partition(",")[0] + _show_number(value, whole=kind.startswith("int"))
    return message


def drop_consequences(faults: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the lists that are too short only because their wrong items do not count."""
    places = [tuple(fault["loc"]) for fault in faults]
    return [
        fault
        for fault, place in zip(faults, places, strict=True)
        if fault["type"] != "too_short"
        or not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]


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

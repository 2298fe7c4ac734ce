"""Command-line flags made from a settings class, so that a setting is declared and described once."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["add_flags", "format_default"]

Command = TypeVar("Command", bound=Callable[..., None])


def add_flags(settings: type[BaseModel], *names: str) -> Callable[[Command], Command]:
    """Give a command one flag for each field of ``settings`` (or only for ``names``), as ``**flags``.

    Flags carry text (bool fields are switches); ``settings`` parses them, as it parses variables. A flag
    that is not given is None.
    """

    def decorate(command: Command) -> Command:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        flags = [_flag(name, settings.model_fields[name]) for name in names or settings.model_fields]
        parameters = [*own, *flags]
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def format_default(field: FieldInfo) -> str:
    """The default as a user writes it; empty for a setting that is off or absent by default.

    >>> format_default(FieldInfo(default=30.0)), format_default(FieldInfo(default=None))
    ('30', '')
    """
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None or value is False or value == {} else str(value)


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    default = format_default(field)
    text = f"{field.description} [default: {default}]" if default else field.description
    flag = f"--{name.replace('_', '-')}"
    if bool in _flatten(field.annotation):
        annotation: Any = Annotated[bool | None, typer.Option(flag, help=text)]
    else:
        option = typer.Option(flag, help=text, metavar=_metavar(field.annotation))
        annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "|".join(str(member.value) for member in annotation)
    kinds = {kind for kind in _flatten(annotation) if isinstance(kind, type)}
    if kinds & {int, float}:
        return "NUMBER"
    return "PATH" if Path in kinds else "TEXT"


def _flatten(annotation: Any) -> list[Any]:
    parts = get_args(annotation)
    return [annotation] if not parts else [each for part in parts for each in _flatten(part)]

"""What is wrong with a program's settings, in the words of who sets them."""

from __future__ import annotations

from collections.abc import Container

from pydantic import ValidationError

from shared.value_faults import list_faults

__all__ = ["explain_faults"]


def explain_faults(error: ValidationError, flags: Container[str]) -> str:
    """A sentence for each wrong setting, by its flag, if it has one, and variable. No value is repeated."""
    sentences = []
    for fault in list_faults(error.errors(include_url=False, include_input=False)):
        message = str(fault["msg"]).removeprefix("Value error, ")
        if not fault["loc"]:
            sentences.append(message)
            continue
        name = str(fault["loc"][0])
        variable = f"FEDDISCO_{name.upper()}"
        where = f"--{name.replace('_', '-')} ({variable})" if name in flags else variable
        sentences.append(f"{where}: {message}")
    return "; ".join(sentences)

"""The flags of commands that call a coordinator, and of those that read its database and files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from feddisco.flags import add_flags
from feddisco.settings import CONNECTION, ConsoleSettings
from shared.problems import InvalidConfiguration
from shared.setting_faults import explain_faults

if TYPE_CHECKING:
    from server.settings import Settings

__all__ = ["calls_coordinator", "load_coordinator_settings"]

calls_coordinator = add_flags(ConsoleSettings, *CONNECTION)


def load_coordinator_settings(flags: Mapping[str, Any]) -> Settings:
    """The coordinator's settings: flags that were given, over the environment."""
    from server.settings import Settings

    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise InvalidConfiguration(
            explain_faults(error, flags), hint="See docs/settings-coordinator.md."
        ) from None

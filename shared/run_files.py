"""A run's configuration as people write it, YAML or JSON: read, checked, and written."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from shared.config import RunConfig, describe_faults
from shared.problems import InvalidConfiguration
from shared.texts import find_unstorable

__all__ = ["check_config", "read_config", "write_config"]


def read_config(text: str, where: str, **changes: Any) -> RunConfig:
    """The configuration in a text, with fields changed.

    Raises :class:`InvalidConfiguration` that names each field and the value received.
    """
    from shared.documents import parse_yaml  # and with it PyYAML, which few commands need

    document = parse_yaml(text, where)
    if document is None:
        raise InvalidConfiguration(f"{where} is empty.")
    if not isinstance(document, dict):
        raise InvalidConfiguration(f"{where} is not a mapping of fields to values.")
    return check_config(document | changes, where)


def check_config(document: dict[str, Any], where: str) -> RunConfig:
    """The configuration in a mapping; InvalidConfiguration names each field and the value received."""
    if (place := find_unstorable(document)) is not None:
        raise InvalidConfiguration(f"{where}: {place} holds a NUL character or half of a surrogate pair.")
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        raise InvalidConfiguration(f"{where} is not valid: {describe_faults(error)}.") from None


def write_config(config: RunConfig) -> str:
    """YAML of what differs from the defaults, in the order of the fields.

    >>> write_config(RunConfig(name="demo", rounds=5))
    'name: demo\\nrounds: 5\\n'
    """
    import yaml

    document = config.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)

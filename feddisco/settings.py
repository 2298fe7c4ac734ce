"""What the operator's commands take from flags and the environment (``FEDDISCO_*``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.problems import InvalidConfiguration, MissingToken

__all__ = ["CONNECTION", "ConsoleSettings", "load"]

CONNECTION = ("url", "admin_token_file", "ca_file", "insecure")
"""The settings that are flags of every command which calls a coordinator."""


class ConsoleSettings(BaseSettings):
    """Where the coordinator and the admin token are, and which certificates are trusted."""

    model_config = SettingsConfigDict(
        env_prefix="FEDDISCO_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    url: str = Field("http://127.0.0.1:8000", description="Address of the coordinator.")
    admin_token: SecretStr | None = Field(None, description="The coordinator's admin token.")
    admin_token_file: Path | None = Field(
        None,
        description="File with the admin token. Without it, FEDDISCO_ADMIN_TOKEN, or that in the data folder "
        "of a coordinator on this machine.",
    )
    data_folder: Path = Field(
        Path("feddisco-data"), description="Data folder of a coordinator on this machine; holds its token."
    )
    ca_file: Path | None = Field(
        None, description="PEM file of the certificates to trust instead of the system's authorities."
    )
    insecure: bool = Field(
        False, description="Call a coordinator on another machine without TLS: the token travels in clear."
    )

    def token(self) -> str:
        """From the file, the environment, or the data folder of a coordinator on this machine."""
        if self.admin_token_file is None and self.admin_token is not None:
            return self.admin_token.get_secret_value()
        path = self.admin_token_file or self.data_folder / "admin-token"
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise MissingToken(
                f"No admin token: {path} cannot be read ({error.strerror}).",
                hint="Give --admin-token-file or set FEDDISCO_ADMIN_TOKEN; "
                "the coordinator keeps its token in the file admin-token of its data folder.",
            ) from None


def load(flags: Mapping[str, Any]) -> ConsoleSettings:
    """Flags that were given, over the environment. Raises :class:`InvalidConfiguration`."""
    try:
        return ConsoleSettings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        faults = (f"--{str(fault['loc'][0]).replace('_', '-')}: {fault['msg']}" for fault in error.errors())
        raise InvalidConfiguration("; ".join(faults)) from None

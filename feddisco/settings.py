"""What the operator's commands take from the environment (``FEDDISCO_*``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.problems import MissingToken

__all__ = ["ConsoleSettings"]


class ConsoleSettings(BaseSettings):
    """Where the admin token is, and which certificates are trusted."""

    model_config = SettingsConfigDict(env_prefix="FEDDISCO_", frozen=True, env_ignore_empty=True)

    admin_token: SecretStr | None = Field(None, description="the coordinator's admin token")
    data_folder: Path = Field(
        Path("feddisco-data"), description="of a coordinator on this machine; holds its token"
    )
    ca_file: Path | None = Field(
        None, description="certificates (PEM) that the coordinator's is checked against"
    )

    def token(self, file: Path | None = None) -> str:
        """From ``file``, the environment, or the data folder of a coordinator on this machine."""
        if file is None and self.admin_token is not None:
            return self.admin_token.get_secret_value()
        path = file or self.data_folder / "admin-token"
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise MissingToken(
                f"No admin token: {path} cannot be read ({error.strerror}).",
                hint="Give --admin-token-file or set FEDDISCO_ADMIN_TOKEN; "
                "the coordinator keeps its token in the file admin-token of its data folder.",
            ) from None

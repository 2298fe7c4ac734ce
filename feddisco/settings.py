"""What the operator's commands take from flags and the environment (``FEDDISCO_*``)."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from shared.addresses import is_loopback
from shared.fingerprints import SELF_SIGNED_FILE, fingerprint_of, parse_fingerprint
from shared.problems import InvalidConfiguration, MissingToken
from shared.setting_faults import explain_faults
from worker.trust import trust_only

__all__ = ["CONNECTION", "ConsoleSettings", "load"]

CONNECTION = ("url", "admin_token_file", "ca_file", "fingerprint", "insecure")
"""The settings that are flags of every command which calls a coordinator."""

LOCAL = "127.0.0.1:8000"


PREFIX = "FEDDISCO_"


class ConsoleSettings(BaseModel):
    """Where the coordinator and the admin token are, and which certificates are trusted.

    What is not given comes from the environment. It reads that itself: pydantic's settings take a sixth of a
    command's time to import.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str | None = Field(
        None, description="Address of the coordinator. Without it, port 8000 of this machine."
    )
    token: SecretStr | None = Field(
        None, description="Your own token, from `feddisco users add`; goes before the admin token."
    )
    admin_token: SecretStr | None = Field(None, description="The coordinator's admin token.")
    admin_token_file: Path | None = Field(
        None,
        description="File with the admin token, or your own. Without it, FEDDISCO_TOKEN, "
        "FEDDISCO_ADMIN_TOKEN, or the token in the data folder of a coordinator on this machine.",
    )
    data_folder: Path = Field(
        Path("feddisco-data"), description="Data folder of a coordinator on this machine; holds its token."
    )
    ca_file: Path | None = Field(
        None, description="PEM file of the certificates to trust instead of the system's authorities."
    )
    fingerprint: Annotated[str, AfterValidator(parse_fingerprint)] | None = Field(
        None, description="SHA-256 fingerprint of the coordinator's certificate, to trust that one alone."
    )
    insecure: bool = Field(
        False, description="Call a coordinator on another machine without TLS: the token travels in clear."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Names in either case, as at the coordinator and the worker; what is empty counts as not set."""
        known = {f"{PREFIX}{name}".upper(): name for name in cls.model_fields}
        found = {known[name.upper()]: value for name, value in os.environ.items() if name.upper() in known}
        return {name: value for name, value in found.items() if value} | given

    @property
    def address(self) -> str:
        """The coordinator's; without one, that of the coordinator whose data folder is here."""
        return self.url.rstrip("/") if self.url else f"http{'s' if self._own_certificate else ''}://{LOCAL}"

    def load_trust(self) -> ssl.SSLContext | bool:
        """What certificates are checked against: what was given, or the local coordinator's own, or the
        usual authorities."""
        from worker.client import load_trust  # httpx takes a while to import, and --help needs none of it

        if self.fingerprint is not None:
            return trust_only(self.fingerprint)
        if urlsplit(self.address).scheme == "http" and self.ca_file is None:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, and reads no authorities
        if self.ca_file is None and is_loopback(urlsplit(self.address).hostname or ""):
            certificate = self._own_certificate
            if certificate is not None:
                return trust_only(certificate)
        return load_trust(self.ca_file)

    @property
    def _own_certificate(self) -> str | None:
        """Fingerprint of the certificate that a coordinator on this machine has made for itself."""
        try:
            content = (self.data_folder / SELF_SIGNED_FILE).read_text(encoding="ascii")
            certificate = content[content.index("-----BEGIN CERTIFICATE") :]
            return fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))
        except (OSError, ValueError):
            return None

    def find_token(self) -> str:
        """From the file, the environment, or the data folder of a coordinator on this machine."""
        given = self.token or self.admin_token
        if self.admin_token_file is None and given is not None:
            return given.get_secret_value()
        path = self.admin_token_file or self.data_folder / "admin-token"
        try:
            return path.read_text(encoding="utf-8-sig", errors="replace").strip()
        except OSError as error:
            raise MissingToken(
                f"No admin token: {path} cannot be read ({error.strerror}).",
                hint="Set FEDDISCO_TOKEN or FEDDISCO_ADMIN_TOKEN, or give --admin-token-file; "
                "the coordinator keeps its token in the file admin-token of its data folder.",
            ) from None


def load(flags: Mapping[str, Any]) -> ConsoleSettings:
    """Flags that were given, over the environment. Raises :class:`InvalidConfiguration`."""
    try:
        return ConsoleSettings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise InvalidConfiguration(explain_faults(error, CONNECTION)) from None

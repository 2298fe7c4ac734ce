"""Where the coordinator is and how its certificate is known: by flags, join code, or an earlier start."""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shared.join_codes import JoinCode
from shared.problems import InvalidConfiguration
from worker.client import load_trust
from worker.policy import SitePolicy
from worker.settings import WorkerSettings
from worker.state import find_credential
from worker.trust import trust_only

__all__ = ["Address", "find_address"]


@dataclass(frozen=True)
class Address:
    """``fingerprint``: of the coordinator's certificate, 64 hexadecimal digits; None: authorities decide.

    ``ca_file``: those to trust instead of the system's. ``join_token``: to register with, if any.
    """

    url: str
    fingerprint: str | None
    ca_file: Path | None
    join_token: str | None

    def load_trust(self, policy: SitePolicy) -> ssl.SSLContext | bool:
        """Raises :class:`InvalidConfiguration` if the site's policy names other certificates."""
        allowed = policy.own.coordinators
        if allowed and (fault := self._find_fault(allowed)):
            raise InvalidConfiguration(
                f"{policy.where('coordinators')}: {self.url} {fault}.",
                hint="Give the coordinator's https:// address, name its fingerprint, or leave it empty.",
            )
        return trust_only(self.fingerprint) if self.fingerprint else load_trust(self.ca_file, allowed)

    def _find_fault(self, allowed: Collection[str]) -> str | None:
        if not self.url.startswith("https:"):
            return "has no certificate to compare"
        if self.fingerprint is not None and self.fingerprint not in allowed:
            return f"has the certificate {self.fingerprint} by its join code, which is not named"
        return None


def find_address(settings: WorkerSettings, code: JoinCode | None, folder: Path) -> Address:
    """What was given, completed by what the state folder keeps of an earlier start; ``--ca-file`` ends a pin.

    ``code`` is :meth:`WorkerSettings.join_code`, which can be read once only.

    Raises :class:`InvalidConfiguration` if no coordinator is given and none is known.
    """
    stored = find_credential(folder)
    known = [code.address if code else None, stored.url if stored else None]
    pins = [code.fingerprint if code else None, stored.fingerprint if stored else None]
    url = next(filter(None, (settings.url, *known)), None)
    if url is None:
        raise InvalidConfiguration(
            "no coordinator is given.",
            hint="Pass --join with the code that its operator gave you, or --url https://HOST:PORT.",
        )
    is_pinned = settings.ca_file is None and url.startswith("https:")
    fingerprint = next(filter(None, pins), None) if is_pinned else None
    return Address(url, fingerprint, settings.ca_file, code.token if code else None)

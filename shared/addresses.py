"""Which addresses are this machine itself."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether the host name or IP address (also in brackets) is this machine by itself, without asking DNS.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "localhost", "0.0.0.0", "coordinator.example")]
    [True, True, True, False, False]
    """
    name = host.lower().rstrip(".")
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")

"""Addresses of coordinators: which are well formed, and which are this machine itself."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__ = ["check_address", "is_loopback"]


def check_address(url: str) -> str:
    """The web address without a slash at its end. Raises ValueError for what is none, or holds secrets.

    >>> check_address("https://coordinator.example:8000/")
    'https://coordinator.example:8000'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a web address; write it like https://coordinator.example:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("carries more than scheme, host, port and path; leave secrets and queries out")
    return url.rstrip("/")


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

"""Addresses of coordinators: which are well formed, and which are this machine itself."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

__all__ = ["check_address", "is_loopback", "spell_address"]


def check_address(url: str) -> str:
    """The web address in one spelling. Raises ValueError for what is none, or holds secrets.

    >>> check_address("HTTPS://Coordinator.example:8000/")
    'https://coordinator.example:8000'
    """
    like = "write it like https://coordinator.example:8000"
    if not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} holds a blank or a control character; {like}")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a web address; {like}")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError("carries more than scheme, host, port and path; leave secrets and queries out")
    if not _has_usable_port(parts):
        raise ValueError(f"{url!r} has a port that is no number from 1 to 65535; {like}")
    return spell_address(url)


def spell_address(url: str) -> str:
    """A web address with scheme and host in lower case and no slash at its end, whether or not it is usable.

    >>> spell_address("http://C.example:80000/Path/")
    'http://c.example:80000/Path'
    """
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{mark}{host.lower()}{slash}{path}".rstrip("/")


def _has_usable_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


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

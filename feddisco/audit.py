"""``feddisco audit export`` and ``audit verify``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from feddisco.admin import AdminClient
from feddisco.verify import open_store
from server.database.audit_log import check_chain, hash_entry
from server.settings import Settings
from shared.files import PRIVATE, replace_file
from shared.problems import InvalidConfiguration

__all__ = ["export_audit_log", "verify_audit_database", "verify_audit_file"]


def export_audit_log(client: AdminClient, out: Path | None, after: int, say: Callable[[str], None]) -> str:
    """Write the entries after that number, a line each; returns the sentence to print beside them."""
    lines = list(client.audit_entries(after))
    if out is None:
        for line in lines:
            say(line)
    else:
        replace_file(out, "".join(f"{line}\n" for line in lines).encode(), mode=PRIVATE)
    return _summarise(len(lines), lines[-1] if lines else None)


def verify_audit_file(path: Path, head: str | None) -> tuple[list[str], str]:
    """What is wrong with an exported file, which begins with the first entry; and how many it has."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError:
        raise InvalidConfiguration(f"{path} is no exported audit log: it is not ASCII.") from None
    faults = list(check_chain(((line, None) for line in lines), head))
    return faults, _summarise(len(lines), lines[-1] if lines else None)


def verify_audit_database(settings: Settings, head: str | None) -> tuple[list[str], str]:
    """The same of the database, and whether the event log says that entries are missing."""
    with open_store(settings) as store:
        faults = store.find_audit_faults(head)
        number, newest = store.newest_audit_entry()
    return faults, _summarise(number, newest)


def _summarise(number: int, newest: str | None) -> str:
    if newest is None:
        return "0 entries"
    return f"{number} {'entry' if number == 1 else 'entries'}; the newest has the hash {hash_entry(newest)}"

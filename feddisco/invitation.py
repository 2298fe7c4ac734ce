"""What ``feddisco clients invite`` prints: the join code, and what a site does with it."""

from __future__ import annotations

from urllib.parse import urlsplit

from feddisco.admin import AdminClient
from feddisco.console import describe_join_token
from shared.addresses import check_address, is_loopback
from shared.join_codes import JoinCode, write_join_code
from shared.problems import InvalidConfiguration
from shared.schemas import JoinToken

__all__ = ["check_given", "describe_invitation", "find_newest_task", "make_join_code"]


def make_join_code(token: JoinToken, address: str) -> JoinCode:
    """Raises :class:`InvalidConfiguration` if the address is none."""
    url = check_given(address)
    return JoinCode(token.token, url, token.fingerprint if url.startswith("https:") else None)


def check_given(address: str) -> str:
    """The address as it goes into a join code. Raises :class:`InvalidConfiguration` if it is none.

    To be asked before the join token is made: one that is shown to nobody would stay valid.
    """
    try:
        return check_address(address)
    except ValueError as error:
        raise InvalidConfiguration(f"--address: {error}.") from None


def find_newest_task(client: AdminClient) -> str | None:
    """The task of the newest run that has not ended, if there is one."""
    return next((run.task for run in client.runs() if not run.status.is_terminal), None)


def describe_invitation(token: JoinToken, code: JoinCode, task: str | None) -> str:
    """For how many and until when; the commands to paste; and where the code leads, if that is not far."""
    lines = [
        f"{describe_join_token(token)}. At a site, next to its data:",
        "",
        f"    export FEDDISCO_JOIN={write_join_code(code)}",
        f"    feddisco worker --task {task or 'TASK'} --data FOLDER",
        "",
    ]
    if is_loopback(urlsplit(code.address or "").hostname or ""):
        lines.append(
            f"It leads to {code.address}, which is this machine to every worker. For sites elsewhere give "
            "--address, or set FEDDISCO_PUBLIC_URL at the coordinator."
        )
    return "\n".join(lines).rstrip()

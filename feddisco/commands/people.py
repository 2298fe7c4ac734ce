"""Who takes part: clients with their join codes, and people with their tokens."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feddisco.commands.common import ClientName, PersonName, Yes, confirm, echo, make_app
from feddisco.commands.connection import calls_coordinator
from feddisco.settings import load as load_console_settings
from shared.fingerprints import format_fingerprint, parse_fingerprint
from shared.problems import InvalidConfiguration
from shared.vocabulary import JOIN_TOKEN_SECONDS, Role, UserRole

__all__ = ["app"]

app = make_app()
clients_app = make_app(help="Invite, list and revoke clients (admin).", no_args_is_help=True)
users_app = make_app(help="Tokens for people: add, list, renew, revoke (admin).", no_args_is_help=True)
app.add_typer(clients_app, name="clients")
app.add_typer(users_app, name="users")


@clients_app.command("invite")
@calls_coordinator
def clients_invite(
    uses: Annotated[int, typer.Option(min=0, help="How many clients may join with it; 0: any number.")] = 1,
    days: Annotated[
        float, typer.Option(min=0, help="How many days it is valid; 0: until it is revoked.")
    ] = JOIN_TOKEN_SECONDS / 86400,
    role: Annotated[
        Role | None, typer.Option(help="The only role in which its clients may take part in runs.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Group of its clients, which runs may admit.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of its one client, kept for it.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address as sites reach it. Without it, the coordinator's own setting, or --url."),
    ] = None,
    token_only: Annotated[
        bool, typer.Option("--token-only", help="Print the join token alone, for programs of your own.")
    ] = False,
    **flags: Any,
) -> None:
    """Make a join code for a site: address, certificate and join token in one string, shown only once."""
    from feddisco.admin import connect, make_invitation
    from feddisco.invitation import check_given, describe_invitation, find_newest_task, make_join_code
    from shared.join_codes import write_join_code

    request = make_invitation(uses=uses, days=days, role=role, group=group, name=name)
    settings = load_console_settings(flags)
    if address:
        check_given(address)
    with connect(settings) as client:
        token = client.invite(request)
        code = make_join_code(token, address or token.address or settings.address)
        echo(code.token if token_only else write_join_code(code))
        echo(describe_invitation(token, code, find_newest_task(client)), err=True)


@clients_app.command("invitations")
@calls_coordinator
def clients_invitations(**flags: Any) -> None:
    """List the join codes by number, without the codes themselves."""
    from feddisco.admin import connect
    from feddisco.console import print_invitations

    with connect(load_console_settings(flags)) as client:
        print_invitations(client.join_tokens())


@clients_app.command("uninvite")
@calls_coordinator
def clients_uninvite(
    number: Annotated[int, typer.Argument(min=1, help="Of the join code: `feddisco clients invitations`.")],
    **flags: Any,
) -> None:
    """Revoke a join code: nobody joins with it any more. Clients that have joined stay."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.revoke_join_token(number)
        echo(f"Join code {number} is revoked.")


@clients_app.command("list")
@calls_coordinator
def clients_list(**flags: Any) -> None:
    """List the registered clients."""
    from feddisco.admin import connect
    from feddisco.console import print_clients

    with connect(load_console_settings(flags)) as client:
        print_clients(client.clients())


@clients_app.command("keys")
@calls_coordinator
def clients_keys(**flags: Any) -> None:
    """Print the fingerprint of each client's identity key, to be compared with the site by telephone."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        for found in client.clients():
            key = "no identity key" if found.fingerprint is None else format_fingerprint(found.fingerprint)
            echo(f"{found.client}  {key}")


@clients_app.command("pin")
@calls_coordinator
def clients_pin(
    client_id: Annotated[str, typer.Argument(help="Name that the site will register under.")],
    key: Annotated[
        str, typer.Argument(help="Fingerprint of the site's key, as `feddisco worker identity` prints it.")
    ],
    **flags: Any,
) -> None:
    """Let a name be registered under the identity key of this fingerprint only (see `worker identity`)."""
    from feddisco.admin import connect

    try:
        digits = parse_fingerprint(key)
    except ValueError as error:
        raise InvalidConfiguration(f"{key!r} {error}.") from error
    with connect(load_console_settings(flags)) as client:
        client.pin_identity(client_id, digits)
        echo(f"{client_id} is pinned to {format_fingerprint(digits)}")


@clients_app.command("revoke")
@calls_coordinator
def clients_revoke(client_id: ClientName, **flags: Any) -> None:
    """Revoke a client's token. The client leaves its runs at once."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.revoke(client_id)
        echo(f"{client_id} is revoked.")


@clients_app.command("erase")
@calls_coordinator
def clients_erase(client_id: ClientName, yes: Yes = False, **flags: Any) -> None:
    """Erase a client that withdraws: its token, name, words and files, everywhere and for good."""
    from feddisco.admin import connect
    from feddisco.ending import describe_erasure

    with connect(load_console_settings(flags)) as client:
        if not yes:
            confirm(
                f"Erase {client_id} for good? Its numbers stay in the ledgers, under a name of no meaning."
            )
        echo(describe_erasure(client_id, client.erase(client_id)))


@users_app.command("add")
@calls_coordinator
def users_add(
    name: Annotated[str, typer.Argument(help="The person's name, as the logs will have it.")],
    role: Annotated[
        UserRole,
        typer.Option(help="viewer reads, operator creates and controls runs and invites, admin does all."),
    ] = UserRole.VIEWER,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="The only run that it is for; may be given several times. [default: all]"),
    ] = None,
    **flags: Any,
) -> None:
    """Make a token for a person; it is shown only once. Pages and commands take it."""
    from feddisco.admin import connect, make_user_request

    with connect(load_console_settings(flags)) as client:
        made = client.add_user(make_user_request(name, role, run or ()))
        echo(made.token)
        runs = "all runs" if made.runs is None else ", ".join(made.runs)
        echo(
            f"{made.name} is {made.role.value} for {runs}. To be set as FEDDISCO_TOKEN, or given to the "
            "sign-in of the pages.",
            err=True,
        )


@users_app.command("list")
@calls_coordinator
def users_list(**flags: Any) -> None:
    """List the people who have or had a token."""
    from feddisco.admin import connect
    from feddisco.console import print_users

    with connect(load_console_settings(flags)) as client:
        print_users(client.users())


@users_app.command("renew")
@calls_coordinator
def users_renew(name: PersonName, **flags: Any) -> None:
    """Replace a person's token, shown only once. Who was revoked is let in again."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        echo(client.renew_user(name).token)


@users_app.command("revoke")
@calls_coordinator
def users_revoke(name: PersonName, **flags: Any) -> None:
    """Revoke a person's token. Sessions and open streams end at once."""
    from feddisco.admin import connect

    with connect(load_console_settings(flags)) as client:
        client.revoke_user(name)
        echo(f"{name} is revoked.")

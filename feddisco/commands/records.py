"""What is stored: the audit log, verification, replay, backups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from feddisco.commands.common import RunName, echo, make_app
from feddisco.commands.connection import calls_coordinator, load_coordinator_settings
from feddisco.flags import add_flags
from feddisco.settings import load as load_console_settings
from server.settings import Settings

__all__ = ["app"]

app = make_app()
audit_app = make_app(help="The audit log: who did what, and who read what of a client.", no_args_is_help=True)
app.add_typer(audit_app, name="audit")


@audit_app.command("export")
@calls_coordinator
def audit_export(
    out: Annotated[Path | None, typer.Option(help="File to write. Without it, the terminal.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only entries with a larger number.")] = 0,
    **flags: Any,
) -> None:
    """Write the audit log as JSON lines, oldest first; each line holds the SHA-256 of the one before."""
    from feddisco.admin import connect
    from feddisco.audit import export_audit_log

    with connect(load_console_settings(flags)) as client:
        said = export_audit_log(client, out, after, typer.echo)
    echo(said, err=True)


@audit_app.command("verify")
@add_flags(Settings, "data_folder", "database_url")
def audit_verify(
    file: Annotated[
        Path | None, typer.Argument(help="An exported file. Without it, the database itself.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="SHA-256 of an entry, noted elsewhere: it must be among them.")
    ] = None,
    **flags: Any,
) -> None:
    """Check that no entry was changed, removed or added in the audit log. The coordinator may run.

    The exit code is 0 if all is well, 1 if anything is wrong.
    """
    from feddisco.audit import verify_audit_database, verify_audit_file

    settings = load_coordinator_settings(flags)
    faults, said = verify_audit_file(file, head) if file else verify_audit_database(settings, head)
    for line in (*faults, said):
        echo(line)
    raise typer.Exit(1 if faults else 0)


@app.command()
@add_flags(Settings, "data_folder", "database_url")
def replay(
    run: RunName, round: Annotated[int, typer.Argument(help="Its number, from 1.")], **flags: Any
) -> None:
    """Rebuild a round's model from its stored updates and compare the digests."""
    from feddisco.replay import replay_round

    ok, sentence = replay_round(load_coordinator_settings(flags), run, round)
    echo(sentence)
    raise typer.Exit(0 if ok else 1)


@app.command("verify")
@add_flags(Settings, "data_folder", "database_url")
def verify_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False, **flags: Any
) -> None:
    """Compare all that is stored with what was written: database, files, ledgers. Writes nothing.

    The coordinator may run or not. The exit code is 0 if all is well, 1 if anything is wrong.
    """
    from feddisco.verify import print_report, verify_storage

    ok = print_report(verify_storage(load_coordinator_settings(flags)), as_json, typer.echo)
    raise typer.Exit(0 if ok else 1)


class _BackupGroup(TyperGroup):
    """``backup DIR`` is ``backup create DIR``."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["create", *args]
        return super().parse_args(context, args)


backup_app = make_app(
    cls=_BackupGroup, help="Back up database and files: feddisco backup DIR.", no_args_is_help=True
)
app.add_typer(backup_app, name="backup")


@backup_app.command("create")
@add_flags(Settings, "data_folder", "database_url")
def backup_create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the snapshots.")],
    keep: Annotated[int | None, typer.Option(min=1, help="Remove all but so many newest snapshots.")] = None,
    **flags: Any,
) -> None:
    """Add a snapshot of database and files; only new files are copied. The coordinator may run."""
    from feddisco.backup import back_up

    typer.echo(back_up(load_coordinator_settings(flags), folder, keep))


@backup_app.command("verify")
def backup_verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the snapshots.")],
    snapshot: Annotated[str | None, typer.Option(help="Its name. Without it, the newest.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare a snapshot with what was written. The exit code is 0 if all is well, 1 if anything is wrong."""
    from feddisco.backup import verify_backup
    from feddisco.verify import print_report

    raise typer.Exit(0 if print_report(verify_backup(folder, snapshot), as_json, typer.echo) else 1)


@app.command("restore")
@add_flags(Settings, "data_folder", "database_url")
def restore_backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the snapshots.")],
    snapshot: Annotated[str | None, typer.Option(help="Its name. Without it, the newest.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that holds data.")] = False,
    revocations: Annotated[
        Path | None, typer.Option(help="The coordinator's revocations.jsonl, if its data folder is lost.")
    ] = None,
    no_later_revocations: Annotated[
        bool, typer.Option("--no-later-revocations", help="No token was revoked since the snapshot.")
    ] = False,
    revoke_all: Annotated[
        bool, typer.Option("--revoke-all", help="It is not known which were: revoke every token.")
    ] = False,
    with_deleted: Annotated[
        bool, typer.Option("--with-deleted", help="Bring back runs that were deleted since the snapshot.")
    ] = False,
    **flags: Any,
) -> None:
    """Make database and files what a snapshot holds, while the coordinator is stopped."""
    from feddisco.backup import restore

    typer.echo(
        restore(
            load_coordinator_settings(flags),
            folder,
            name=snapshot,
            replace=replace,
            later="all" if revoke_all else "none" if no_later_revocations else "known",
            revocations=revocations,
            with_deleted=with_deleted,
        )
    )

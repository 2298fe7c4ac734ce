"""A client that withdraws: its name and words go; the numbers from which weights follow stay, nameless."""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from server.database.clients import find_free_name, no_such_client
from server.database.events import add_events
from server.database.join_tokens import ERASED
from server.database.session import Reading, Writing
from server.database.tables import (
    are_of_one_attempt,
    assistances,
    clients,
    deletions,
    enrolments,
    evaluations,
    events,
    identity_pins,
    join_tokens,
    participants,
    rounds,
    runs,
    travelling,
)
from shared.schemas import ParticipantStatus, RoundStatus, RunStatus

__all__ = ["OpenUpdate", "erase", "list_open_updates"]

_ITS_OWN = ("detail", "fingerprint", "group", "name", "reason", "version")
"""Details of an event about a client that are, or may hold, its own words."""
_TOLD_AT_ENROLMENT = (
    *("reason", "last_error", "left_out", "approved_examples"),
    *("discrepancy", "discrepancy_metric", "grade", "epsilon", "identity"),
)
_TOLD_IN_A_ROUND = (
    "reason",
    "progress",
    "heartbeat_at",
    "loss",
    "seconds",
    "start_loss",
    "end_loss",
    "epsilon",
)
_SCORES: dict[str, Any] = {"per_category": {}, "confusion": None}
"""Of a score only these go, and all of ``extra`` and of the shadows' but what decides which round is best."""
_NAMED_IN_CONFIG = ("participants", "assistant")
_SAID = ("client_declined", "failure_reported")
_SAID_AS_ASSISTANT = ("assistance_failed",)
"""Events whose reason is in the client's own words."""

ERASED_WORDS = "(erased)"


@dataclass(frozen=True, slots=True)
class OpenUpdate:
    """An update that a round which has not ended still counts."""

    run: str
    round: int


def list_open_updates(connection: Reading, client: str) -> list[OpenUpdate]:
    """What has to end before the client can be erased: open rounds, and models that travel since the last
    average, for which rounds of it count.
    """
    statement = (
        sa.select(participants.c.run, participants.c.round)
        .join(rounds)
        .where(
            participants.c.client == client,
            participants.c.status == ParticipantStatus.UPLOADED,
            rounds.c.status.in_([status for status in RoundStatus if status.is_open]),
        )
        .order_by(participants.c.run)
    )
    travels = sa.select(travelling.c.run).where(are_of_one_attempt(travelling, rounds)).exists()
    averaged = sa.select(sa.func.coalesce(sa.func.max(rounds.c.round), 0)).where(
        rounds.c.run == runs.c.run, rounds.c.status == RoundStatus.COMPLETED, ~travels
    )
    counted = (
        sa.select(participants.c.run, sa.func.max(participants.c.round))
        .join(runs, runs.c.run == participants.c.run)
        .where(
            participants.c.client == client,
            participants.c.status == ParticipantStatus.AGGREGATED,
            participants.c.round <= runs.c.completed_rounds,
            participants.c.round > averaged.correlate(runs).scalar_subquery(),
            runs.c.status.not_in([status for status in RunStatus if status.is_terminal]),
        )
        .group_by(participants.c.run)
        .order_by(participants.c.run)
    )
    return [OpenUpdate(*row) for found in (statement, counted) for row in connection.select(found)]


def erase(connection: Writing, client: str, *, actor: str, now: dt.datetime) -> str | None:
    """The name of no meaning that its rows have now; None, and nothing is written, while an update is open.

    It must have left all runs: revoke it first. Raises :class:`NotFound`.
    """
    its_runs = _lock_its_runs(connection, client)
    if list_open_updates(connection, client):
        return None
    name = _add_nameless(connection, client, now)
    said, faults = (_list_words(connection, client, kinds) for kinds in (_SAID, _SAID_AS_ASSISTANT))
    renaming = _Renaming(client, name, said, faults)
    _move_rows(connection, client, name)
    _rename_in_runs(connection, its_runs, renaming)
    moved = runs.update().where(runs.c.run.in_(its_runs)).values(version=runs.c.version + 1)
    connection.execute(moved)  # whoever knows them by heart reads them again
    connection.pending.update(dict.fromkeys(its_runs))
    _rename_in_events(connection, its_runs, renaming)
    _rename_in_deletions(connection, renaming)
    token = {"name": None, "revoked_at": sa.func.coalesce(join_tokens.c.revoked_at, now)}
    connection.execute(join_tokens.update().where(join_tokens.c.name == client).values(token))
    connection.execute(identity_pins.delete().where(identity_pins.c.client == client))
    connection.execute(clients.delete().where(clients.c.client == client))
    add_events(connection, [{"kind": "client_erased", "client": name}], actor=actor, now=now)
    return name


def _lock_its_runs(connection: Writing, client: str) -> list[str]:
    """Those in which it took part, and those whose configuration names it."""
    unnamed = _Renaming(client, "")
    took_part = connection.select(sa.select(enrolments.c.run).where(enrolments.c.client == client)).scalars()
    named = (
        run
        for run, config in connection.select(sa.select(runs.c.run, runs.c.config)).all()
        if unnamed.in_config(config) != config
    )
    of_client = runs.c.run.in_({*took_part, *named})
    locked = sa.select(runs.c.run).where(of_client).order_by(runs.c.run)
    return list(connection.select(locked.with_for_update(key_share=True)).scalars())


def _add_nameless(connection: Writing, client: str, now: dt.datetime) -> str:
    # another coordinator that erases it at the same moment waits here, and finds it gone
    own = sa.select(clients).where(clients.c.client == client).with_for_update()
    row = connection.select(own).one_or_none()
    if row is None:
        raise no_such_client(client)
    values = {
        "token_hash": secrets.token_hex(32),  # of no token
        "version": "",
        "registered_at": row.registered_at,
        "revoked_at": row.revoked_at or now,
        "erased_at": now,
    }
    name = find_free_name(connection, ERASED)
    while connection.insert_new(clients, values | {"client": name}, "client") != 1:
        name = find_free_name(connection, ERASED)  # another client was erased at the same moment
    return name


def _list_words(connection: Reading, client: str, kinds: Sequence[str]) -> list[str]:
    """The reasons that it gave, which others' rows may repeat; longer ones first."""
    its_own = sa.and_(events.c.actor == client, events.c.client == client, events.c.kind.in_(kinds))
    own = connection.select(sa.select(events.c.detail).where(its_own)).scalars()
    found = {detail["reason"] for detail in own if isinstance(detail.get("reason"), str)}
    return sorted(found - {""}, key=len, reverse=True)


def _move_rows(connection: Writing, client: str, name: str) -> None:
    new: dict[sa.Table, dict[str, Any]] = {
        enrolments: {"device": "", "examples": 0} | dict.fromkeys(_TOLD_AT_ENROLMENT),
        participants: dict.fromkeys(_TOLD_IN_A_ROUND),
        evaluations: _SCORES,
    }
    _clear_extra_scores(connection, client)
    for table, values in new.items():
        connection.execute(table.update().where(table.c.client == client).values(client=name, **values))


def _clear_extra_scores(connection: Writing, client: str) -> None:
    """All but those by which the run chooses its model: its best round would be another one without them."""
    columns = [*evaluations.primary_key, evaluations.c.extra, evaluations.c.shadows, runs.c.config]
    chosen = sa.select(*columns).join(runs, runs.c.run == evaluations.c.run)
    for row in connection.select(chosen.where(evaluations.c.client == client)).all():
        deciding = {row.config.get("headline"), (row.config.get("stop_when") or {}).get("metric")}
        values = {"extra": {key: row.extra[key] for key in row.extra if key in deciding}}
        if row.shadows is not None:
            values["shadows"] = {
                label: {key: score.get(key) for key in ("loss", "accuracy")} | {"extra": {}}
                for label, score in row.shadows.items()
            }
        one = sa.and_(evaluations.c.run == row.run, evaluations.c.round == row.round)
        connection.execute(evaluations.update().where(one, evaluations.c.client == client).values(values))


@dataclass(frozen=True)
class _Renaming:
    """Its name, and what it ``said``, wherever rows hold them.

    ``faults``: what it said as an assistant, whose words also stand alone.
    """

    client: str
    name: str
    said: Sequence[str] = ()
    faults: Collection[str] = ()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # at the end of a sentence a full stop is none of the name
        word = rf"(?<![A-Za-z0-9._-]){re.escape(self.client)}(?![A-Za-z0-9_-]|\.[A-Za-z0-9])"
        quoted = [rf"(?<=failed: ){re.escape(words)}(?=[;)]|\Z)" for words in self.said]
        return re.compile("|".join((*quoted, word)))

    def in_text(self, text: str) -> str:
        """Its words stand where a round's end quotes them; elsewhere the same words are somebody else's.

        All in one look, so that what is put in is not looked through again.
        """
        return self._pattern.sub(lambda found: self.name if found[0] == self.client else ERASED_WORDS, text)

    def in_fault(self, text: str) -> str:
        """A text that may be an assistant's own, and nothing else."""
        return ERASED_WORDS if text in self.faults else self.in_text(text)

    def in_names(self, value: Any) -> Any:
        """Where a list or an object names clients: only this one, whole."""
        if isinstance(value, list):
            return [self.name if each == self.client else self.in_names(each) for each in value]
        if isinstance(value, dict):
            return {
                key: self.name if key == "client" and each == self.client else self.in_names(each)
                for key, each in value.items()
            }
        return value

    def in_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: self.in_names(value) if key in _NAMED_IN_CONFIG else value for key, value in config.items()
        }

    def in_event(self, row: Any) -> dict[str, Any] | None:
        """The new values; None if it does not name the client."""
        detail = dict(row.detail)
        if self.client in (row.client, row.actor) or detail.get("name") == self.client:
            detail = {key: value for key, value in detail.items() if key not in _ITS_OWN}
        if isinstance(detail.get("reason"), str):
            replace = self.in_fault if row.kind == "assistance_missed" else self.in_text
            detail["reason"] = replace(detail["reason"])
        if "participants" in detail:
            detail["participants"] = self.in_names(detail["participants"])
        values = {
            "new_client": self.name if row.client == self.client else row.client,
            "new_actor": self.name if row.actor == self.client else row.actor,
            "new_detail": detail,
        }
        return values if list(values.values()) != [row.client, row.actor, row.detail] else None


def _rename_in_runs(connection: Writing, its_runs: Sequence[str], renaming: _Renaming) -> None:
    """Reasons of others may name it, and so may the list of those who may take part."""
    for column in (table.c.reason for table in (runs, enrolments, rounds, participants)):
        _rename_in_column(connection, column, its_runs, renaming.in_text)
    for column in (assistances.c.reason, assistances.c.fault):
        _rename_in_column(connection, column, its_runs, renaming.in_fault)
    named = sa.select(runs.c.run, runs.c.config, runs.c.revision).where(runs.c.run.in_(its_runs))
    for run, config, revision in connection.select(named).all():
        changed = renaming.in_config(config)
        if changed != config:
            values = {"config": changed, "revision": revision + 1}
            connection.execute(runs.update().where(runs.c.run == run).values(values))


def _rename_in_column(
    connection: Writing, column: sa.Column[Any], its_runs: Sequence[str], replace: Callable[[str], str]
) -> None:
    table = column.table
    key = list(table.primary_key)
    worded = sa.and_(table.c.run.in_(its_runs), column.is_not(None))
    for row in connection.select(sa.select(*key, column.label("words")).where(worded)).all():
        if (words := replace(row.words)) != row.words:
            one = sa.and_(*(part == row._mapping[part.name] for part in key))
            connection.execute(sa.update(table).where(one).values({column.name: words}))


def _rename_in_events(connection: Writing, its_runs: Sequence[str], renaming: _Renaming) -> None:
    about = sa.or_(events.c.client == renaming.client, events.c.actor == renaming.client)
    chosen = sa.or_(about, events.c.run.in_(its_runs), events.c.kind == "join_token_added")
    changed = [
        {"of_id": row.id, **values}
        for row in connection.select(sa.select(events).where(chosen)).all()
        if (values := renaming.in_event(row)) is not None
    ]
    if changed:
        one = events.c.id == sa.bindparam("of_id", type_=sa.BigInteger)
        columns: dict[str, sa.BindParameter[Any]] = {
            key: sa.bindparam(f"new_{key}") for key in ("client", "actor", "detail")
        }
        columns["detail"] = sa.bindparam("new_detail", type_=events.c.detail.type)
        connection.execute(events.update().where(one).values(columns), changed)


def _rename_in_deletions(connection: Writing, renaming: _Renaming) -> None:
    for row in connection.select(sa.select(deletions.c.id, deletions.c.reason, deletions.c.record)).all():
        record = dict(row.record)
        record["clients"] = renaming.in_names(record["clients"])
        record["config"] = renaming.in_config(record["config"])
        record["reason"] = record["reason"] and renaming.in_text(record["reason"])
        values = {"reason": row.reason and renaming.in_text(row.reason), "record": record}
        if values != {"reason": row.reason, "record": row.record}:
            connection.execute(deletions.update().where(deletions.c.id == row.id).values(values))

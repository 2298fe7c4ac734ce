"""The schema, once. Tables come to be by the migrations in ``alembic/`` only; a test compares the two."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from shared.schemas import EnrolmentStatus, ParticipantStatus, Role, RoundStatus, RunStatus, UserRole

__all__ = [
    "UtcDateTime",
    "Words",
    "are_of_one_attempt",
    "assistances",
    "audit_log",
    "blobs",
    "clean_text",
    "clients",
    "deletions",
    "enrolments",
    "evaluations",
    "events",
    "identity_pins",
    "installation",
    "join_tokens",
    "metadata",
    "participants",
    "rounds",
    "runs",
    "sessions",
    "shadows",
    "travelling",
    "users",
]

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(sa.types.TypeDecorator[dt.datetime]):
    """Aware datetimes only, stored as UTC, returned as aware UTC (SQLite drops the zone otherwise)."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value.isoformat()}: every time has a zone here")
        return value.astimezone(dt.UTC)

    def process_result_value(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


class Words(sa.types.TypeDecorator[str]):
    """Text from outside: PostgreSQL takes neither NUL characters nor lone surrogates."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else clean_text(value)


def clean_text(value: str) -> str:
    """The text without what a database refuses.

    >>> clean_text("a\\x00b\\ud800")
    'a\ufffdb?'
    """
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _enum(kind: type[enum.Enum]) -> sa.Enum:
    return sa.Enum(
        kind,
        values_callable=lambda members: [member.value for member in members],
        native_enum=False,
        create_constraint=True,
        length=30,
        name=kind.__name__.lower(),
    )


Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Slug = sa.String(63)
Sha256 = sa.String(64)


def _column(name: str, kind: Any, *args: Any, null: bool = False, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *args, nullable=null, **more)


clients = sa.Table(
    "clients",
    metadata,
    _column("client", Slug, primary_key=True),
    _column("token_hash", Sha256, unique=True),
    _column("version", sa.String(50)),
    _column("registered_at", UtcDateTime),
    _column("last_seen_at", UtcDateTime, null=True),
    _column("revoked_at", UtcDateTime, null=True),
    _column("erased_at", UtcDateTime, null=True, comment="when all but its numbers was erased"),
    _column("role", sa.String(20), null=True, comment="the only one that its join token allows"),
    _column("group", Slug, null=True, comment="as its join token said"),
    _column("identity", Sha256, null=True, comment="public Ed25519 key, hexadecimal; null: it has none"),
)

identity_pins = sa.Table(
    "identity_pins",
    metadata,
    # a name that may have to be registered yet
    _column("client", Slug, primary_key=True),
    _column("fingerprint", Sha256),
    _column("pinned_at", UtcDateTime),
)

join_tokens = sa.Table(
    "join_tokens",
    metadata,
    _column("id", BigId, primary_key=True),
    _column("token_hash", Sha256, unique=True),
    _column("uses_left", sa.BigInteger, null=True),
    _column("created_at", UtcDateTime),
    _column("expires_at", UtcDateTime, null=True),
    _column("revoked_at", UtcDateTime, null=True),
    # what it makes of the clients that register with it; null: nothing in particular
    _column("role", sa.String(20), null=True),
    _column("group", Slug, null=True),
    _column("name", Slug, null=True),
)

runs = sa.Table(
    "runs",
    metadata,
    _column("run", Slug, primary_key=True),
    _column("version", sa.BigInteger, comment="compare-and-swap: every transition adds one"),
    # migration 0001 also admits "failed": no run ever had it, since whatever goes wrong pauses a run
    _column("status", _enum(RunStatus), index=True),
    _column("reason", Words, null=True),
    _column("config", Json),
    _column("revision", sa.BigInteger, server_default="0", comment="how often the config was changed"),
    _column("classes", Json),
    _column("manifest", Json),
    _column("completed_rounds", sa.BigInteger),
    _column("highest_attempt", sa.BigInteger, server_default="0"),
    _column(
        "rewound_rounds", sa.BigInteger, server_default="0", comment="the highest round when it went back"
    ),
    _column("rewound_attempts", sa.BigInteger, server_default="0", comment="the highest attempt by then"),
    _column("initial_model", Sha256),
    _column("created_at", UtcDateTime),
    _column("started_at", UtcDateTime, null=True),
    _column("finished_at", UtcDateTime, null=True),
    _column("archived_at", UtcDateTime, null=True),
    _column("totals", Json, null=True, comment="of a secure run: what the sum that ends enrolment told"),
    _column(
        "waiting_since",
        UtcDateTime,
        null=True,
        comment="since when something keeps it from going on; null: nothing does",
    ),
    _column(
        "waiting_until",
        UtcDateTime,
        null=True,
        index=True,
        comment="when it then pauses, or the state machine is asked what follows",
    ),
)

deletions = sa.Table(
    "deletions",
    metadata,
    _column("id", BigId, primary_key=True),
    _column("run", Slug, unique=True),
    _column("created_at", UtcDateTime),
    _column("deleted_at", UtcDateTime),
    _column("actor", sa.String(100)),
    _column("reason", Words),
    _column("record", Json),
)

enrolments = sa.Table(
    "enrolments",
    metadata,
    _column("run", Slug, sa.ForeignKey("runs.run", ondelete="CASCADE"), primary_key=True),
    _column("client", Slug, sa.ForeignKey("clients.client"), primary_key=True, index=True),
    _column("role", _enum(Role)),
    _column("status", _enum(EnrolmentStatus)),
    _column("index", sa.BigInteger, null=True),
    _column("examples", sa.BigInteger),
    _column("device", sa.String(100)),
    _column("discrepancy", sa.Double, null=True),
    _column("discrepancy_metric", sa.String(20), null=True),
    _column("reason", Words, null=True),
    _column("last_error", Words, null=True),
    _column("enrolled_at", UtcDateTime),
    _column("left_out", Json, null=True, comment="numbers by reason; null: the client said nothing of it"),
    _column("grade", sa.String(20), null=True, comment="exact or noised: how the discrepancy was disclosed"),
    _column("epsilon", sa.Double, null=True),
    _column(
        "approved_examples",
        sa.BigInteger,
        null=True,
        comment="the size that the operator approved; 0: the operator refused the client",
    ),
    _column("identity", Sha256, null=True, comment="the key with which it takes part; null: it has none"),
    sa.UniqueConstraint("run", "index"),
)

rounds = sa.Table(
    "rounds",
    metadata,
    _column("run", Slug, sa.ForeignKey("runs.run", ondelete="CASCADE"), primary_key=True),
    _column("round", sa.BigInteger, primary_key=True),
    _column("attempt", sa.BigInteger, primary_key=True),
    _column("status", _enum(RoundStatus), index=True),
    _column("reason", Words, null=True),
    _column("opened_at", UtcDateTime),
    _column("deadline_at", UtcDateTime),
    _column("closed_at", UtcDateTime, null=True, comment="no more updates are taken"),
    _column("completed_at", UtcDateTime, null=True),
    # who counted at its opening, as (index, examples, discrepancy): a replay needs it when some have left
    _column("trainers", Json),
    # what the clients of this attempt start from, and what it made; digests of blobs
    _column("start_model", Sha256),
    _column("start_broadcast", Sha256, null=True),
    _column("start_private", Sha256, null=True),
    _column("model", Sha256, null=True, index=True),
    _column("scored_model", Sha256, null=True, index=True),
    _column("broadcast", Sha256, null=True, index=True),
    _column("private", Sha256, null=True),
    # what the run's weighting kept: before this attempt, and after it; and what it did to the model
    _column("start_memory", Json, null=True),
    _column("memory", Json, null=True),
    _column("adjustment", Json, null=True),
    _column("step", sa.String(20), null=True, comment="the step of a secure sum that is open"),
    _column(
        "secure",
        sa.Text,
        null=True,
        comment="the coordinator's half of a secure sum, JSON; null: updates arrive in clear",
    ),
    _column("sums", Json, null=True, comment="all that is known of a secure round's updates"),
)

participants = sa.Table(
    "participants",
    metadata,
    _column("run", Slug, primary_key=True),
    _column("round", sa.BigInteger, primary_key=True),
    _column("attempt", sa.BigInteger, primary_key=True),
    _column("client", Slug, sa.ForeignKey("clients.client"), primary_key=True),
    _column("index", sa.BigInteger),
    _column("status", _enum(ParticipantStatus)),
    _column("reason", Words, null=True),
    _column("examples", sa.BigInteger),
    _column("relative_size", sa.Double),
    _column("taken_at", UtcDateTime, null=True),
    # the update
    _column("update", Sha256, null=True),
    _column("bytes", sa.BigInteger, null=True),
    _column("steps", sa.BigInteger, null=True),
    _column("loss", sa.Double, null=True),
    _column("seconds", sa.Double, null=True),
    _column("start_loss", sa.Double, null=True),
    _column("end_loss", sa.Double, null=True),
    _column("epsilon", sa.Double, null=True, comment="of the run's differential privacy, where told"),
    _column("uploaded_at", UtcDateTime, null=True),
    # heartbeat
    _column("progress", Json, null=True),
    _column("heartbeat_at", UtcDateTime, null=True),
    # the ledger (reference 1.1)
    _column("included", sa.Boolean, null=True),
    _column("size_share", sa.Double, null=True),
    _column("discrepancy", sa.Double, null=True),
    _column("discrepancy_share", sa.Double, null=True),
    _column("score", sa.Double, null=True),
    _column("weight", sa.Double, null=True),
    _column("size_weight", sa.Double, null=True),
    _column("uncapped_weight", sa.Double, null=True),
    # what the update is like
    _column("norm", sa.Double, null=True, comment="of its displacement, as the next two"),
    _column("largest_entry", sa.Double, null=True),
    _column("cosine", sa.Double, null=True, comment="with the mean direction of the others"),
    _column("share", sa.Double, null=True, comment="in the model, under the run's aggregation rule"),
    _column("details", Json, null=True),
    _column("answered", sa.String(20), null=True, comment="the step of a secure sum that it answered last"),
    # what it starts from, where models travel
    _column("start_model", Sha256, null=True, comment="if it is not the round's: a travelling model"),
    _column("start_number", sa.BigInteger, null=True, comment="its number among the models that travel"),
    _column("started_from", sa.BigInteger, null=True, comment="index of who had trained it last"),
    sa.ForeignKeyConstraint(
        ["run", "round", "attempt"], ["rounds.run", "rounds.round", "rounds.attempt"], ondelete="CASCADE"
    ),
    # every poll asks: where is this client invited, and which round took its update last
    sa.Index("ix_participants_client_status", "client", "status", "run", "round"),
)

shadows = sa.Table(
    "shadows",
    metadata,
    _column("run", Slug, primary_key=True),
    _column("round", sa.BigInteger, primary_key=True),
    _column("attempt", sa.BigInteger, primary_key=True),
    _column("name", sa.String(200), primary_key=True, comment="of the weighting, with its options"),
    _column("model", Sha256, null=True, index=True, comment="kept until the evaluators have scored it"),
    _column("bytes", sa.BigInteger, null=True),
    _column("weights", Json, comment="by client index"),
    _column("reason", Words, null=True, comment="why there is no model"),
    _column("seconds", sa.Double, comment="how long making it took"),
    sa.ForeignKeyConstraint(
        ["run", "round", "attempt"], ["rounds.run", "rounds.round", "rounds.attempt"], ondelete="CASCADE"
    ),
)

travelling = sa.Table(
    "travelling",
    metadata,
    # as the round left them; those of an average are none
    _column("run", Slug, primary_key=True),
    _column("round", sa.BigInteger, primary_key=True),
    _column("attempt", sa.BigInteger, primary_key=True),
    _column("number", sa.BigInteger, primary_key=True),
    _column("model", Sha256, index=True),
    _column("client", sa.BigInteger, comment="index of who trained it last"),
    _column("earned", sa.Double, comment="what it counts at the average so far"),
    sa.ForeignKeyConstraint(
        ["run", "round", "attempt"], ["rounds.run", "rounds.round", "rounds.attempt"], ondelete="CASCADE"
    ),
)

assistances = sa.Table(
    "assistances",
    metadata,
    _column("run", Slug, primary_key=True),
    _column("round", sa.BigInteger, primary_key=True),
    _column("attempt", sa.BigInteger, primary_key=True),
    _column("work", sa.String(20)),
    _column("updates", Json, comment="what it is to look at: index, digest and share of each update"),
    _column("begin", Json, comment="the numbers that learning begins with"),
    _column("model", Sha256, null=True, comment="what is distilled; kept until it is"),
    _column("asked_at", UtcDateTime),
    _column("deadline_at", UtcDateTime),
    _column("answer", Sha256, null=True, index=True, comment="digest of a blob"),
    _column("report", Json, null=True),
    _column("fault", Words, null=True, comment="why there will be no answer"),
    _column("answered_at", UtcDateTime, null=True),
    _column("outcome", sa.String(20), null=True, comment="used or missed; null: it is awaited"),
    _column("reason", Words, null=True, comment="why the round went on without it"),
    sa.ForeignKeyConstraint(
        ["run", "round", "attempt"], ["rounds.run", "rounds.round", "rounds.attempt"], ondelete="CASCADE"
    ),
)

evaluations = sa.Table(
    "evaluations",
    metadata,
    _column("run", Slug, sa.ForeignKey("runs.run", ondelete="CASCADE"), primary_key=True),
    _column("round", sa.BigInteger, primary_key=True, comment="0: the initial model"),
    _column("client", Slug, sa.ForeignKey("clients.client"), primary_key=True),
    _column("loss", sa.Double, null=True),
    _column("accuracy", sa.Double, null=True),
    _column("examples", sa.BigInteger),
    _column("per_category", Json),
    _column("extra", Json),
    _column("confusion", Json, null=True, comment="shares, by true class and by what the model said"),
    _column("shadows", Json, null=True, comment="scores of the round's shadows, by name"),
    _column("at", UtcDateTime),
)

events = sa.Table(
    "events",
    metadata,
    _column("id", BigId, primary_key=True),
    _column("at", UtcDateTime),
    _column("kind", sa.String(60)),
    _column("run", Slug, sa.ForeignKey("runs.run", ondelete="CASCADE"), null=True, index=True),
    _column("round", sa.BigInteger, null=True),
    _column("client", Slug, null=True),
    _column("actor", sa.String(100), comment="who: admin, a client's id, or coordinator"),
    _column("detail", Json),
    sqlite_autoincrement=True,  # readers go on behind a number, also if its event went with its run
)

blobs = sa.Table(
    "blobs",
    metadata,
    _column("digest", Sha256, primary_key=True),
    _column("bytes", sa.BigInteger),
    _column("created_at", UtcDateTime),
    _column("checked_at", UtcDateTime, null=True, comment="when the file was last read whole and compared"),
    _column("fault", Words, null=True, comment="what is wrong with the file; null: nothing that is known"),
)

installation = sa.Table(
    "installation",
    metadata,
    _column(
        "one",
        sa.SmallInteger,
        sa.CheckConstraint("one = 1", name="one"),
        primary_key=True,
        autoincrement=False,
    ),
    _column("id", sa.String(32)),
    _column("created_at", UtcDateTime),
    _column("alive_at", UtcDateTime, null=True, comment="when a coordinator last noted that it is alive"),
    _column(
        "changes",
        sa.BigInteger,
        server_default="0",
        comment="counts commits that concern clients and have no event",
    ),
)

users = sa.Table(
    "users",
    metadata,
    _column("name", Slug, primary_key=True),
    _column("token_hash", Sha256, unique=True),
    _column("role", _enum(UserRole)),
    _column("runs", Json, null=True, comment="names of the runs that the role is for; null: all"),
    _column("created_at", UtcDateTime),
    _column("renewed_at", UtcDateTime, null=True, comment="when the token was last replaced"),
    _column("revoked_at", UtcDateTime, null=True),
)

sessions = sa.Table(
    "sessions",
    metadata,
    _column("session_hash", Sha256, primary_key=True, comment="of what the browser's cookie holds"),
    _column("token_hash", Sha256, comment="of the token that was given at the sign-in"),
    _column("started_at", UtcDateTime),
    _column("ends_at", UtcDateTime),
    _column("ended_at", UtcDateTime, null=True, comment="by signing out"),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    _column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    _column("entry", sa.Text, comment="JSON, byte for byte as it was hashed; holds the hash before it"),
    _column("hash", Sha256, comment="SHA-256 of the entry"),
)


def are_of_one_attempt(one: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    """Rows of two tables that belong to one attempt of a round: equal run, round and attempt."""
    return sa.and_(*(one.c[name] == other.c[name] for name in ("run", "round", "attempt")))

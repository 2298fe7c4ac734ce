"""The coordinator's settings: the only place in ``server/`` that reads the environment.

A setting is declared here once, as the variable ``FEDDISCO_<NAME>``. ``feddisco/flags.py`` makes flags of
some, ``docs/make_settings.py`` writes what they are for into ``docs/settings-coordinator.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.addresses import check_address, is_loopback

__all__ = ["Reading", "Settings", "check_token", "unknown_variables"]

Reading = Literal["open", "local", "closed"]

PREFIX = "FEDDISCO_"
SHORTEST_SECRET = 16
_TOKEN = re.compile(rf"[!-~]{{{SHORTEST_SECRET},}}")
NOT_SETTINGS = frozenset({"FEDDISCO_DATA", "FEDDISCO_REQUIRE_POSTGRES"})


def _check_issuer(url: str) -> str:
    """As it is written: the provider names itself so, letter by letter."""
    check_address(url)
    return url.rstrip("/")


class Settings(BaseSettings):
    """How one coordinator process runs. Frozen; arguments win over the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, hide_input_in_errors=True
    )

    data_folder: Path = Field(
        Path("feddisco-data"),
        description="Folder for the database (if SQLite), the blobs and the admin token.",
    )
    database_url: SecretStr | None = Field(
        None,
        description="`sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST:PORT/NAME`. Without it, SQLite in "
        "the data folder.",
    )
    blob_store: str | None = Field(
        None,
        pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$",
        description="`s3://BUCKET/PREFIX`: keep all files there, so that several coordinators need no shared "
        "disk. Without it, in the data folder.",
    )
    accel_redirect: str | None = Field(
        None,
        pattern=r"^/[A-Za-z0-9/_-]{0,100}/$",
        description="Path, like `/stored/`, under which an nginx in front serves the folder `blobs` "
        "internally: large files are then sent by it (`X-Accel-Redirect`). Without it, by the coordinator.",
    )
    copied_blob_bytes: int = Field(
        10 * 2**30,
        ge=0,
        description="Bytes of the data folder for copies of files that lie in `blob_store`.",
    )
    s3_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._-]+)*/?$",
        description="Address of a service that speaks the protocol of S3, like `https://minio.example:9000`. "
        "Without it, S3 itself.",
    )
    s3_region: str | None = Field(None, description="Region of the bucket.")
    s3_access_key_id: SecretStr | None = Field(
        None,
        description="Access key of the bucket. Without it, what AWS_ variables, the container or the machine "
        "give.",
    )
    s3_secret_access_key: SecretStr | None = Field(
        None, description="Secret that belongs to `s3_access_key_id`."
    )
    s3_ca_file: Path | None = Field(
        None, description="PEM file with the authority that signed the certificate of `s3_endpoint`."
    )
    host: str = Field("127.0.0.1", description="Address to listen on; `0.0.0.0` for every interface.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port; 0 takes a free one and logs it.")
    admin_token: SecretStr | None = Field(
        None,
        description="Token of the operator, at least 16 characters. Without it, one is made at the first "
        "start and kept in the data folder.",
    )
    join_token: SecretStr | None = Field(
        None,
        description="Join codes that are valid from the start, separated by commas, each at least 16 "
        "characters.",
    )
    viewer_token: SecretStr | None = Field(
        None,
        description="Token of those who read all pages and the whole API, at least 16 characters. If it is "
        "set, nobody reads without one. Without it, one is made at the first start and kept in the data "
        "folder.",
    )
    open_pages: bool | None = Field(
        None,
        description="Whether everybody reads without a token: `true` for whoever reaches the port, `false` "
        "for nobody. Without it: only on this machine itself, and only if `host` is reached from nowhere "
        "else.",
    )
    insecure: bool = Field(
        False,
        description="Listen without TLS where other machines reach the port: tokens and updates travel in "
        "clear. For networks that nobody else is on, such as one between containers.",
    )
    self_signed: bool = Field(
        False,
        description="Speak TLS with a certificate of the coordinator's own, made at the first start and kept "
        "in the data folder. Join codes carry its fingerprint, so that sites need no other file.",
    )
    public_url: Annotated[str, AfterValidator(check_address)] | None = Field(
        None,
        description="Address at which sites reach the coordinator, like `https://coordinator.example:8000`: "
        "it goes into join codes and into the certificate of `self_signed`. Without it, it is guessed from "
        "`host` and the certificate.",
    )
    oidc_issuer: Annotated[str, AfterValidator(_check_issuer)] | None = Field(
        None,
        description="Address of an identity provider (OpenID Connect) by which people sign in to the pages, "
        "as it calls itself (`iss`).",
    )
    oidc_client_id: str | None = Field(
        None, min_length=1, description="What the identity provider calls this coordinator."
    )
    oidc_client_secret: SecretStr | None = Field(
        None,
        description="Secret that belongs to `oidc_client_id`. Without it, the provider needs none (PKCE).",
    )
    oidc_name_claim: str = Field(
        "preferred_username",
        min_length=1,
        description="Claim of the ID token that has a person's name, as in `feddisco users`.",
    )
    tls_certificate: Path | None = Field(None, description="PEM file with the certificate chain.")
    tls_key: Path | None = Field(None, description="PEM file with the certificate's private key.")
    max_update_bytes: int = Field(8 * 2**30, ge=1, description="Largest file that may be uploaded, in bytes.")
    max_json_bytes: int = Field(
        2**20,
        ge=2**16,
        description="Largest JSON body of a call that brings lists (a run, an enrolment, an evaluation), in "
        "bytes. Others may have 64 KiB.",
    )
    max_connections: int = Field(12_000, ge=16, description="Connections that are open at a time.")
    max_connections_per_address: int = Field(
        500, ge=4, description="Connections from one address; those of trusted proxies are not counted."
    )
    max_polls: int = Field(10_000, ge=1, description="Requests for work that wait at a time.")
    max_polls_per_client: int = Field(4, ge=1, description="Requests for work of one client.")
    max_streams: int = Field(4000, ge=1, description="Event streams (open pages) at a time.")
    max_streams_per_address: int = Field(
        1000, ge=1, description="Event streams of one address; those of this machine are not counted."
    )
    max_uploads: int = Field(256, ge=1, description="Uploads that are received at a time.")
    max_uploads_per_client: int = Field(3, ge=1, description="Uploads of one client.")
    max_downloads: int = Field(1000, ge=1, description="Downloads that are sent at a time.")
    max_downloads_per_client: int = Field(8, ge=1, description="Downloads of one client.")
    max_requests: int = Field(
        1000, ge=16, description="All other requests (pages among them) that are answered at a time."
    )
    requests_per_minute: int = Field(6000, ge=1, description="Requests of one client.")
    heartbeats_per_minute: int = Field(600, ge=1, description="Heartbeats of one client.")
    changes_per_minute: int = Field(
        600,
        ge=1,
        description="Messages of one client that may leave an event: enrolments, updates ...",
    )
    refused_uploads_per_minute: int = Field(
        60, ge=1, description="Updates of one client that are refused; then it waits before the next."
    )
    registrations_per_minute: int = Field(600, ge=1, description="Registrations from one address.")
    wrong_tokens_per_minute: int = Field(
        60,
        ge=1,
        description="Wrong tokens from one address; then it waits, but with a token that was right before.",
    )
    header_seconds: float = Field(
        20.0, gt=0, description="Within how many seconds a request's headers have to be here, once begun."
    )
    stall_seconds: float = Field(
        60.0,
        gt=0,
        description="Within how many seconds the next 32 KiB of a body (or its rest) have to come, or some "
        "of an answer has to be read.",
    )
    max_stored_bytes: int | None = Field(
        None, ge=1, description="Quota for the files of all runs, in bytes. Without it, the disk."
    )
    max_run_bytes: int | None = Field(
        None, ge=1, description="Quota for the files of one run, in bytes. Without it, none."
    )
    min_free_bytes: int | None = Field(
        None,
        ge=0,
        description="Bytes that updates leave free on the disk. Without it, 64 MiB, or 2 % of a small disk.",
    )
    quota_alarm: float = Field(
        0.8, gt=0, le=1, description="Share of a quota from which on pages, /readyz and metrics warn."
    )
    aggregation_threads: int = Field(
        1, ge=1, le=64, description="How many rounds, of different runs, may be aggregated at the same time."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Lines of text, or one JSON object per line."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged: debug, info, warning or error."
    )
    access_log: bool = Field(False, description="Log a line for each request (never a token).")
    collect_after_seconds: float = Field(
        86400.0, ge=60, description="Age in seconds at which a file that no run refers to is deleted."
    )
    mlflow_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Address of an MLflow server that is told of each run: curves, configuration, model. "
        "Without it, none.",
    )
    mlflow_experiment: str = Field("feddisco", min_length=1, description="MLflow's experiment for the runs.")
    mlflow_token: SecretStr | None = Field(
        None, description="For MLflow: a token, or `USER:PASSWORD`. Without it, nothing is sent along."
    )
    tensorboard_folder: Path | None = Field(
        None,
        description="Folder in which each run gets one for TensorBoard: curves, configuration. Without it, "
        "none.",
    )
    otlp_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Address of a collector of OpenTelemetry, like `http://127.0.0.1:4318`, that is told of "
        "each round as a trace. Without it, none.",
    )
    scrub_every_seconds: float = Field(
        7 * 86400.0,
        ge=0,
        description="Seconds after which each stored file is read again and compared with its SHA-256; "
        "0: never.",
    )
    scrub_bytes_per_second: int = Field(
        20_000_000, ge=1, description="How fast files are read again, in bytes per second."
    )
    lost_update_seconds: float = Field(
        3600.0,
        ge=0,
        description="How long in seconds a round waits for an update whose stored file is missing or damaged "
        "to be sent again or restored, before it goes on without it.",
    )
    early_sum_bytes: int = Field(
        2**28,
        ge=0,
        description="Memory in bytes, over all runs, for sums of updates that are begun while others are "
        "still on their way, so that a round of a large model ends sooner. 0: none.",
    )
    hold_aggregation_seconds: float = Field(
        0.0, ge=0, le=600, description="For drills: seconds to wait between an aggregation and its commit."
    )

    @field_validator("admin_token", "viewer_token")
    @classmethod
    def _is_token(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else SecretStr(check_token(value.get_secret_value()))

    @field_validator("join_token")
    @classmethod
    def _are_tokens(cls, value: SecretStr | None) -> SecretStr | None:
        for token in _split(value):
            check_token(token)
        return value

    @model_validator(mode="after")
    def _tokens_of_different_people(self) -> Self:
        given = [token.get_secret_value() for token in (self.admin_token, self.viewer_token) if token]
        given += set(self.join_tokens)
        if len(set(given)) < len(given):
            raise ValueError(
                "admin_token, viewer_token and join_token are for different people: two of them are the same"
            )
        return self

    @model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("FEDDISCO_TLS_CERTIFICATE and FEDDISCO_TLS_KEY are given together or not at all")
        if self.self_signed and self.tls_certificate is not None:
            raise ValueError(
                "FEDDISCO_SELF_SIGNED and FEDDISCO_TLS_CERTIFICATE contradict each other: set one"
            )
        return self

    @model_validator(mode="after")
    def _bucket(self) -> Self:
        if (self.s3_access_key_id is None) != (self.s3_secret_access_key is None):
            raise ValueError(
                "FEDDISCO_S3_ACCESS_KEY_ID and FEDDISCO_S3_SECRET_ACCESS_KEY are given together or not at all"
            )
        in_clear = self.s3_endpoint is not None and self.s3_endpoint.startswith("http:")
        if (
            in_clear
            and not self.insecure
            and not is_loopback(urlsplit(self.s3_endpoint or "").hostname or "")
        ):
            raise ValueError(
                "s3_endpoint has to begin with https:, or every file would travel in clear; `insecure` is "
                "for networks that nobody else is on"
            )
        return self

    @model_validator(mode="after")
    def _files_that_nginx_finds(self) -> Self:
        if self.accel_redirect is not None and self.blob_store is not None:
            raise ValueError("accel_redirect is for files in the data folder: blob_store has none there")
        return self

    @model_validator(mode="after")
    def _identity_provider(self) -> Self:
        if self.oidc_issuer is None:
            return self
        if self.oidc_client_id is None or self.public_url is None:
            raise ValueError(
                "oidc_issuer needs oidc_client_id and public_url, to which the provider leads back"
            )
        parts = urlsplit(self.oidc_issuer)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("oidc_issuer has to begin with https:")
        return self

    @model_validator(mode="after")
    def _open_or_with_a_token(self) -> Self:
        if self.open_pages and self.viewer_token is not None:
            raise ValueError("open_pages and viewer_token contradict each other: set one of them")
        return self

    @property
    def is_reached_from_elsewhere(self) -> bool:
        """Whether other machines reach the port, as far as ``host`` tells."""
        return not is_loopback(self.host)

    @property
    def reading(self) -> Reading:
        """Who reads without a token: everybody, who is on this machine, or nobody."""
        if self.open_pages:
            return "open"
        is_closed = self.open_pages is False or self.viewer_token is not None
        return "closed" if is_closed or self.is_reached_from_elsewhere else "local"

    @property
    def database(self) -> str:
        """The URL of the database, with its password: not for logs."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_folder.absolute() / 'feddisco.db'}"

    @property
    def on_postgres(self) -> bool:
        return self.database.startswith("postgres")

    @property
    def join_tokens(self) -> tuple[str, ...]:
        return _split(self.join_token)


def check_token(text: str) -> str:
    """The token, without white space around it; ValueError for what can be guessed, or fits no header."""
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"a token needs {SHORTEST_SECRET} or more ASCII characters without spaces")
    return token


def _split(value: SecretStr | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.get_secret_value().split(",")) if value is not None else ()


def unknown_variables(
    known_elsewhere: Collection[str] = (), environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """``FEDDISCO_`` variables that no setting reads: most often a misspelling, so they are reported at start.

    ``known_elsewhere``: full names that belong to the worker or to other programs.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields} | NOT_SETTINGS | set(known_elsewhere)
    return tuple(
        sorted(name for name in environment if name.upper().startswith(PREFIX) and name not in known)
    )

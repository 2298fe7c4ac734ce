"""The worker's settings: ``FEDDISCO_*`` in the environment, or the flags of ``feddisco worker``.

One of the two files that read the environment. Each setting is described in ``docs/settings-worker.md``
(a test compares the two).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.config import Partition, Slug
from shared.problems import InvalidConfiguration
from shared.schemas import Role

__all__ = ["Precision", "WorkerSettings", "load"]

Precision = Literal["float32", "bfloat16", "float16"]


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f'is not JSON ({error}); write it like {{"size": 32}}') from None


def _patterns(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part for each in value.split(",") if (part := each.strip()))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise ValueError(f"there is nothing at {path}")
    return path


def _partition(value: Any) -> Any:
    return value if value is None or value == "run" else Partition.model_validate(value)


class WorkerSettings(BaseSettings):
    """What one worker process is told. Flags win over the environment; nothing else is read."""

    model_config = SettingsConfigDict(
        env_prefix="FEDDISCO_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    url: str | None = Field(None, description="the coordinator's address, like https://coordinator.example")
    join_token: SecretStr | None = Field(None, description="the join code, needed once, to register")
    join_token_file: Annotated[Path, AfterValidator(_existing)] | None = Field(
        None, description="a file that holds the join code"
    )
    name: Slug | None = Field(None, description="this client's id; without it the coordinator makes one")
    state: Path = Field(Path("feddisco-worker"), description="the state folder: credential and journal")
    state_slots: bool = Field(False, description="share the state folder: take the first free slot in it")
    task: str = Field("digits", min_length=1, description="built-in task, or package.module:attribute")
    task_options: Annotated[dict[str, Any], NoDecode, BeforeValidator(_json_object)] = Field(
        default_factory=dict, description="the task's options as JSON; they win over the run's"
    )
    algorithms: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_patterns)] = Field(
        (), description="import paths of algorithms that a run may name, like ours.fedslow:*; commas between"
    )
    data: Annotated[Path, AfterValidator(_existing)] | None = Field(
        None, description="where this site's data lies: a folder or an archive"
    )
    role: Role = Field(Role.TRAINER, description="trainer, or evaluator (scores the model on its test set)")
    run: str | None = Field(
        None, description="enrol only in runs whose name matches this pattern, like demo-*"
    )
    partition: Annotated[Literal["run"] | Partition | None, BeforeValidator(_partition)] = Field(
        None, description="deal the data set to the clients: as the run says (run), or like niid2:5+1"
    )
    index: int | None = Field(None, ge=0, description="which part of a partition; without it the lowest free")
    device: str = Field("auto", description="auto (CUDA, then MPS, then CPU), cpu, mps, cuda or cuda:N")
    threads: int | None = Field(
        None, ge=1, description="CPU threads for training; without it PyTorch's choice"
    )
    precision: Precision = Field("float32", description="float32, or mixed precision: bfloat16 or float16")
    ca_file: Annotated[Path, AfterValidator(_existing)] | None = Field(
        None, description="certificates (PEM) that the coordinator's own is checked against"
    )
    wait_seconds: float = Field(
        30.0, ge=0, le=60, description="how long one question for work may wait, seconds"
    )
    exit_when_finished: bool = Field(False, description="leave when a run that this worker took part in ends")

    @field_validator("url")
    @classmethod
    def _web_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a web address; write it like https://coordinator.example:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("carries more than scheme, host, port and path; leave secrets and queries out")
        return url.rstrip("/")

    def join_code(self) -> str | None:
        """The join code from the setting or its file, without surrounding white space."""
        if self.join_token is not None:
            return self.join_token.get_secret_value().strip() or None
        if self.join_token_file is not None:
            return self.join_token_file.read_text(encoding="utf-8").strip() or None
        return None


def load(flags: Mapping[str, Any] | None = None) -> WorkerSettings:
    """Settings from ``flags`` (those that are None count as not given) over the environment.

    Raises :class:`InvalidConfiguration` with one sentence a setting that names it as flag and variable.
    """
    try:
        return WorkerSettings(**{name: value for name, value in (flags or {}).items() if value is not None})
    except ValidationError as error:
        raise InvalidConfiguration(
            "; ".join(
                _sentence(dict(fault)) for fault in error.errors(include_url=False, include_input=False)
            ),
            hint="See `feddisco worker --help`.",
        ) from None


def _sentence(fault: Mapping[str, Any]) -> str:
    name = str(fault["loc"][0]) if fault["loc"] else "settings"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"--{name.replace('_', '-')} (FEDDISCO_{name.upper()}): {message}"

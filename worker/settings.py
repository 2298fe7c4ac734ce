"""The worker's settings: ``FEDDISCO_*`` in the environment, or the flags of ``feddisco worker``.

The only place in ``worker/`` that reads the environment. A setting is declared here once;
``feddisco/flags.py`` makes its flag, ``docs/make_settings.py`` its line in ``docs/settings-worker.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.addresses import check_address
from shared.documents import parse_json
from shared.join_codes import JoinCode, read_join_code
from shared.left_out import OnBroken
from shared.partition_choice import Partition
from shared.problems import InvalidConfiguration
from shared.setting_faults import explain_faults
from shared.vocabulary import AnyMetric, Role, Slug
from worker.words import Disclosure, Epsilon, OnChangedData, Sizes, Tell

__all__ = ["Precision", "WorkerSettings", "load"]

Precision = Literal["float32", "bfloat16", "float16"]


def _parse_json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise ValueError(f'is not JSON ({error}); write it like {{"size": 32}}') from None


def _split_patterns(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part for each in value.split(",") if (part := each.strip()))


def _check_exists(path: Path) -> Path:
    if not path.exists():
        raise ValueError(f"there is nothing at {path}")
    return path


def _parse_partition(value: Any) -> Any:
    return value if value is None or value == "run" else Partition.model_validate(value)


class WorkerSettings(BaseSettings):
    """How one worker process runs. Flags override the environment; nothing else is read."""

    model_config = SettingsConfigDict(
        env_prefix="FEDDISCO_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    join: SecretStr | None = Field(
        None,
        description="Join code that the coordinator's operator gave you, needed once, to register. It holds "
        "the address, too; `-` reads it from the standard input. Safer there, in the environment or in a "
        "file: other users of the machine can read flags.",
    )
    url: Annotated[str, AfterValidator(check_address)] | None = Field(
        None,
        description="Address of the coordinator, like `https://coordinator.example`, if the join code does "
        "not hold it or another is to be used.",
    )
    join_token: SecretStr | None = Field(None, description="The same as `--join`, by its earlier name.")
    join_token_file: Annotated[Path, AfterValidator(_check_exists)] | None = Field(
        None, description="File that holds the join code."
    )
    name: Slug | None = Field(None, description="This client's id. Without it, the coordinator assigns one.")
    state: Path = Field(
        Path("feddisco-worker"),
        description="Folder for the credential and for work that must survive a restart.",
    )
    state_slots: bool = Field(
        False, description="Share the state folder with other workers: take the first free slot in it."
    )
    task: str = Field("digits", min_length=1, description="Built-in task, or `package.module:attribute`.")
    task_options: Annotated[dict[str, Any], NoDecode, BeforeValidator(_parse_json)] = Field(
        default_factory=dict, description="Options of the task, as JSON. They override those of the run."
    )
    algorithms: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_patterns)] = Field(
        (),
        description="Import paths of the algorithms that a run may use here besides the built-in ones, "
        "like `ours.fedslow:*`; separate several with commas.",
    )
    data: Path | None = Field(None, description="Folder or archive with this site's data.")
    labels: Annotated[dict[str, str], NoDecode, BeforeValidator(_parse_json)] = Field(
        default_factory=dict,
        description="Which class a name in this site's data stands for, as JSON, where it differs from the "
        'run\'s: `{"mel": "melanoma"}`.',
    )
    on_changed_data: OnChangedData = Field(
        "enrol",
        description="What to do in a run when the data here have changed since this client enrolled: `enrol` "
        "anew, `decline` it, or `continue` where the number of examples is the same.",
    )
    on_broken: OnBroken = Field(
        "decline",
        description="What to do about files and rows that should be examples but cannot be read: `decline` "
        "the run, or `skip` them; the run's page shows how many.",
    )
    role: Role = Field(
        Role.TRAINER, description="A trainer trains; an evaluator scores each model on its own test data."
    )
    run: str | None = Field(
        None, description="Take part only in runs whose name matches this pattern, like `demo-*`."
    )
    partition: Annotated[Literal["run"] | Partition | None, BeforeValidator(_parse_partition)] = Field(
        None,
        description="For demos: take one part of a data set that every worker holds, split as the run says "
        "(`run`) or as given, like `niid2:5+1`.",
    )
    index: int | None = Field(
        None,
        ge=0,
        description="Which part of the partition to take, from 0. Without it, the lowest free one.",
    )
    policy: Annotated[Path, AfterValidator(_check_exists)] | None = Field(
        None,
        description="File that says which runs this site takes part in, and what it tells: "
        "`feddisco worker policy --example` prints one.",
    )
    disclosure: Disclosure | None = Field(
        None,
        description="What runs are told of this site's labels: no discrepancy (`none`), one with noise "
        "(`noised`), or the exact one (`exact`), from which the label counts can be computed. "
        "Without it: `noised`, and `exact` where the run's partition dealt the data.",
    )
    epsilon: Epsilon = Field(
        1.0,
        description="With `noised`: the privacy loss of one answer. Less is more noise.",
    )
    metrics: Annotated[tuple[AnyMetric, ...], NoDecode, BeforeValidator(_split_patterns)] = Field(
        ("kl",),
        description="By which metrics of the discrepancy runs are answered here (`kl`, `l1`, `l2`, "
        "`cosine`); separate several with commas. Each is an answer of its own about the same labels.",
    )
    sizes: Sizes = Field(
        "exact",
        description="Whether runs are told the number of examples, or that number to two significant digits.",
    )
    device: str = Field(
        "auto", description="`auto` (CUDA, then MPS, then CPU), `cpu`, `mps`, `cuda` or `cuda:N`."
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads for training. Without it, PyTorch decides."
    )
    precision: Precision = Field("float32", description="Full precision, or mixed precision in 16 bits.")
    ca_file: Annotated[Path, AfterValidator(_check_exists)] | None = Field(
        None, description="PEM file of the certificates to trust instead of the system's authorities."
    )
    insecure: bool = Field(
        False,
        description="Work for a coordinator on another machine without TLS: the token and the updates travel "
        "in clear. For networks that nobody else is on, such as one between containers.",
    )
    wait_seconds: float = Field(
        30.0, ge=0, le=60, description="How long one request for work may stay open, in seconds (0 to 60)."
    )
    tell: Tell = Field(
        "sentences",
        description="What the coordinator, and so the run's page, is told of a fault here: a sentence of a "
        "fixed set, with counts (`sentences`), or all that this worker's log says of it (`full`), which may "
        "name files and quote values.",
    )
    exit_when_finished: bool = Field(
        False, description="Exit when a run that this worker took part in has ended."
    )

    def join_code(self) -> JoinCode | None:
        """The join code, from where it was given first: flag or variable, standard input, file.

        Once a process: the line of the standard input is gone then, and the file may be.

        Raises :class:`InvalidConfiguration` if it is damaged.
        """
        given = self.join or self.join_token
        text = given.get_secret_value() if given is not None else ""
        if text.strip() == "-":
            text = sys.stdin.readline()
        elif given is None and self.join_token_file is not None:
            text = self.join_token_file.read_text(encoding="utf-8-sig", errors="replace")
        return read_join_code(text) if text.strip() else None


def load(flags: Mapping[str, Any] | None = None) -> WorkerSettings:
    """Settings from ``flags`` over the environment; a flag that is None was not given.

    Raises :class:`InvalidConfiguration` with one sentence for each wrong setting, by flag and variable.
    """
    try:
        return WorkerSettings(**{name: value for name, value in (flags or {}).items() if value is not None})
    except ValidationError as error:
        raise InvalidConfiguration(
            explain_faults(error, WorkerSettings.model_fields), hint="See `feddisco worker --help`."
        ) from None

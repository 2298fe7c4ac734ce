"""The bodies of the HTTP API, used by coordinator, worker and console alike."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from shared.assistance import AssistedWork as AssistedWork
from shared.config import RunConfig
from shared.secure.messages import Agreements, Answer, Inbox, Message, Roster, Survivors
from shared.texts import find_unstorable
from shared.vocabulary import JOIN_TOKEN_SECONDS as JOIN_TOKEN_SECONDS
from shared.vocabulary import AnyMetric, Slug
from shared.vocabulary import Role as Role
from shared.vocabulary import UserRole as UserRole

PROTOCOL = 2
"""Version of what is in this file; exchanged at registration, other versions are refused."""

DIGEST_PATTERN = r"^[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=DIGEST_PATTERN, description="SHA-256, hexadecimal")]
LONGEST_TEXT = 2000
Text = Annotated[str, Field(max_length=LONGEST_TEXT, pattern=r"^[^\x00]*$")]
FaultWord = Annotated[
    str,
    Field(max_length=100, pattern=r"^[a-z0-9_-]*$", description="shared.faults.FaultCode, or another word"),
]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
"""Also in digits, as in an address."""
JsonCount = Annotated[int, Field(ge=0, le=2**53, strict=True)]
"""``true`` and ``"100"`` are no numbers of anything."""
JsonNumber = Annotated[float, Field(strict=True)]
JsonShare = Annotated[float, Field(strict=True, ge=0, le=1)]
LeftOutCounts = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z-]{1,30}$")], JsonCount],
    Field(max_length=30, description="by shared.left_out.Reason, or a newer program's word"),
]


Identity = Annotated[str, Field(pattern=DIGEST_PATTERN, description="public Ed25519 key, hexadecimal")]
Grade = Literal["exact", "noised"]
Step = Literal["advertise", "share", "upload", "agree", "unmask"]
"""Of a secure sum, in this order."""


class Body(BaseModel):
    """What comes in: frozen, no extra fields, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _check_texts(cls, document: Any) -> Any:
        """Also where any JSON may stand, as in a task's options; PostgreSQL keeps no NUL."""
        if (place := find_unstorable(document)) is not None:
            raise PydanticCustomError(
                "text", "{place}: holds a NUL character or half of a surrogate pair", {"place": place}
            )
        return document


def build_bodies(kind: type[Body] = Body) -> None:
    """Build the validators of all bodies now, and adapters of them from now on at once.

    FastAPI's adapters warn of their own making when they are built later.
    """
    for each in kind.__subclasses__():
        each.model_config["defer_build"] = False
        each.model_rebuild()
        build_bodies(each)


class View(BaseModel):
    """What goes out. Infinity is written as a string, since JSON has no word for it."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", defer_build=True)


_WITH_BYTES = ConfigDict(
    frozen=True, ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64"
)


class RunStatus(StrEnum):
    ENROLLING = "enrolling"
    RUNNING = "running"
    WAITING = "waiting"  # started and not paused, but it cannot go on
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        """Nothing leads from it to another status."""
        return self in (RunStatus.COMPLETED, RunStatus.STOPPED)

    @property
    def is_going(self) -> bool:
        """It works on its rounds, or would if it could."""
        return self in (RunStatus.RUNNING, RunStatus.WAITING)


class RoundStatus(StrEnum):
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    REWOUND = "rewound"  # completed, until the run went back to an earlier round

    @property
    def is_open(self) -> bool:
        """Its result is not known yet."""
        return self in (RoundStatus.COLLECTING, RoundStatus.AGGREGATING)


class ParticipantStatus(StrEnum):
    INVITED = "invited"
    TRAINING = "training"
    UPLOADED = "uploaded"
    AGGREGATED = "aggregated"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"

    @property
    def is_awaited(self) -> bool:
        """The round waits for its update."""
        return self in (ParticipantStatus.INVITED, ParticipantStatus.TRAINING)

    @property
    def is_accepted(self) -> bool:
        """Its update counts: in the aggregation to come, or in the one that was made."""
        return self in (ParticipantStatus.UPLOADED, ParticipantStatus.AGGREGATED)

    @property
    def has_uploaded(self) -> bool:
        """Its update arrived, and may have been rejected since."""
        return self.is_accepted or self is ParticipantStatus.REJECTED


class EnrolmentStatus(StrEnum):
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_DISCREPANCY = "awaiting_discrepancy"
    READY = "ready"
    AWAY = "away"
    LEFT = "left"
    FINISHED = "finished"
    DECLINED = "declined"  # by the client
    REFUSED = "refused"  # by the run's admission, or by the operator

    @property
    def is_present(self) -> bool:
        """The client has enrolled and is still there, even if nothing has been heard of it for a while."""
        return self in (
            EnrolmentStatus.AWAITING_APPROVAL,
            EnrolmentStatus.AWAITING_DISCREPANCY,
            EnrolmentStatus.READY,
            EnrolmentStatus.AWAY,
        )

    @property
    def is_admitted(self) -> bool:
        """The client takes part (or did to the end): it may read the run's models."""
        return self in (
            EnrolmentStatus.AWAITING_DISCREPANCY,
            EnrolmentStatus.READY,
            EnrolmentStatus.AWAY,
            EnrolmentStatus.FINISHED,
        )

    @property
    def is_gone(self) -> bool:
        """The client takes no part, and may enrol again."""
        return self in (EnrolmentStatus.LEFT, EnrolmentStatus.DECLINED, EnrolmentStatus.REFUSED)


# ---------------------------------------------------------------- tensors of a run


class TensorKind(StrEnum):
    """What aggregation does with a tensor of the model."""

    PARAMETER = "parameter"  # combined by the algorithm
    FROZEN = "frozen"  # never trained: not uploaded, kept
    BUFFER = "buffer"  # floating running statistics: weighted mean
    INTEGER = "integer"  # counters and masks: not uploaded, kept


class TensorSpec(Body):
    name: Annotated[str, Field(min_length=1, max_length=500)]
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    dtype: Annotated[str, Field(description="as safetensors writes it: F32, F64, F16, BF16, I64, BOOL ...")]
    kind: TensorKind = TensorKind.PARAMETER


# ---------------------------------------------------------------- registration


class Registration(Body):
    name: Slug | None = Field(None, description="None: the coordinator makes one (client-1, client-2 ...)")
    protocol: int = PROTOCOL
    version: Annotated[str, Field(max_length=50)] = ""
    identity: Identity | None = Field(None, description="of this client, for secure runs")
    token: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43,128}$")] | None = Field(
        None,
        repr=False,
        description="256 random bits that the client chose to be its token: with them it may ask again if "
        "the answer was lost; None: the coordinator chooses",
    )


class Credential(View):
    client: Slug
    token: Annotated[str, Field(pattern=r"^[!-~]{16,200}$")]
    protocol: int = PROTOCOL
    version: str = ""


class ClientView(View):
    client: str
    registered_at: dt.datetime
    last_seen_at: dt.datetime | None
    revoked_at: dt.datetime | None
    version: str
    role: Role | None = Field(None, description="the only one that its join token allows; None: any")
    group: str | None = Field(None, description="as its join token said; runs may admit a group")
    identity: str | None = Field(None, description="its public Ed25519 key, hexadecimal; None: it has none")
    fingerprint: str | None = Field(None, description="of its identity key: SHA-256, hexadecimal")


class IdentityPin(Body):
    """The only identity key under which a client may register by a name."""

    fingerprint: Digest


class Erasure(View):
    """What became of a client that withdraws."""

    name: str | None = Field(description="under which its numbers stay; None: not yet, see `waiting_for`")
    waiting_for: tuple[str, ...] = Field((), description="open rounds that count an update of it")


class JoinTokenRequest(Body):
    uses: int | None = Field(1, ge=1, le=1_000_000, description="null: without limit")
    valid_seconds: int | None = Field(
        JOIN_TOKEN_SECONDS, ge=1, le=10 * 365 * 86400, description="null: until revoked"
    )
    role: Role | None = Field(None, description="the only one its clients may take part as; null: any")
    group: Slug | None = Field(None, description="of its clients: runs may admit a group")
    name: Slug | None = Field(None, description="of its one client, kept for it; null: the client chooses")

    @model_validator(mode="after")
    def _one_name_one_client(self) -> Self:
        if self.name is not None and self.uses != 1:
            raise PydanticCustomError("uses", "a join token with a name is for one use")
        return self


class JoinToken(View):
    id: int
    token: str
    uses: int | None
    expires_at: dt.datetime | None
    role: Role | None = None
    group: str | None = None
    name: str | None = None
    address: str | None = Field(
        None, description="at which sites reach the coordinator, as far as it knows; for the join code"
    )
    fingerprint: str | None = Field(
        None, description="SHA-256 of a certificate that no authority has signed; for the join code"
    )


class JoinTokenView(View):
    id: int
    uses_left: int | None
    created_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None
    role: Role | None = None
    group: str | None = None
    name: str | None = None


class UserRequest(Body):
    """A token for a person."""

    name: Slug
    role: UserRole
    runs: tuple[Slug, ...] | None = Field(
        None, min_length=1, max_length=1000, description="the only runs that it is for; null: all"
    )

    @model_validator(mode="after")
    def _admins_for_all(self) -> Self:
        if self.role is UserRole.ADMIN and self.runs is not None:
            raise PydanticCustomError("runs", "an admin is one for all runs")
        return self


class UserView(View):
    name: str
    role: UserRole
    runs: tuple[str, ...] | None
    created_at: dt.datetime
    renewed_at: dt.datetime | None
    revoked_at: dt.datetime | None


class UserToken(View):
    """The token is shown this once."""

    name: str
    role: UserRole
    runs: tuple[str, ...] | None
    token: str


# ---------------------------------------------------------------- runs


class InitialBlob(Body):
    """Initial weights uploaded beforehand with ``PUT /blobs/{sha256}``."""

    digest: Digest
    manifest: tuple[TensorSpec, ...]


class RunRequest(Body):
    config: RunConfig
    initial: InitialBlob | None = Field(None, description="None: built from the built-in task and the seed")


class ControlRequest(Body):
    """Why a run is paused or stopped; shown on its page."""

    reason: Text = ""


class RunChanges(Body):
    """What of a run's configuration is to change; what is left out stays. Past rounds are not touched."""

    rounds: int | None = Field(None, description="not fewer than have begun")
    quorum: int | None = Field(None, description="null: half of a round's clients")
    round_deadline_seconds: float | None = Field(
        None, description="the deadline of the open round moves by the difference"
    )
    waiting_deadline_seconds: float | None = Field(
        None, description="when a run that waits already pauses moves by the difference"
    )
    keep_updates: int | None = Field(None, description="null: all; what was deleted does not come back")
    tags: tuple[str, ...] | None = Field(None, description="all that the run is to have")

    @model_serializer(mode="wrap")
    def _leave_out_what_stays(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Null is a value of its own here: what was not given is not written."""
        return {name: value for name, value in write(self).items() if name in self.model_fields_set}


class RewindRequest(Body):
    """To which round a run goes back, and why; shown in its log."""

    round: int = Field(ge=0, le=1_000_000, description="0: to the initial model")
    reason: Text = ""


class HeadlineScore(View):
    """The score that a run chose to be shown first (``headline``), of its newest scored round."""

    name: str
    value: float


class RunSummary(View):
    run: str
    status: RunStatus
    reason: str | None
    task: str
    algorithm: str
    weighting: str
    rounds: int
    completed_rounds: int
    created_at: dt.datetime
    finished_at: dt.datetime | None
    accuracy: float | None = Field(None, description="of the newest evaluated round, 0 to 1")
    headline: HeadlineScore | None = Field(None, description="if it is another score than the accuracy")
    archived_at: dt.datetime | None = Field(None, description="when it was put away; None: it was not")
    waiting_since: dt.datetime | None = Field(
        None, description="since when something keeps it from going on; None: nothing does"
    )
    waiting_until: dt.datetime | None = Field(
        None, description="when a waiting run pauses, or its round is drawn again"
    )
    tags: tuple[str, ...] = Field((), description="the operator's words; a site is not told them")


class RecordedClient(View):
    """A client of a run that was deleted."""

    client: str
    role: Role
    index: int | None
    examples: int
    rounds: int = Field(description="completed rounds that took its update")
    mean_weight: float | None = Field(description="over those rounds")


class RunRecord(View):
    """What is kept of a run that was deleted."""

    status: RunStatus
    reason: str | None
    config: dict[str, Any] = Field(description="as it was, of whatever version")
    classes: tuple[str, ...]
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    completed_rounds: int
    initial_model: str
    final_model: str
    models: tuple[str | None, ...] = Field(description="digests of the completed rounds' models")
    clients: tuple[RecordedClient, ...]
    events: int = Field(description="how many its log had")
    events_sha256: str = Field(description="of its log, one JSON object a line as `/events` gives them")


class Deletion(View):
    """That a run was deleted, when, by whom and why."""

    run: str
    created_at: dt.datetime
    deleted_at: dt.datetime
    actor: str
    reason: str


class DeletedRun(Deletion):
    record: RunRecord


class EnrolmentView(View):
    client: str
    role: Role
    status: EnrolmentStatus
    index: int | None
    examples: int
    discrepancy: float | None
    device: str
    reason: str | None
    enrolled_at: dt.datetime
    last_seen_at: dt.datetime | None
    last_error: str | None
    left_out: LeftOutCounts | None = Field(None, description="None: the client said nothing of it")
    grade: Grade | None = Field(
        None, description="how the discrepancy was disclosed; None: not said, or none yet"
    )
    epsilon: float | None = Field(None, description="of the noise, where the grade is noised")
    approved_examples: int | None = Field(
        None, description="the size that the operator approved; 0: the operator refused the client"
    )
    fingerprint: str | None = Field(
        None, description="of the identity key with which it takes part in a secure run: SHA-256"
    )

    @property
    def disclosed(self) -> str:
        """How its discrepancy was disclosed: ``noised, epsilon 1``."""
        if self.grade is None:
            return "not said whether noised"
        return "exact" if self.grade == "exact" else f"noised, epsilon {self.epsilon or 0:g}"


class SumTotals(View):
    """What the sum that ends a secure run's enrolment tells: over how many trainers, N and D."""

    clients: int
    examples: int
    discrepancy: float
    counts: tuple[int, ...] | None = Field(
        None, description="examples of each class, where the run's target is global"
    )


class Progress(Body):
    """A heartbeat of local training."""

    attempt: int = Field(ge=1, le=2**31)
    epoch: JsonCount = 0
    epochs: JsonCount = 0
    step: JsonCount = 0
    steps: JsonCount = 0
    loss: JsonNumber | None = None


class LedgerRow(View):
    """Why one client got its weight in one round (reference 1.1)."""

    client: str
    index: int
    status: ParticipantStatus
    included: bool
    reason: str | None
    examples: int
    size_share: float | None = Field(None, description="n_k: examples over the round's examples")
    discrepancy: float | None = Field(None, description="raw d_k")
    discrepancy_share: float | None = Field(None, description="d_k normalised")
    score: float | None = Field(None, description="what the weights are in proportion to: n_k - a d_k + b")
    weight: float | None = Field(None, description="p_k, the aggregation weight")
    size_weight: float | None = Field(None, description="what plain sizes (FedAvg) would have given")
    uncapped_weight: float | None = Field(
        None, description="what the weighting gave before the run's cap; None: no cap"
    )
    norm: float | None = Field(None, description="of the update's displacement from the start model")
    largest_entry: float | None = Field(None, description="the largest magnitude in the displacement")
    cosine: float | None = Field(None, description="of the displacement and the others' mean direction")
    started_from: int | None = Field(
        None,
        description="where models travel: index of who had trained what it started from; None: the average",
    )
    share: float | None = Field(
        None, description="in the model, under a rule of vectors; None: the weight, or differs by coordinate"
    )
    details: dict[str, float] = Field(
        default_factory=dict, description="further numbers that made the score, by the weighting's names"
    )
    steps: int | None = None
    loss: float | None = None
    start_loss: float | None = Field(
        None, description="mean loss of the received model on the client's training examples"
    )
    end_loss: float | None = Field(None, description="the same of the model that it sent")
    seconds: float | None = None
    epsilon: float | None = Field(
        None, description="of the run's differential privacy so far, where the site tells it"
    )
    update: str | None = Field(None, description="digest of the uploaded file")
    bytes: int | None = None
    uploaded_at: dt.datetime | None = None
    progress: Progress | None = None
    heartbeat_at: dt.datetime | None = None


class ShadowScore(Body):
    """As :class:`Metrics`, of the model of a shadow."""

    loss: JsonNumber | None = Field(description="None: infinite or not a number, the model has diverged")
    accuracy: JsonShare | None = None
    extra: dict[Name, JsonNumber] = Field(default_factory=dict)


class Metrics(Body):
    """Result of scoring a global model; shares and accuracies from 0 to 1."""

    loss: JsonNumber | None = Field(description="None: infinite or not a number, the model has diverged")
    accuracy: JsonShare | None = None
    examples: int = Field(ge=1, le=2**53, strict=True)
    per_category: dict[Name, JsonShare] = Field(default_factory=dict)
    extra: dict[Name, JsonNumber] = Field(default_factory=dict)
    confusion: tuple[tuple[JsonShare, ...], ...] | None = Field(
        None,
        max_length=1000,
        description="row i, column j: the share of class i's examples that the model takes for class j",
    )
    shadows: dict[Name, ShadowScore] = Field(
        default_factory=dict, max_length=8, description="by name, what other weightings' models scored"
    )


class EvaluationView(Metrics):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", extra="ignore")
    client: str
    round: int
    at: dt.datetime


class Sums(View):
    """What a client reads of the others in a round or run: only sums, and none over fewer than three."""

    clients: int = Field(description="trainers invited to the round; of a run: trainers that take part")
    arrived: int | None = Field(None, description="updates that have arrived")
    included: int | None = Field(None, description="updates in the model")
    examples: int | None = Field(None, description="of the updates in the model; of a run: of all trainers")
    loss: float | None = Field(None, description="mean training loss over the examples in the model")


class AdjustmentView(View):
    """The displacement was taken ``step`` times, all parameters ``shrink`` times, a layer its own times."""

    step: float = 1.0
    shrink: float = 1.0
    layers: dict[str, float] = Field(default_factory=dict)


class SecureView(View):
    """How far a secure sum is, and after it all that is known of it. Nobody knows anything of one client."""

    step: Step
    members: int = Field(description="clients whose keys are in the sum's masks; 0: not known yet")
    awaited: tuple[str, ...] = Field((), description="for viewers: who is to answer the step")
    survivors: int | None = Field(None, description="clients whose uploads are in the sum")
    score: float | None = Field(None, description="sum of the scores s_k")
    steps: float | None = Field(None, description="sum of s_k |a_k|, the local steps as FedNova counts them")
    clipped: int | None = Field(None, description="entries that were cut to secure.clip, of all clients")


class ShadowView(View):
    """What another weighting made of the round's updates; its scores are in the evaluations."""

    name: str = Field(description="the weighting's kind, and the options that are not as by default")
    weights: dict[int, float] = Field(description="by client index")
    seconds: float = Field(description="how long the coordinator took to make the model")
    bytes: int | None = Field(description="of the model, which each evaluator downloads once")
    reason: str | None = Field(None, description="why there is no model")


class AssistanceView(View):
    """What a run's assistant was asked in a round, and what came of it; ``outcome`` None: it is awaited."""

    work: AssistedWork
    asked_at: dt.datetime
    deadline_at: dt.datetime
    answered_at: dt.datetime | None
    outcome: Literal["used", "missed"] | None
    reason: str | None = Field(description="why the round went on without its answer")
    steps: int | None = None
    chosen: int | None = None
    before: float | None = None
    after: float | None = None
    left_out: tuple[int, ...] = ()


class RoundView(View):
    run: str
    round: int
    attempt: int
    status: RoundStatus
    reason: str | None
    opened_at: dt.datetime
    deadline_at: dt.datetime | None
    closed_at: dt.datetime | None
    completed_at: dt.datetime | None
    model: str | None = Field(None, description="digest of the model this round made")
    scored_model: str | None = None
    adjustment: AdjustmentView | None = Field(
        None, description="what the weighting did to the model after averaging; None: nothing"
    )
    ledger: tuple[LedgerRow, ...] = Field(description="for a client: its own row")
    evaluations: tuple[EvaluationView, ...] = Field(description="for a client: its own")
    sums: Sums | None = Field(None, description="for a client only: what it may know of the others")
    secure: SecureView | None = Field(None, description="None: updates arrive in clear")
    shadows: tuple[ShadowView, ...] = Field((), description="for a client: none")
    assistance: AssistanceView | None = Field(None, description="for a client: none")


class RoundScore(NamedTuple):
    """One evaluator's numbers of one round; ``accuracy`` from 0 to 1, None where it has none.

    ``extra`` are all other scores by name.
    """

    round: int
    examples: int
    accuracy: float | None
    loss: float | None
    extra: Mapping[str, float] = MappingProxyType({})


class ComparedRun(NamedTuple):
    """What a comparison needs of a run: its configuration as stored, and its scores by round."""

    run: str
    status: RunStatus
    config: dict[str, Any]
    completed_rounds: int
    scores: tuple[RoundScore, ...]


ObstacleKind = Literal["trainers", "scores", "quorum", "aggregation"]


class RunView(RunSummary):
    config: RunConfig
    classes: tuple[str, ...]
    manifest: tuple[TensorSpec, ...]
    initial_model: str
    model: str = Field(
        description="digest of the newest global model; of a run that has ended, the one it keeps"
    )
    enrolments: tuple[EnrolmentView, ...] = Field(description="for a client: its own")
    taken_indexes: tuple[int, ...] = Field((), description="in use, also by clients that have left")
    current_round: RoundView | None
    waiting_for: str = Field("", description="one sentence: what the run is waiting for now")
    obstacle: ObstacleKind | None = Field(None, description="what keeps a waiting run from going on")
    late_evaluators: tuple[str, ...] = Field(
        (), description="of a run that waits for scores: whose are missing; for a client: none"
    )
    revision: int = Field(0, description="how often the configuration was changed")
    rewound_attempts: int = Field(
        0, description="attempts above it are of rounds drawn since the run went back"
    )
    totals: SumTotals | None = Field(None, description="of a secure run, once enrolment has been summed")
    sums: Sums | None = Field(None, description="for a client only: what it may know of the others")

    def find_ratio(self, number: int, file_bytes: int | None) -> float | None:
        """How many times larger an update of round ``number``, of so many bytes, would be if it were sent
        whole; None: it was.
        """
        if self.config.compression is None or self.config.calibrates(number) or not file_bytes:
            return None
        sizes = (math.prod(spec.shape) for spec in self.manifest if spec.kind is TensorKind.PARAMETER)
        return self.config.compression.find_ratio(file_bytes, sizes)


class EventView(View):
    id: int
    at: dt.datetime
    kind: str
    run: str | None
    round: int | None
    client: str | None
    actor: str
    detail: dict[str, Any]


# ---------------------------------------------------------------- enrolment


class EnrolmentRequest(Body):
    role: Role = Role.TRAINER
    task: Name
    examples: JsonCount
    classes: tuple[Name, ...] = Field(description="the class contract, in order")
    index: int | None = Field(None, ge=0, le=1_000_000, strict=True)
    device: Annotated[str, Field(max_length=100)] = "cpu"
    left_out: LeftOutCounts | None = Field(
        None, description="what the client's data hold beside the examples: numbers by reason"
    )


class EnrolmentAnswer(View):
    run: str
    client: str
    role: Role
    status: EnrolmentStatus
    index: int | None


class DeclineRequest(Body):
    code: FaultWord = ""
    reason: Text


class ApprovalRequest(Body):
    examples: int = Field(
        ge=0,
        le=2**53,
        description="the size that is approved, as the client declares it: 0 for a trainer of a secure run",
    )


def _check_number(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and value != "Infinity"):
        raise PydanticCustomError("number", 'a number, or "Infinity"')
    return value


class DiscrepancySubmission(BaseModel):
    """``d_k``, once. Infinity (the string "Infinity") where the client owns a class of target share 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    metric: AnyMetric
    value: Annotated[float, BeforeValidator(_check_number)] = Field(ge=0)
    grade: Grade | None = Field(
        None, description="exact, or noised at the site; None: the client does not say"
    )
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False, strict=True, description="of the noise")


# ---------------------------------------------------------------- assignments


class Enrol(View):
    kind: Literal["enrol"] = "enrol"
    run: str


class SubmitDiscrepancy(View):
    kind: Literal["discrepancy"] = "discrepancy"
    run: str
    metric: AnyMetric
    target: Literal["uniform"] | tuple[float, ...]


class SecureStep(View):
    """A step of a secure sum: what the others sent for it, to be answered or, in ``upload``, added to.

    The uploads of rounds from 1 on are asked for by :class:`Train`. Round 0 is the sum that ends enrolment.
    """

    model_config = _WITH_BYTES
    kind: Literal["secure"] = "secure"
    run: str
    round: int
    attempt: int
    index: int
    step: Step
    model: Digest
    broadcast: Digest | None = None
    totals: SumTotals | None = None
    deadline_at: dt.datetime
    identities: dict[int, Identity] | None = Field(None, description="advertise: of all clients drawn")
    roster: Roster | None = Field(None, description="share: everybody's public keys, signed")
    inbox: Inbox | None = Field(None, description="upload: what the others sealed for this client")
    survivors: Survivors | None = Field(None, description="agree: whose uploads arrived")
    agreements: Agreements | None = Field(None, description="unmask: everybody's signatures")
    score_sum: float | None = Field(
        None, description="sum of scores of the newest round that took this client's update"
    )
    last_aggregated_round: int = 0


class Train(View):
    model_config = _WITH_BYTES
    kind: Literal["train"] = "train"
    run: str
    round: int
    attempt: int
    index: int
    model: Digest
    broadcast: Digest | None = Field(
        None, description="server state that the algorithm sends beside the model"
    )
    relative_size: float = Field(description="omega_k = N n_k over all enrolled trainers (mean 1)")
    deadline_at: dt.datetime
    last_aggregated_round: int = Field(0, description="newest round that took this client's update; 0: none")
    revision: int = Field(
        0, description="of the run's configuration: changed since, it is to be looked at again"
    )
    again: bool = Field(False, description="the coordinator has lost the update: it is to be sent once more")
    inbox: Inbox | None = Field(None, description="of a secure round: what the others sealed for this client")
    totals: SumTotals | None = Field(
        None,
        description="of a secure run: the sums that the client's own score and relative size follow from",
    )


class Evaluate(View):
    kind: Literal["evaluate"] = "evaluate"
    run: str
    round: int
    model: Digest
    revision: int = Field(0, description="of the run's configuration, which may have been changed")
    shadows: dict[str, Digest] = Field(
        default_factory=dict, description="by name, models of other weightings to be scored as well"
    )


class AssistedUpdate(View):
    """An update that a run's assistant is to look at; ``share`` is what it counts there."""

    index: int
    update: Digest
    share: float


class Assist(View):
    """The step of a round that needs data, for the run's assistant; the round waits for the answer.

    ``model``: what is distilled. ``begin``: what the weighting's learning begins with.
    """

    kind: Literal["assist"] = "assist"
    run: str
    round: int
    attempt: int
    work: AssistedWork
    start: Digest = Field(description="the model that the round started from")
    model: Digest | None = None
    updates: tuple[AssistedUpdate, ...]
    begin: tuple[float, ...] = ()
    deadline_at: dt.datetime
    revision: int = Field(0, description="of the run's configuration, which may have been changed")


MOST_LEFT_OUT = 256
"""Indexes that an assistant names: they are part of an address."""


class AssistReport(Body):
    """The few numbers that come with an assistant's answer, as query parameters of its upload."""

    attempt: int = Field(ge=1, le=2**31)
    steps: Count = 0
    chosen: Count = 0
    before: float | None = Field(None, description="divergence from the ensemble: of the average")
    after: float | None = Field(None, description="and of the answer")
    left_out: tuple[Count, ...] = Field(
        (), max_length=MOST_LEFT_OUT, description="indexes whose models say nothing that is a finite number"
    )


class Finished(View):
    """The run has ended; repeated until the client leaves it (``DELETE /runs/{run}/enrolments/me``)."""

    kind: Literal["finished"] = "finished"
    run: str
    status: RunStatus
    reason: str | None
    model: Digest


class Wait(View):
    """Nothing to do yet: ask again."""

    kind: Literal["wait"] = "wait"
    reason: str = Field(description="one sentence: what is being waited for")


Assignment = Annotated[
    Enrol | SubmitDiscrepancy | SecureStep | Train | Assist | Evaluate | Finished | Wait,
    Field(discriminator="kind"),
]


class SecureAnswer(Message):
    """What a client answers to a step of a secure sum."""

    attempt: int = Field(ge=1, le=2**31)
    answer: Answer


class UpdateReport(Body):
    """The few numbers that come with an update, as query parameters of its upload."""

    attempt: int = Field(ge=1, le=2**31)
    steps: Count
    examples: Count
    loss: float | None = None
    seconds: float = Field(0.0, ge=0)
    start_loss: float | None = Field(
        None, description="mean loss of the received model on the training examples, if the run asks for it"
    )
    end_loss: float | None = Field(None, description="the same of the model sent")
    epsilon: float | None = Field(
        None, ge=0, description="what the run has cost the examples so far, where the site tells it"
    )


class Receipt(View):
    run: str
    round: int
    attempt: int
    client: str
    digest: str
    bytes: int
    received_at: dt.datetime
    row: LedgerRow | None = Field(
        None, description="after the round: the client's row of the ledger, as the client may read it"
    )


class Failure(Body):
    attempt: int = Field(ge=1, le=2**31)
    code: FaultWord = "error"
    reason: Text


class ProgressAnswer(View):
    proceed: bool = Field(description="False: the round is closed for this client, stop training")
    reason: str = ""


class Health(View):
    status: Literal["ok", "degraded", "unavailable"]
    version: str
    checks: dict[str, str] = Field(default_factory=dict)

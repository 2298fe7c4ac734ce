"""The catalogue of errors: every refusal that a person or a program can meet.

::

    Problem
    ├── InvalidRequest 422            malformed input, wrong configuration
    │   ├── InvalidConfiguration      DataUnfit
    │   └── UpdateInvalid             the uploaded bytes cannot be believed
    │       ├── NotSafetensors · Truncated · UnknownTensor · MissingTensor
    │       ├── WrongShape · WrongDtype · NotFinite · OutOfBounds
    │       ├── DigestMismatch
    │       └── TooLarge 413
    ├── Unauthorised 401              MissingToken · WrongToken · RevokedToken
    ├── Forbidden 403                 NotAdmitted
    ├── NotFound 404
    ├── NotSupported 405              MethodNotAllowed 405 · UnsupportedMediaType 415
    │                                 RangeNotSatisfiable 416
    ├── RequestTimeout 408            HeadersTooLarge 431 · TooManyRequests 429
    ├── Conflict 409                  right request, wrong moment
    │   ├── NameTaken · WrongName · AlreadyEnrolled · ClassContractMismatch · IndexTaken
    │   ├── DiscrepancyAlreadySubmitted · IncompatibleVersion
    │   ├── IllegalTransition · WeightlessRound · ModelDiverged
    │   └── UpdateRefused             UpdateLate · UpdateStale · NotAParticipant
    │                                 UpdateAlreadyReceived · RunOver
    └── ServiceFault 503              SchemaOutdated · StorageUnavailable · Busy · QuotaExceeded

A problem says what was wrong (``detail``), and what to do (``hint``); anything
else a program could use (the tensor, the present state) goes into ``extra``.
The coordinator renders it as RFC 9457 ``application/problem+json``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from shared.texts import escape_controls

__all__ = [
    "AlreadyEnrolled",
    "Busy",
    "ClassContractMismatch",
    "Conflict",
    "DataUnfit",
    "DigestMismatch",
    "DiscrepancyAlreadySubmitted",
    "Forbidden",
    "HeadersTooLarge",
    "IllegalTransition",
    "IncompatibleVersion",
    "IndexTaken",
    "InvalidConfiguration",
    "InvalidRequest",
    "MethodNotAllowed",
    "MissingTensor",
    "MissingToken",
    "ModelDiverged",
    "NameTaken",
    "NotAParticipant",
    "NotAdmitted",
    "NotFinite",
    "NotFound",
    "NotSafetensors",
    "NotSupported",
    "OutOfBounds",
    "Problem",
    "QuotaExceeded",
    "RangeNotSatisfiable",
    "RequestTimeout",
    "RevokedToken",
    "RunOver",
    "SchemaOutdated",
    "ServiceFault",
    "StorageUnavailable",
    "TooLarge",
    "TooManyRequests",
    "Truncated",
    "Unauthorised",
    "UnknownTensor",
    "UnsupportedMediaType",
    "UpdateAlreadyReceived",
    "UpdateInvalid",
    "UpdateLate",
    "UpdateRefused",
    "UpdateStale",
    "WeightlessRound",
    "WrongDtype",
    "WrongName",
    "WrongShape",
    "WrongToken",
    "catalogue",
]


class Problem(Exception):
    """Base of all refusals. ``code`` is stable and documented in ``docs/problems.md``."""

    code: ClassVar[str] = "problem"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something went wrong"
    remote: bool = False
    """True in a client that was given this problem as an answer: nothing is wrong with its own settings."""

    def __init__(self, detail: str, *, hint: str = "", **extra: Any) -> None:
        detail = escape_controls(detail)  # a refusal repeats what came in, and is stored, sent and printed
        super().__init__(detail)
        self.detail = detail
        self.hint = escape_controls(hint)
        self.extra = extra

    def __str__(self) -> str:
        stop = "" if not self.hint or self.detail.endswith((".", "!", "?", ":")) else "."
        return f"{self.detail}{stop} {self.hint}".strip()

    def as_json(self) -> dict[str, Any]:
        """Body of the RFC 9457 answer; ``type`` is a relative reference to the documentation."""
        body: dict[str, Any] = {
            "type": f"/problems#{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            body["hint"] = self.hint
        return body | self.extra


class InvalidRequest(Problem):
    code = "invalid-request"
    status = 422
    title = "The request is malformed"


class InvalidConfiguration(InvalidRequest):
    code = "invalid-configuration"
    title = "The configuration is not valid"


class DataUnfit(InvalidConfiguration):
    code = "data-unfit"
    title = "The data do not fit the run"


class UpdateInvalid(InvalidRequest):
    code = "update-invalid"
    title = "The uploaded tensors cannot be accepted"


class NotSafetensors(UpdateInvalid):
    code = "not-safetensors"
    title = "The file is not in safetensors format"


class Truncated(UpdateInvalid):
    code = "truncated"
    title = "The file ends before its tensors do"


class UnknownTensor(UpdateInvalid):
    code = "unknown-tensor"
    title = "The file holds a tensor that the run does not know"


class MissingTensor(UpdateInvalid):
    code = "missing-tensor"
    title = "The file lacks a tensor that the run needs"


class WrongShape(UpdateInvalid):
    code = "wrong-shape"
    title = "A tensor has the wrong shape"


class WrongDtype(UpdateInvalid):
    code = "wrong-dtype"
    title = "A tensor has the wrong data type"


class NotFinite(UpdateInvalid):
    code = "not-finite"
    title = "A tensor holds NaN or infinity"


class OutOfBounds(UpdateInvalid):
    code = "out-of-bounds"
    title = "The update is beyond what the run believes"


class DigestMismatch(UpdateInvalid):
    code = "digest-mismatch"
    title = "The bytes received are not the bytes announced"


class TooLarge(UpdateInvalid):
    code = "too-large"
    status = 413
    title = "The file is larger than allowed"


class Unauthorised(Problem):
    code = "unauthorised"
    status = 401
    title = "Not authenticated"


class MissingToken(Unauthorised):
    code = "missing-token"
    title = "The request carries no token"


class WrongToken(Unauthorised):
    code = "wrong-token"
    title = "The token is not known here"


class RevokedToken(Unauthorised):
    code = "revoked-token"
    title = "The token has been revoked"


class Forbidden(Problem):
    code = "forbidden"
    status = 403
    title = "Not allowed with this token"


class NotAdmitted(Forbidden):
    code = "not-admitted"
    title = "The run does not admit the client"


class NotFound(Problem):
    code = "not-found"
    status = 404
    title = "No such thing"


class NotSupported(Problem):
    code = "not-supported"
    status = 405
    title = "The address does not understand this request"


class MethodNotAllowed(NotSupported):
    code = "method-not-allowed"
    title = "The address exists, but not for this method"


class UnsupportedMediaType(NotSupported):
    code = "unsupported-media-type"
    status = 415
    title = "The body is not of a type that is read here"


class RangeNotSatisfiable(NotSupported):
    code = "range-not-satisfiable"
    status = 416
    title = "The range asked for lies outside the file"


class RequestTimeout(Problem):
    code = "request-timeout"
    status = 408
    title = "The request did not arrive in time"


class HeadersTooLarge(Problem):
    code = "headers-too-large"
    status = 431
    title = "The headers are longer than any call needs"


class TooManyRequests(Problem):
    """``limit`` names the setting, ``retry_after_seconds`` says when to try again."""

    code = "too-many-requests"
    status = 429
    title = "One client asks for more than its share"


class Conflict(Problem):
    code = "conflict"
    status = 409
    title = "Not possible in the present state"


class NameTaken(Conflict):
    code = "name-taken"
    title = "The name is in use"


class WrongName(Conflict):
    code = "wrong-name"
    title = "The join token is for a client of another name"


class AlreadyEnrolled(Conflict):
    code = "already-enrolled"
    title = "The client is enrolled with other particulars"


class OtherIdentity(Conflict):
    code = "other-identity"
    title = "The client is known under another identity key"


class IndexTaken(Conflict):
    code = "index-taken"
    title = "The index belongs to another client"


class ClassContractMismatch(Conflict):
    code = "class-contract-mismatch"
    title = "The classes declared differ from the run's contract"


class DiscrepancyAlreadySubmitted(Conflict):
    code = "discrepancy-already-submitted"
    title = "The discrepancy is submitted once and does not change"


class IncompatibleVersion(Conflict):
    code = "incompatible-version"
    title = "Worker and coordinator speak different protocol versions"


class IllegalTransition(Conflict):
    code = "illegal-transition"
    title = "The run's state does not allow this"


class WeightlessRound(Conflict):
    code = "weightless-round"
    title = "No update of the round has a weight"


class ModelDiverged(Conflict):
    """The aggregated model is not finite; a client's own training raises ``shared.training.Diverged``."""

    code = "diverged"
    title = "The new model holds NaN or infinity"


class UpdateRefused(Conflict):
    code = "update-refused"
    title = "The update does not belong to an open round"


class UpdateLate(UpdateRefused):
    code = "update-late"
    title = "The round was closed before the update came"


class UpdateStale(UpdateRefused):
    code = "update-stale"
    title = "The update belongs to another round or attempt"


class NotAParticipant(UpdateRefused):
    code = "not-a-participant"
    title = "The client was not invited to this round"


class UpdateAlreadyReceived(UpdateRefused):
    code = "update-already-received"
    title = "Another update of this client is already in the round"


class RunOver(UpdateRefused):
    code = "run-over"
    title = "The run has ended"


class ServiceFault(Problem):
    code = "service-fault"
    status = 503
    title = "The coordinator cannot answer now"


class SchemaOutdated(ServiceFault):
    code = "schema-outdated"
    title = "The database schema is not at the version of this program"


class StorageUnavailable(ServiceFault):
    """``public`` is what anybody may know: ``detail`` and ``hint`` name addresses, users and folders."""

    code = "storage-unavailable"
    title = "The database or the blob store does not answer"

    def __init__(
        self, detail: str, *, hint: str = "", public: str = "the storage cannot be used", **extra: Any
    ) -> None:
        super().__init__(detail, hint=hint, **extra)
        self.public = public


class Busy(ServiceFault):
    """``limit`` names the setting."""

    code = "busy"
    title = "The coordinator has as much to do as it takes on"


class QuotaExceeded(ServiceFault):
    """``limit`` names the setting."""

    code = "quota-exceeded"
    title = "No more files are taken: the space for them is used up"


def catalogue() -> dict[str, type[Problem]]:
    """Every problem by its code, for the worker's translation back and for the documentation."""
    found: dict[str, type[Problem]] = {}
    pending: list[type[Problem]] = [Problem]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(kind.__subclasses__())
    return found

"""Reading what the other end answers. It may be a proxy, another service, or hostile: nothing is believed.

An answer is read as a stream and counted; what is longer than its kind of call can need is not read on.
Compressed answers are not asked for, and not opened: a megabyte of them may stand for gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from shared import problems
from shared.texts import format_size

if TYPE_CHECKING:
    import httpx

__all__ = [
    "IDENTITY",
    "LONG_BYTES",
    "SHORT_BYTES",
    "Body",
    "UnexpectedAnswer",
    "check_whole",
    "parse",
    "raise_for_refusal",
    "read",
]

IDENTITY: Final = {"Accept-Encoding": "identity"}
SHORT_BYTES: Final = 2**20
"""For an answer about one thing; also for every refusal."""
LONG_BYTES: Final = 2**25
"""For lists, and for a run with all its tensors and clients."""

_LONGEST_WORDS = 2000
_BY_STATUS = {  # for codes that a newer coordinator may have
    401: problems.Unauthorised,
    403: problems.Forbidden,
    404: problems.NotFound,
    409: problems.Conflict,
    422: problems.InvalidRequest,
    429: problems.TooManyRequests,
    503: problems.ServiceFault,
}
_RFC_9457 = ("type", "title", "status", "code", "detail", "hint")
_CATALOGUE = problems.catalogue()
_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

Answer = TypeVar("Answer")


class UnexpectedAnswer(Exception):
    """Something answered, but not as a coordinator does: a proxy, or another service at this address.

    ``what`` describes the answer, most often by its type; ``location`` is where it redirects to.
    ``sent_bytes`` is the size of the body that was sent before it.
    """

    def __init__(self, status: int, what: str, *, location: str = "", sent_bytes: int = 0) -> None:
        super().__init__(status, what)
        self.status = status
        self.what = what
        self.location = location
        self.sent_bytes = sent_bytes

    def __str__(self) -> str:
        if self.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return f"a proxy on the way refuses bodies of {format_size(self.sent_bytes)} (413)"
        return f"status {self.status}, {self.what}"

    @property
    def is_page(self) -> bool:
        """Whether it is a page for people."""
        return self.what.startswith(("text/html", "application/xhtml"))


@dataclass(frozen=True)
class Body:
    """The body of an answer that is no refusal; ``kind`` is its Content-Type."""

    status: int
    kind: str
    content: bytes


def read(response: httpx.Response, longest: int) -> Body:
    """Read a streamed answer of at most ``longest`` bytes; raises what :func:`raise_for_refusal` raises."""
    raise_for_refusal(response)
    return Body(response.status_code, _kind_of(response), _read_bytes(response, longest))


def _kind_of(response: httpx.Response) -> str:
    return str(response.headers.get("Content-Type", "no content type")).partition(";")[0].strip()[:100]


def _read_bytes(response: httpx.Response, longest: int) -> bytes:
    check_whole(response)
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > longest:
            raise UnexpectedAnswer(
                response.status_code, f"longer than the {format_size(longest)} it may have"
            )
    return bytes(body)


def check_whole(response: httpx.Response) -> None:
    """Raises :class:`UnexpectedAnswer` for an answer that was encoded on its way or at its source."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        what = f"compressed ({encoding[:40]}), which was not asked for"
        raise UnexpectedAnswer(response.status_code, what)


def parse(kind: TypeAdapter[Answer], body: Body, what: str) -> Answer:
    """The body as ``kind``. Raises :class:`UnexpectedAnswer`: not ``what``, nested too deeply, not JSON."""
    try:
        return kind.validate_json(body.content)
    except ValidationError as error:
        raise UnexpectedAnswer(body.status, f"{body.kind}, not {what}") from error


def raise_for_refusal(response: httpx.Response) -> None:
    """Translate a problem document back into the exception it was made from."""
    if response.is_success:
        return
    if (kind := _kind_of(response)) != "application/problem+json":
        raise UnexpectedAnswer(response.status_code, kind, location=response.headers.get("Location", ""))
    problem = _read_problem(response)
    problem.remote = True
    raise problem


def _read_problem(response: httpx.Response) -> problems.Problem:
    try:
        body = _OBJECT.validate_json(_read_bytes(response, SHORT_BYTES))
        code = str(body.get("code"))
        kind = _CATALOGUE.get(code) or _BY_STATUS.get(response.status_code, problems.Problem)
        extra = {name: value for name, value in body.items() if name not in _RFC_9457}
        detail, hint = (str(body.get(name, ""))[:_LONGEST_WORDS] for name in ("detail", "hint"))
        return kind(detail, hint=hint, **extra)
    except (ValueError, TypeError) as error:
        raise UnexpectedAnswer(response.status_code, "a malformed problem document") from error

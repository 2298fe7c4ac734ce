"""The coordinator as a Python object: one method for each call of the HTTP API that a worker makes.

A refusal is raised as its class in :mod:`shared.problems`; a fault of the network stays an httpx exception;
an answer that no coordinator would give is :class:`UnexpectedAnswer`. :mod:`worker.diagnose` turns all of
them into a sentence.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from shared import problems
from shared.addresses import is_loopback
from shared.schemas import (
    LONGEST_TEXT,
    Assignment,
    Credential,
    DeclineRequest,
    DiscrepancySubmission,
    EnrolmentAnswer,
    EnrolmentRequest,
    Failure,
    Metrics,
    Progress,
    ProgressAnswer,
    Receipt,
    Registration,
    RunSummary,
    RunView,
    UpdateReport,
)
from shared.wire.digests import format_content_digest
from worker.faults import UnexpectedAnswer

if TYPE_CHECKING:
    from worker.faults import LocalFault
    from worker.settings import Tell

__all__ = ["CoordinatorClient", "load_trust"]

_CHUNK = 1 << 20
_QUICK = httpx.Timeout(10.0, read=30.0)
_ASSIGNMENT: TypeAdapter[Assignment] = TypeAdapter(Assignment)
_SUMMARIES: TypeAdapter[list[RunSummary]] = TypeAdapter(list[RunSummary])
_CATALOGUE = problems.catalogue()
_BY_STATUS = {  # for codes that a newer coordinator may have
    401: problems.Unauthorised,
    403: problems.Forbidden,
    404: problems.NotFound,
    409: problems.Conflict,
    422: problems.InvalidRequest,
    503: problems.ServiceFault,
}
_RFC_9457 = ("type", "title", "status", "code", "detail", "hint")

Answer = TypeVar("Answer", bound=BaseModel)


def load_trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    """What server certificates are checked against: the given PEM file alone, or the usual authorities.

    Raises :class:`shared.problems.InvalidConfiguration` if the file holds no certificate.
    """
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (ssl.SSLError, OSError) as error:
        raise problems.InvalidConfiguration(
            f"--ca-file {ca_file} cannot be read as certificates: {error}.",
            hint="Give a PEM file that begins with -----BEGIN CERTIFICATE-----.",
        ) from error


def _check_encrypted(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise problems.InvalidConfiguration(
            f"{url} is another machine, and without TLS tokens and updates would travel there in clear; "
            "nothing was sent.",
            hint="Use the coordinator's https:// address, or say --insecure (FEDDISCO_INSECURE) on a network "
            "that nobody else is on.",
        )


def _check_proxies() -> None:
    for scheme, address in getproxies().items():
        if scheme not in ("http", "https", "all") or not address:
            continue
        try:
            found = httpx.URL(address if "://" in address else f"http://{address}")
            usable = found.scheme in ("http", "https") and bool(found.host)
        except httpx.InvalidURL:
            usable = False
        if not usable:
            shown = "" if "@" in address else f" ({address!r:.80})"  # it may hold a password
            raise problems.InvalidConfiguration(
                f"the variable {scheme.upper()}_PROXY (or {scheme}_proxy) names a proxy that cannot be used"
                f"{shown}.",
                hint="Write it like http://proxy.example:3128 (SOCKS is not supported), or unset it.",
            )


Record = Callable[[str, dict[str, Any]], None]
"""Takes method and path of a message, and its content."""


def _record_nothing(what: str, content: dict[str, Any]) -> None:
    pass


class CoordinatorClient:
    """A client of ``/api/v1``. Thread-safe; connections are kept alive. Close it, or use it as a context.

    ``transport`` replaces the network (a test's, or an application in process). Otherwise proxies are taken
    from the usual variables, but for this machine itself: that is reached directly. ``record`` is called with
    all that this site tells, before it is sent. ``tell``: of a fault at this site, the coordinator gets a
    sentence of :mod:`shared.faults`, or (``full``) what stands in this site's log. ``insecure``: talk to
    another machine without TLS.

    Raises :class:`shared.problems.InvalidConfiguration` if one of the variables holds no proxy's address, and
    for another machine's address without TLS.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
        record: Record = _record_nothing,
        tell: Tell = "sentences",
        insecure: bool = False,
    ) -> None:
        if transport is None and not insecure:
            _check_encrypted(url)
        direct = transport is not None or is_loopback(urlsplit(url).hostname or "")
        if not direct:
            _check_proxies()
        elif transport is None and verify is True:
            verify = (
                httpx.create_ssl_context()
            )  # heeds SSL_CERT_FILE, which a client without proxies does not

        self._record = record
        self._tell = tell
        self._http = httpx.Client(
            base_url=f"{url}/api/v1",
            verify=verify,
            transport=transport,
            timeout=_QUICK,
            follow_redirects=False,
            trust_env=not direct,
        )
        if token is not None:
            self.authenticate(token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def authenticate(self, token: str) -> None:
        """Send this bearer token from now on."""
        self._http.headers["Authorization"] = f"Bearer {token}"

    # ------------------------------------------------------------ registration and enrolment

    def register(self, join_code: str, registration: Registration) -> Credential:
        headers = {"Authorization": f"Bearer {join_code}"}
        return self._json(Credential, "POST", "/clients", body=registration, headers=headers)

    def runs(self) -> list[RunSummary]:
        response = self._call("GET", "/runs")
        try:
            return _SUMMARIES.validate_json(response.content)
        except ValidationError as error:
            raise UnexpectedAnswer(response.status_code, "not a list of runs") from error

    def run(self, run: str) -> RunView:
        return self._json(RunView, "GET", f"/runs/{run}")

    def enrol(self, run: str, request: EnrolmentRequest) -> EnrolmentAnswer:
        return self._json(EnrolmentAnswer, "POST", f"/runs/{run}/enrolments", body=request)

    def decline(self, run: str, fault: LocalFault) -> None:
        """Take no part in the run, or no longer, and say why."""
        body = DeclineRequest(code=fault.told.code, reason=self._reason(fault))
        self._call("POST", f"/runs/{run}/decline", body=body)

    def leave(self, run: str) -> None:
        """Leave a run; also the way to confirm that its end was seen."""
        self._call("DELETE", f"/runs/{run}/enrolments/me")

    def submit_discrepancy(self, run: str, submission: DiscrepancySubmission) -> None:
        self._call("PUT", f"/runs/{run}/discrepancy", body=submission)

    # ------------------------------------------------------------ work

    def work(self, wait_seconds: float) -> Assignment:
        """The next assignment; after ``wait_seconds`` without one it is :class:`shared.schemas.Wait`."""
        timeout = httpx.Timeout(10.0, read=wait_seconds + 15.0)
        response = self._call("GET", "/work", params={"wait": f"{wait_seconds:g}"}, timeout=timeout)
        try:
            return _ASSIGNMENT.validate_json(response.content)
        except ValidationError as error:
            raise UnexpectedAnswer(
                response.status_code, f"not an assignment ({error.error_count()} faults)"
            ) from error

    def progress(self, run: str, round: int, progress: Progress) -> ProgressAnswer:
        return self._json(ProgressAnswer, "POST", f"/runs/{run}/rounds/{round}/progress", body=progress)

    def failure(self, run: str, round: int, attempt: int, fault: LocalFault) -> None:
        body = Failure(attempt=attempt, code=fault.told.code, reason=self._reason(fault))
        self._call("POST", f"/runs/{run}/rounds/{round}/failure", body=body)

    def metrics(self, run: str, round: int, metrics: Metrics) -> None:
        self._call("PUT", f"/runs/{run}/rounds/{round}/metrics", body=metrics)

    def receipt(self, run: str, round: int) -> Receipt:
        return self._json(Receipt, "GET", f"/runs/{run}/rounds/{round}/receipt")

    # ------------------------------------------------------------ weights

    def download(self, digest: str, path: Path) -> int:
        """Fetch a blob to ``path`` in constant memory; returns the number of bytes that travelled.

        An interrupted download leaves ``path`` + ``.part`` and continues from there the next time. Raises
        :class:`shared.problems.DigestMismatch` if the bytes are not those of the digest (they are deleted).
        """
        part = path.with_name(path.name + ".part")
        actual, received = self._receive(digest, part)
        if actual != digest:
            part.unlink(missing_ok=True)
            raise problems.DigestMismatch(
                f"blob {digest} arrived with the digest {actual}.", hint="It will be fetched again."
            )
        part.replace(path)
        return received

    def _receive(self, digest: str, part: Path) -> tuple[str, int]:
        have = part.stat().st_size if part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self._http.stream("GET", f"/blobs/{digest}", headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return _hash(part).hexdigest(), 0  # complete already, or nonsense: the digest decides
            _raise_for_refusal(response)
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            hasher = _hash(part) if resumed else hashlib.sha256()
            with part.open("ab" if resumed else "wb") as file:
                for chunk in response.iter_raw(_CHUNK):
                    hasher.update(chunk)
                    file.write(chunk)
            return hasher.hexdigest(), response.num_bytes_downloaded

    def upload(self, run: str, round: int, report: UpdateReport, path: Path, digest: str) -> Receipt:
        """Send a finished update, streamed from its file; safe to repeat."""
        size = path.stat().st_size
        told = report.model_dump(mode="json", exclude_none=True)
        address = f"/runs/{run}/rounds/{round}/update"
        self._record(f"PUT {address}", told | {"weights": digest, "bytes": size})
        response = self._http.put(
            address,
            params=told,
            content=_chunks(path),
            headers={
                "Content-Type": "application/vnd.safetensors",
                "Content-Length": str(size),  # else httpx would send a generator chunked
                "Content-Digest": format_content_digest(digest),
            },
            timeout=httpx.Timeout(30.0, read=180.0),  # the coordinator checks every value before it answers
        )
        return _parse(Receipt, _check(response))

    # ------------------------------------------------------------ the border

    def _reason(self, fault: LocalFault) -> str:
        """The only place where a text of this site's is chosen for the coordinator."""
        if self._tell == "sentences":
            return fault.told.sentence
        return str(fault).replace("\x00", "")[:LONGEST_TEXT]

    def _call(
        self, method: str, path: str, *, body: BaseModel | None = None, **options: Any
    ) -> httpx.Response:
        if body is not None:
            if not isinstance(body, Registration | Progress):  # a token; heartbeats, every few seconds
                self._record(f"{method} {path}", body.model_dump(mode="json", exclude_none=True))
            options["content"] = body.model_dump_json()
            options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
        return _check(self._http.request(method, quote(path), **options))

    def _json(self, kind: type[Answer], method: str, path: str, **options: Any) -> Answer:
        return _parse(kind, self._call(method, path, **options))


def _hash(path: Path) -> Any:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _check(response: httpx.Response) -> httpx.Response:
    _raise_for_refusal(response)
    return response


def _parse(kind: type[Answer], response: httpx.Response) -> Answer:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedAnswer(
            response.status_code, f"not a {kind.__name__}: {error.error_count()} faults"
        ) from error


def _raise_for_refusal(response: httpx.Response) -> None:
    """Translate a problem document back into the exception it was made from."""
    if response.is_success:
        return
    response.read()
    content_type = response.headers.get("Content-Type", "no content type").split(";")[0]
    if content_type == "application/problem+json":
        try:
            body = response.json()
            kind = _CATALOGUE.get(body.get("code")) or _BY_STATUS.get(response.status_code, problems.Problem)
            extra = {name: value for name, value in body.items() if name not in _RFC_9457}
            problem = kind(str(body.get("detail", "")), hint=str(body.get("hint", "")), **extra)
        except (ValueError, TypeError, AttributeError) as error:
            raise UnexpectedAnswer(response.status_code, "a malformed problem document") from error
        problem.remote = True
        raise problem
    raise UnexpectedAnswer(response.status_code, content_type)

"""The coordinator as a Python object: one method for each call of the HTTP API that a worker makes.

A refusal is raised as its class in :mod:`shared.problems`; a fault of the network stays an httpx exception;
an answer that no coordinator would give is :class:`worker.faults.UnexpectedAnswer`.
:mod:`worker.diagnose` turns all of them into a sentence.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter

from shared import problems
from shared.addresses import is_loopback
from shared.schemas import (
    LONGEST_TEXT,
    Assignment,
    AssistReport,
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
    Role,
    RunSummary,
    RunView,
    SecureAnswer,
    UpdateReport,
)
from shared.texts import format_size
from shared.wire.digests import format_content_digest
from worker import answers
from worker.answers import LONG_BYTES, SHORT_BYTES, Body, UnexpectedAnswer
from worker.trust import pin_certificates

if TYPE_CHECKING:
    from worker.faults import LocalFault
    from worker.policy import Tell

__all__ = ["CoordinatorClient", "Record", "load_trust"]

_CHUNK = 1 << 20
_QUICK = httpx.Timeout(10.0, read=30.0)
_ASSIGNMENT: TypeAdapter[Assignment] = TypeAdapter(Assignment, config=ConfigDict(defer_build=True))
_SUMMARIES: TypeAdapter[list[RunSummary]] = TypeAdapter(list[RunSummary], config=ConfigDict(defer_build=True))
_NO_CONTENT = 204
_TOKEN = re.compile(r"[!-~]+")

Answer = TypeVar("Answer", bound=BaseModel)


def load_trust(ca_file: Path | None, fingerprints: Collection[str] = ()) -> ssl.SSLContext | bool:
    """What server certificates are checked against: the given PEM file alone, or the usual authorities.

    With ``fingerprints`` (SHA-256, hexadecimal) the certificate has to be one of these as well.

    Raises :class:`shared.problems.InvalidConfiguration` if the file holds no certificate.
    """
    if not fingerprints:
        return True if ca_file is None else _load_authorities(ca_file)
    context = httpx.create_ssl_context() if ca_file is None else _load_authorities(ca_file)
    pin_certificates(context, fingerprints)
    return context


def _load_authorities(ca_file: Path) -> ssl.SSLContext:
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


def _send_anyhow() -> None:
    pass


class CoordinatorClient:
    """A client of ``/api/v1``. Thread-safe; connections are kept alive. Close it, or use it as a context.

    ``transport`` replaces the network (a test's, or an application in process). Otherwise proxies are taken
    from the usual variables, but for this machine itself: that is reached directly. ``record`` is called with
    all that this site tells, before it is sent. ``tell``: of a fault at this site, the coordinator gets a
    sentence of :mod:`shared.faults`, or (``full``) what stands in this site's log. ``insecure``: talk to
    another machine without TLS. ``before_sending`` is called before each request, and before each part of a
    file: what it raises ends that.

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
        before_sending: Callable[[], None] = _send_anyhow,
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

        self._before_sending = before_sending
        self._note = record
        self._tell = tell
        self._http = httpx.Client(
            base_url=f"{url}/api/v1",
            verify=verify,
            transport=transport,
            timeout=_QUICK,
            follow_redirects=False,
            trust_env=not direct,
            headers=answers.IDENTITY,
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
        self._http.headers["Authorization"] = _format_bearer(token)

    # ------------------------------------------------------------ registration and enrolment

    def register(self, join_code: str, registration: Registration) -> Credential:
        headers = {"Authorization": _format_bearer(join_code)}
        return self._json(Credential, "POST", "/clients", body=registration, headers=headers)

    def runs(self) -> list[RunSummary]:
        return answers.parse(_SUMMARIES, self._call("GET", "/runs", longest=LONG_BYTES), "a list of runs")

    def run(self, run: str) -> RunView:
        return self._json(RunView, "GET", f"/runs/{run}", longest=LONG_BYTES)

    def enrol(self, run: str, request: EnrolmentRequest) -> EnrolmentAnswer:
        return self._json(EnrolmentAnswer, "POST", f"/runs/{run}/enrolments", body=request)

    def decline(self, run: str, fault: LocalFault, role: Role) -> None:
        """Take no part in the run, or no longer, and say why; ``role`` is what was asked of this client."""
        body = DeclineRequest(code=fault.told.code, reason=self._reason(fault))
        self._tell_coordinator("POST", f"/runs/{run}/decline", body=body, params={"role": str(role)})

    def leave(self, run: str) -> None:
        """Leave a run; also the way to confirm that its end was seen."""
        self._tell_coordinator("DELETE", f"/runs/{run}/enrolments/me")

    def submit_discrepancy(self, run: str, submission: DiscrepancySubmission) -> None:
        self._tell_coordinator("PUT", f"/runs/{run}/discrepancy", body=submission)

    # ------------------------------------------------------------ work

    def work(self, wait_seconds: float) -> Assignment:
        """The next assignment; after ``wait_seconds`` without one it is :class:`shared.schemas.Wait`."""
        timeout = httpx.Timeout(10.0, read=wait_seconds + 15.0)
        wait = {"wait": f"{wait_seconds:g}"}
        body = self._call("GET", "/work", params=wait, timeout=timeout, longest=LONG_BYTES)
        return answers.parse(_ASSIGNMENT, body, "an assignment")

    def progress(self, run: str, round: int, progress: Progress) -> ProgressAnswer:
        return self._json(ProgressAnswer, "POST", f"/runs/{run}/rounds/{round}/progress", body=progress)

    def failure(self, run: str, round: int, attempt: int, fault: LocalFault) -> None:
        body = Failure(attempt=attempt, code=fault.told.code, reason=self._reason(fault))
        self._tell_coordinator("POST", f"/runs/{run}/rounds/{round}/failure", body=body)

    def metrics(self, run: str, round: int, metrics: Metrics, model: str) -> None:
        """Report what ``model`` scored: by now the round may have another one."""
        path = f"/runs/{run}/rounds/{round}/metrics"
        self._tell_coordinator("PUT", path, body=metrics, params={"model": model})

    def receipt(self, run: str, round: int) -> Receipt:
        return self._json(Receipt, "GET", f"/runs/{run}/rounds/{round}/receipt")

    def answer_step(self, run: str, round: int, answer: SecureAnswer) -> None:
        """Answer a step of a secure sum. What is noted of it holds none of the keys."""
        path = f"/runs/{run}/rounds/{round}/step"
        body, step = answer.model_dump_json().encode(), type(answer.answer).__name__.lower()
        self._record(f"POST {path}", {"attempt": answer.attempt, "message": step, "bytes": len(body)})
        headers = {"Content-Type": "application/json"}
        found = self._exchange("POST", path, len(body), content=body, headers=headers)
        if found.status != _NO_CONTENT:
            raise UnexpectedAnswer(found.status, found.kind)

    # ------------------------------------------------------------ weights

    def download(self, digest: str, path: Path, longest: int) -> int:
        """Fetch a blob of at most ``longest`` bytes to ``path``; returns the number that travelled.

        Needs little memory. An interrupted download leaves ``path`` + ``.part`` and continues from there the
        next time. Raises :class:`shared.problems.DigestMismatch` if the bytes are not those of the digest,
        :class:`shared.problems.TooLarge` if more are announced or come; nothing is kept of either.
        """
        part = path.with_name(path.name + ".part")
        try:
            actual, received = self._receive(digest, part, longest)
            if actual != digest:
                raise problems.DigestMismatch(
                    f"blob {digest} arrived with the digest {actual}.", hint="It will be fetched again."
                )
        except (problems.DigestMismatch, problems.TooLarge):
            part.unlink(missing_ok=True)
            raise
        part.replace(path)
        return received

    def _receive(self, digest: str, part: Path, longest: int) -> tuple[str, int]:
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        self._before_sending()
        with self._http.stream("GET", f"/blobs/{digest}", headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return _hash(part).hexdigest(), 0  # complete already, or nonsense: the digest decides
            answers.raise_for_refusal(response)
            answers.check_whole(response)
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            return _write(response, part, longest, have if resumed else 0)

    def upload(self, run: str, round: int, report: UpdateReport, path: Path, digest: str) -> Receipt:
        """Send a finished update, streamed from its file; safe to repeat."""
        told = report.model_dump(mode="json", exclude_none=True)
        address = f"/runs/{run}/rounds/{round}/update"
        self._record(f"PUT {address}", told | {"weights": digest, "bytes": path.stat().st_size})
        patient = httpx.Timeout(30.0, read=180.0)  # the coordinator checks every value before it answers
        body = self._send_file("PUT", address, path, digest, params=told, timeout=patient)
        return answers.parse(TypeAdapter(Receipt), body, "a receipt")

    def assist(self, run: str, round: int, report: AssistReport, path: Path) -> None:
        """Send what this site made as the run's assistant; safe to repeat."""
        told = report.model_dump(mode="json", exclude_none=True)
        address, digest = f"/runs/{run}/rounds/{round}/assistance", _hash(path).hexdigest()
        self._record(f"PUT {address}", told | {"answer": digest, "bytes": path.stat().st_size})
        patient = httpx.Timeout(30.0, read=180.0)
        found = self._send_file("PUT", address, path, digest, params=told, timeout=patient)
        if found.status != _NO_CONTENT:
            raise UnexpectedAnswer(found.status, found.kind)

    def assist_failure(self, run: str, round: int, attempt: int, fault: LocalFault) -> None:
        """Say that there will be no answer of this site as the run's assistant."""
        body = Failure(attempt=attempt, code=fault.told.code, reason=self._reason(fault))
        self._tell_coordinator("POST", f"/runs/{run}/rounds/{round}/assistance/failure", body=body)

    # ------------------------------------------------------------ the border

    def _reason(self, fault: LocalFault) -> str:
        """The only place where a text of this site's is chosen for the coordinator."""
        if self._tell == "sentences":
            return fault.told.sentence
        return str(fault).replace("\x00", "")[:LONGEST_TEXT]

    def _json(self, kind: type[Answer], method: str, path: str, **options: Any) -> Answer:
        return answers.parse(TypeAdapter(kind), self._call(method, path, **options), f"a {kind.__name__}")

    def _tell_coordinator(self, method: str, path: str, **options: Any) -> None:
        """For what is answered with 204: anything else, as a login page, means that it was not heard."""
        body = self._call(method, path, **options)
        if body.status != _NO_CONTENT:
            raise UnexpectedAnswer(body.status, body.kind)

    def _record(self, what: str, content: dict[str, Any]) -> None:
        self._before_sending()  # what is not sent is not noted
        self._note(what, content)

    def _call(self, method: str, path: str, *, body: BaseModel | None = None, **options: Any) -> Body:
        content = b""
        if body is not None:
            if not isinstance(body, Registration | Progress):  # a token; heartbeats, every few seconds
                said = body.model_dump(mode="json", exclude_none=True)
                self._record(f"{method} {path}", said | options.get("params", {}))
            content = body.model_dump_json().encode()
            options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
        return self._exchange(method, path, len(content), content=content or None, **options)

    def _send_file(self, method: str, address: str, path: Path, digest: str, **options: Any) -> Body:
        """The file as the body, streamed."""
        size = path.stat().st_size
        headers = {
            "Content-Type": "application/vnd.safetensors",
            "Content-Length": str(size),  # else httpx would send a generator chunked
            "Content-Digest": format_content_digest(digest),
        }
        return self._exchange(method, address, size, content=self._chunks(path), headers=headers, **options)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                self._before_sending()
                yield chunk

    def _exchange(
        self, method: str, path: str, sent_bytes: int, *, longest: int = SHORT_BYTES, **options: Any
    ) -> Body:
        self._before_sending()
        try:
            with self._http.stream(method, quote(path), **options) as response:
                return answers.read(response, longest)
        except UnexpectedAnswer as error:
            error.sent_bytes = sent_bytes
            raise


def _format_bearer(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise problems.InvalidConfiguration(
            "the text that is given as the token or join code is no token.",
            hint="A token is one line of ASCII characters without spaces.",
        )
    return f"Bearer {token}"


def _write(response: httpx.Response, part: Path, longest: int, have: int) -> tuple[str, int]:
    """Append the answer's body to what is there; the digest of all, and the bytes that came."""
    _check_size(have + _announced(response), longest)
    hasher = _hash(part) if have else hashlib.sha256()
    received = 0
    with part.open("ab" if have else "wb") as file:
        for chunk in response.iter_raw(_CHUNK):
            received += len(chunk)
            _check_size(have + received, longest)
            hasher.update(chunk)
            file.write(chunk)
    return hasher.hexdigest(), received


def _announced(response: httpx.Response) -> int:
    """The Content-Length, which the HTTP library holds the answer to; 0 if there is none."""
    return int(response.headers.get("Content-Length", 0))


def _check_size(size: int, longest: int) -> None:
    if size > longest:
        raise problems.TooLarge(
            f"the coordinator sends a file of {format_size(size)} or more; this run's have at most "
            f"{format_size(longest)}.",
        )


def _hash(path: Path) -> Any:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")

"""Turns an exception into one sentence that says what is wrong and where to look.

Pure: it tries nothing and logs nothing. Every fault of the network looks like "connection failed"; the chain
of causes tells a wrong name from a closed port and from an untrusted certificate.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx

from shared import problems
from shared.fingerprints import format_fingerprint
from shared.texts import format_size
from worker.answers import UnexpectedAnswer
from worker.trust import UnexpectedCertificate

__all__ = ["Diagnosis", "diagnose"]

_GATEWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_PROXY_ASKS = (
    "a web proxy asks for a name and a password (407). Write them into its variable, like "
    "HTTPS_PROXY=http://NAME:PASSWORD@proxy.example:3128"
)


@dataclass(frozen=True)
class Diagnosis:
    """``fatal``: waiting does not help; someone has to do something first. ``local``: on this machine."""

    sentence: str
    fatal: bool = False
    local: bool = False


def diagnose(error: BaseException, url: str, *, registering: bool = False) -> Diagnosis:
    """What the exception means to the person who runs the worker against the coordinator at ``url``.

    ``registering``: the token that was sent is the join code, not the worker's own.
    """
    if isinstance(error, problems.Problem):
        return _diagnose_refusal(error, url, registering)
    if isinstance(error, UnexpectedAnswer):
        return Diagnosis(_diagnose_answer(error, url))
    if isinstance(error, httpx.HTTPError):
        return _diagnose_network(error, url)
    if isinstance(error, OSError):
        return _diagnose_local(error)
    return Diagnosis(f"Unexpected {type(error).__name__}: {error}")


# ---------------------------------------------------------------- what the coordinator said


def _diagnose_refusal(error: problems.Problem, url: str, registering: bool) -> Diagnosis:
    if isinstance(error, problems.RevokedToken):
        return Diagnosis(
            f"The coordinator at {url} has revoked this client's token. Ask its operator; to join again, "
            "start with another state folder and a join code.",
            fatal=True,
        )
    if isinstance(error, problems.Unauthorised) and registering:
        return Diagnosis(
            f"The coordinator at {url} does not accept the join code: it is wrong, used up or has expired. "
            "Ask its operator for a new one.",
            fatal=True,
        )
    if isinstance(error, problems.Unauthorised):
        return Diagnosis(
            f"The coordinator at {url} does not know this client's token: its database is new, or the "
            "state folder belongs to another one. Use another state folder and a join code.",
            fatal=True,
        )
    fatal = isinstance(error, problems.IncompatibleVersion | problems.NameTaken | problems.WrongName) or (
        isinstance(error, problems.InvalidConfiguration) and not error.remote
    )
    if isinstance(error, problems.ServiceFault) and isinstance(error.__cause__, OSError):
        return _diagnose_local(error.__cause__)  # this machine's own disk: shared.files speaks for both sides
    if isinstance(error, problems.StorageUnavailable | problems.SchemaOutdated):  # its hint is not for here
        what = error.detail.rstrip(".")
        return Diagnosis(
            f"The coordinator at {url} cannot answer at the moment: {what}. Its operator can mend it."
        )
    if isinstance(error, problems.ServiceFault | problems.RequestTimeout):
        return Diagnosis(f"The coordinator at {url} cannot answer at the moment: {error}")
    if isinstance(error, problems.TooManyRequests):
        return Diagnosis(f"The coordinator at {url} asks this worker to wait: {error}")
    if error.remote and isinstance(error, problems.InvalidRequest):
        return Diagnosis(f"The coordinator at {url} does not accept the request: {error}")
    return Diagnosis(str(error), fatal)


def _diagnose_answer(error: UnexpectedAnswer, url: str) -> str:
    status = error.status
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return (
            f"On the way to {url}, a proxy refuses bodies of {format_size(error.sent_bytes)} (413). "
            "Its administrator has to let such bodies through."
        )
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"On the way to {url}, {_PROXY_ASKS}"
    if status in _GATEWAY:
        return f"A proxy answers at {url} ({error}), but the coordinator behind it does not."
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return _diagnose_redirect(error, url)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NETWORK_AUTHENTICATION_REQUIRED):
        return (
            f"Something on the way to {url} refuses this request ({error}): a proxy, a firewall or a login "
            "page of this network, not the coordinator. Open the address in a browser on this machine."
        )
    if status < HTTPStatus.MULTIPLE_CHOICES and error.is_page:
        return (
            f"A web page answers at {url}, not a coordinator ({error}): a login page of this network, or "
            "another service. Open the address in a browser on this machine, and check host, port and path."
        )
    return f"What answers at {url} is not a coordinator ({error}). Check host, port and path of the address."


def _diagnose_redirect(error: UnexpectedAnswer, url: str) -> str:
    """By whether it leads to another machine; an address within the same one is most often its TLS port."""
    here, target = urlsplit(url), urlsplit(error.location)
    if target.hostname in (None, here.hostname):
        where = f" ({target.scheme}://{target.netloc})" if target.netloc else ""
        return f"{url} redirects to another address{where} (status {error.status}); give the worker that one."
    return (
        f"{url} redirects to {target.hostname} (status {error.status}): a login page of this network, or the "
        "coordinator has moved. Open the address in a browser on this machine."
    )


# ---------------------------------------------------------------- what the network did


def _diagnose_network(error: httpx.HTTPError, url: str) -> Diagnosis:
    parts = urlsplit(url)
    host = parts.hostname or url
    port = parts.port or (443 if parts.scheme == "https" else 80)
    for cause in _walk_causes(error):
        if isinstance(cause, ssl.SSLError):
            return _diagnose_tls(cause, url)
        if isinstance(cause, socket.gaierror):
            return Diagnosis(
                f"The name {host} cannot be resolved. Check the spelling and this machine's DNS."
            )
        if isinstance(cause, ConnectionRefusedError):
            return Diagnosis(
                f"Nothing listens on {host} port {port}: the coordinator isn't running, or the port is wrong."
            )
        if isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return Diagnosis(f"There is no route to {host}: check this machine's network, VPN or firewall.")
    if isinstance(error, httpx.ConnectTimeout):
        return Diagnosis(f"{host} port {port} does not answer within 10 s: a firewall may drop the packets.")
    if isinstance(error, httpx.TimeoutException):
        return Diagnosis(f"The coordinator at {url} accepted the connection but does not answer in time.")
    if isinstance(error, httpx.ProxyError):
        return Diagnosis(_diagnose_proxy(error, url))
    broken = f"The connection to {url} broke ({type(error).__name__})."
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and parts.scheme == "http":
        # how a TLS port answers plain HTTP, too; or the coordinator is just being restarted
        return Diagnosis(f"{broken} If the coordinator uses TLS, its address is {_other_scheme(url)}")
    return Diagnosis(broken)


def _diagnose_proxy(error: httpx.ProxyError, url: str) -> str:
    words = str(error)[:200]
    if words.startswith(str(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED.value)):
        return f"On the way to {url}, {_PROXY_ASKS}"
    return f"The web proxy does not connect to {url} ({words}). Ask its administrator, or unset its variable."


def _diagnose_tls(cause: ssl.SSLError, url: str) -> Diagnosis:
    if isinstance(cause, UnexpectedCertificate) and cause.expected is not None:
        return Diagnosis(
            f"The certificate of {url} is not the expected one: its fingerprint is "
            f"{format_fingerprint(cause.fingerprint)}, expected {format_fingerprint(cause.expected)}. "
            "Nothing was sent. Either somebody stands in between, or the coordinator has a new certificate: "
            "ask its operator for the fingerprint, and for a new join code."
        )
    if isinstance(cause, UnexpectedCertificate):
        return Diagnosis(
            f"The certificate of {url} has the SHA-256 fingerprint {cause.fingerprint}, which is none of the "
            "coordinators in this site's policy. Nothing was sent."
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Diagnosis(
            f"The certificate of {url} is not trusted: {cause.verify_message.rstrip('.')}. "
            f"{_advise(cause.verify_code)}"
        )
    if cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
        return Diagnosis(
            f"{url} does not speak TLS. Without TLS, the coordinator's address is {_other_scheme(url)}"
        )
    return Diagnosis(f"The TLS handshake with {url} failed: {cause.reason or cause}.")


_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64  # OpenSSL's X509_V_ERR_...
_SELF_SIGNED = 18


def _advise(verify_code: int) -> str:
    """What to do about a certificate that OpenSSL refuses for this reason."""
    if verify_code in (_NOT_YET_VALID, _EXPIRED):
        return "Check this machine's clock; if it is right, the coordinator's operator has to renew it."
    if verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return "Give the address by a name that is in the certificate, or ask the operator for one with this."
    if verify_code == _SELF_SIGNED:
        return (
            "If it is the coordinator's own, its fingerprint is in the join code from its operator; "
            "a command takes it by --fingerprint."
        )
    return (
        "If the coordinator uses its own certificate authority, or a proxy of this network opens TLS "
        "connections, pass that authority's file with --ca-file."
    )


def _other_scheme(url: str) -> str:
    return (
        url.replace("https://", "http://", 1)
        if url.startswith("https://")
        else url.replace("http", "https", 1)
    )


# ---------------------------------------------------------------- what this machine did


def _diagnose_local(error: OSError) -> Diagnosis:
    where = error.filename or "the state folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Diagnosis(
            f"There is no space left for {where}. Free some, and the worker continues by itself."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Diagnosis(
            f"This user may not {_name_right(error)} {where} ({error.strerror}). Change its owner or its "
            "permissions, or give another place: --state for the state folder.",
            fatal=True,
            local=True,
        )
    return Diagnosis(f"{where}: {error.strerror or error}")


def _name_right(error: OSError) -> str:
    """The right that is missing, as far as the error tells: it names no access that was asked for."""
    return "write to" if error.errno == errno.EROFS else "read or write"


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__

"""Starts the coordinator: checks first what can be wrong, and reports it in one sentence."""

from __future__ import annotations

import contextlib
import logging
import logging.config
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from server.certificates import Entrance, with_certificate
from server.clock import utc_now
from server.garbage import set_collector
from server.monitoring.logs import logging_config
from server.ownership import owning
from server.settings import Settings, unknown_variables
from server.web.protocol import bound_protocol
from server.web.security import ADMIN_FILE, VIEWER_FILE
from shared.files import make_folder
from shared.fingerprints import format_fingerprint
from shared.problems import InvalidConfiguration, Problem, StorageUnavailable

if TYPE_CHECKING:
    from server.coordinator import Coordinator
    from server.wakeups.hub import Hub

__all__ = ["Server", "check_storage", "migrate", "options", "serve"]

GRACE_SECONDS = 2
KEEP_ALIVE_SECONDS = 75  # longer than a long poll, so that workers' connections live on
BACKLOG = 4096

log = logging.getLogger("feddisco")


def serve(settings: Settings, *, migrate: bool = False, known_elsewhere: Collection[str] = ()) -> int:
    """Run until SIGTERM or SIGINT; the exit code: 0, or 2 with one sentence on stderr if it cannot start.

    ``migrate`` brings a PostgreSQL schema up to date first (SQLite's always is).
    ``known_elsewhere``: variables of other programs, not to be reported as unknown.
    """
    from server.database.session import sqlite_file

    logging.config.dictConfig(logging_config(settings))
    for name in unknown_variables(known_elsewhere):
        log.warning("%s is not a setting of the coordinator; is it misspelt?", name)
    try:
        with contextlib.ExitStack() as held:
            _check_exposure(settings)
            _check_tls(settings)
            listener = held.enter_context(_listen(settings.host, settings.port))
            held.enter_context(_data_folder(settings.data_folder))
            held.enter_context(owning(sqlite_file(settings.database), "a coordinator", utc_now()))
            check_storage(settings, migrate=migrate)
            if settings.self_signed:  # its file is in the folder
                settings = with_certificate(settings)
                _check_tls(settings)
            return _run(settings, listener)
    except Problem as problem:
        sys.stderr.write(f"feddisco server: {problem}\n")
        return 2


def migrate(settings: Settings) -> int:
    """Bring the database's schema to this program's version; the exit code."""
    from server.database.migrations import upgrade
    from server.database.session import sqlite_file

    try:
        with (
            _data_folder(settings.data_folder),
            owning(sqlite_file(settings.database), "a migration", utc_now()),
        ):
            upgrade(settings.database)
    except Problem as problem:
        sys.stderr.write(f"feddisco server migrate: {problem}\n")
        return 2
    sys.stdout.write("The database schema is up to date.\n")
    return 0


def _check_exposure(settings: Settings) -> None:
    has_tls = settings.self_signed or settings.tls_certificate is not None
    if settings.is_reached_from_elsewhere and not has_tls and not settings.insecure:
        raise InvalidConfiguration(
            f"other machines reach {settings.host}, and without TLS every token and update would travel in "
            "clear.",
            hint="Use --self-signed, or set FEDDISCO_TLS_CERTIFICATE and FEDDISCO_TLS_KEY, or listen on "
            "127.0.0.1 behind a proxy that speaks TLS. --insecure is for networks that nobody else is on.",
        )


def _say_how_to_reach(entrance: Entrance) -> None:
    if entrance.fingerprint is not None:
        log.info("the certificate's fingerprint (SHA-256) is %s", format_fingerprint(entrance.fingerprint))
    if entrance.url is not None:
        log.info("join codes lead sites to %s; if that is wrong, set FEDDISCO_PUBLIC_URL", entrance.url)


def _say_certificate(certificate: Path) -> None:
    """Whether it is valid now: if not, sites that do not know its fingerprint refuse it."""
    from cryptography import x509

    found, now = x509.load_pem_x509_certificate(certificate.read_bytes()), utc_now()
    first, last = found.not_valid_before_utc, found.not_valid_after_utc
    if not first <= now <= last:
        log.warning(
            "CERTIFICATE: %s is valid from %s to %s only, so sites and browsers refuse this coordinator",
            *(certificate, first.date(), last.date()),
        )


def _say_who_reads(settings: Settings, address: str) -> None:
    """What an operator must know of a coordinator that is less closed than by default."""
    if settings.is_reached_from_elsewhere and settings.tls_certificate is None:
        log.warning("INSECURE: every token and update travels to %s in clear, as asked (--insecure)", address)
    if settings.reading == "open":
        log.warning(
            "OPEN PAGES: whoever reaches %s reads all clients' sizes, discrepancies, weights, scores and "
            "error texts without a token, as asked (--open-pages)",
            address,
        )
    elif settings.viewer_token is None:
        who = "reading" if settings.reading == "closed" else "reading from other machines"
        log.info("%s needs a token: the viewer token is in %s", who, settings.data_folder / VIEWER_FILE)


@contextlib.contextmanager
def _data_folder(folder: Path) -> Iterator[None]:
    """It is there and can be written during the block; one that was made for a refused start goes again."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        _make_folder(folder)
        yield
    except Problem:
        for made in missing:
            with contextlib.suppress(OSError):  # what holds something stays
                made.rmdir()
        raise


def _make_folder(folder: Path) -> None:
    try:
        make_folder(folder, mode=0o750)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StorageUnavailable(
            f"the data folder {folder} cannot be written: {error.strerror}",
            hint="Make it writable for this user, or choose another with --data-folder.",
        ) from error


def _check_tls(settings: Settings) -> None:
    for name, path in (("tls_certificate", settings.tls_certificate), ("tls_key", settings.tls_key)):
        if path is not None and not path.is_file():
            what = f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}"
            raise InvalidConfiguration(f"{name}: {what}")
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    _check_pem("tls_certificate", settings.tls_certificate, "CERTIFICATE")
    _check_pem("tls_key", settings.tls_key, "PRIVATE KEY")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_certificate, settings.tls_key, password=""
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidConfiguration(
            f"tls_certificate {settings.tls_certificate} and tls_key {settings.tls_key} cannot be used: "
            f"{_explain_tls(error, settings.tls_key)}"
        ) from error


def _check_pem(name: str, path: Path, kind: str) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidConfiguration(
            f"{name}: {path} cannot be read: {error.strerror}", hint="Let this process's user read it."
        ) from error
    if f"{kind}-----".encode() not in content:
        raise InvalidConfiguration(
            f"{name}: {path} holds no {kind.lower()} in PEM",
            hint=f"Give a file with a line that ends in {kind}-----.",
        )


def _explain_tls(error: Exception, key: Path) -> str:
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate; of a chain, the coordinator's own comes first."
    if b"ENCRYPTED" in key.read_bytes():  # OpenSSL does not always say so
        return "the key is encrypted; give it without a passphrase."
    return f"a file is damaged ({reason or error})."


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything else starts, so that a second coordinator on the port ends with a message."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise InvalidConfiguration(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
            hint="Is a coordinator running already? Choose another --port or --host.",
        ) from error
    listener.set_inheritable(True)
    return listener


def check_storage(settings: Settings, *, migrate: bool) -> None:
    """The database has the present schema, and the blob folder is its own. Raises a :class:`Problem`.

    SQLite belongs to one coordinator, which migrates it; PostgreSQL waits for its operator.
    """
    from server.blobs import open_blobs
    from server.blobs.owner import check_owner
    from server.database.integrity import check_quickly, rows_are_read
    from server.database.migrations import check_current, upgrade
    from server.database.session import make_engine
    from server.database.store import Store

    engine = make_engine(settings.database)
    try:
        check_quickly(engine)
        if migrate or not settings.on_postgres:
            upgrade(settings.database)
        check_current(engine)
        store = Store(engine)
        with rows_are_read(engine):
            recorded, own = store.counts()["blobs"]["number"], store.database_id(utc_now())
        check_owner(open_blobs(settings, store), own, recorded_blobs=recorded)
    finally:
        engine.dispose()


class Server(uvicorn.Server):
    """At its end, answers the requests that wait before waiting for them to finish."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


def _run(settings: Settings, listener: socket.socket) -> int:
    from server.app import create_app, make_coordinator, prepare

    set_collector()
    _raise_file_limit()
    coordinator = make_coordinator(settings)
    prepare(coordinator)
    config = uvicorn.Config(create_app(coordinator), **options(coordinator))
    server = Server(config, coordinator.hub)
    scheme = "https" if settings.tls_certificate is not None else "http"
    host, port = listener.getsockname()[:2]
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    log.info("coordinator on %s", address)
    if settings.admin_token is None:
        log.info("the admin token is in %s", settings.data_folder / ADMIN_FILE)
    _say_how_to_reach(coordinator.entrance)
    if settings.tls_certificate is not None:
        _say_certificate(settings.tls_certificate)
    _say_who_reads(settings, address)

    def end(*_: object) -> None:
        server.should_exit = True

    # A signal may come before uvicorn's handlers are there. After a clean end uvicorn raises it again, for
    # the handler that was there before: this one.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run([listener])
    return 0 if server.started else 2


def options(coordinator: Coordinator) -> dict[str, Any]:
    """Uvicorn's, for this coordinator."""
    settings = coordinator.settings
    return {
        "http": bound_protocol(coordinator.connections),
        "ws": "none",
        "log_config": None,
        "access_log": settings.access_log,
        "server_header": False,
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
        "lifespan": "on",
    }


def _raise_file_limit() -> None:
    """A thousand waiting clients are a thousand open connections; the usual soft limit is 1024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft != resource.RLIM_INFINITY else soft, hard))

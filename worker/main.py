"""The worker process: settings in, exit code out. Wiring only."""

from __future__ import annotations

import datetime as dt
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import httpx

from shared.faults import Fault, FaultCode
from shared.problems import InvalidConfiguration, StorageUnavailable
from shared.schemas import PROTOCOL, Registration
from shared.secure.keys import identity_of
from shared.versions import VERSION
from worker.address import Address, find_address
from worker.answers import UnexpectedAnswer
from worker.assisting import Assisting
from worker.client import CoordinatorClient
from worker.decoded import remove_unused
from worker.diagnose import diagnose
from worker.enrolment import decline_all
from worker.faults import LocalFault
from worker.loop import Backoff, NothingDelivered, Refused, Unusable, Worker
from worker.policy.document import load_policy
from worker.policy.watch import PolicyChanged, PolicyWatch, list_differences, read_policy_again
from worker.progress import Reporter
from worker.shutdown import Shutdown, ShutdownRequested
from worker.state import (
    StoredCredential,
    describe_identity,
    find_credential,
    lock_folder,
    obtain_identity,
    prepare_token,
    read_credential,
    write_credential,
)
from worker.told import Told

if TYPE_CHECKING:
    from shared.join_codes import JoinCode
    from worker.policy import SitePolicy
    from worker.settings import WorkerSettings

__all__ = ["FAILED", "MISCONFIGURED", "NOTHING_DELIVERED", "OK", "REFUSED", "find_client", "leave", "run"]

ALWAYS_THERE = ("auto", "cpu")
OK, FAILED, MISCONFIGURED, REFUSED, NOTHING_DELIVERED = 0, 1, 2, 3, 4
"""Exit codes: ended as asked; a fault in this program; a wrong setting; refused by the coordinator; asked to
exit after a run, and nothing of this worker is in it."""


def run(
    settings: WorkerSettings, *, stream: TextIO | None = None, transport: httpx.BaseTransport | None = None
) -> int:
    """Work until asked to end; returns the process's exit code (0, 2, 3 or 4).

    Reports to ``stream`` (None: stderr). ``transport`` replaces the network.
    """
    reporter = Reporter(stream or sys.stderr, lambda: dt.datetime.now(dt.UTC))
    shutdown = Shutdown()
    try:
        with shutdown.handle_signals(), lock_folder(settings.state, slots=settings.state_slots) as folder:
            _work_by_policy(settings, folder, reporter, shutdown, transport)
    except ShutdownRequested:
        reporter.say("Stopped as asked. When restarted, this worker continues where it stopped.")
    except (InvalidConfiguration, Unusable) as error:
        reporter.say(f"Cannot work: {error}")
        return MISCONFIGURED
    except (OSError, StorageUnavailable) as error:  # before the loop, which waits out what can pass
        reporter.say(f"Cannot work: {diagnose(error, settings.url or '').sentence}")
        return MISCONFIGURED
    except Refused as error:
        reporter.say(str(error))
        return REFUSED
    except NothingDelivered as error:
        reporter.say(str(error))
        return NOTHING_DELIVERED
    return OK


def _work_by_policy(
    settings: WorkerSettings,
    folder: Path,
    reporter: Reporter,
    shutdown: Shutdown,
    transport: httpx.BaseTransport | None,
) -> None:
    """Work, and begin anew, as at a start, whenever the policy's file has been changed."""
    code = settings.join_code()
    watch = PolicyWatch(settings.policy)  # before it is read: what is written in between is a change
    policy = load_policy(settings)
    while True:
        try:
            _work(settings, code, policy, watch, folder, reporter, shutdown, transport)
        except PolicyChanged as changed:
            reporter.say(f"{changed} It is read again, and every run is looked at anew.")
        else:
            return
        before = policy
        policy, watch = read_policy_again(settings, reporter, shutdown)
        for sentence in list_differences(before, policy):
            reporter.say(f"The policy now has {sentence}")


def _work(
    settings: WorkerSettings,
    code: JoinCode | None,
    policy: SitePolicy,
    watch: PolicyWatch,
    folder: Path,
    reporter: Reporter,
    shutdown: Shutdown,
    transport: httpx.BaseTransport | None,
) -> None:
    address = find_address(settings, code, folder)
    backoff = Backoff(address.url, reporter, random.Random())  # noqa: S311 - jitter, not a secret
    told = Told(folder, lambda: dt.datetime.now(dt.UTC))
    with CoordinatorClient(
        address.url,
        verify=address.load_trust(policy),
        transport=transport,
        record=told.record,
        tell=policy.own.tell,
        insecure=settings.insecure,
        before_sending=watch.check,
    ) as coordinator:
        _check_data(settings, address, folder, coordinator)
        identity = obtain_identity(folder)
        credential = _obtain_credential(settings, address, folder, coordinator, backoff, identity)
        coordinator.authenticate(credential.token)
        reporter.say(f"Client {credential.client} at {address.url}, task {settings.task}, state in {folder}")
        reporter.say(f"Its identity key has the fingerprint {describe_identity(identity)}")
        try:
            worker = _make_worker(
                *(credential.client, settings, policy, folder, coordinator, backoff, reporter, shutdown),
                *(identity, told),
            )
        except InvalidConfiguration as error:
            fault = LocalFault(Fault(FaultCode.SETTINGS), str(error))
            decline_all(coordinator, credential.client, settings, fault)
            raise
        worker.run()


def _check_data(
    settings: WorkerSettings, address: Address, folder: Path, coordinator: CoordinatorClient
) -> None:
    """Where there are no data any more, a client that is registered tells its runs before it ends."""
    if settings.data is None or settings.data.exists():
        return
    fault = InvalidConfiguration(f"--data (FEDDISCO_DATA): there is nothing at {settings.data}")
    stored = read_credential(folder, address.url, address.fingerprint)
    if stored is not None:
        coordinator.authenticate(stored.token)
        told = LocalFault(Fault(FaultCode.NO_DATA), str(fault))
        decline_all(coordinator, stored.client, settings, told)
    raise fault


def find_client(settings: WorkerSettings) -> tuple[Address, StoredCredential]:
    """The client of the state folder, whose worker may be running, and where its coordinator is.

    Raises :class:`InvalidConfiguration` if the folder holds no client of the coordinator's.
    """
    address = find_address(settings, settings.join_code(), settings.state)
    credential = read_credential(settings.state, address.url, address.fingerprint)
    if credential is None:
        raise InvalidConfiguration(
            f"no client of {address.url} is registered in {settings.state}.",
            hint="Name its folder with --state.",
        )
    return address, credential


def leave(settings: WorkerSettings, run: str, *, transport: httpx.BaseTransport | None = None) -> str:
    """Leave a run as the client of the state folder; the sentence to print.

    Raises :class:`InvalidConfiguration` if the folder holds no client of the coordinator's, or it cannot be
    reached; :class:`shared.problems.Problem` for what it answers.
    """
    address, credential = find_client(settings)
    url, verify = address.url, address.load_trust(load_policy(settings))
    with CoordinatorClient(
        url, token=credential.token, verify=verify, transport=transport, insecure=settings.insecure
    ) as coordinator:
        try:
            coordinator.leave(run)
        except (httpx.HTTPError, UnexpectedAnswer) as error:
            raise InvalidConfiguration(diagnose(error, url).sentence) from error
    return f"{credential.client} has left {run}."


def _obtain_credential(
    settings: WorkerSettings,
    address: Address,
    folder: Path,
    coordinator: CoordinatorClient,
    backoff: Backoff,
    identity: bytes,
) -> StoredCredential:
    """The credential of an earlier start, or a new one for the join code."""
    url, join_token = address.url, address.join_token
    stored = read_credential(folder, url, address.fingerprint)
    if stored is not None:
        if settings.name not in (None, stored.client):
            raise InvalidConfiguration(
                f"--name {settings.name}: the state folder {folder} belongs to the client {stored.client}.",
                hint="Leave the name out, or give another client another folder with --state.",
            )
        if stored != find_credential(folder):  # a new code, for where it is now or its new certificate
            write_credential(folder, stored)
        return stored
    if join_token is None:
        raise InvalidConfiguration(
            f"this worker is not registered at {url} yet, and no join code is given.",
            hint="Ask the coordinator's operator for one, and pass it with --join (or FEDDISCO_JOIN).",
        )
    token = prepare_token(folder, url, settings.name)
    registration = Registration(
        name=settings.name,
        protocol=PROTOCOL,
        version=VERSION,
        identity=identity_of(identity).hex(),
        token=token,
    )
    given = backoff.retry(lambda: coordinator.register(join_token, registration), registering=True)
    credential = StoredCredential(
        url=url, client=given.client, token=given.token, fingerprint=address.fingerprint
    )
    write_credential(folder, credential)
    return credential


def _make_worker(
    client: str,
    settings: WorkerSettings,
    policy: SitePolicy,
    folder: Path,
    coordinator: CoordinatorClient,
    backoff: Backoff,
    reporter: Reporter,
    shutdown: Shutdown,
    identity: bytes,
    told: Told,
) -> Worker:
    """PyTorch is imported here only where a device is asked for that may not be there; otherwise by need."""
    from worker.journal import Journal
    from worker.round_work import RoundWork
    from worker.secure_work import SecureWork
    from worker.site import Site

    remove_unused(folder / "cache", time.time())
    site = Site(settings, policy, folder / "cache", reporter.say)
    if settings.device not in ALWAYS_THERE or settings.precision == "float16":
        _ = site.device  # which the operator is told now, and not at the first run
    secure = SecureWork(coordinator, site, reporter, identity, told.record)
    return Worker(
        client=client,
        settings=settings,
        coordinator=coordinator,
        journal=Journal(folder, reporter.say),
        site=site,
        rounds=RoundWork(
            coordinator,
            site,
            reporter,
            shutdown,
            time.perf_counter,
            secure,
            Assisting(coordinator, site, reporter),
        ),
        backoff=backoff,
        reporter=reporter,
    )

"""The operator's side of the HTTP API: runs, join codes, clients."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from pydantic import ConfigDict, TypeAdapter, ValidationError

from feddisco.settings import ConsoleSettings
from feddisco.settings import load as load_settings
from shared.config import RunConfig, describe_faults, split_tags
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration, NameTaken
from shared.run_files import check_config, read_config
from shared.schemas import (
    ApprovalRequest,
    ClientView,
    ControlRequest,
    DeletedRun,
    Deletion,
    EnrolmentStatus,
    EnrolmentView,
    Erasure,
    EvaluationView,
    EventView,
    Health,
    IdentityPin,
    InitialBlob,
    JoinToken,
    JoinTokenRequest,
    JoinTokenView,
    RewindRequest,
    Role,
    RoundView,
    RunChanges,
    RunRequest,
    RunSummary,
    RunView,
    UserRequest,
    UserRole,
    UserToken,
    UserView,
)
from shared.texts import format_count
from worker import answers
from worker.answers import LONG_BYTES, UnexpectedAnswer
from worker.client import CoordinatorClient
from worker.diagnose import diagnose

if TYPE_CHECKING:
    from worker.settings import WorkerSettings

__all__ = [
    "AdminClient",
    "Client",
    "approve",
    "check_config",
    "connect",
    "connect_as_site",
    "create_run",
    "describe_state",
    "describe_wait",
    "list_waiting",
    "load_config",
    "make_changes",
    "make_invitation",
    "make_run_request",
    "make_user_request",
]

ROUNDS_BYTES = 2**28
SILENCE_SECONDS = 45.0  # an event stream says something every 15 s
AUDIT_ENTRIES = 1000
ROUNDS_A_PAGE = 100

DEMO = Path(__file__).with_name("demo.yaml")
LOOKED_HERE = "Say where it is by --url or FEDDISCO_URL; without them it is looked for there."
LATER = ConfigDict(defer_build=True)
"""Most commands need one of these."""
_ROUNDS = TypeAdapter(list[RoundView], config=LATER)
_RUNS = TypeAdapter(list[RunSummary], config=LATER)
_CLIENTS = TypeAdapter(list[ClientView], config=LATER)
_DELETIONS = TypeAdapter(list[Deletion], config=LATER)
_EVENTS = TypeAdapter(list[EventView], config=LATER)
_EVALUATIONS = TypeAdapter(list[EvaluationView], config=LATER)
_JOIN_TOKENS = TypeAdapter(list[JoinTokenView], config=LATER)
_USERS = TypeAdapter(list[UserView], config=LATER)


class AdminClient(CoordinatorClient):
    """A :class:`worker.client.CoordinatorClient` with the admin's calls."""

    def rounds(self, run: str, after: int = 0) -> list[RoundView]:
        """All attempts of the rounds after that one, in the coordinator's order, read in pages."""
        found: list[RoundView] = []
        while page := self._read_rounds(run, found[-1].round if found else after):
            found += page
            if len({view.round for view in page}) < ROUNDS_A_PAGE:
                break
        return found

    def _read_rounds(self, run: str, after: int) -> list[RoundView]:
        chosen = {"after": after, "limit": ROUNDS_A_PAGE}
        body = self._call("GET", f"/runs/{run}/rounds", params=chosen, longest=ROUNDS_BYTES)
        return answers.parse(_ROUNDS, body, "a list of rounds")

    def log(self, run: str | None = None, after: int = 0) -> list[EventView]:
        """A page of the event log, of one run or of all: the oldest events with an id above ``after``."""
        path = "/log" if run is None else f"/runs/{run}/log"
        body = self._call("GET", path, params={"after": after}, longest=LONG_BYTES)
        return answers.parse(_EVENTS, body, "a list of events")

    def whole_log(self, run: str) -> list[EventView]:
        """All of a run's events, read in pages."""
        found: list[EventView] = []
        while page := self.log(run, found[-1].id if found else 0):
            found += page
        return found

    def create(self, request: RunRequest) -> RunView:
        """Waits for minutes: a coordinator that has just started imports PyTorch to build the model."""
        timeout = httpx.Timeout(10.0, read=180.0)
        return self._json(RunView, "POST", "/runs", body=request, timeout=timeout, longest=LONG_BYTES)

    def control(self, run: str, action: str, reason: str = "") -> RunView:
        with _requests_in_words(f"{run} cannot be told to {action}"):
            request = ControlRequest(reason=reason)
        return self._json(RunView, "POST", f"/runs/{run}/{action}", body=request, longest=LONG_BYTES)

    def change(self, run: str, changes: RunChanges) -> RunView:
        """Only the fields that are given change."""
        return self._json(RunView, "PATCH", f"/runs/{run}", body=changes, longest=LONG_BYTES)

    def rewind(self, run: str, round: int, reason: str) -> RunView:
        """Go back to the model of an earlier round; 0 is the initial one."""
        with _requests_in_words(f"{run} cannot go back"):
            body = RewindRequest(round=round, reason=reason)
        timeout = httpx.Timeout(10.0, read=180.0)  # it may have to import PyTorch first
        return self._json(RunView, "POST", f"/runs/{run}/rewind", body=body, timeout=timeout)

    def find_runs(
        self, *, archived: bool = False, search: str = "", state: str = "", tag: str = ""
    ) -> list[RunSummary]:
        """Pinned ones first, then the newest; ``archived``: also those that were put away.

        ``search``: words that are all in a run's name, task, algorithm, weighting or tags.
        """
        given = {"archived": archived, "search": search, "state": state, "tag": tag}
        body = self._call("GET", "/runs", params=given, longest=LONG_BYTES)
        return answers.parse(_RUNS, body, "a list of runs")

    def delete_run(self, run: str, reason: str = "") -> DeletedRun:
        """Delete an ended run for good; the record that is kept of it."""
        timeout = httpx.Timeout(10.0, read=600.0)  # it deletes the files, too
        chosen = {"reason": reason} if reason else {}
        options = {"params": chosen, "timeout": timeout, "longest": LONG_BYTES}
        return self._json(DeletedRun, "DELETE", f"/runs/{run}", **options)

    def deletions(self) -> list[Deletion]:
        body = self._call("GET", "/deletions", longest=LONG_BYTES)
        return answers.parse(_DELETIONS, body, "a list of deletions")

    def approve(self, run: str, client: str, examples: int) -> None:
        """Let a client in whose size waits for approval; ``examples`` is the size that was looked at."""
        with _requests_in_words(f"{client} cannot be approved"):
            body = ApprovalRequest(examples=examples)
        self._call("POST", f"/runs/{run}/enrolments/{client}/approve", body=body)

    def refuse(self, run: str, client: str, reason: str) -> None:
        with _requests_in_words(f"{client} cannot be refused"):
            body = ControlRequest(reason=reason)
        self._call("POST", f"/runs/{run}/enrolments/{client}/refuse", body=body)

    def invite(self, request: JoinTokenRequest) -> JoinToken:
        return self._json(JoinToken, "POST", "/join-tokens", body=request)

    def clients(self) -> list[ClientView]:
        return answers.parse(_CLIENTS, self._call("GET", "/clients", longest=LONG_BYTES), "a list of clients")

    def pin_identity(self, client: str, fingerprint: str) -> None:
        with _requests_in_words(f"{client} cannot be pinned"):
            body = IdentityPin(fingerprint=fingerprint)
        self._tell_coordinator("PUT", f"/clients/{client}/identity", body=body)

    def revoke(self, client: str) -> None:
        self._tell_coordinator("DELETE", f"/clients/{client}")

    def erase(self, client: str) -> Erasure:
        """Erase a client that withdraws."""
        timeout = httpx.Timeout(10.0, read=600.0)  # it deletes the files, too
        return self._json(Erasure, "POST", f"/clients/{client}/erase", timeout=timeout)

    def round(self, run: str, number: int, attempt: int | None = None) -> RoundView:
        """One round with its ledger: its newest attempt, or the one named."""
        chosen = {} if attempt is None else {"attempt": attempt}
        return self._json(RoundView, "GET", f"/runs/{run}/rounds/{number}", params=chosen)

    def evaluations(self, run: str) -> list[EvaluationView]:
        """Every score of the run's models; round 0 is the initial one."""
        answer = self._call("GET", f"/runs/{run}/evaluations", longest=LONG_BYTES)
        return answers.parse(_EVALUATIONS, answer, "a list of scores")

    def join_tokens(self) -> list[JoinTokenView]:
        answer = self._call("GET", "/join-tokens", longest=LONG_BYTES)
        return answers.parse(_JOIN_TOKENS, answer, "a list of join tokens")

    def revoke_join_token(self, token: int) -> None:
        self._call("DELETE", f"/join-tokens/{token}")

    def add_user(self, request: UserRequest) -> UserToken:
        return self._json(UserToken, "POST", "/users", body=request)

    def renew_user(self, name: str) -> UserToken:
        return self._json(UserToken, "POST", f"/users/{name}/token")

    def users(self) -> list[UserView]:
        return answers.parse(_USERS, self._call("GET", "/users", longest=LONG_BYTES), "a list of users")

    def revoke_user(self, name: str) -> None:
        self._call("DELETE", f"/users/{name}")

    def audit_entries(self, after: int = 0) -> Iterator[str]:
        """Lines of JSON, oldest first, byte for byte as they were hashed."""
        while True:
            params = {"after": after, "limit": AUDIT_ENTRIES}
            lines = (
                self._call("GET", "/audit", params=params, longest=ROUNDS_BYTES).content.decode().splitlines()
            )
            yield from lines
            if len(lines) < AUDIT_ENTRIES:
                return
            after += len(lines)

    def put_blob(self, path: Path, digest: str) -> None:
        """Upload initial weights, streamed."""
        self._send_file("PUT", f"/blobs/{digest}", path, digest)

    # ------------------------------------------------------------ the coordinator itself

    def health(self) -> Health:
        """What the coordinator says of itself, also where it is not ready."""
        answer = self._http.get(self._root.join("/readyz"))
        if answer.status_code not in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            raise UnexpectedAnswer(answer.status_code, answer.headers.get("Content-Type", ""))
        return Health.model_validate_json(answer.content)

    def gauges(self) -> dict[str, float]:
        """The metrics of this moment: ``gauges()['feddisco_run_accuracy{run="demo"}']``."""
        answer = self._http.get(self._root.join("/metrics"))
        if answer.status_code != HTTPStatus.OK:
            raise UnexpectedAnswer(answer.status_code, answer.headers.get("Content-Type", ""))
        lines = (line for line in answer.text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def events(self, run: str | None = None, after: int = 0) -> Generator[EventView, None, None]:
        """Events of one run or of all, past ones first and then each as it happens, until the caller ends it.

        ``after``: only events with a larger id. Raises httpx's faults where the connection breaks: go on from
        the last event's id.
        """
        path = "/events" if run is None else f"/runs/{quote(run)}/events"
        timeout = httpx.Timeout(10.0, read=SILENCE_SECONDS)
        with self._http.stream("GET", path, params={"after": after}, timeout=timeout) as answer:
            if answer.status_code != HTTPStatus.OK:
                answers.read(answer, LONG_BYTES)  # raises the refusal as its class
            yield from _read_events(answer.iter_lines())

    @property
    def _root(self) -> httpx.URL:
        return self._http.base_url.join("/")


def _read_events(lines: Iterator[str]) -> Iterator[EventView]:
    """Server-sent events; heartbeats of clients have no id and are none of the log."""
    data, is_kept = "", False
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif line.startswith("id: "):
            is_kept = True
        elif not line:
            if data and is_kept:
                yield EventView.model_validate_json(data)
            data, is_kept = "", False


class Client(AdminClient):
    """A coordinator's HTTP API from Python: what an operator and what a site may do, by their token.

    Without a token, FEDDISCO_ADMIN_TOKEN or that of a coordinator on this machine. Use it as a context, or
    close it. A refusal is raised as its class in ``shared.problems``, a fault of the network as httpx's.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        ca_file: Path | None = None,
        insecure: bool = False,
    ) -> None:
        settings = load_settings({"url": url, "ca_file": ca_file})
        known, verify = token or settings.find_token(), settings.load_trust()
        super().__init__(settings.address, token=known, verify=verify, insecure=insecure)


@contextmanager
def connect(settings: ConsoleSettings) -> Iterator[AdminClient]:
    """An authenticated admin connection; network faults end with one sentence."""
    url, verify = settings.address, settings.load_trust()
    with (
        _faults_in_words(url, hint="" if settings.url else LOOKED_HERE),
        AdminClient(url, token=settings.find_token(), verify=verify, insecure=settings.insecure) as client,
    ):
        yield client


@contextmanager
def connect_as_site(settings: WorkerSettings) -> Iterator[AdminClient]:
    """The same with the credential of a worker's state folder, for what a client may read."""
    from worker.main import find_client
    from worker.policy.document import load_policy

    address, credential = find_client(settings)
    verify = address.load_trust(load_policy(settings))
    with (
        _faults_in_words(address.url),
        AdminClient(address.url, token=credential.token, verify=verify, insecure=settings.insecure) as client,
    ):
        yield client


@contextmanager
def _requests_in_words(said: str) -> Iterator[None]:
    """What is wrong with a request that is made in the block, as :class:`InvalidConfiguration`."""
    try:
        yield
    except ValidationError as error:
        raise InvalidConfiguration(f"{said}: {describe_faults(error)}.") from None


@contextmanager
def _faults_in_words(url: str, hint: str = "") -> Iterator[None]:
    try:
        yield
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise InvalidConfiguration(
            f"{url!r} is not a web address.", hint="Write it like https://coordinator.example:8000."
        ) from None
    except (httpx.HTTPError, UnexpectedAnswer) as error:
        raise InvalidConfiguration(diagnose(error, url).sentence, hint=hint) from error


def load_config(source: str | Path, **changes: Any) -> RunConfig:
    """A run configuration from a YAML or JSON file (``demo``: the built-in one), with fields changed.

    Raises :class:`InvalidConfiguration` that names each field and the value received.
    """
    path = DEMO if source == "demo" else Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"The configuration {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        from shared.documents import describe_bytes

        raise InvalidConfiguration(
            f"The configuration {path} {describe_bytes(error)}.", hint="Save it as UTF-8."
        ) from None
    return read_config(text, f"The configuration {path}", **changes)


def describe_state(view: RunView, also: str = "") -> str:
    """One sentence: which run is how, and what it waits for, or why it ended. ``also``: what else it is."""
    said = " ".join(describe_wait(view).split()).rstrip(".")
    more = f"{also} and " if also else ""
    return f"{view.run} {more}is {view.status.value}{': ' if said else ''}{said}."


def describe_wait(view: RunView) -> str:
    """What a run waits for, or why it ended, to stand beside its status; empty where nothing is to say."""
    if view.status.is_terminal:
        return view.reason or ""
    return view.waiting_for.removeprefix(f"{view.status.value}: ")


def create_run(
    client: AdminClient, source: str, *, weights: Path | None = None, if_absent: bool = False
) -> str:
    """Create a run from a configuration file; returns the sentence to print."""
    config = load_config(source)
    try:
        view = client.create(make_run_request(client, config, weights))
    except NameTaken:
        if not if_absent:
            raise
        return f"Run {config.name} already exists and is left as it is."
    said = f"Run {describe_state(view)}"
    twin = config.make_twin()
    return said if twin is None else f"{said} Beside it, {twin.name}: /compare?runs={view.run},{twin.name}"


def make_run_request(client: AdminClient, config: RunConfig, weights: Path | None = None) -> RunRequest:
    """The request for a run; initial weights that the coordinator cannot build itself are uploaded first.

    ``weights``: a safetensors file with every tensor of the task's model. A task of one's own is built here,
    where its code is installed, and a model of transformers where it lies: the coordinator needs neither.
    """
    from shared.tasks import available, base_of, task_of

    elsewhere = config.task not in available() or is_own(config.model) or base_of(config) is not None
    if weights is None and not elsewhere:
        return RunRequest(config=config)
    from shared import wire
    from shared.model_files import read_tensors
    from shared.training.distillation import check_task
    from shared.wire.tensors import load_into, manifest_of, state_of, tied_names

    task = task_of(config)
    if config.distillation is not None:
        check_task(task)
    model = task.build_model(config.model, config.seed)
    manifest = manifest_of(model)
    if weights is not None:
        tied = tied_names(model)  # a file for others has them, too; a coordinator's does not
        specs = {spec.name: spec for spec in manifest}
        with wire.opened(weights) as file:
            both = [specs[first].model_copy(update={"name": name}) for name, first in tied.items()]
            layout = wire.model_layout([*manifest, *(spec for spec in both if file.has("model", spec.name))])
        wire.validate(weights, layout)
        load_into(model, read_tensors(weights, set(tied)))
    with tempfile.TemporaryDirectory() as folder:
        written = wire.write(Path(folder) / "initial.safetensors", {"model": state_of(model)})
        client.put_blob(written.path, written.digest)
    return RunRequest(
        config=config.model_copy(update={"classes": task.classes}),
        initial=InitialBlob(digest=written.digest, manifest=manifest),
    )


def make_changes(
    *,
    rounds: int | None,
    quorum: str | None,
    deadline: float | None,
    waiting_deadline: float | None,
    keep_updates: str | None,
    tags: str | None,
) -> RunChanges:
    """Of a run's configuration, from the command line; None: stays. Raises :class:`InvalidConfiguration`."""
    asked = (
        ("rounds", rounds, rounds),
        ("quorum", quorum, None if quorum == "half" else quorum),
        ("round_deadline_seconds", deadline, deadline),
        ("waiting_deadline_seconds", waiting_deadline, waiting_deadline),
        ("keep_updates", keep_updates, None if keep_updates == "all" else keep_updates),
        ("tags", tags, split_tags(tags or "")),
    )
    chosen = {name: value for name, said, value in asked if said is not None}
    if not chosen:
        raise InvalidConfiguration(
            "say what is to change.",
            hint="--rounds, --quorum, --deadline, --waiting-deadline, --keep-updates or --tags.",
        )
    with _requests_in_words("The run cannot be changed like that"):
        return RunChanges.model_validate(chosen)


def make_invitation(
    *, uses: int, days: float, role: Role | None, group: str | None, name: str | None
) -> JoinTokenRequest:
    """``uses`` 0: any number of clients; ``days`` 0: valid until it is revoked."""
    if not math.isfinite(days * 86400):
        raise InvalidConfiguration(f"--days: {days} is no number of days.", hint="0 is valid until revoked.")
    with _requests_in_words("The join code cannot be made"):
        return JoinTokenRequest(
            uses=uses or None,
            valid_seconds=max(1, round(days * 86400)) if days else None,
            role=role,
            group=group,
            name=name,
        )


def make_user_request(name: str, role: UserRole, runs: Sequence[str]) -> UserRequest:
    """``runs``: the only ones that the token is for; none: all."""
    with _requests_in_words("The token cannot be made"):
        return UserRequest(name=name, role=role, runs=tuple(runs) or None)


def list_waiting(client: AdminClient, run: str) -> list[EnrolmentView]:
    """The clients that wait for approval."""
    enrolments = client.run(run).enrolments
    return [row for row in enrolments if row.status is EnrolmentStatus.AWAITING_APPROVAL]


def approve(client: AdminClient, run: str, names: Sequence[str], examples: int | None) -> Iterator[str]:
    """Approve clients with the sizes that they declare; yields a sentence for each.

    ``examples``: only if this is the size. Raises :class:`InvalidConfiguration` for one that does not wait.
    """
    waiting = {row.client: row for row in list_waiting(client, run)}
    for name in names:
        if name not in waiting:
            raise InvalidConfiguration(
                f"{name} does not wait for approval in {run}.",
                hint=f"feddisco run approve {run} lists who does.",
            )
        size = waiting[name].examples if examples is None else examples
        client.approve(run, name, size)
        told = f" with {format_count(size, 'example')}" if size else ""  # of a secure run: none is declared
        yield f"{name} takes part in {run}{told}."

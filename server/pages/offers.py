"""What may be done with a run and its clients, and in which words. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.pages.contexts import NextStep, Offer
from server.pages.form_contexts import FormField
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.schemas import EnrolmentStatus, Role, RunStatus, RunView, UserRole
from shared.texts import format_count

__all__ = [
    "ACTIONS",
    "REASON",
    "ROUND",
    "Action",
    "list_change_fields",
    "list_first_steps",
    "list_next_steps",
    "list_offers",
    "refuse_action",
    "run_command",
    "show_command",
]

OPEN = frozenset(status for status in RunStatus if not status.is_terminal)
ENDED = frozenset(RunStatus) - OPEN
GOING = frozenset(status for status in RunStatus if status.is_going)
REASON = FormField(name="reason", label="Reason, for the run's page")

ROUND = FormField(name="round", label="Round to go back to (0: the initial model)", kind="number")


@dataclass(frozen=True, slots=True)
class Action:
    """``statuses``: of the runs with which it is possible; ``is_final``: a box has to be ticked first.

    ``role``: of those who may do it. ``of_archived``: only with runs that were put away (True), only with
    others (False), or with both. ``even_secure``: also with secure sums. ``command``: its words, if they are
    others than its name; ``options`` are those of the command that it shows.
    """

    label: str
    explanation: str
    statuses: frozenset[RunStatus]
    fields: tuple[FormField, ...] = ()
    is_final: bool = False
    role: UserRole = UserRole.OPERATOR
    of_archived: bool | None = None
    even_secure: bool = True
    command: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def form(self) -> tuple[FormField, ...]:
        tick = FormField(name="sure", label="I am sure", kind="tick")
        return (*self.fields, tick) if self.is_final else self.fields


ACTIONS: Mapping[str, Action] = {
    "start": Action(
        "Start now",
        "The run starts with the trainers that are ready, without waiting for more.",
        frozenset({RunStatus.ENROLLING}),
    ),
    "pause": Action(
        "Pause",
        "No further round opens. The open one goes on and may complete.",
        GOING,
        (REASON,),
    ),
    "resume": Action("Resume", "The run goes on where it was paused.", frozenset({RunStatus.PAUSED})),
    "rewind": Action(
        "Go back",
        "The run goes back to an earlier round's model and on from there. The open attempt is abandoned, "
        "later rounds count no more.",
        GOING | {RunStatus.PAUSED},
        (ROUND, REASON),
        is_final=True,
        even_secure=False,
        options={"round": "N"},
    ),
    "change": Action(
        "Change",
        "What is changed holds from now on; past rounds are not touched.",
        OPEN,
        even_secure=False,
        options={"deadline": "SECONDS"},
    ),
    "stop": Action(
        "Stop",
        "The run ends for good. The open round is abandoned, the newest model stays, all clients are told.",
        OPEN,
        (REASON,),
        is_final=True,
    ),
    "archive": Action(
        "Archive",
        "The run is no longer listed, and not pruned. Nothing of it is lost.",
        ENDED,
        of_archived=False,
    ),
    "unarchive": Action(
        "List again",
        "The run is listed as before.",
        ENDED,
        of_archived=True,
        command=("archive", "--undo"),
    ),
    "delete": Action(
        "Delete",
        "The run goes for good, with its models, updates and log. Kept is a record: its configuration, its "
        "clients with their mean weights, the digests of its models.",
        ENDED,
        (FormField(name="reason", label="Reason, for the record"),),
        is_final=True,
        role=UserRole.ADMIN,
    ),
}
"""By the word of the command and of the address."""


def run_command(action: str, run: str, **options: str) -> str:
    """``feddisco run stop demo --reason 'too slow'``, to be pasted into a shell."""
    words = ["feddisco", "run", action, run]
    for name, value in options.items():
        words += [f"--{name}", value]
    return shlex.join(words)


def show_command(action: str, run: str, *, reason: bool = False) -> str:
    """The command that does the same, words in place of values; ``reason``: with one, if it takes one."""
    chosen = ACTIONS[action]
    words, *flags = chosen.command or (action,)
    options = dict(chosen.options)
    if reason and any(one.name == REASON.name for one in chosen.fields):
        options["reason"] = "WHY"
    return " ".join([run_command(words, run, **options), *flags])


def refuse_action(action: Action, run: RunView) -> str:
    """Why the action is not possible with the run as it is; empty if it is."""
    if run.status not in action.statuses:
        return f"This is not possible with a run that is {run.status.value}."
    if run.config.secure is not None and not action.even_secure:
        return "The run has secure sums, and its clients hold each other to what they began with."
    if action.of_archived is not None and action.of_archived != (run.archived_at is not None):
        return f"The run is {'not put away' if action.of_archived else 'put away already'}."
    return ""


def list_offers(run: RunView) -> tuple[Offer, ...]:
    """What is possible with a run in its present status, whoever may do it."""
    return tuple(
        Offer(
            label=action.label,
            address=f"/runs/{run.run}/do/{name}",
            command=show_command(name, run.run),
            role=action.role,
        )
        for name, action in ACTIONS.items()
        if not refuse_action(action, run)
    )


_CHANGEABLE = (
    ("rounds", "Rounds in all (not fewer than have begun)"),
    ("quorum", "Quorum: updates without which a round is abandoned (empty: half of a round's clients)"),
    ("round_deadline_seconds", "Seconds for a round (the open one's deadline moves, too)"),
    ("waiting_deadline_seconds", "Seconds that it may wait without going on before it pauses"),
    ("keep_updates", "Newest rounds whose updates are kept (empty: all)"),
    ("tags", "Tags, with commas between them (`pinned` puts the run first in the list)"),
)


def list_change_fields(config: RunConfig) -> tuple[FormField, ...]:
    """The fields of :class:`shared.schemas.RunChanges` with their present values, shown and hidden."""
    shown = {name: _write_value(getattr(config, name)) for name, _ in _CHANGEABLE}
    fields = [FormField(name=name, label=label, value=shown[name]) for name, label in _CHANGEABLE]
    before = [FormField(name=f"was_{name}", label="", kind="hidden", value=shown[name]) for name in shown]
    return (*fields, *before)


def _write_value(value: float | tuple[str, ...] | None) -> str:
    """
    >>> _write_value(600.0), _write_value(0.5), _write_value(None), _write_value(("a", "b"))
    ('600', '0.5', '', 'a, b')
    """
    if isinstance(value, tuple):
        return ", ".join(value)
    return "" if value is None else str(int(value) if float(value).is_integer() else value)


# -------------------------------------------------------------------- what to do next

EXAMPLE_FILE = """\
name: first-run
task: digits
rounds: 20
weighting: {kind: disco, a: 0.5, b: 0.1}
min_clients: 3"""


def list_first_steps(address: str) -> tuple[NextStep, ...]:
    """On a coordinator without a run. ``address``: how sites reach it."""
    return (
        NextStep(
            sentence="Describe a run in a small file, run.yaml:",
            lines=EXAMPLE_FILE.splitlines(),
        ),
        NextStep(
            sentence="Create it, as its operator:",
            lines=(f"export FEDDISCO_URL={address}", "feddisco run create run.yaml"),
        ),
        NextStep(
            sentence="Invite three sites, each with a join code of its own:",
            lines=("feddisco clients invite", "feddisco clients invite", "feddisco clients invite"),
        ),
        _join("At each site, next to its data:", "digits"),
    )


def list_next_steps(run: RunView, address: str) -> tuple[NextStep, ...]:
    """What somebody has to do for the run to go on, or with its model; nothing while it works by itself."""
    match run.status:
        case RunStatus.ENROLLING:
            return _steps_to_start(run)
        case RunStatus.WAITING:
            return _steps_to_go_on(run, address)
        case RunStatus.PAUSED:
            return (NextStep(sentence="Go on where it was paused:", lines=(run_command("resume", run.run),)),)
        case RunStatus.COMPLETED | RunStatus.STOPPED:
            return _steps_with_the_model(run)
    return ()


def _steps_to_start(run: RunView) -> tuple[NextStep, ...]:
    ready = _count_ready(run)
    missing = max(run.config.min_clients, run.config.updates_needed) - ready
    late = _named(run, Role.TRAINER, EnrolmentStatus.AWAITING_DISCREPANCY)
    unapproved = tuple(e.client for e in run.enrolments if e.status is EnrolmentStatus.AWAITING_APPROVAL)
    steps = []
    if unapproved:
        command = shlex.join(["feddisco", "run", "approve", run.run, *unapproved])
        steps.append(NextStep(sentence="Let in who waits for approval:", lines=(command,)))
    if late:
        sentence = (
            f"Look at the log of the worker at {', '.join(late)}: it has enrolled, but sent no discrepancy."
        )
        steps.append(NextStep(sentence=sentence))
    if missing > len(late) + len(unapproved):
        steps.append(
            NextStep(
                sentence="Invite a site; "
                + ("1 more trainer is needed:" if missing == 1 else f"{missing} more trainers are needed:"),
                lines=("feddisco clients invite",),
            )
        )
        steps.append(_join("There, next to its data:", run.task))
    if run.config.needs_scores and not _named(run, Role.EVALUATOR, EnrolmentStatus.READY):
        lines = (*_join("", run.task).lines[:-1], f"{_join('', run.task).lines[-1]} --role evaluator")
        steps.append(NextStep(sentence="The run goes by scores. At a site with test data:", lines=lines))
    if ready >= max(run.config.updates_needed, run.config.clients_per_round or 1):
        sentence = "Start it:" if missing <= 0 else f"Or start it with the {_name_ready(ready)}:"
        steps.append(NextStep(sentence=sentence, lines=(run_command("start", run.run),)))
    return tuple(steps)


def _steps_to_go_on(run: RunView, address: str) -> tuple[NextStep, ...]:
    match run.obstacle:
        case "scores":
            late = run.late_evaluators
            whose = "its" if len(late) == 1 else "their"
            refusals = (shlex.join(["feddisco", "run", "refuse", run.run, client]) for client in late)
            return (
                _start_again(run, late, address),
                NextStep(sentence=f"Or go on without {whose} scores:", lines=tuple(refusals)),
            )
        case "quorum":
            return (NextStep(sentence="Nothing, or see the last error of who has failed, under Clients."),)
        case "aggregation":
            return (
                NextStep(sentence="See what is wrong with the stored files:", lines=("feddisco verify",)),
            )
    return _steps_to_find_trainers(run, address)


def _steps_to_find_trainers(run: RunView, address: str) -> tuple[NextStep, ...]:
    away, ready = _named(run, Role.TRAINER, EnrolmentStatus.AWAY), _count_ready(run)
    steps = [_start_again(run, away, address)] if away else []
    if run.config.join == "late":
        sentence = "Invite another site:" if away else "Invite a site:"
        steps.append(NextStep(sentence=sentence, lines=("feddisco clients invite",)))
        steps.append(_join("There, next to its data:", run.task))
    if ready and run.config.secure is None and _may_have_quorum(run.config, ready):
        command = shlex.join(["feddisco", "run", "change", run.run, "--quorum", str(ready)])
        steps.append(NextStep(sentence=f"Or go on with the {_name_ready(ready)}:", lines=(command,)))
    return tuple(steps)


def _may_have_quorum(config: RunConfig, quorum: int) -> bool:
    """Whether a run may go on with so few updates: a robust rule may need more."""
    try:
        config.change({"quorum": quorum})
    except InvalidConfiguration:
        return False
    return True


def _steps_with_the_model(run: RunView) -> tuple[NextStep, ...]:
    if run.completed_rounds == 0:
        return ()
    file = f"{run.run}.safetensors"
    return (
        NextStep(
            sentence="Take the model home, and ask it:",
            lines=(f"feddisco run model {run.run} {file}", f"feddisco predict {file} FILE"),
        ),
    )


def _start_again(run: RunView, clients: tuple[str, ...], address: str) -> NextStep:
    """On the worker's old state folder, which holds its token."""
    command = f"feddisco worker --url {shlex.quote(address)} --task {shlex.quote(run.task)} --data FOLDER"
    return NextStep(sentence=f"Start the worker again at {', '.join(clients)}:", lines=(command,))


def _join(sentence: str, task: str) -> NextStep:
    command = f"feddisco worker --task {shlex.quote(task)} --data FOLDER"
    return NextStep(sentence=sentence, lines=("export FEDDISCO_JOIN=CODE", command))


def _named(run: RunView, role: Role, status: EnrolmentStatus) -> tuple[str, ...]:
    return tuple(e.client for e in run.enrolments if e.role is role and e.status is status)


def _count_ready(run: RunView) -> int:
    return len(_named(run, Role.TRAINER, EnrolmentStatus.READY))


def _name_ready(trainers: int) -> str:
    return f"{format_count(trainers, 'trainer')} that {'is' if trainers == 1 else 'are'} ready"

"""What may be done with a run and its clients, and in which words. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from server.pages.contexts import FormField, NextStep, Offer
from shared.schemas import EnrolmentStatus, Role, RunStatus, RunView

__all__ = [
    "ACTIONS",
    "REASON",
    "ROUND",
    "Action",
    "list_first_steps",
    "list_next_steps",
    "list_offers",
    "run_command",
]

OPEN = frozenset(status for status in RunStatus if not status.is_terminal)
GOING = frozenset(status for status in RunStatus if status.is_going)
REASON = FormField(name="reason", label="Reason, for the run's page")

ROUND = FormField(name="round", label="Round to go back to (0: the initial model)", kind="number")


@dataclass(frozen=True, slots=True)
class Action:
    """``statuses``: of the runs with which it is possible; ``is_final``: a box has to be ticked first."""

    label: str
    explanation: str
    statuses: frozenset[RunStatus]
    fields: tuple[FormField, ...] = ()
    is_final: bool = False

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
    ),
    "stop": Action(
        "Stop",
        "The run ends for good. The open round is abandoned, the newest model stays, all clients are told.",
        OPEN,
        (REASON,),
        is_final=True,
    ),
}
"""By the word of the command and of the address."""


def run_command(action: str, run: str, **options: str) -> str:
    """``feddisco run stop demo --reason 'too slow'``, to be pasted into a shell."""
    words = ["feddisco", "run", action, run]
    for name, value in options.items():
        words += [f"--{name}", value]
    return shlex.join(words)


def list_offers(run: RunView) -> tuple[Offer, ...]:
    """What is possible with a run in its present status."""
    return tuple(
        Offer(
            label=action.label,
            address=f"/runs/{run.run}/do/{name}",
            command=run_command(name, run.run, **({"round": "N"} if ROUND in action.fields else {})),
        )
        for name, action in ACTIONS.items()
        if run.status in action.statuses
    )


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
        sentence = "Start it:" if missing <= 0 else f"Or start it with the {_trainers(ready)} that are ready:"
        steps.append(NextStep(sentence=sentence, lines=(run_command("start", run.run),)))
    return tuple(steps)


def _steps_to_go_on(run: RunView, address: str) -> tuple[NextStep, ...]:
    match run.obstacle:
        case "scores":
            silent = _named(run, Role.EVALUATOR, EnrolmentStatus.READY)
            refusal = shlex.join(["feddisco", "run", "refuse", run.run, *silent[:1]])
            return (
                _start_again(run, silent, address),
                NextStep(sentence="Or go on without its scores:", lines=(refusal,)),
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
    if ready and run.config.secure is None:
        command = shlex.join(["feddisco", "run", "change", run.run, "--quorum", str(ready)])
        sentence = f"Or go on with the {_trainers(ready)} that {'is' if ready == 1 else 'are'} ready:"
        steps.append(NextStep(sentence=sentence, lines=(command,)))
    return tuple(steps)


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


def _trainers(number: int) -> str:
    return f"{number} trainer" if number == 1 else f"{number} trainers"

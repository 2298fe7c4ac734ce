"""What a run's assistant is sent and did, in sentences for the pages."""

from __future__ import annotations

from server.pages.words import figure
from shared.config import RunConfig
from shared.schemas import AssistanceView, RoundView
from shared.texts import format_count

__all__ = ["assistance_sentence", "assistant_notice"]

_DOES = {
    "distil": "distils their average on its own examples (FedDF)",
    "learn": "learns their weights on its own labelled examples",
}


def assistant_notice(config: RunConfig) -> str | None:
    """Who is sent single updates beside the coordinator; None: nobody."""
    if config.assistant is None:
        return None
    does = _DOES["learn" if config.distillation is None else "distil"]
    who = config.assistant.client
    return f"In each round {who}, the run's assistant, is sent every single update and {does}."


def assistance_sentence(config: RunConfig, round: RoundView) -> str | None:
    """What came of a round's step on data; None for a round without one."""
    found = round.assistance
    if found is None or config.assistant is None:
        return None
    who = config.assistant.client
    if found.outcome is None and not round.status.is_open:
        return f"{who}, the run's assistant, was asked, and the round was given up before it was made."
    if found.outcome is None:
        return f"The round waits for {who}, its assistant, until {found.deadline_at:%Y-%m-%d %H:%M:%S} UTC."
    if found.outcome == "missed":
        instead = "the plain average" if found.work == "distil" else "what the weighting begins with"
        return f"The round went on without {who}, its assistant, by {instead}: {found.reason}."
    return f"{who}, the run's assistant, {_describe(found)}{_name_left_out(found, round)}."


def _name_left_out(found: AssistanceView, round: RoundView) -> str:
    """Whose models had no say, as far as the ledger knows the indexes."""
    names = [row.client for row in round.ledger if row.index in found.left_out]
    if not names or not found.steps:
        return ""
    return f"; without {', '.join(names)}, whose models say nothing that is a finite number"


def _describe(found: AssistanceView) -> str:
    if found.work == "learn":
        return "learned the weights below on its own examples"
    if not found.steps:
        return "left the average as it was: no client's model says anything that is a finite number"
    text = f"distilled the average in {format_count(found.steps, 'step')}"
    if found.before is None or found.after is None:
        return text
    if not found.chosen:
        return (
            f"{text}; none of them brought it nearer to the clients' models together, so it stays as it was, "
            f"at a divergence of {figure(found.before)}"
        )
    return (
        f"{text}; the divergence from the clients' models together fell from {figure(found.before)} to "
        f"{figure(found.after)}, after {found.chosen} of them"
    )

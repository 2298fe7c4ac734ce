"""Runs that cannot go on: how they come to wait, and what ends it.

After every event :func:`note_obstacle` compares what keeps the run from going on with what did before. So no
other step has to know of it, and no event can leave a run that stands still and calls itself running.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Final

from server.lifecycle.draft import Draft
from server.lifecycle.state import Policy, Wait
from server.lifecycle.views import Obstacle, find_obstacle, long_wait, name_obstacle
from shared.schemas import RunStatus

__all__ = ["GRACE", "change_limits", "end_if_over", "move_end", "note_obstacle"]

GRACE: Final = dt.timedelta(minutes=1)
"""The least that clients have to deliver after the coordinator was away; they retry every 30 s at most."""


def note_obstacle(draft: Draft, before: Obstacle | None) -> None:
    """Moves the run between running and waiting. ``before``: what kept it from going on before the event."""
    found = find_obstacle(draft.run)
    if found is None:
        if draft.run.status is RunStatus.WAITING:
            draft.move_run(RunStatus.RUNNING)
        draft.put_wait(None)
        return
    known = draft.run.wait if found == before else None
    if found.kind == "scores" and (known is None or draft.run.status is RunStatus.RUNNING):
        _wait_for_scores(draft, known)
    else:
        _wait(draft, found, known)


def _wait_for_scores(draft: Draft, known: Wait | None) -> None:
    """Scoring a model is work: the run runs, until it has taken as long as a round may."""
    if draft.run.status is RunStatus.WAITING:
        draft.move_run(RunStatus.RUNNING)
    draft.put_wait(known or Wait(draft.now, draft.now + draft.run.policy.deadline))


def _wait(draft: Draft, found: Obstacle, known: Wait | None) -> None:
    wait = known or Wait(draft.now, draft.now + draft.run.policy.waiting_deadline)
    if found.kind == "quorum":
        wait = replace(wait, until=draft.round.deadline_at)
    draft.put_wait(wait)
    reason = name_obstacle(draft.run, found)
    if draft.run.status is RunStatus.WAITING and known is not None:
        draft.explain_wait(reason)
        return
    if draft.run.status is RunStatus.RUNNING:
        draft.move_run(RunStatus.WAITING, reason)
    else:
        draft.explain_wait(reason)
    draft.record("run_waiting", reason=reason, until=wait.until.isoformat())


def end_if_over(draft: Draft) -> None:
    """Time has passed, and no round collects: a run that waits for scores says so, a waiting one pauses."""
    wait, found = draft.run.wait, find_obstacle(draft.run)
    if wait is None or found is None or draft.now < wait.until:
        return
    reason = name_obstacle(draft.run, found)
    if draft.run.status is RunStatus.RUNNING:
        until = draft.now + draft.run.policy.waiting_deadline
        draft.put_wait(replace(wait, until=until))
        draft.move_run(RunStatus.WAITING, reason)
        draft.record("run_waiting", reason=reason, until=until.isoformat())
        return
    why = long_wait(wait.since, reason)
    draft.move_run(RunStatus.PAUSED, why)
    draft.record("run_paused", reason=why)


def move_end(draft: Draft, absence: dt.timedelta) -> None:
    """The coordinator was away, or its clock was set: that time counts for no wait."""
    wait = draft.run.wait
    if wait is None:
        return
    until = max(wait.until + absence, draft.now + min(GRACE, draft.run.policy.waiting_deadline))
    if until != wait.until:
        draft.put_wait(replace(wait, until=until))
        seconds = round(absence.total_seconds(), 3)
        draft.record("deadline_moved", absence_seconds=seconds, deadline_at=until.isoformat())


def change_limits(draft: Draft, before: Policy) -> None:
    """The policy has been changed: a wait ends by so much later, or earlier, but not before now."""
    wait, policy = draft.run.wait, draft.run.policy
    if wait is None:
        return
    is_waiting = draft.run.status is RunStatus.WAITING
    longer = (
        policy.waiting_deadline - before.waiting_deadline if is_waiting else policy.deadline - before.deadline
    )
    if longer:
        draft.put_wait(replace(wait, until=max(wait.until + longer, min(wait.until, draft.now))))

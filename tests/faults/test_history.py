"""The checker can fail: a history that was recorded is bent in every way that a rule is against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.history import RULES, Attempt, History, Look, Result, Row, Sent, find_violations
from tests.faults.memory_world import MemoryWorld
from tests.faults.schedules import DEADLINE_SECONDS, Plan, Schedule

Bend = Callable[[History, Result], Result]


def recorded() -> tuple[History, Result]:
    """Two rounds of three clients, the first drawn twice, without a violation."""
    plan = Plan(rounds=2)
    without = Schedule(MemoryWorld(plan), plan, 0).play(0)
    world = MemoryWorld(plan)
    schedule = Schedule(world, plan, 0)
    for _ in range(2):
        for site in schedule._sites:
            schedule._ask(site)
    for site in schedule._sites:
        schedule._ask(site)
        schedule.give_up()
    world.pass_time(DEADLINE_SECONDS + 1)
    history = schedule.play(0)
    history.undisturbed = without.result
    assert history.result is not None
    assert [a.status for a in history.result.attempts] == ["abandoned", "completed", "completed"]
    assert find_violations(history) == []
    return history, history.result


def change(result: Result, place: int, **more: object) -> Result:
    """With another attempt in this place."""
    attempts = list(result.attempts)
    attempts[place] = replace(attempts[place], **more)  # type: ignore[arg-type]
    return replace(result, attempts=tuple(attempts))


def change_row(result: Result, place: int, **more: object) -> Result:
    """With another first row in the attempt in this place."""
    first, *others = result.attempts[place].rows
    return change(result, place, rows=(replace(first, **more), *others))  # type: ignore[arg-type]


def forget_an_update(history: History, result: Result) -> Result:
    return change_row(result, 1, digest=None, status="timed_out", weight=None)


def count_another_update(history: History, result: Result) -> Result:
    return change_row(result, 1, digest="0" * 64)


def leave_out_without_a_word(history: History, result: Result) -> Result:
    return change_row(result, 1, status="rejected", weight=None)


def leave_in_no_model(history: History, result: Result) -> Result:
    return change_row(result, 1, status="uploaded")


def lose_an_attempt(history: History, result: Result) -> Result:
    return replace(result, attempts=result.attempts[:1] + result.attempts[2:])


def give_up_without_a_reason(history: History, result: Result) -> Result:
    history.sent.append(Sent("a", 1, 1, "f" * 64, "acknowledged"))
    return change(change_row(result, 0, status="uploaded", digest="f" * 64), 0, reason=None)


def count_what_was_refused(history: History, result: Result) -> Result:
    history.sent[:] = [replace(sent, answer="refused") for sent in history.sent]
    return result


def count_twice(history: History, result: Result) -> Result:
    again = replace(result.attempts[1], attempt=9)
    history.sent += [replace(sent, attempt=9) for sent in history.sent]
    return replace(result, attempts=(*result.attempts, again))


def accept_twice(history: History, result: Result) -> Result:
    return replace(result, receipts=(*result.receipts, result.receipts[0]))


def weigh_too_much(history: History, result: Result) -> Result:
    return change_row(result, 1, weight=0.9)


def weigh_what_does_not_count(history: History, result: Result) -> Result:
    row = Row("x", 9, "timed_out", weight=0.2)
    return change(result, 1, rows=(*result.attempts[1].rows, row))


def count_in_an_abandoned_round(history: History, result: Result) -> Result:
    history.sent.append(Sent("a", 1, 1, "f" * 64, "lost"))
    return change_row(result, 0, status="aggregated", digest="f" * 64, weight=1.0)


def give_an_index_twice(history: History, result: Result) -> Result:
    return change_row(result, 1, index=result.attempts[1].rows[1].index)


def leave_a_round_out(history: History, result: Result) -> Result:
    return replace(result, completed_rounds=1)


def leave_a_round_open(history: History, result: Result) -> Result:
    open_one = Attempt(3, 1, "collecting", ())
    return replace(result, attempts=(*result.attempts, open_one))


def sum_wrongly(history: History, result: Result) -> Result:
    history.sent[:] = [replace(sent, value=1.0) for sent in history.sent]
    return change(result, 1, value=1.25)


def show_what_is_anothers(history: History, result: Result) -> Result:
    history.looks.append(Look("a", "an update of b", may=False, did=True))
    return result


def hurry_somebody(history: History, result: Result) -> Result:
    history.presence[1, 1] = DEADLINE_SECONDS / 2
    return change_row(result, 0, status="timed_out")


def never_end(history: History, result: Result) -> Result:
    return replace(result, status="running")


def end_too_early(history: History, result: Result) -> Result:
    return replace(change(result, 2, status="abandoned"), completed_rounds=1)


def make_another_model(history: History, result: Result) -> Result:
    history.undisturbed = result
    return change(result, 2, model="0" * 64)


BENT: list[tuple[Bend, str]] = [
    (forget_an_update, "acknowledged is counted"),
    (count_another_update, "acknowledged is counted"),
    (leave_out_without_a_word, "acknowledged is counted"),
    (leave_in_no_model, "acknowledged is counted"),
    (lose_an_attempt, "acknowledged is counted"),
    (give_up_without_a_reason, "acknowledged is counted"),
    (count_another_update, "nothing is invented"),
    (count_what_was_refused, "nothing is invented"),
    (count_twice, "no update counts twice"),
    (accept_twice, "no update counts twice"),
    (weigh_too_much, "ledgers add up"),
    (weigh_what_does_not_count, "ledgers add up"),
    (count_in_an_abandoned_round, "ledgers add up"),
    (give_an_index_twice, "ledgers add up"),
    (leave_a_round_out, "rounds follow each other"),
    (leave_a_round_open, "rounds follow each other"),
    (count_twice, "rounds follow each other"),
    (sum_wrongly, "models are the means"),
    (show_what_is_anothers, "rights hold"),
    (hurry_somebody, "nobody is hurried"),
    (never_end, "a run ends"),
    (end_too_early, "a run ends"),
    (make_another_model, "models are those without faults"),
]


@pytest.mark.parametrize(("bend", "rule"), BENT, ids=lambda value: getattr(value, "__name__", value))
def test_a_bent_history_is_rejected(bend: Bend, rule: str) -> None:
    history, result = recorded()
    history.result = bend(history, result)
    assert rule in {violation.rule for violation in find_violations(history)}


def test_every_rule_has_a_history_that_it_rejects() -> None:
    assert {rule for _, rule in BENT} == RULES.keys()

"""What a client does for a run, by its role and the run's configuration, and what it is asked in vain."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shared.config import RunConfig
from shared.faults import FaultCode
from shared.schemas import Assist, Evaluate, Role, SecureStep, SubmitDiscrepancy, Train
from worker.faults import LocalFault
from worker.own_part import RunWork, check_own_part

LATER = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
MODEL = "0" * 64
ROUNDS = 3


def train(round: int = 1) -> Train:
    return Train(
        run="skin", round=round, attempt=1, index=0, model=MODEL, relative_size=1.0, deadline_at=LATER
    )


ASK = SubmitDiscrepancy(run="skin", metric="kl", target="uniform")
STEP = SecureStep(run="skin", round=0, attempt=1, index=0, step="advertise", model=MODEL, deadline_at=LATER)
ASSIST = Assist(run="skin", round=1, attempt=1, work="distil", start=MODEL, updates=(), deadline_at=LATER)
SCORE = Evaluate(run="skin", round=0, model=MODEL)


def make_config(**fields: Any) -> RunConfig:
    given = {"name": "skin", "task": "digits", "rounds": ROUNDS, "min_clients": 3} | fields
    return RunConfig.model_validate(given)


def check(asked: RunWork, role: Role, client: str = "north", **fields: Any) -> None:
    check_own_part(asked, make_config(**fields), ROUNDS, client, role)


def refusal(asked: RunWork, role: Role, client: str = "north", **fields: Any) -> str:
    with pytest.raises(LocalFault) as caught:
        check(asked, role, client, **fields)
    assert caught.value.told.code is FaultCode.NOT_ITS_PART
    return str(caught.value)


DISCO = {"weighting": {"kind": "disco"}}
TARGET = {"weighting": {"kind": "disco", "target": [0.5, 0.5] + [0.0] * 8}}
ASSISTED = {"weighting": {"kind": "sizes"}, "distillation": {}, "assistant": "judge"}
DRAWN = ASK.model_copy(update={"target": tuple(TARGET["weighting"]["target"])})


@pytest.mark.parametrize(
    ("asked", "role", "client", "fields"),
    [
        (ASK, Role.TRAINER, "north", DISCO),
        (DRAWN, Role.TRAINER, "north", TARGET),
        (STEP, Role.TRAINER, "north", {"secure": {}}),
        (train(1), Role.TRAINER, "north", {}),
        (train(ROUNDS), Role.TRAINER, "north", {"secure": {}}),
        (SCORE, Role.EVALUATOR, "judge", {"secure": {}}),
        (ASSIST, Role.EVALUATOR, "judge", ASSISTED),
    ],
)
def test_a_clients_part_is_done(asked: RunWork, role: Role, client: str, fields: dict[str, Any]) -> None:
    check(asked, role, client, **fields)


@pytest.mark.parametrize("asked", [ASK, STEP, train(), ASSIST, SCORE], ids=lambda work: work.kind)
def test_each_kind_is_for_one_role(asked: RunWork) -> None:
    fields = {**DISCO} if asked is not ASSIST else ASSISTED
    other = Role.TRAINER if asked in (ASSIST, SCORE) else Role.EVALUATOR
    assert f"the coordinator asks this {other.value} to " in refusal(asked, other, "judge", **fields)


@pytest.mark.parametrize(
    ("asked", "fields", "sentence"),
    [
        (ASK, {**DISCO, "secure": {}}, "the discrepancy in clear, and the run has secure sums"),
        (ASK, {"weighting": {"kind": "sizes"}}, "another discrepancy than the run's configuration"),
        (ASK, TARGET, "another discrepancy than the run's configuration"),
        (DRAWN, DISCO, "another discrepancy than the run's configuration"),
        (ASK.model_copy(update={"metric": "l1"}), DISCO, "another discrepancy than the run's"),
        (train(0), {}, "an update in round 0, and the run has rounds 1 to 3"),
        (train(ROUNDS + 1), {}, "an update in round 4, and the run has rounds 1 to 3"),
    ],
)
def test_a_trainer_does_no_more_than_the_run_has(
    asked: RunWork, fields: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(asked, Role.TRAINER, **fields)


def test_a_run_that_is_made_longer_goes_on() -> None:
    check_own_part(train(ROUNDS + 1), make_config(), ROUNDS + 1, "north", Role.TRAINER)


def test_an_evaluator_assists_where_the_run_names_it() -> None:
    other = refusal(ASSIST, Role.EVALUATOR, "north", **ASSISTED)
    assert other.endswith("the assistant that the run names is judge")
    assert refusal(ASSIST, Role.EVALUATOR, "judge").endswith("the assistant that the run names is none")

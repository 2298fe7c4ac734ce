"""What a run's page says has to be done next: never a guess, and ready to be pasted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from server.database.store import Store
from server.lifecycle.events import ClientLeft, EnrolmentRefused, PauseRequested, StopRequested
from server.pages.words import SHORT_REASON, fold
from shared.schemas import Metrics, Role
from tests.browser import seed
from tests.helpers.page_reading import client_on, read

ADDRESS = "http://127.0.0.1"
INVITATION = "feddisco clients invite"
JOIN = "export FEDDISCO_JOIN=CODE\nfeddisco worker --task digits --data FOLDER"
START_AGAIN = f"feddisco worker --url {ADDRESS} --task digits --data FOLDER"


@pytest.fixture
def here(tmp_path: Path, migrated_sqlite: Path) -> Iterator[tuple[TestClient, Store]]:
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    yield client, store
    store.engine.dispose()


def steps(client: TestClient, path: str) -> list[tuple[str, str]]:
    """Sentence and lines of each step on the page."""
    items = [item for item in read(client, path).all("li") if item.parent and item.parent.name == "ol"]
    todo = [item.text for item in items if item.parent and item.parent.attributes.get("class") == "todo"]
    return [(sentence, lines) for sentence, _, lines in (text.partition(":") for text in todo)]


def test_on_an_empty_coordinator(here: tuple[TestClient, Store]) -> None:
    lines = [lines for _, lines in steps(here[0], "/")]
    assert lines[0].startswith("name: first-run\ntask: digits\n")
    assert lines[1] == f"export FEDDISCO_URL={ADDRESS}\nfeddisco run create run.yaml"
    assert lines[2].split("\n") == [INVITATION] * 3
    assert lines[3] == JOIN


def test_while_nobody_has_enrolled_and_while_too_few_have(here: tuple[TestClient, Store]) -> None:
    client, store = here
    course = seed.Course(store, seed.config("demo", task="digits")).create()
    assert steps(client, "/runs/demo") == [
        ("Invite a site; 6 more trainers are needed", INVITATION),
        ("There, next to its data", JOIN),
    ]
    course.enrol(only=4)
    assert steps(client, "/runs/demo") == [
        ("Invite a site; 2 more trainers are needed", INVITATION),
        ("There, next to its data", JOIN),
        ("Or start it with the 4 trainers that are ready", "feddisco run start demo"),
    ]


def test_a_running_run_needs_nobody(here: tuple[TestClient, Store]) -> None:
    seed.running_run(here[1], "demo", rounds_done=0)
    assert steps(here[0], "/runs/demo") == []


def test_a_run_that_waits_for_trainers_names_them(here: tuple[TestClient, Store]) -> None:
    client, store = here
    course = seed.Course(store, seed.config("demo", join="before_start")).create().enrol()
    course.take(0, 1)
    course.deadline()
    course.come_back(0, 1)
    away = ", ".join(site.name for site in seed.SITES[2:])
    assert steps(client, "/runs/demo") == [
        (f"Start the worker again at {away}", START_AGAIN),
        ("Or go on with the 2 trainers that are ready", "feddisco run change demo --quorum 2"),
    ]
    assert client.get("/api/v1/runs/demo").json()["obstacle"] == "trainers"
    text = read(client, "/runs/demo").all("main")[0].text
    assert "2 trainers are ready, 4 needed; away: gothenburg" not in text, "gothenburg is back"
    assert "2 trainers are ready, 4 needed; away: karolinska" in text


def test_a_run_that_misses_its_quorum_needs_nobody_either(here: tuple[TestClient, Store]) -> None:
    client, store = here
    course = seed.Course(store, seed.config("demo")).create().enrol()
    for index in range(3):
        course.fail(index, "the loss is NaN at step 3 of 16")
    ((sentence, _),) = steps(client, "/runs/demo")
    assert sentence.startswith("Nothing, or see the last error")


def test_a_paused_run_is_resumed_and_an_ended_one_has_a_model(here: tuple[TestClient, Store]) -> None:
    client, store = here
    course = seed.running_run(store, "demo", rounds_done=1)
    course.apply(PauseRequested("lunch"), "admin")
    assert steps(client, "/runs/demo") == [("Go on where it was paused", "feddisco run resume demo")]
    course.apply(StopRequested("enough"), "admin")
    assert steps(client, "/runs/demo") == [
        (
            "Take the model home, and ask it",
            "feddisco run model demo demo.safetensors\nfeddisco predict demo.safetensors FILE",
        )
    ]
    never = seed.Course(store, seed.config("never")).create()
    never.apply(StopRequested("a mistake"), "admin")
    assert steps(client, "/runs/never") == [], "it has no model but the initial one"


def test_a_run_by_scores_asks_for_its_evaluator(here: tuple[TestClient, Store]) -> None:
    client, store = here
    course = seed.Course(store, seed.config("demo", keep="best")).create().enrol()
    course.apply(ClientLeft(seed.EVALUATOR, "moved"), seed.EVALUATOR)
    assert steps(client, "/runs/demo") == [], "it has started, and goes on without scores"
    seed.Course(store, seed.config("next", keep="best")).create().enrol(evaluator=False)
    found = dict(steps(client, "/runs/next"))
    assert found["The run goes by scores. At a site with test data"] == f"{JOIN} --role evaluator"


def test_a_run_that_waits_for_scores_names_those_whose_are_missing(here: tuple[TestClient, Store]) -> None:
    """alpha has scored the round, zeta and the test set have not."""
    client, store = here
    stop_when = {"metric": "accuracy", "patience": 2}
    course = seed.Course(
        store, seed.config("demo", stop_when=stop_when, waiting_deadline_seconds=86400)
    ).create()
    for name in ("alpha", "zeta"):
        course.enrol_one(name, Role.EVALUATOR, 360, "cpu")
    course.enrol().play()
    score(course, "alpha")
    course.deadline()
    assert store.run_view("demo", course.now).obstacle == "scores"
    assert steps(client, "/runs/demo") == [
        (f"Start the worker again at {seed.EVALUATOR}, zeta", START_AGAIN),
        (
            "Or go on without their scores",
            f"feddisco run refuse demo {seed.EVALUATOR}\nfeddisco run refuse demo zeta",
        ),
    ]
    score(course, seed.EVALUATOR)
    assert steps(client, "/runs/demo") == [
        ("Start the worker again at zeta", START_AGAIN),
        ("Or go on without its scores", "feddisco run refuse demo zeta"),
    ]
    answer = client.get("/api/v1/runs/demo", headers={"Authorization": f"Bearer {seed.token_of('alpha')}"})
    assert answer.json()["late_evaluators"] == [], "a client reads nothing of others"
    course.apply(EnrolmentRefused("zeta", "silent"), "admin")
    assert store.run_view("demo", course.now).late_evaluators == ()
    assert steps(client, "/runs/demo") == [], "the page told what helps"


def score(course: seed.Course, evaluator: str) -> None:
    metrics = Metrics(loss=0.5, accuracy=0.5, examples=360)
    course.store.add_evaluation(
        course.name, course.completed, evaluator, metrics, evaluator, course.pass_time(0.5)
    )


def test_no_quorum_is_offered_that_the_configuration_refuses(here: tuple[TestClient, Store]) -> None:
    """Krum needs five updates where one of them may be wrong."""
    client, store = here
    krum = {"aggregation": {"kind": "krum", "byzantine": 1}, "weighting": {"kind": "sizes"}, "quorum": 5}
    course = seed.Course(store, seed.config("demo", join="before_start", **krum)).create().enrol()
    course.take(0, 1)
    course.deadline()
    course.come_back(0, 1)
    assert store.run_view("demo", course.now).obstacle == "trainers"
    away = ", ".join(site.name for site in seed.SITES[2:])
    assert steps(client, "/runs/demo") == [(f"Start the worker again at {away}", START_AGAIN)]


def test_equal_reasons_are_said_once_and_long_ones_fold(here: tuple[TestClient, Store]) -> None:
    client, store = here
    course = seed.Course(store, seed.config("demo", max_attempts=1)).create().enrol()
    for index in range(6):
        course.fail(index, "the loss is NaN at step 3 of 16")
    said = "0 of 4 needed updates came (all 6 clients failed: the loss is NaN at step 3 of 16)"
    assert said in (store.run_view("demo", course.now).reason or "")
    assert said in read(client, "/").all("main")[0].text
    trace = "the worker's own words " * 20
    course.apply(StopRequested(f"no model\n{trace}"), "admin")
    (folded,) = read(client, "/").classed("rest")
    assert folded.text.startswith("no model")
    first, rest = fold(trace)
    assert len(first) <= SHORT_REASON + 2
    assert f"{first[:-2]} {rest[2:]}" == trace.strip()

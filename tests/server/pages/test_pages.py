"""The status pages through the real application and the real databases, read as HTML."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from jinja2 import meta, nodes
from starlette.testclient import TestClient

from server.database.store import Store
from server.lifecycle.events import ClientDeclined, ClientLeft
from server.pages import contexts, form_contexts
from server.pages.explain import columns, weighting_name
from server.pages.reader import newest_events
from server.pages.routes import environment
from server.pages.words import amount, number, percent
from shared.config import Metric
from shared.problems import catalogue
from shared.weightings import available
from tests.browser import seed
from tests.helpers.page_reading import NOW, Html, client_on, read

RECENT = NOW - dt.timedelta(minutes=5)
TEMPLATES = {
    "runs.html": contexts.RunsPage,
    "run.html": contexts.RunPage,
    "round.html": contexts.RoundPage,
    "compare.html": contexts.ComparePage,
    "problems.html": contexts.ProblemsPage,
    "problem.html": contexts.ProblemPage,
    "reference.html": contexts.ReferencePage,
    "action.html": form_contexts.ActionPage,
    "create.html": form_contexts.CreatePage,
    "clients.html": form_contexts.ClientsPage,
    "invitation.html": form_contexts.InvitationPage,
    "users.html": form_contexts.UsersPage,
    "token.html": form_contexts.TokenPage,
}
PAGES = (
    "/",
    "/compare",
    "/compare?runs=finished,sizes&runs=running&round=1",
    "/problems",
    "/docs",
    "/runs/finished",
    "/runs/finished/rounds/2",
    "/runs/running",
    "/runs/running/rounds/2",
    "/runs/sizes",
    "/runs/sizes/rounds/1",
    "/runs/waiting",
    "/runs/waiting/do/stop",
    "/create",
    "/create?template=finished",
    "/clients",
    "/users",
    "/users/vera/do/renew",
    "/runs/finished/do/delete",
    "/runs/running/do/change",
    "/runs/unknown",
)


@pytest.fixture(scope="module")
def here(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path
) -> Iterator[tuple[TestClient, Store]]:
    """One coordinator with a run in each state, for all tests that only read."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copyfile(migrated_sqlite, folder / "test.sqlite")
    client, store = client_on(f"sqlite:///{folder / 'test.sqlite'}", folder)
    seed.enrolling_run(store, "waiting")
    seed.finished_run(store, "finished", rounds=2)
    seed.finished_run(store, "sizes", rounds=1, weighting={"kind": "sizes"})
    measured = {"name": "fedfm", "parameters": {"start": 1}}
    seed.finished_run(store, "measured", rounds=2, algorithm=measured)
    seed.finished_run(store, "calibrated", rounds=2, calibration={"virtual_features": 50, "epochs": 1})
    running = seed.running_run(store, "running", rounds_done=1, started=RECENT)
    store.record(
        "update_refused",
        run=running.name,
        round=2,
        client="leiden",
        actor="leiden",
        detail={"reason": "<script>alert('from a worker')</script>"},
        now=running.now,
    )
    yield client, store
    store.engine.dispose()


# ---------------------------------------------------------------- every page


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_loads_nothing_from_elsewhere(
    here: tuple[TestClient, Store], path: str
) -> None:
    """Well nested, ids once, no inline style or script (the policy forbids them), no absolute address."""
    answer = here[0].get(path)
    html = Html(answer.text)
    assert answer.status_code == (404 if path.endswith("unknown") else 200)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    ids = [element.attributes["id"] for element in html.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in html.elements:
        assert not [name for name in element.attributes if name == "style" or name.startswith("on")], element
        assert element.name != "style"
        for name in ("src", "href"):
            assert re.match(r"^([/?#]|$)", element.attributes.get(name, "")), element
    for script in html.all("script"):
        assert script.text == ""
        assert re.match(r"/static/(live|create|charts)\.js\?v=", script.attributes["src"])


@pytest.mark.parametrize("path", PAGES)
def test_every_page_can_be_walked_by_ear_and_keyboard(here: tuple[TestClient, Store], path: str) -> None:
    html = read(here[0], path)
    assert html.all("html")[0].attributes["lang"] == "en"
    assert html.all("a")[0].attributes == {"class": "skip", "href": "#main"}
    for landmark in ("header", "nav", "main", "footer"):
        assert html.all(landmark)
    levels = [int(element.name[1]) for element in html.elements if re.fullmatch(r"h[1-6]", element.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), "no level is skipped"
    names = {
        element.attributes["id"]: element.text.strip()
        for element in html.elements
        if "id" in element.attributes
    }
    for element in html.elements:
        for reference in element.attributes.get("aria-labelledby", "").split():
            assert names[reference]
        if element.name == "svg" and element.attributes.get("role") == "img":
            assert element.attributes.get("aria-label") or element.attributes.get("aria-labelledby")
        if element.name == "th" and element.text.strip():
            assert element.attributes["scope"] in ("col", "row", "colgroup")
        if "scroll" in element.attributes.get("class", "").split():
            assert element.attributes["tabindex"] == "0"
            assert element.attributes["role"] == "region"
    assert [e.attributes["role"] for e in html.elements if e.attributes.get("id") == "connection"] == [
        "status"
    ]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_uses_what_its_context_declares_and_nothing_else(template: str) -> None:
    """Both ways: an undeclared name would fail, a declared one that no template uses is dead."""
    made = environment()
    assert made.loader is not None
    macros = {name for file in ("parts.html", "forms.html") for name in dir(made.get_template(file).module)}
    used: set[str] = set()
    for name in (template, "base.html"):
        tree = made.parse(made.loader.get_source(made, name)[0])
        used |= meta.find_undeclared_variables(tree)
        macros |= {macro.name for macro in tree.find_all(nodes.Macro)}
    declared = {field.name for field in dataclasses.fields(TEMPLATES[template])}
    assert used - macros - set(made.globals) == declared


def test_what_a_worker_writes_is_text_and_stays_text(here: tuple[TestClient, Store]) -> None:
    page = here[0].get("/runs/running").text
    assert "alert(&#39;from a worker&#39;)" in page
    assert "<script>alert" not in page


# ---------------------------------------------------------------- numbers are stored rows


def test_every_number_of_the_ledger_is_a_stored_one(here: tuple[TestClient, Store]) -> None:
    """Cell by cell against the rows; the weights sum to one and sizes would have given other ones."""
    client, store = here
    found = store.round_view("finished", 2)
    html = read(client, "/runs/finished/rounds/2")
    table = next(table for table in html.tables if "Score" in table[1])
    assert len(table) == 2 + len(found.ledger)
    for cells, row in zip(table[2:], found.ledger, strict=True):
        assert [cell.strip() for cell in cells[2:13]] == [
            amount(row.examples),
            number(row.size_share),
            number(row.discrepancy),
            number(row.discrepancy_share),
            number(row.score),
            number(row.weight),
            number(row.size_weight),
            number((row.weight or 0) - (row.size_weight or 0), sign=True),
            amount(row.steps),
            number(row.loss),
            f"{row.seconds:.2f}\u202fs",
        ]
        assert cells[0].strip().startswith(row.client)
        assert row.update is not None
        assert cells[-1].strip() == row.update[:12]
    assert sum(row.weight or 0 for row in found.ledger) == pytest.approx(1)


def test_the_words_lead_from_the_data_to_the_weight(here: tuple[TestClient, Store]) -> None:
    """clinic-c: 412 of 1437 examples, d = 0.31 of 5.08; the written sum is the stored score and weight."""
    client, store = here
    row = store.round_view("finished", 2).ledger[0]
    html = read(client, "/runs/finished/rounds/2")
    text = next(e.text for e in html.all("dd") if "divided by" in e.text).replace("\u202f", " ")
    values = [float(found) for found in re.findall(r"\d+\.\d+", text)]
    share, a, d, b, score, total, weight = values
    assert (a, b) == (0.5, 0.1)
    assert (share, d) == pytest.approx((412 / 1437, 0.31 / 5.08), abs=5e-5)
    assert score == pytest.approx(share - a * d + b, abs=1e-4)
    assert weight == pytest.approx(100 * score / total, abs=0.02)
    assert weight == pytest.approx(100 * (row.weight or 0), abs=0.005)


def test_bars_stand_for_their_numbers(here: tuple[TestClient, Store]) -> None:
    client, store = here
    ledger = store.round_view("finished", 2).ledger
    longest = max(max(row.weight or 0, row.size_weight or 0) for row in ledger)
    html = read(client, "/runs/finished/rounds/2")
    pairs = [
        e
        for e in html.elements
        if e.name == "rect" and e.inside("tbody") and e.attributes["width"][-1] == "%"
    ]
    drawn = [float(e.attributes["width"][:-1]) for e in pairs]
    wanted = [100 * (value or 0) / longest for row in ledger for value in (row.weight, row.size_weight)]
    assert drawn == pytest.approx(wanted, abs=1e-3)


def test_plain_sizes_leave_out_what_does_not_apply(here: tuple[TestClient, Store]) -> None:
    html = read(here[0], "/runs/sizes/rounds/1")
    header = next(table for table in html.tables if "Digest" in table[1])[1]
    assert not {"raw d", "Score"} & set(header)
    assert "no client submits a discrepancy" in html.all("main")[0].text
    assert "412 of 1\u202f437 examples give 28.67\u202f%." in html.all("main")[0].text
    clients = next(table for table in read(here[0], "/runs/sizes").tables if "Last error" in table[0])
    assert "Discrepancy d" not in clients[0]


def test_every_kind_of_weighting_and_every_metric_has_its_pages(
    tmp_path: Path, migrated_sqlite: Path
) -> None:
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    weightings: list[dict[str, Any]] = [{"kind": kind} for kind in available()]
    weightings += [{"kind": "disco", "metric": metric} for metric in get_args(Metric)]
    for index, weighting in enumerate(weightings):
        settings = seed.config(f"run-{index}", rounds=1, min_clients=2, quorum=1, weighting=weighting)
        seed.Course(store, settings, sites=seed.SITES[:2]).create().enrol(evaluator=False).play()
        text = read(client, f"/runs/run-{index}/rounds/1").all("main")[0].text
        assert weighting_name(settings.weighting) in text
        assert weighting_name(settings.weighting) in read(client, f"/runs/run-{index}").all("main")[0].text
        assert ("raw d" in text) == (weighting["kind"] in ("disco", "entropy"))
        titles = [column.title for column in columns(settings.weighting)]
        assert all(title.replace("ₖ", "k") in text for title in titles)
        assert ("Then " in text) == (weighting["kind"] in ("qfedavg", "fedlws", "fedlaw"))
    store.engine.dispose()


# ---------------------------------------------------------------- the run's page


def test_a_round_without_training_says_what_it_is_for(here: tuple[TestClient, Store]) -> None:
    client, _ = here
    averaged = "The new model is the mean of the updates"
    trained, measured = (client.get(f"/runs/measured/rounds/{number}").text for number in (1, 2))
    assert ("A measuring round" in trained, averaged in trained) == (False, True)
    assert "A measuring round of FedFM: no client trains, and the model stays as it is" in measured
    assert averaged not in measured


def test_the_page_of_the_calibrating_round_says_what_it_does(here: tuple[TestClient, Store]) -> None:
    client, _ = here
    trained, calibrated = (client.get(f"/runs/calibrated/rounds/{number}").text for number in (1, 2))
    assert "calibrating round" not in trained
    assert "draws virtual features, 50 a class on average" in calibrated
    assert "trains the classifier on them for 1 epoch." in calibrated
    assert "The new model is the mean of the updates" not in calibrated
    assert "the last round calibrates the classifier (CCVR)" in client.get("/runs/calibrated").text


def test_the_headline_says_what_is_awaited_and_until_when(here: tuple[TestClient, Store]) -> None:
    client, store = here
    lead = read(client, "/runs/running").classed("lead")[0]
    assert "Round 2: waiting for gothenburg, karolinska, leiden until" in lead.text
    deadline = store.round_view("running", 2).deadline_at
    times = [
        e
        for e in read(client, "/runs/running").all("time")
        if e.parent and e.parent.attributes.get("class") == "deadline"
    ]
    assert [dt.datetime.fromisoformat(e.attributes["datetime"]) for e in times] == [deadline]
    assert re.fullmatch(r"in \d+\u202fmin \d\d\u202fs", times[0].text)


def test_the_open_round_shows_each_client(here: tuple[TestClient, Store]) -> None:
    html = read(here[0], "/runs/running")
    lines = [
        element.text.split("\n")
        for element in html.all("li")
        if element.inside("section") and "data-key" in element.attributes
    ]
    words = [" ".join(" ".join(line).split()) for line in lines]
    assert words[0].startswith("clinic-c uploaded")
    assert words[1].startswith("gothenburg training epoch 1 of 2, step 8 of 12, loss")
    assert words[3] == "leiden invited not started"
    assert words[5] == "vall-dhebron failed CUDA out of memory with batch size 64"
    fills = [e.attributes["width"] for e in html.classed("fill") if e.inside("li")]
    assert fills == ["100.0%", "66.667%", "41.667%", "0.0%", "100.0%", "0.0%"]


def test_the_chart_and_the_table_below_it_hold_the_stored_accuracies(here: tuple[TestClient, Store]) -> None:
    client, store = here
    html = read(client, "/runs/finished")
    stored = {found.round: found.accuracy for found in store.evaluations("finished")}
    assert sorted(stored) == [0, 1, 2]
    table = next(table for table in html.tables if "Training loss" in table[0])
    assert [row[2] for row in table[1:]] == [percent(stored[round], 2) for round in (2, 1, 0)]
    marks = [e.text for e in html.all("title") if e.inside("circle") and "%" in e.text]
    points = [f"{seed.EVALUATOR}, round {round}: {percent(stored[round])}" for round in (0, 1, 2)]
    assert marks == [*points, f"best of {seed.EVALUATOR}: {percent(stored[2])} at round 2"]


def test_categories_show_what_changed(here: tuple[TestClient, Store]) -> None:
    client, store = here
    first, *_, newest = store.evaluations("finished")
    table = next(table for table in read(client, "/runs/finished").tables if "Category" in table[0])
    assert table[0][-1] == "Change since round 0"
    for cells, name in zip(table[1:], seed.LESIONS, strict=True):
        change = newest.per_category[name] - first.per_category[name]
        assert cells == [
            name,
            percent(newest.per_category[name]),
            percent(change, sign=True),
        ]


def test_the_title_shows_progress(here: tuple[TestClient, Store]) -> None:
    accuracy = here[1].runs()[0].accuracy
    assert accuracy is not None
    assert read(here[0], "/runs/finished").all("title")[0].text.startswith("2/2 · ")
    assert read(here[0], "/runs/waiting").all("title")[0].text == "0/20 · waiting · FedDisco"


def test_live_pages_follow_the_log_from_the_newest_event(here: tuple[TestClient, Store]) -> None:
    client, store = here
    main = read(client, "/runs/running").all("main")[0]
    assert (
        main.attributes["data-events"]
        == f"/api/v1/runs/running/events?after={store.latest_event_id('running')}"
    )
    assert read(client, "/").all("main")[0].attributes["data-events"].startswith("/api/v1/events?after=")
    assert "data-events" not in read(client, "/problems").all("main")[0].attributes
    assert "refresh" not in client.get("/problems").text


def test_the_log_ends_with_the_newest_events_however_busy_the_others_are(
    here: tuple[TestClient, Store],
) -> None:
    store = here[1]
    every = store.events(0, "waiting", 10_000)
    assert store.latest_event_id(None) - every[-1].id > 64, "other runs were busier since"
    assert newest_events(store, "waiting", 5) == tuple(reversed(every[-5:]))
    assert newest_events(store, "waiting", 10_000) == tuple(reversed(every))


def test_a_long_run_shows_its_newest_rounds_and_its_whole_course(
    tmp_path: Path, migrated_sqlite: Path
) -> None:
    """22 rounds of two clients: 20 in the list, 22 in the chart, also on a page of the past."""
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    settings = seed.config("long", rounds=22, min_clients=2, quorum=1)
    course = seed.Course(store, settings, sites=seed.SITES[:2]).create().enrol(evaluator=False)
    for _ in range(22):
        course.play()
    for path, newest, oldest in (("", 22, 3), ("", 22, 3), ("?rounds-before=3", 2, 1)):
        tables = read(client, f"/runs/long{path}").tables
        listed = next(table for table in tables if "Weights" in table[0])
        assert [row[0] for row in listed[1:]] == [str(round) for round in range(newest, oldest - 1, -1)]
        course_table = next(table for table in tables if "Training loss" in table[0])
        assert [row[0] for row in course_table[1:]] == [str(round) for round in range(22, 0, -1)]
    store.engine.dispose()


# ---------------------------------------------------------------- attempts, problems, addresses


def test_an_abandoned_attempt_has_its_page_and_its_reason(tmp_path: Path, database_url: str) -> None:
    """On both databases: half of a round arrives, the deadline passes, the second attempt succeeds."""
    client, store = client_on(database_url, tmp_path)
    course = seed.Course(store, seed.config("twice", rounds=1)).create().enrol()
    course.take(0, 1)
    course.deliver(0)
    course.deadline()
    course.draw_again()
    course.come_back(1, 2, 3, 4, 5)
    course.play()
    listed = next(table for table in read(client, "/runs/twice").tables if "Weights" in table[0])
    assert [row[0] for row in listed[1:]] == ["1, attempt 2", "1, attempt 1"]
    assert "abandoned" in listed[2][1]
    newest = read(client, "/runs/twice/rounds/1")
    reason = store.round_view("twice", 1, 1).reason
    assert reason
    assert reason in newest.all("ol")[-1].text
    earlier = read(client, "/runs/twice/rounds/1?attempt=1")
    assert "attempt 1" in earlier.all("h1")[0].text
    assert "This attempt was abandoned before any weight was computed." in earlier.all("main")[0].text
    assert client.get("/runs/twice/rounds/1?attempt=3").status_code == 404
    store.engine.dispose()


def test_who_declined_or_left_is_no_trainer_of_the_run(tmp_path: Path, database_url: str) -> None:
    client, store = client_on(database_url, tmp_path)
    course = seed.Course(store, seed.config("few", rounds=1)).create().enrol()
    all_in = read(client, "/runs/few").all("dl")[0].text
    first, second, *others = seed.SITES
    course.apply(ClientDeclined(first.name, "not allowed"), first.name)
    course.apply(ClientLeft(second.name, "moved"), second.name)
    text = read(client, "/runs/few").all("dl")[0].text
    examples = amount(sum(site.examples for site in others))
    assert f"Trainers{len(others)}{examples} examples" in text
    assert f"Trainers{len(seed.SITES)}" in all_in
    store.engine.dispose()


def test_previous_and_next(here: tuple[TestClient, Store]) -> None:
    def turns(path: str) -> dict[str, str]:
        return {
            e.attributes["rel"]: e.attributes["href"]
            for e in read(here[0], path).all("a")
            if "rel" in e.attributes
        }

    assert turns("/runs/finished/rounds/1") == {"next": "/runs/finished/rounds/2"}
    assert turns("/runs/finished/rounds/2") == {"prev": "/runs/finished/rounds/1"}
    assert turns("/runs/running/rounds/1") == {"next": "/runs/running/rounds/2"}


@pytest.mark.parametrize(
    "path",
    [
        "/runs/unknown",
        "/runs/finished/rounds/99",
        "/runs/finished/rounds/one",
        "/runs/finished/rounds/1?attempt=x",
    ],
)
def test_what_does_not_exist_is_a_page_that_says_so(here: tuple[TestClient, Store], path: str) -> None:
    answer = here[0].get(path)
    html = Html(answer.text)
    assert answer.status_code == 404
    assert html.all("h1")[0].text == "No such thing"
    assert html.classed("lead")[0].text.strip()
    assert "/problems#not-found" in {e.attributes.get("href") for e in html.all("a")}


def test_every_problem_type_leads_to_its_row(here: tuple[TestClient, Store]) -> None:
    html = read(here[0], "/problems")
    rows = {e.attributes["id"]: e.text for e in html.all("tr") if "id" in e.attributes}
    assert rows.keys() == catalogue().keys()
    for code, kind in catalogue().items():
        assert kind("x").as_json()["type"] == f"/problems#{code}"
        assert kind.title in rows[code]
        assert str(kind.status) in rows[code]


def test_the_reference_has_every_call_with_its_parameters(here: tuple[TestClient, Store]) -> None:
    html = read(here[0], "/docs")
    shown = [e.text for e in html.all("code") if e.inside("h3")]
    items = [e.text for e in html.all("li") if e.inside("main")]
    paths = here[0].get("/openapi.json").json()["paths"]
    calls = {
        f"{method.upper()} {path}": call for path, found in paths.items() for method, call in found.items()
    }
    assert sorted(shown) == sorted(calls)
    assert len(items) == sum(len(call.get("parameters", ())) for call in calls.values())
    assert "after (query, optional): only events with a larger id" in items
    text = html.all("main")[0].text
    assert "Token: client." in text
    assert "Body: application/json" in text
    assert "4XX application/problem+json ProblemDocument" in text


def test_the_list_counts_who_is_connected(tmp_path: Path, migrated_sqlite: Path) -> None:
    """Registered: a, b, c; b is revoked; only a has asked for work within two minutes."""
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    for name in "abc":
        store.register(name, name, "0.1.0", RECENT)
        store.mark_seen({name: RECENT if name == "c" else NOW})
    store.revoke("b", "admin", NOW)
    said = "1 of 2 registered clients asked for work in the last two minutes."
    assert said in read(client, "/").all("main")[0].text
    store.engine.dispose()


def test_an_empty_coordinator_says_how_to_begin(tmp_path: Path, migrated_sqlite: Path) -> None:
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    text = read(client, "/").all("main")[0].text
    assert "There is no run yet." in text
    assert "feddisco run create run.yaml" in text
    store.engine.dispose()


def test_static_files_have_the_address_of_their_content(here: tuple[TestClient, Store]) -> None:
    client = here[0]
    links = {e.attributes["rel"]: e.attributes["href"] for e in read(client, "/").all("link")}
    assert client.get(links["stylesheet"]).headers["content-type"].startswith("text/css")
    assert client.get("/favicon.ico").headers["content-type"].startswith("image/svg+xml")
    assert re.fullmatch(r"/static/style\.css\?v=[0-9a-f]{12}", links["stylesheet"])


def test_all_pages_on_both_databases(tmp_path: Path, database_url: str) -> None:
    client, store = client_on(database_url, tmp_path)
    seed.running_run(store, "running", rounds_done=1, started=RECENT)
    headings = {
        path: read(client, path).all("h1")[0].text
        for path in ("/", "/runs/running", "/runs/running/rounds/2")
    }
    assert headings == {"/": "Runs", "/runs/running": "running", "/runs/running/rounds/2": "Round 2 of 20"}
    store.engine.dispose()


def test_an_address_that_is_none_is_a_page_for_browsers_and_a_document_for_programs(
    here: tuple[TestClient, Store],
) -> None:
    page = here[0].get("/nowhere", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert Html(page.text).all("h1")[0].text == "No such thing"
    for path, accept in (("/nowhere", "*/*"), ("/api/v1/nowhere", "text/html")):
        document = here[0].get(path, headers={"Accept": accept})
        assert (document.status_code, document.headers["content-type"]) == (404, "application/problem+json")


def test_style_and_script_are_asked_for_once(here: tuple[TestClient, Store]) -> None:
    addresses = re.findall(r'"(/static/[^"]+)"', here[0].get("/").text)
    assert len(addresses) >= 3
    for address in addresses:
        assert "immutable" in here[0].get(address).headers["cache-control"]
        assert "cache-control" not in here[0].get(address.partition("?")[0]).headers

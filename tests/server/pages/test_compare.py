"""The page that compares runs: series, differences, gains, and what it says to wrong addresses."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from server.database.store import Store
from server.database.tables import evaluations
from server.pages.compare_page import Asked, compare_page
from server.pages.comparison import Series, differing, find_gain, make_series
from shared.problems import NotFound
from shared.schemas import ComparedRun, Metrics, RoundScore, RunStatus
from tests.browser import seed
from tests.helpers.page_reading import NOW, client_on, read


def run(name: str, accuracies: Sequence[float], *, seed: int = 0, **config: Any) -> ComparedRun:
    scores = tuple(RoundScore(number, 100, value, 1 - value) for number, value in enumerate(accuracies))
    settings = {"name": name, "seed": seed, "weighting": {"kind": "disco", "a": 0.5}, **config}
    return ComparedRun(name, RunStatus.COMPLETED, settings, len(accuracies) - 1, scores)


def series(*runs: ComparedRun, measure: Any = "accuracy") -> Series:
    return Series(runs, measure)


# ---------------------------------------------------------------- series


def test_runs_that_differ_in_their_seed_and_tags_alone_are_one_series() -> None:
    runs = [
        run("a", [0, 0.5]),
        run("b", [0, 0.4], weighting={"kind": "sizes"}),
        run("c", [0, 0.7], seed=1, partition={"kind": "iid", "seed": 3}),
        run("d", [0, 0.7], seed=2, partition={"kind": "iid", "seed": 4}, tags=["pinned"]),
    ]
    made = make_series(runs, "accuracy", grouped=True)
    assert [[one.run for one in group.runs] for group in made] == [["a"], ["b"], ["c", "d"]]
    assert made[2].name == "c and 1 more seed"
    assert [len(one.runs) for one in make_series(runs, "accuracy", grouped=False)] == [1, 1, 1, 1]


def test_a_series_is_the_mean_of_its_runs_with_one_deviation_around_it() -> None:
    made = series(run("a", [0.1, 0.5, 0.6]), run("b", [0.1, 0.7], seed=1))
    assert made.mean == pytest.approx({0: 0.1, 1: 0.6, 2: 0.6})
    spread = statistics.stdev([0.5, 0.7])
    assert made.band[1] == pytest.approx((1, 0.6 - spread, 0.6 + spread))
    assert len(made.band) == 2, "round 2 has one value: no deviation"


def test_several_evaluators_count_by_the_runs_rule() -> None:
    scores = (RoundScore(1, 300, 0.4, 1.0), RoundScore(1, 100, 0.8, math.inf), RoundScore(2, 5, None, None))
    for config, score in (
        ({"combine_scores": "weighted"}, 0.5),
        ({"combine_scores": "median"}, 0.6),
        ({}, 0.6),
    ):
        made = series(ComparedRun("a", RunStatus.RUNNING, {"name": "a"} | config, 1, scores))
        assert made.mean == pytest.approx({1: score})


def test_the_best_round_is_the_first_of_the_best_and_never_the_initial_model() -> None:
    assert series(run("a", [0.9, 0.2, 0.5, 0.5])).best == (2, 0.5)
    assert series(run("a", [0.1, 0.2, 0.5, 0.5]), measure="loss").best == (2, 0.5)
    assert series(run("a", [0.9])).best is None
    assert series(run("a", [0.9])).last is None


def test_a_score_that_nobody_knows_has_a_last_value_and_no_best() -> None:
    scores = tuple(RoundScore(at, 9, 0.5, 1.0, {"perplexity": at, "huge": 1e300}) for at in (1, 2))
    one = ComparedRun("a", RunStatus.RUNNING, {"name": "a"}, 2, scores)
    made = series(one, measure="perplexity")
    assert (made.last, made.best, made.reaches(1)) == ((2, 2), None, None)
    assert series(one, one, measure="huge").band == [], "what has no square is no number to compare by"


def test_rounds_to_a_target() -> None:
    assert series(run("a", [0.9, 0.2, 0.5])).reaches(0.5) == 2
    assert series(run("a", [0.9, 0.2, 0.5])).reaches(0.6) is None
    assert series(run("a", [0.0, 0.2, 0.5]), measure="loss").reaches(0.6) == 2


def test_only_what_differs_is_named() -> None:
    runs = [run("a", [0]), run("b", [0], seed=1, weighting={"kind": "sizes"}, local={"epochs": 2})]
    apart = make_series(runs, "accuracy", grouped=False)
    assert differing(apart, grouped=False) == ["seed", "weighting.kind", "weighting.a", "local.epochs"]
    assert differing(make_series(runs, "accuracy", grouped=True), grouped=True) == [
        "weighting.kind",
        "weighting.a",
        "local.epochs",
    ]
    assert apart[1].settings["local.epochs"] == "2"


# ---------------------------------------------------------------- gains


def test_a_gain_is_paired_by_seed() -> None:
    """Seed 1 is easy for both: unpaired means would hide that each pair gains 10 points."""
    ours = series(run("a", [0, 0.4, 0.4]), run("b", [0, 0.9, 0.9], seed=1))
    base = series(run("c", [0, 0.3, 0.3]), run("d", [0, 0.8, 0.8], seed=1), run("e", [0, 0.1, 0.1], seed=2))
    gain = find_gain(ours, base)
    assert gain is not None
    assert gain.value == pytest.approx(0.1)
    assert (gain.pairs, gain.rounds) == (2, 2)
    assert gain.interval is not None
    assert gain.interval.low == pytest.approx(0.1)
    assert gain.verdict("accuracy") == "ahead"
    assert gain.verdict("loss") == "behind"
    assert gain.verdict("perplexity") == "higher", "nobody says which of them is better"


def test_other_seeds_have_no_interval_and_no_verdict() -> None:
    gain = find_gain(series(run("a", [0, 0.4])), series(run("b", [0, 0.3], seed=9)))
    assert gain is not None
    assert gain.value == pytest.approx(0.1)
    assert (gain.interval, gain.pairs, gain.verdict("accuracy")) == (None, 0, "")


def test_nothing_in_common_is_no_gain() -> None:
    assert find_gain(series(run("a", [0.5])), series(run("b", [0.5, 0.6]))) is None


def test_a_difference_that_changes_its_sign_is_level() -> None:
    ours = series(run("a", [0, *(0.5 + 0.1 * (-1) ** at for at in range(40))]))
    gain = find_gain(ours, series(run("b", [0, *[0.5] * 40])))
    assert gain is not None
    assert gain.rounds == 20
    assert gain.verdict("accuracy") == "level"


# ---------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def here(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path
) -> Iterator[tuple[TestClient, Store]]:
    folder = tmp_path_factory.mktemp("compare")
    shutil.copyfile(migrated_sqlite, folder / "test.sqlite")
    client, store = client_on(f"sqlite:///{folder / 'test.sqlite'}", folder)
    seed.finished_run(store, "disco-0", rounds=3)
    seed.finished_run(store, "disco-1", rounds=3, seed=1)
    seed.finished_run(store, "sizes-0", rounds=2, weighting={"kind": "sizes"})
    yield client, store
    store.engine.dispose()


def test_the_page_has_the_stored_numbers(here: tuple[TestClient, Store]) -> None:
    client, store = here
    html = read(client, "/compare?runs=sizes-0,disco-0&round=1")
    head, *rows = html.tables[0]
    settings = head[head.index("Rests on") + 1 :]
    assert settings[:4] == ["rounds", "weighting.kind", "weighting.a", "weighting.b"]
    by_run = {row[0].strip(): dict(zip(head, row, strict=True)) for row in rows}
    for name in ("sizes-0", "disco-0"):
        scores = {view.round: view.accuracy or 0 for view in store.evaluations(name)}
        assert by_run[name]["Last"] == f"{100 * scores[max(scores)]:.2f}\u202f%"
        assert by_run[name]["Round 1"] == f"{100 * scores[1]:.2f}\u202f%"
    assert by_run["sizes-0"]["To the baseline"] == "baseline"
    assert by_run["disco-0"]["Rests on"] == "1 seed, 2 rounds"
    weights = html.tables[-1]
    row = next(row for row in store.round_view("disco-0", 1).ledger if row.client == "leiden")
    assert (
        next(cells for cells in weights if cells[0] == "leiden")[2]
        .strip()
        .startswith(f"{100 * (row.weight or 0):.2f}")
    )


def test_a_pattern_takes_the_oldest_first_and_seeds_are_grouped(here: tuple[TestClient, Store]) -> None:
    html = read(here[0], "/compare?runs=disco-*")
    assert [row[0].split(" and ")[0].strip() for row in html.tables[0][1:]] == ["disco-0"]
    assert len(html.all("polygon")) == 1
    apart = read(here[0], "/compare?runs=disco-*&apart=1")
    assert [(row[0].strip(), row[-1]) for row in apart.tables[0]] == [
        ("Run", "seed"),
        ("disco-0", "0"),
        ("disco-1", "1"),
    ]
    assert not apart.all("polygon")


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("runs=nobody", 404, "There is no run &#39;nobody&#39;."),
        ("runs=disco-0&baseline=sizes-0", 404, "is not among the compared runs"),
        ("runs=disco-0&target=much", 422, "is no number"),
        ("runs=disco-0&target=nan", 422, "is no number"),
        ("runs=disco-0&round=-1", 422, "is not the number of a round"),
        ("runs=disco-0&measure=beauty", 422, "cannot be compared"),
        ("runs=%00", 404, "There is no run"),
        ("runs=disco-0&pin=nobody", 404, "There is no run &#39;nobody&#39;."),
    ],
)
def test_a_wrong_address_is_answered_with_a_sentence(
    here: tuple[TestClient, Store], query: str, status: int, words: str
) -> None:
    answer = here[0].get(f"/compare?{query}")
    assert answer.status_code == status
    assert words in answer.text


@pytest.fixture(scope="module")
def many(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path
) -> Iterator[tuple[TestClient, Store]]:
    """Eight runs apart; ``run-1`` and ``run-2`` have further scores, lower by 10 points in the second."""
    folder = tmp_path_factory.mktemp("many")
    shutil.copyfile(migrated_sqlite, folder / "test.sqlite")
    client, store = client_on(f"sqlite:///{folder / 'test.sqlite'}", folder)
    for number in range(8):
        chosen = {"metrics": ["macro_f1"], "headline": "macro_f1"} if number in (1, 2) else {}
        local = {"learning_rate": 0.01 * (1 + number)}
        course = seed.Course(store, seed.config(f"run-{number}", local=local, **chosen)).create()
        if chosen:
            course.enrol().play()
            for at in (0, 1):
                value = 0.5 + at / 4 - number / 10
                extra = {"macro_f1": value, "calibration_error": value, "perplexity": 40 * value}
                scores = Metrics(loss=value, accuracy=value / 2, examples=360, extra=extra)
                store.add_evaluation(course.name, at, seed.EVALUATOR, scores, seed.EVALUATOR, course.now)
    yield client, store
    store.engine.dispose()


def lines_of(client: TestClient, query: str) -> dict[str, dict[str, str]]:
    """The table's rows by run, in their order."""
    head, *rows = read(client, f"/compare?{query}").tables[0]
    return {row[0].strip(): dict(zip(head, map(str.strip, row), strict=True)) for row in rows}


def test_a_default_is_not_sent_back_as_a_choice(many: tuple[TestClient, Store]) -> None:
    """Else other runs have no such baseline, and another measure another's target."""

    def sent(query: str) -> dict[str, str]:
        """What a browser sends if nothing is changed."""
        html = read(many[0], f"/compare?{query}")
        chosen = [e for e in html.all("option") if "selected" in e.attributes and e.parent is not None]
        fields = {e.parent.attributes["name"]: e.attributes["value"] for e in chosen if e.parent}
        fields |= {e.attributes["name"]: e.attributes.get("value", "") for e in html.all("input")}
        return {name: fields.get(name, "") for name in ("baseline", "measure", "target")}

    assert sent("runs=run-1,run-2") == {"baseline": "", "measure": "", "target": ""}
    asked = {"baseline": "run-2", "measure": "accuracy", "target": "65"}
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    assert sent(f"runs=run-1,run-2&{query}") == asked


def test_every_score_of_a_run_is_a_measure(many: tuple[TestClient, Store]) -> None:
    html = read(many[0], "/compare?runs=run-1,run-2,run-3")
    offered = [e for e in html.all("option") if e.parent and e.parent.attributes.get("name") == "measure"]
    names = ["", "accuracy", "loss", "calibration_error", "macro_f1", "perplexity"]
    assert [option.attributes["value"] for option in offered] == names
    assert offered[4].text == "macro F1 (headline)"


@pytest.mark.parametrize(
    ("measure", "last", "best", "gain", "verdict", "words"),
    [
        ("macro_f1", "0.6500", "0.6500 in round 1", "−0.1000", "behind", "More is better."),
        ("calibration_error", "0.6500", "0.6500 in round 1", "−0.1000", "ahead", "Less is better."),
        ("perplexity", "26.0000", "–", "−4.0000", "lower", "is better is not known"),
    ],
)
def test_best_and_verdict_go_by_the_direction_of_the_score(
    many: tuple[TestClient, Store], measure: str, last: str, best: str, gain: str, verdict: str, words: str
) -> None:
    query = f"runs=run-1,run-2,run-3&measure={measure}&round=1"
    lines = lines_of(many[0], query)
    assert (lines["run-1"]["Last"], lines["run-1"]["Round 1"], lines["run-1"]["Best"]) == (last, last, best)
    assert (lines["run-2"]["To the baseline"], lines["run-2"]["Verdict"]) == (gain, verdict)
    assert [lines["run-3"][head] for head in ("Last", "Best", "Round 1", "To the baseline")] == ["–"] * 4
    html = many[0].get(f"/compare?{query}").text
    assert words in html
    assert html.count("<polyline") == 2


def test_the_headline_comes_first_where_all_runs_have_the_same(many: tuple[TestClient, Store]) -> None:
    assert lines_of(many[0], "runs=run-1,run-2")["run-1"]["Last"] == "0.6500"
    assert lines_of(many[0], "runs=run-1,run-3")["run-1"]["Last"] == "32.50 %"


def test_pinned_runs_come_first_and_are_drawn(many: tuple[TestClient, Store]) -> None:
    """In the order of the address, which also adds them; the baseline stays what it was."""
    client, _ = many
    html = read(client, "/compare?runs=run-0,run-1,run-2,run-3,run-4,run-5,run-6&pin=run-7,run-5")
    head, *rows = html.tables[0]
    names = [row[0].strip() for row in rows]
    assert names == [f"run-{at}" for at in (7, 5, 0, 1, 2, 3, 4, 6)]
    assert [e.attributes.get("class") for e in html.all("tr")][1:4] == ["pinned", "pinned", None]
    assert rows[2][head.index("To the baseline")] == "baseline"
    swatches = [e for e in html.all("svg") if "swatch" in e.attributes.get("class", "")]
    swatched = [e for e in swatches if e.inside("tbody")]
    assert len(swatched) == 6, "the pinned ones are among the six that are drawn"
    last = lines_of(client, "runs=run-*&pin=run-7,run-5,run-4,run-3,run-2&baseline=run-6")
    assert list(last)[:6] == ["run-7", "run-5", "run-4", "run-3", "run-2", "run-6"], "the baseline too"


def test_a_button_pins_and_unpins_by_the_address(many: tuple[TestClient, Store]) -> None:
    def pins(query: str) -> dict[str, str]:
        buttons = [e for e in read(many[0], f"/compare?{query}").all("button") if e.inside("main")]
        assert all(e.attributes.get("form") == "choose" or e.inside("form") for e in buttons)
        return {e.attributes.get("aria-label", e.text): e.attributes.get("value", "") for e in buttons}

    assert pins("runs=run-0,run-1") == {"Compare": "", "Pin run-0": "run-0", "Pin run-1": "run-1"}
    assert pins("runs=run-0,run-1&pin=run-1,run-3") == {
        "Compare": "run-1,run-3",
        "Unpin run-1": "run-3",
        "Unpin run-3": "run-1",
        "Pin run-0": "run-1,run-3,run-0",
    }
    assert "Pin run-0" not in pins("runs=run-0&pin=run-1,run-2,run-3,run-4,run-5"), "as many as can be"
    refused = many[0].get("/compare?pin=run-*")
    assert refused.status_code == 422
    assert "8 pinned runs are more than the 5" in refused.text


def test_a_pin_shows_no_run_that_the_visitor_may_not_read(many: tuple[TestClient, Store]) -> None:
    asked = Asked(runs=["run-0"], pin=["run-1"])
    compare_page(many[1], asked, NOW, frozenset({"run-0", "run-1"}))
    with pytest.raises(NotFound, match="There is no run 'run-1'"):
        compare_page(many[1], asked, NOW, frozenset({"run-0"}))


def test_the_list_offers_to_compare(here: tuple[TestClient, Store]) -> None:
    html = read(here[0], "/")
    ticks = [e for e in html.all("input") if e.attributes["type"] == "checkbox"]
    assert {tick.attributes["value"] for tick in ticks} == {"disco-0", "disco-1", "sizes-0"}
    (form,) = [form for form in html.all("form") if form.attributes["id"] == "compare"]
    assert form.attributes["action"] == "/compare"


def test_five_hundred_runs_cost_five_times_a_hundred(tmp_path: Path, migrated_sqlite: Path) -> None:
    """As many statements, and time that grows with the runs; the seconds are in docs/benchmarks.md.

    A ratio of CPU times, since a test machine may be slow or crowded: 5 is linear, 25 would be square.
    """
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    made = seed.finished_run(store, "first", rounds=1)
    for number in range(500):
        local = {"learning_rate": 0.01 + number % 5 / 100}
        given = seed.config(f"run-{number:03}", seed=number // 5, local=local)
        seed.Course(store, given).create()
    with store.engine.begin() as connection:
        connection.execute(
            sa.insert(evaluations),
            [
                {"run": f"run-{number:03}", "round": at, "client": seed.EVALUATOR, "at": made.now}
                | {"loss": 1.0, "accuracy": at / 60, "examples": 100, "per_category": {}, "extra": {}}
                for number in range(500)
                for at in range(1, 51)
            ],
        )
    statements: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))

    def cost(query: str) -> tuple[float, int]:
        statements.clear()
        begun = time.process_time()
        answer = client.get(f"/compare?runs={query}")
        took = time.process_time() - begun
        assert answer.status_code == 200
        assert "run-000 and " in answer.text
        return took, len(statements)

    cost("run-00*")
    some, some_statements = min(cost("run-0*") for _ in range(3))
    all_of_them, all_statements = min(cost("run-*") for _ in range(2))
    assert all_statements == some_statements
    assert all_of_them < 12 * some, (all_of_them, some)
    store.engine.dispose()
    last = read(client, "/compare?runs=run-00*&apart=1&baseline=run-009").tables[0]
    assert [row[0].strip() for row in last[1:3]] == ["run-009", "run-000"], "the baseline is drawn"

"""Runs what is missing and nothing else: interrupted, claimed by another call, without data."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import compression_costs, liars, noise_costs, privacy_costs, tables
from experiments.plan import expand
from experiments.records import publish, read_curve, rounds_in
from experiments.reproduce import Request, find_source, reproduce, write_overview, write_page
from experiments.tables import available, load_table
from experiments.tuning import settled
from shared.problems import InvalidConfiguration
from simulation.run import Results, simulate
from simulation.sweep import Planned, claim_results, sweep
from tests.helpers.small_table import DIGITS, put_small_table, table, write_curves

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data files with one small table instead of the paper's."""
    put_small_table(tmp_path, monkeypatch)
    return tmp_path


def request(folder: Path, **changes: Any) -> Request:
    return Request(table="small", results=folder / "results", docs=folder / "docs", **changes)


def test_a_table_from_nothing_to_its_page_in_two_calls(small: Path) -> None:
    said: list[str] = []
    assert reproduce(request(small, seeds=1, rounds=1, only="*-fedavg-*"), said.append)
    page = (small / "docs" / "results" / "small.md").read_text(encoding="utf-8")
    assert "Partly: 2 of 24 rounds were run" in page
    assert "1 of 2 | 1 of 3 |" in page

    assert reproduce(request(small, seeds=1, only="*-fedavg-*"), said.append)
    results = small / "results"
    for run in expand(table(), seeds=1, only="*-fedavg-*"):
        out = small / "direct" / run.file.name
        out.parent.mkdir(exist_ok=True)
        digest = simulate(run.config, source=None, out=out, say=said.append)
        assert Results(results / run.file).lines()[-1] == {"kind": "end", "model": digest}
        curve = read_curve(results / run.file, run.config)
        assert curve is not None
        lines = Results(out).lines()[1:-1]
        accuracies = pytest.approx([line["accuracy"] for line in lines], abs=1e-6)
        assert [line.accuracy for line in curve.rounds] == accuracies
        assert curve.categories == tuple(lines[0]["per_category"])
        assert (results / run.file).stat().st_size < out.stat().st_size

    before = len(said)
    assert reproduce(request(small, seeds=1, only="*-fedavg-*"), said.append)
    assert said[before] == "small: 2 runs, 0 to do"
    assert (small / "docs" / "results" / "small-curves-digits.svg").exists()
    assert "[Small](results/small.md) | partly |" in (small / "docs" / "results.md").read_text(
        encoding="utf-8"
    )


def test_the_pairs_are_tried_before_the_rest_is_run_with_the_best(small: Path) -> None:
    document = {
        "title": "Tuned",
        "source": None,
        "settings": ["digits-12"],
        "methods": ["fedavg", "feddyn"],
        "weightings": ["base", "tuned"],
        "tune": {"weighting.a": [0.5, 0.9], "weighting.b": [0.1], "on": "validation"},
        "seeds": 1,
        "rounds": 2,
    }
    (small / "experiments" / "tables" / "tuned.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    said: list[str] = []
    asked = request(small).model_copy(update={"table": "tuned"})
    assert reproduce(asked, said.append)
    begun = [line.split(":")[0] for line in said if ": done" in line]
    tried = ["digits-12-fedavg-sizes-s0", "digits-12-fedavg-disco-s0", "digits-12-fedavg-a0.9-b0.1-s0"]
    assert begun[:3] == tried
    best = settled(load_table("tuned"), small / "results")
    assert best.chosen is not None
    assert set(begun) == {run.config.name for run in expand(best)}
    assert len(begun) == 5
    run = expand(best)[0]
    curve = read_curve(small / "results" / run.file, run.config)
    assert curve is not None
    assert all(line.validation_accuracy is not None for line in curve.rounds)


@pytest.mark.parametrize("changes", [{"only": "*-fedsgd-*"}, {"only": "*-s1", "seeds": 1}])
def test_a_pattern_that_is_no_runs_name_is_refused(small: Path, changes: dict[str, Any]) -> None:
    """It is not done, and no page is written."""
    with pytest.raises(InvalidConfiguration, match="no run has a name like") as fault:
        reproduce(request(small, **changes), lambda line: None)
    assert fault.value.hint == "The first is digits-fedavg-sizes-s0."
    assert not (small / "docs").exists()


@pytest.mark.parametrize("pattern", ["*-feddyn-*", "*-feddyn-a0.9-b0.1-*"])
def test_a_pattern_may_be_of_what_is_run_with_the_choice_alone(small: Path, pattern: str) -> None:
    """Whatever is chosen: in this call, nothing is."""
    tune = {"weighting.a": [0.5, 0.9], "weighting.b": [0.1], "on": "validation"}
    given = table(settings=["digits-12"], weightings=["base", "tuned"], tune=tune, published={}, figures=[])
    document = given.model_dump(mode="json", by_alias=True, exclude={"name"}, exclude_unset=True)
    (small / "experiments" / "tables" / "small.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    said: list[str] = []
    assert reproduce(request(small, seeds=1, rounds=1, only=pattern), said.append)
    assert said[0] == "small: 0 runs, 0 to do"


def test_a_pattern_holds_for_the_trials_of_an_exploration(small: Path) -> None:
    (small / "experiments" / "tables" / "exploration-1.yaml").write_text(
        yaml.safe_dump(
            {"title": "One", "source": None, "kind": "exploration-1", "settings": ["digits"], "seeds": 2}
        ),
        encoding="utf-8",
    )
    said: list[str] = []
    asked = request(small, only="digits-feddyn-uniform-s0", rounds=1).model_copy(update={"table": "all"})
    assert reproduce(asked, said.append)
    assert not (small / "results" / "exploration-1").exists()
    assert any("1 run, 1 to do" in line for line in said)


def test_the_page_says_which_kernels_made_it(small: Path) -> None:
    asked = request(small, seeds=1, rounds=1, only="*-fedavg-sizes-*")
    assert reproduce(asked, lambda line: None)
    page = (small / "docs" / "results" / "small.md").read_text(encoding="utf-8")
    assert "(engine in-process, kernels torch, " in page
    assert platform.machine() in page.splitlines()[-1]


def test_report_only_runs_nothing(small: Path) -> None:
    assert reproduce(request(small, report_only=True), lambda line: None)
    assert not (small / "results").exists()
    assert "Not yet run" in (small / "docs" / "results" / "small.md").read_text(encoding="utf-8")


def test_a_run_that_another_call_has_claimed_is_left_to_it(tmp_path: Path) -> None:
    runs = [
        Planned(run.config, tmp_path / run.file, until=1)
        for run in expand(table(), seeds=1, only="*-fedavg-*")
    ]
    said: list[str] = []
    with claim_results(runs[0].out) as ours:
        assert ours
        ended = sweep(runs, processes=1, say=said.append)
    assert [run.state for run in ended] == ["busy", "done"]
    assert not runs[0].out.exists()
    assert f"{runs[0].config.name}: busy, another process is doing it" in said
    assert [run.state for run in sweep(runs[:1], processes=1, say=said.append)] == ["done"]


@pytest.mark.slow
def test_side_by_side_is_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    plan = expand(table(), seeds=1, only="*-fedavg-*")
    planned = {
        folder: [Planned(run.config, tmp_path / folder / run.file, until=1) for run in plan]
        for folder in ("one", "two")
    }
    one = sweep(planned["one"], processes=1, say=lambda line: None)
    two = sweep(planned["two"], processes=2, say=lambda line: None)
    assert one == two
    assert {run.state for run in one} == {"done"}


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    good, other = expand(table(), seeds=1, only="*-fedavg-*")
    bad = other.config.model_copy(update={"autostart": False})
    ended = sweep(
        [Planned(bad, tmp_path / "bad.jsonl"), Planned(good.config, tmp_path / "good.jsonl", until=1)],
        processes=1,
        say=lambda line: None,
    )
    assert [run.state for run in ended] == ["failed", "done"]
    assert "the run does not start" in ended[0].detail


def test_missing_data_are_named_and_nothing_is_begun(tmp_path: Path) -> None:
    said: list[str] = []
    asked = Request(
        table="stragglers", seeds=1, data=tmp_path, results=tmp_path / "results", docs=tmp_path / "docs"
    )
    assert not reproduce(asked, said.append)
    assert any("no data for cifar10" in line and "cifar10-jpeg.zip" in line for line in said)
    assert not (tmp_path / "results").exists()


def test_data_are_found_by_their_published_names_first(tmp_path: Path) -> None:
    (tmp_path / "cifar10-jpeg.zip").touch()
    assert find_source("cifar10", tmp_path) == tmp_path / "cifar10-jpeg.zip"
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert find_source("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
    assert find_source(DIGITS.config["task"], tmp_path) is None
    with pytest.raises(InvalidConfiguration, match=r"has none of FashionMNIST, .*fashion-mnist-idx.zip"):
        find_source("fashion-mnist", tmp_path)


def test_a_longer_result_is_never_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    given = table(methods=["fedavg"], seeds=1)
    write_curves(tmp_path / "there", {("fedavg", "base", 0): [0.4, 0.5, 0.6]}, given)
    (run,) = expand(given, only="*-sizes-*")
    target, work = tmp_path / "there" / run.file, tmp_path / "work.jsonl"
    simulate(run.config, source=None, out=work, until=2, say=lambda line: None)
    before = target.read_bytes()
    assert (publish(work, target), target.read_bytes()) == (3, before)
    target.unlink()
    assert (publish(work, target), rounds_in(target)) == (2, 2)
    target.write_bytes(work.read_bytes())
    with pytest.raises(InvalidConfiguration, match="is a simulation's own result file, not the short form"):
        read_curve(target, run.config)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([1, 3], "in place 2 of 3 stands round 3"),
        ([2, 3], "in place 1 of 3 stands round 2"),
        ([1, 2, 3, 2, 3], "in place 4 of 3 stands round 2"),
        ([1, 2, 3, 4], "in place 4 of 3 stands round 4"),
    ],
)
def test_a_round_that_is_missing_or_there_twice_is_never_read_over(
    small: Path, kept: list[int], words: str
) -> None:
    """Neither by a page nor by who asks what is still to be run; nor is it committed."""
    write_curves(small / "results", {("fedavg", "base", 0): [0.4, 0.5, 0.6]}, table())
    run = expand(table(), seeds=1)[0]
    path = small / "results" / run.file
    header, *rounds = path.read_text(encoding="utf-8").splitlines()
    rounds.append(rounds[-1].replace('"round": 3', '"round": 4'))
    path.write_text("\n".join([header, *(rounds[at - 1] for at in kept), ""]), encoding="utf-8")
    for changes in ({"report_only": True}, {"only": "*-fedavg-sizes-s0"}):
        with pytest.raises(InvalidConfiguration, match=f"damaged: {words}") as fault:
            reproduce(request(small, **changes), lambda line: None)
        assert "remove it to run it anew" in str(fault.value.hint)
    with pytest.raises(InvalidConfiguration, match=words):
        publish(path, small / "again.jsonl")


def test_what_only_a_service_heeds_does_not_make_another_run(tmp_path: Path) -> None:
    config = expand(table(), seeds=1)[0].config
    out = tmp_path / "r.jsonl"
    simulate(config, source=None, out=out, until=1, say=lambda line: None)
    simulate(config.model_copy(update={"quorum": 2}), source=None, out=out, until=2, say=lambda line: None)
    assert rounds_in(out) == 2
    with pytest.raises(InvalidConfiguration, match="another configuration"):
        simulate(config.model_copy(update={"seed": 7}), source=None, out=out, say=lambda line: None)


@pytest.mark.long
def test_the_committed_pages_say_what_the_committed_results_say(tmp_path: Path) -> None:
    """No number in docs/results that is not in experiments/results; make it so with --report-only."""
    results = tables.HERE / "results"
    for name in available():
        page = write_page(load_table(name), results, tmp_path)
        committed = ROOT / "docs" / "results" / page.name
        assert page.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), name
    write_overview(results, tmp_path)
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == (ROOT / "docs/results.md").read_text(
        encoding="utf-8"
    )
    made = {path.name for path in (tmp_path / "results").iterdir()}
    others = (noise_costs, liars, privacy_costs, compression_costs)  # have tests of their own
    by_others = {experiment.PAGE.name for experiment in others}
    assert made == {path.name for path in (ROOT / "docs" / "results").iterdir()} - by_others


def test_a_cluster_takes_no_number_of_processes(small: Path) -> None:
    for changes in ({"engine": "ray"}, {"address": "auto"}):
        with pytest.raises(InvalidConfiguration, match="ray does not take a number of processes, received 2"):
            reproduce(request(small, processes=2, **changes), lambda line: None)


def test_a_cluster_takes_no_device(small: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="device: runs over a cluster train on the CPU"):
        reproduce(request(small, engine="ray", device="cuda"), lambda line: None)


def test_a_device_that_is_not_there_fails_the_runs_and_says_so(small: Path) -> None:
    said: list[str] = []
    assert not reproduce(request(small, device="cuda:99"), said.append)
    assert any("--device cuda:99: this machine has" in line for line in said)

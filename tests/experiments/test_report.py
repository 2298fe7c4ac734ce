"""Pages and figures from results written by hand: every number can be computed in the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.evidence import gather
from experiments.figures import draw
from experiments.overview import Entry, overview
from experiments.plan import Cell, with_weightings
from experiments.report import progress, table_page
from experiments.tables import load_table, settings
from shared.problems import InvalidConfiguration
from tests.helpers.small_table import longer, table, write_curves

CURVES = {
    ("fedavg", "base", 0): [0.40, 0.50, 0.60],
    ("fedavg", "base", 1): [0.30, 0.40, 0.50],
    ("fedavg", "disco", 0): [0.50, 0.60],
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_curves(tmp_path, CURVES, table())
    return tmp_path


def line(page: str, start: str) -> list[str]:
    """The cells of the first row that starts like this."""
    row = next(row for row in page.splitlines() if row.startswith(start))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_ours_beside_the_published_figures(results: Path) -> None:
    page = table_page(gather(table(), results), [])
    # seeds: mean of 50 and 40 is 45, deviation sqrt(50) = 7.07; last 60 and 50; within a curve deviation 10
    assert line(page, "| FedAvg | sizes (base)") == [
        "FedAvg", "sizes (base)", "54.27 ± 3.44", "45.00 ± 7.07", "-9.27",
        "55.00", "55.00", "10.00", "2, not reached 1 x (58)", "2 of 2", "3",
    ]  # fmt: skip
    assert line(page, "| FedAvg | disco") == [
        "FedAvg", "disco", "61.59", "55.00", "", "60.00", "60.00", "7.07", "1", "1 of 2", "2 of 3",
    ]  # fmt: skip


def test_a_gain_compares_pairs_over_the_rounds_that_both_have(results: Path) -> None:
    page = table_page(gather(table(), results), [])
    after = page[page.index("Gain over the first weighting") :]
    # seed 0, two rounds: mean of 50 and 60 against mean of 40 and 50
    assert line(after, "| FedAvg") == [
        "FedAvg", "disco", "2", "1", "(+7.32 after 3)", "+10.00", "", "+10.00", "+10.00 to +10.00",
        "too few rounds",
    ]  # fmt: skip


def test_a_published_gain_stands_beside_as_many_rounds_and_seeds_are_told_apart(tmp_path: Path) -> None:
    curves = {("fedavg", "base", seed): [0.3] * 3 for seed in (0, 1)}
    curves |= {("fedavg", "disco", 0): [0.4] * 3, ("fedavg", "disco", 1): [0.32] * 3}
    write_curves(tmp_path, curves, table())
    page = table_page(gather(table(), tmp_path), [])
    row = line(page[page.index("Gain over the first weighting") :], "| FedAvg")
    assert row[2:8] == ["3", "2", "+7.32", "+6.00", "+10.00, +2.00", "+6.00"]
    elsewhere = table_page(gather(table(published_of="7+1 clients"), tmp_path), [])
    assert line(elsewhere, "| FedAvg | disco")[4] == ""
    assert "| (+7.32 of 7+1 clients) |" in elsewhere


def test_where_only_signs_compare_no_difference_to_the_published_figures_is_given(tmp_path: Path) -> None:
    curves = {("fedavg", "base", 0): [0.3] * 3, ("fedavg", "disco", 0): [0.4] * 3}
    given = table(sign_only=True, seeds=1)
    write_curves(tmp_path, curves, given)
    page = table_page(gather(given, tmp_path), [])
    assert line(page, "| FedAvg | sizes (base)")[2:5] == ["54.27 ± 3.44", "30.00", ""]
    assert line(page[page.index("Gain over") :], "| FedAvg")[4] == "(+7.32 in sign only)"


@pytest.mark.parametrize(
    ("disco", "verdict"),
    [
        ([0.5] * 12, "ahead"),
        ([0.3] * 12, "behind"),
        ([0.41, 0.39] * 6, "level"),
        ([0.5] * 9, "too few rounds"),
    ],
)
def test_who_is_ahead_is_decided_by_the_interval(tmp_path: Path, disco: list[float], verdict: str) -> None:
    given = longer(methods=["fedavg"])
    write_curves(tmp_path, {("fedavg", "base", 0): [0.4] * 12, ("fedavg", "disco", 0): disco}, given)
    evidence = gather(given, tmp_path)
    assert evidence.verdicts() == [verdict]
    assert f"of 1 comparison Disco is ahead in {int(verdict == 'ahead')}" in progress(evidence)


def test_the_gain_over_the_run_leaves_the_first_twenty_rounds_out(tmp_path: Path) -> None:
    settings()["digits-12"].config["rounds"] = 32
    given = longer(methods=["fedavg"])
    curves = {("fedavg", "base", 0): [0.4] * 32, ("fedavg", "disco", 0): [*[0.1] * 20, *[0.5] * 12]}
    write_curves(tmp_path, curves, given)
    gain = gather(given, tmp_path).gains[0]
    assert (gain.since, gain.verdict) == (21, "ahead")
    assert gain.over.mean == pytest.approx(10)


def test_a_method_that_is_another_one_here_is_not_counted(tmp_path: Path) -> None:
    given = longer(methods=["fedavg", "fednova", "fedprox"])
    curves = {
        (method, weighting, 0): [score] * 12
        for method in ("fedavg", "fednova", "fedprox")
        for weighting, score in (("base", 0.4), ("disco", 0.5 if method == "fedprox" else 0.6))
    }
    curves["fednova", "disco", 0] = [0.6] * 11  # as far as it goes
    write_curves(tmp_path, curves, given)
    evidence = gather(given, tmp_path)
    assert evidence.verdicts() == ["ahead", "ahead"]
    assert [gain.same_as for gain in evidence.gains] == [None, "fedavg", None]
    assert "FedNova is FedAvg here (all rounds are the same) and not counted." in progress(evidence)
    assert "as FedAvg, the same run |" in table_page(evidence, [])


@pytest.mark.parametrize(
    ("weights", "changes", "counted"),
    [
        ((0.25,) * 4, {}, 1),
        ((0.4, 0.2, 0.2, 0.2), {}, 2),
        ((0.25,) * 4, {"steps_range": [5, 50], "steps": None}, 2),
    ],
)
def test_fednova_with_equal_sizes_and_steps_is_fedavg_whatever_rounding_made_of_it(
    tmp_path: Path, weights: tuple[float, ...], changes: dict[str, Any], counted: int
) -> None:
    """As from two machines, or kernels: no score is the same."""
    with_local = settings()["digits-12"].config
    with_local = with_local | {"local": with_local["local"] | changes}
    settings()["digits-12"] = settings()["digits-12"].model_copy(update={"config": with_local})
    given = longer(methods=["fedavg", "fednova"])
    curves = {("fedavg", "base", 0): [0.4] * 12, ("fedavg", "disco", 0): [0.6] * 12}
    curves |= {("fednova", "base", 0): [0.4001] * 12, ("fednova", "disco", 0): [0.5999] * 12}
    write_curves(tmp_path, curves, given, weights=weights)
    evidence = gather(given, tmp_path)
    assert len(evidence.verdicts()) == counted
    assert evidence.rounds() == (48, 48)
    page = table_page(evidence, [])
    words = (
        "FedNova is FedAvg here (equal sizes and steps: what their runs differ by is ",
        "as FedAvg, but for rounding |",
    )
    assert [each in page for each in words] == [counted == 1] * 2
    assert "the same run" not in page
    assert "all rounds are the same" not in page


def test_of_several_settings_those_are_named_in_which_a_method_is_another(tmp_path: Path) -> None:
    given = longer(methods=["fedavg", "fednova"], settings=["digits-12", "digits"])
    curves = {
        (method, weighting, 0): [0.4] * 3 for method in given.methods for weighting in ("base", "disco")
    }
    write_curves(tmp_path, curves, given.model_copy(update={"settings": ("digits",)}))
    assert "FedNova is FedAvg in Digits (all rounds are the same) and not counted." in progress(
        gather(given, tmp_path)
    )


def test_a_table_that_has_only_borrowed_runs_is_not_yet_run(tmp_path: Path) -> None:
    given = load_table("client-number")
    borrowed = {("fedavg", "base", 0): [0.4] * 30, ("fedavg", "disco", 0): [0.5] * 30}
    write_curves(tmp_path, borrowed, given.model_copy(update={"settings": ("cifar10-niid1",)}))
    evidence = gather(given, tmp_path)
    assert evidence.state() == "not yet run"
    assert progress(evidence) == (
        "no run of its own, for want of time; 60 of 1800 rounds were run, all of them for "
        "*Eight methods without and with Disco*."
    )
    write_curves(tmp_path, borrowed, given.model_copy(update={"settings": ("cifar10-clients30",)}))
    assert gather(given, tmp_path).state() == "partly"


def test_what_a_caller_adds_changes_neither_state_nor_counts_of_a_table(tmp_path: Path) -> None:
    """It stands in the table, and in a sentence of its own."""
    given = load_table("facebook")
    curves = {("fedavg", "base", seed): [0.4] * 100 for seed in range(given.seeds)}
    curves |= {("fedavg", "disco", seed): [0.7] * 100 for seed in range(given.seeds)}
    write_curves(tmp_path, curves, given)
    more = with_weightings(given, ["byroot={kind: entropy}"])
    write_curves(tmp_path, {("fedavg", more.added[0], 0): [0.1] * 100}, more)
    without, with_it = gather(given, tmp_path), gather(more, tmp_path)
    assert with_it.state() == without.state() == "reproduced in sign"
    assert progress(with_it) == progress(without)
    page = table_page(with_it, [])
    assert "Added, and no part of the table: of 1 comparison byroot is ahead in 0, behind in 1." in page
    assert "| The other weighting is |" in page
    assert line(page[page.index("Gain over") :], "| FedAvg | byroot")[-1] == "behind"
    assert "Added" not in table_page(without, [])


def test_what_was_added_is_no_run_of_a_tables_own(tmp_path: Path) -> None:
    given = load_table("client-number")
    more = with_weightings(given, ["entropy"])
    write_curves(tmp_path, {("fedavg", "entropy", 0): [0.4] * 30, ("fedavg", "base", 0): [0.4] * 30}, more)
    only_main = more.model_copy(update={"settings": ("cifar10-niid1",)})
    assert gather(only_main, tmp_path).state() == "not yet run"


@pytest.mark.parametrize("name", ["main", "heatmap", "partial-40", "imbalanced-both"])
def test_a_tables_own_weightings_are_not_added(name: str) -> None:
    """Nor doubled, where a caller names them."""
    given = load_table(name)
    more = with_weightings(given, ["disco", "entropy"])
    for method in given.methods:
        own = given.weightings_of(method)
        assert more.weightings_of(method) == tuple(dict.fromkeys((*own, "disco", "entropy")))
        assert not any(more.is_added(method, each) for each in own)
        assert more.is_added(method, "entropy")


def test_what_was_not_run_is_folded_away(results: Path) -> None:
    page = table_page(gather(table(), results), [])
    shown, folded = page.split("<details>")
    assert "FedDyn" not in shown
    assert "<summary>Not yet run, for want of time: 2 of them, with the published figures</summary>" in folded
    assert line(folded, "| FedDyn") == ["FedDyn", "uniform (base)", ""]
    assert (
        "Partly: 8 of 24 rounds were run; of 1 comparison Disco is ahead in 0, too few rounds in 1." in page
    )


def test_a_setting_of_which_nothing_was_run_has_no_empty_table(tmp_path: Path) -> None:
    page = table_page(gather(table(), tmp_path), [])
    assert "| ours |" not in page
    assert line(page, "| FedAvg | disco") == ["FedAvg", "disco", "61.59"]


@pytest.mark.parametrize(
    ("disco", "changes", "state"),
    [
        ([0.5] * 12, {}, "reproduced"),
        ([0.5] * 12, {"sign_only": True}, "reproduced in sign"),
        ([0.3] * 12, {}, "not reproduced"),
        ([0.4] * 12, {}, "not reproduced"),
        ([0.5] * 11, {}, "partly"),
        (None, {}, "partly"),
    ],
)
def test_the_state_of_a_table(
    tmp_path: Path, disco: list[float] | None, changes: dict[str, Any], state: str
) -> None:
    given = longer(methods=["fedavg"], **changes)
    curves = {("fedavg", "base", 0): [0.4] * 12}
    write_curves(tmp_path, curves | ({("fedavg", "disco", 0): disco} if disco else {}), given)
    assert gather(given, tmp_path).state() == state


def test_a_table_without_results_is_not_yet_run(tmp_path: Path) -> None:
    evidence = gather(table(), tmp_path)
    assert (evidence.state(), progress(evidence)) == ("not yet run", "no round of it, for want of time.")
    assert draw(evidence, tmp_path) == []


def test_a_lower_loss_is_better(tmp_path: Path) -> None:
    given = longer(methods=["fedavg"], measure="loss", target_accuracy=None)
    curves = {("fedavg", "base", 0): [0.4] * 12, ("fedavg", "disco", 0): [0.5] * 12}
    write_curves(tmp_path, curves, given)
    evidence = gather(given, tmp_path)
    assert evidence.gains[0].spread.mean == pytest.approx(-0.1)
    assert evidence.state() == "reproduced"


def test_the_variance_between_clients_as_the_measure(tmp_path: Path) -> None:
    given = table(methods=["fedavg"], seeds=1, measure="client_variance", published={}, target_accuracy=None)
    write_curves(tmp_path, {("fedavg", "base", 0): [0.4] * 3}, given)
    assert gather(given, tmp_path).values(Cell("digits", "fedavg", "base")) == {0: pytest.approx(25.0)}


def test_results_of_another_configuration_are_refused(results: Path) -> None:
    path = results / "digits" / "fedavg-sizes-s0.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"rounds": 3', '"rounds": 4'), encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match="another configuration than the table's"):
        gather(table(), results)


@pytest.mark.parametrize(
    "stray",
    [
        "fedavg-sizes-s0-old.jsonl",
        "fedavg-sizes-s0.bak.jsonl",
        "fedavg-sizes-s0 (copy).jsonl",
        "fedavg-sizes-s1-s0.jsonl",
        "fedavg-sizes-s00.jsonl",
    ],
)
def test_a_file_whose_name_is_no_runs_is_not_read(results: Path, stray: str) -> None:
    page = table_page(gather(table(), results), [])
    (results / "digits" / stray).write_text("anything", encoding="utf-8")
    assert table_page(gather(table(), results), []) == page


def test_the_same_results_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    evidence = gather(table(), results)
    first, second = tmp_path / "one", tmp_path / "two"
    assert draw(evidence, first) == draw(evidence, second) == ["small-curves-digits.svg"]
    for name in ("small-curves-digits.svg", "small-curves-digits.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert ">test accuracy, %</text>" in (first / "small-curves-digits.svg").read_text(encoding="utf-8")


def test_of_many_methods_each_has_its_own_plot(tmp_path: Path) -> None:
    names = ["fedavg", "feddyn", "fedprox"]
    given = table(methods=names)
    write_curves(tmp_path, {(name, "base", 0): [0.4, 0.5, 0.6] for name in names}, given)
    assert draw(gather(given, tmp_path), tmp_path) == ["small-curves-digits.svg"]
    drawn = (tmp_path / "small-curves-digits.svg").read_text(encoding="utf-8")
    for title in ("FedAvg", "FedDyn", "FedProx", "uniform (1 seed)"):
        assert drawn.count(f">{title}</text>") == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"figures": [{"kind": "variance", "title": "V"}]}, "small-variance-digits.svg"),
        ({"figures": [{"kind": "categories", "title": "C"}]}, "small-categories-digits.svg"),
        (
            {"figures": [{"kind": "levels", "title": "L", "label": "clients", "levels": [6]}]},
            "small-levels.svg",
        ),
    ],
)
def test_every_kind_of_figure(results: Path, tmp_path: Path, change: dict[str, object], name: str) -> None:
    assert draw(gather(table(**change), results), tmp_path) == [name]
    assert (tmp_path / name).stat().st_size > 1000


def test_the_map_of_a_and_b(tmp_path: Path) -> None:
    given = table(
        methods=["fedavg"],
        weightings=["base"],
        grid={"a": [0.2, 0.5], "b": [0.1]},
        seeds=1,
        published={},
        figures=[{"kind": "heatmap", "title": "Gain"}],
    )
    curves = {("fedavg", "base", 0): [0.4] * 3, ("fedavg", "a0.5-b0.1", 0): [0.5] * 3}
    write_curves(tmp_path, curves, given)
    evidence = gather(given, tmp_path)
    page = table_page(evidence, draw(evidence, tmp_path))
    assert line(page, "| a = 0.2") == ["a = 0.2", "not yet run"]
    assert line(page, "| a = 0.5") == ["a = 0.5", "+10.00 (3 rounds, seeds: 1)"]
    assert (tmp_path / "small-heatmap-digits.png").exists()


def test_the_overview_names_every_table_with_its_state() -> None:
    page = overview([Entry(table(), "partly", "8 of 24 rounds were run.")])
    assert "| [Small](results/small.md) | partly | 8 of 24 rounds were run. |" in page
    assert "as far as it was run" not in page


def test_the_overview_shows_each_comparison_once_with_its_picture(results: Path) -> None:
    evidence = gather(table(), results)
    unpublished = gather(table(name="again", title="Again", figures=[], published={}), results)
    otherwise = gather(table(name="other", weightings=["sizes", "disco"], published={}, figures=[]), results)
    page = overview([Entry(e.table, "partly", "", e) for e in (otherwise, unpublished, evidence)])
    # seed 0, two rounds, as in the table's own page
    assert line(page, "| [Digits]") == [
        "[Digits](results/small.md)", "FedAvg", "45.00", "55.00", "2", "1", "(+7.32 after 3)", "+10.00", "",
        "+10.00", "+10.00 to +10.00", "too few rounds",
    ]  # fmt: skip
    assert page.count("| [Digits]") == 1
    assert "(results/small-curves-digits.svg)" in page


def test_the_overviews_first_tables_say_of_disco_what_the_others_do(results: Path) -> None:
    evidence = gather(table(headline=True), results)
    page = overview([Entry(evidence.table, "partly", "", evidence)])
    assert "8 of 24 rounds were run; of 1 comparison Disco is ahead in 0, too few rounds in 1." in page

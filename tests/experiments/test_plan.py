"""Tables into runs: valid, in one place each, in pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.plan import Cell, cells, configuration, expand, quickened
from experiments.tables import Table, available, load_table, methods, settings
from shared.algorithms import load_algorithm
from shared.config import DiscoWeighting, RunConfig
from shared.data.partition import imbalance
from shared.problems import InvalidConfiguration

PAIRS = {"weighting.a": (0.5, 0.9), "weighting.b": (0.1,)}
RUNS = [name for name in available() if load_table(name).kind == "runs"]


def test_every_cell_of_every_table_is_a_run_and_no_file_holds_two() -> None:
    seen: dict[Path, RunConfig] = {}
    for name in RUNS:
        for run in expand(load_table(name)):
            load_algorithm(run.config.algorithm)
            assert seen.setdefault(run.file, run.config) == run.config
    assert len({config.name for config in seen.values()}) == len(seen)


def test_tables_that_have_a_cell_in_common_share_its_runs() -> None:
    files = [{run.file for run in expand(load_table(name))} for name in ("main", "metrics", "heatmap")]
    shared = set.intersection(*files)
    assert Path("cifar10-niid1/fedavg-sizes-s0.jsonl") in shared
    assert Path("cifar10-niid1/fedavg-disco-s0.jsonl") in shared  # the map's a = 0.5, b = 0.1


def test_pairs_differ_in_nothing_but_name_and_weighting() -> None:
    table = load_table("partial")
    runs = {(run.cell.weighting, run.seed): run for run in expand(table, only="*-feddyn-*")}
    for seed in range(table.seeds):
        base, disco = runs["base", seed].config, runs["disco", seed].config
        same = {"name": "a", "weighting": DiscoWeighting()}
        assert base.model_copy(update=same) == disco.model_copy(update=same)
        assert (base.seed, base.weighting.kind, disco.weighting.kind) == (seed, "uniform", "disco")


def test_the_settings_are_the_papers() -> None:
    config = configuration(Cell("cifar10-50-10", "fedavg", "disco"), 0)
    local = config.local
    assert (local.learning_rate, local.momentum, local.weight_decay) == (0.01, 0.9, 1e-5)
    assert (local.batch_size, local.epochs, config.rounds) == (64, 10, 100)
    assert (config.min_clients, config.clients_per_round) == (60, 10)
    assert isinstance(config.weighting, DiscoWeighting)
    assert (config.weighting.a, config.weighting.b) == (0.5, 0.1)


@pytest.mark.parametrize("rho", [10, 50])
def test_the_target_of_an_imbalanced_test_is_its_shares(rho: int) -> None:
    weighting = configuration(Cell(f"cifar10-rho{rho}-test", "fedavg", "disco"), 0).weighting
    assert isinstance(weighting, DiscoWeighting)
    assert list(weighting.target) == imbalance([1000] * 10, rho)


def test_runs_come_seed_by_seed() -> None:
    seeds = [run.seed for run in expand(load_table("partial"), seeds=2)]
    assert seeds == sorted(seeds)
    assert len(seeds) == 2 * len(cells(load_table("partial")))


@pytest.mark.parametrize("name", RUNS)
def test_quick_is_a_part_of_the_very_same_runs(name: str) -> None:
    table = load_table(name)
    full = {run.file: run for run in expand(table)}
    quick = expand(quickened(table))
    assert 0 < len(quick) <= len(full)
    for run in quick:
        assert full[run.file].config == run.config
        assert run.rounds < full[run.file].rounds


def test_only_takes_a_pattern_of_names() -> None:
    names = [run.config.name for run in expand(load_table("main"), only="cifar10-niid2-fedavg-*-s0")]
    assert names == ["cifar10-niid2-fedavg-sizes-s0", "cifar10-niid2-fedavg-disco-s0"]


def test_an_unknown_table_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidConfiguration, match=r"no table 'tabel'.*heatmap.*partial"):
        load_table("tabel")


def test_a_weighting_that_is_not_known_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match="weighting 'disko'"):
        configuration(Cell("cifar10-niid1", "fedavg", "disko"), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": ("cifar11",)}, "setting 'cifar11' is not in settings.yaml"),
        ({"methods": ("fedsgd",)}, "method 'fedsgd' is not in methods.yaml"),
        ({"published": {"cifar10-niid1": {"moon": {"base": 1.0}}}}, "cifar10-niid1/moon"),
        ({"published": {"cifar10-niid1": {"fedavg": {"sizes": 1.0}}}}, "weighting 'sizes'"),
        ({"weightings": ("base", "tuned")}, "'tuned' without tune"),
        ({"tune": PAIRS}, "cifar10-niid1 has no partition.validation"),
        ({"tune": PAIRS | {"method": "moon"}}, "a method of the table"),
        ({"tune": PAIRS, "settings": ("cifar10-niid1", "cifar10-niid2")}, "one setting"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    fields = {"name": "t", "title": "T", "source": None, "settings": ["cifar10-niid1"], "methods": ["fedavg"]}
    Table.model_validate(fields)
    with pytest.raises(ValueError, match=message):
        Table.model_validate(fields | change)


def test_every_setting_and_method_is_used_by_a_table() -> None:
    tables = [load_table(name) for name in available()]
    of_tests = {"digits", "digits-12"}
    assert set(settings()) - of_tests == {name for table in tables for name in table.settings}
    assert set(methods()) == {name for table in tables for name in table.methods}


def test_the_main_tables_gains_are_those_that_the_paper_sums_up() -> None:
    """Mean gain over the seven columns (reference 7, derived_checks): guards against typing errors."""
    published = load_table("main").published
    expected = {
        "fedavg": 2.40,
        "fedavgm": 1.93,
        "fedprox": 1.92,
        "scaffold": 1.04,
        "feddyn": 1.67,
        "fednova": 2.02,
        "moon": 2.08,
        "feddc": 1.14,
    }
    for method, mean in expected.items():
        gains = [rows[method]["disco"].value - rows[method]["base"].value for rows in published.values()]
        assert len(gains) == 7
        assert sum(gains) / 7 == pytest.approx(mean, abs=0.0051)

"""What compression, privacy and noise cost: only missing runs are done, only a cell's own runs are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import compression_costs, noise_costs, privacy_costs
from shared.problems import InvalidConfiguration

MODULES = pytest.mark.parametrize("costs", [compression_costs, noise_costs, privacy_costs])
PAGES = {
    compression_costs: compression_costs.compression_page,
    noise_costs: noise_costs.noise_page,
    privacy_costs: privacy_costs.privacy_page,
}


@MODULES
def test_what_is_committed_whole_is_not_trained_again(
    costs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fresh clone, which has no data and none of the files by which a run goes on."""
    monkeypatch.setattr(costs, "WORK", tmp_path / "work")
    whole = [cell for cell in costs.CELLS if costs.curve_of(cell) is not None]
    assert whole
    assert list(costs.planned(whole, tmp_path)) == []

    cut, results = whole[0], tmp_path / "results"
    results.mkdir()
    *lines, _, _ = (costs.RESULTS / cut.file).read_text(encoding="utf-8").splitlines(keepends=True)
    (results / cut.file).write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(costs, "RESULTS", results)
    (tmp_path / "cifar10-jpeg.zip").touch()
    assert [run.out.name for run in costs.planned([cut], tmp_path)] == [cut.file.name]


@MODULES
def test_a_result_of_another_configuration_is_not_shown(
    costs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = next(cell for cell in costs.CELLS if costs.curve_of(cell) is not None)
    top, *rounds = (costs.RESULTS / cell.file).read_text(encoding="utf-8").splitlines(keepends=True)
    header = json.loads(top)
    header["config"]["local"]["learning_rate"] = 0.5
    (tmp_path / cell.file).write_text("".join([json.dumps(header) + "\n", *rounds]), encoding="utf-8")
    monkeypatch.setattr(costs, "RESULTS", tmp_path)
    with pytest.raises(InvalidConfiguration, match="another configuration"):
        PAGES[costs]()

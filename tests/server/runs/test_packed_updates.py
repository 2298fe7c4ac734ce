"""Packed updates in the service: checked, kept as they came, unpacked at the round's end, replayed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from feddisco.console import print_run
from feddisco.replay import replay_round
from shared.schemas import RoundView, RunView
from tests.helpers.live_coordinator import (
    CLASSES,
    MANIFEST,
    SHAPES,
    TASK,
    Live,
    enrolled,
    live,
    settings_for,
    sha256,
    upload_headers,
)


def packed(step: int, scale: float) -> dict[str, Any]:
    """Every number moves by ``step * scale``."""
    steps = {f"int8/{name}": np.full(shape, step, np.int8) for name, shape in SHAPES.items()}
    return steps | {f"int8-scale/{name}": np.array(scale, np.float32) for name in SHAPES}


def test_packed_updates_make_the_model_that_whole_ones_would(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From ones, by 2 * 0.25 and by 4 * 0.25, at sizes 1 : 3: 1 + 0.5 / 4 + 1 * 3 / 4 = 1.875."""
    with live(database_url, tmp_path / "data") as at:
        at.create(value=1.0, min_clients=2, rounds=1, weighting={"kind": "sizes"}, compression="int8")
        sites = enrolled(at, (10, 30))
        bodies = [save(packed(step, 0.25)) for step in (2, 4)]
        for site, body in zip(sites, bodies, strict=True):
            site.until("train")
            assert site.upload("demo", 1, body).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        round = at.admin.get("/runs/demo/rounds/1").json()
        model = load(at.admin.get(f"/blobs/{round['model']}").content)
        assert {float(value) for tensor in model.values() for value in tensor.reshape(-1)} == {1.875}
        assert [row["update"] for row in round["ledger"]] == [sha256(body) for body in bodies]
        assert [row["bytes"] for row in round["ledger"]] == list(map(len, bodies))
        assert round["ledger"][1]["norm"] == pytest.approx(17**0.5)
        # 17 numbers: 68 bytes in float32, 17 + 3 * 4 in int8
        ratio = (len(bodies[0]) + 68 - 29) / len(bodies[0])
        page = at.http().get(f"{at.url}/runs/demo/rounds/1").text
        assert f"whole: {ratio:.1f} times that" in page
        assert "updates by int8" in at.http().get(f"{at.url}/runs/demo").text
        print_run(RunView.model_validate(at.run()), [RoundView.model_validate(round)])
        assert f"Updates by int8: {2 * len(bodies[0])} bytes, whole {ratio:.1f} times that" in (
            capsys.readouterr().out
        )
    same, sentence = replay_round(settings_for(database_url, tmp_path / "data"), "demo", 1)
    assert same, sentence
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_what_a_packed_update_stands_for_is_held_to_the_bounds(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(
            value=1.0, min_clients=2, rounds=1, weighting={"kind": "sizes"}, compression="int8", max_entry=90
        )
        site, other = enrolled(at, (10, 30))
        site.until("train")
        attacks = {
            "'layer.bias' holds -128": {**packed(2, 0.25), "int8/layer.bias": np.full(4, -128, np.int8)},
            "below zero": {**packed(2, 0.25), "int8-scale/scale": np.array(-1, np.float32)},
            "holds 101 at position 0": packed(100, 1.0),  # 1 + 100 * 1
            "is not one of the 6": {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()},
        }
        for sentence, tensors in attacks.items():
            answer = site.upload("demo", 1, save(tensors))
            assert answer.status_code == 422, answer.text
            assert sentence in answer.json()["detail"].replace('"', "'"), answer.text
        assert [event["kind"] for event in at.events()].count("update_invalid") == len(attacks)
        for each in (site, other):
            each.until("train")
            assert each.upload("demo", 1, save(packed(2, 0.25))).status_code == 200
        at.wait_for(lambda: at.run()["status"] == "completed")
        refused = create_of_doubles(at)
        assert refused.status_code == 422, refused.text
        assert "cannot be packed" in refused.json()["detail"]


def create_of_doubles(at: Live) -> httpx.Response:
    """Ask for a run whose parameters are float64."""
    body = save({name: np.zeros(shape, np.float64) for name, shape in SHAPES.items()})
    put = at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
    assert put.status_code == 204, put.text
    config = {"name": "doubles", "task": TASK, "classes": CLASSES, "compression": "top-k"}
    manifest = [{**spec, "dtype": "F64"} for spec in MANIFEST]
    given = {"config": config, "initial": {"digest": sha256(body), "manifest": manifest}}
    return at.admin.post("/runs", json=given)

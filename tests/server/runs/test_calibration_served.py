"""A run whose last round calibrates, in the service: who measures, what is believed, what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from feddisco.admin import AdminClient
from feddisco.cards import fetch_card
from feddisco.replay import replay_round
from tests.helpers.live_coordinator import (
    ADMIN,
    SHAPES,
    Live,
    ManualClient,
    file_of,
    live,
    settings_for,
    tensors,
)

CLASSES = ("cat", "dog", "owl", "yak")  # as many as layer.weight has rows, of three features
CALIBRATION = {"virtual_features": 20, "epochs": 100, "learning_rate": 0.1}


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def measured(value: float, counts: list[float], spread: float = 0.1) -> dict[str, np.ndarray[Any, Any]]:
    """An update of the model as it is, with features ``[label, 1, 0]`` in which the first varies."""
    n, labels = np.array(counts), np.arange(4.0)
    means = np.stack([labels, np.ones(4), np.zeros(4)], axis=1)
    products = n[:, None, None] * np.einsum("ci,cj->cij", means, means)
    products[:, 0, 0] += spread * np.maximum(n - 1, 0)
    told = {"counts": n, "sums": n[:, None] * means, "products": products}
    return tensors(value) | {f"class_sums/{name}": array for name, array in told.items()}


def enrol(at: Live, *sizes: int) -> list[ManualClient]:
    sites = [at.site(f"site-{index}") for index in range(len(sizes))]
    for site, size in zip(sites, sizes, strict=True):
        assert site.enrol("demo", size, classes=CLASSES).status_code == 200
    return sites


def deliver(site: ManualClient, update: dict[str, np.ndarray[Any, Any]]) -> httpx.Response:
    return site.upload("demo", 2, save(update), steps=0)


def train_first_round(at: Live, update: bytes = file_of(1.0), **config: Any) -> list[ManualClient]:
    given: dict[str, Any] = {
        "local": {"steps": 3},
        "weighting": {"kind": "sizes"},
        "min_clients": 2,
        "classes": CLASSES,
        "calibration": CALIBRATION,
    }
    at.create(**(given | config))
    sites = enrol(at, 10, 30)
    for row in at.admin.get("/runs/demo/rounds/1").json()["ledger"]:
        site = next(site for site in sites if site.name == row["client"])
        assert site.upload("demo", 1, update).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    return sites


def test_all_clients_measure_and_the_classifier_is_made_anew(
    at: Live, database_url: str, tmp_path: Path
) -> None:
    """By FedNova, which would not take an update of a training round that made no step."""
    sites = train_first_round(at, clients_per_round=1, quorum=1, algorithm="fednova")
    assert len(at.admin.get("/runs/demo/rounds/1").json()["ledger"]) == 1
    for site, counts in zip(sites, ([4.0, 6, 0, 0], [10.0, 0, 19, 1]), strict=True):
        assert site.until("train")["round"] == 2, "in the last round everybody is asked"
        assert deliver(site, measured(1.0, counts)).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    model = load(at.admin.get(f"/blobs/{at.admin.get('/runs/demo/rounds/2').json()['model']}").content)
    assert model["scale"] == 1.0
    assert not np.array_equal(model["layer.weight"], np.ones((4, 3)))
    features = np.array([[0.0, 1, 0], [2.0, 1, 0]])
    scores = features @ model["layer.weight"].T + model["layer.bias"]
    assert scores.argmax(axis=1).tolist() == [0, 2]
    with AdminClient(at.url, token=ADMIN) as admin:
        card = fetch_card(admin, "demo")
    assert "| calibration in the last round | ccvr" in card
    assert "no model is averaged by these weights" in card
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 2)[0]


def test_what_is_told_is_believed_within_bounds(at: Live) -> None:
    site, other = train_first_round(at, algorithm="fedavg")
    site.until("train")
    good = measured(1.0, [4.0, 6, 0, 0])
    refused = {
        "not-finite": good | {"class_sums/sums": np.full((4, 3), np.nan)},
        "out-of-bounds": measured(1.0, [-4.0, 14, 0, 0]),
        "missing-tensor": {name: array for name, array in good.items() if "products" not in name},
        "wrong-shape": good | {"class_sums/counts": np.ones(3)},
    }
    for code, update in refused.items():
        answer = deliver(site, update)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    more = deliver(site, measured(1.0, [40.0, 6, 0, 0])).json()
    assert "'class_sums/counts' counts 46 examples" in more["detail"]
    assert deliver(site, good).status_code == 200
    other.until("train")
    nonsense = good | {"class_sums/products": -1e12 * np.ones((4, 3, 3))}
    assert deliver(other, nonsense).status_code == 200, "no covariance, but numbers within the bounds"
    at.wait_for(lambda: at.run()["status"] == "completed")


def test_updates_that_come_packed_are_whole_in_the_last_round(
    at: Live, database_url: str, tmp_path: Path
) -> None:
    unmoved = save(
        {f"int8/{name}": np.zeros(shape, np.int8) for name, shape in SHAPES.items()}
        | {f"int8-scale/{name}": np.array(0.25, np.float32) for name in SHAPES}
    )
    site, other = train_first_round(at, update=unmoved, compression="int8")
    for each, counts in ((site, [4.0, 6, 0, 0]), (other, [10.0, 0, 19, 1])):
        each.until("train")
        assert deliver(each, measured(0.0, counts)).status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    assert replay_round(settings_for(database_url, tmp_path / "data"), "demo", 2)[0]
    pages = [at.http().get(f"{at.url}/runs/demo/rounds/{number}").text for number in (1, 2)]
    assert [" times that" in page for page in pages] == [True, False]


def test_its_rounds_stay_as_many(at: Live) -> None:
    train_first_round(at)
    answer = at.admin.patch("/runs/demo", json={"rounds": 5})
    assert (answer.status_code, "last round calibrates" in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"classes": CLASSES[:3]}, "has 4 outputs for 3 classes"),
        ({"calibration": {"classifier": "head"}}, "no trainable linear layer 'head'"),
    ],
)
def test_a_model_that_does_not_fit_makes_no_run(at: Live, config: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        at.create(**({"classes": CLASSES, "calibration": CALIBRATION} | config))

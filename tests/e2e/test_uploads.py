"""Bad, late and repeated uploads to the real process (one by one: tests/server/api/test_api_uploads.py)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from shared.config import RunConfig
from shared.schemas import InitialBlob, RunRequest, RunStatus, TensorSpec
from tests.helpers.live_coordinator import CLASSES, MANIFEST, TASK, ManualClient, file_of, sha256, tensors
from tests.helpers.processes import Deployment, deployment

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("outside")]

ATTACKS = {
    "truncated": file_of(1.0)[:-1],
    "wrong-shape": save({**tensors(1.0), "layer.bias": np.zeros(5, np.float32)}),
    "wrong-dtype": save({**tensors(1.0), "layer.bias": np.zeros(4, np.float16)}),
    "not-finite": save({**tensors(1.0), "scale": np.full((), np.nan, np.float32)}),
    "not-safetensors": pickle.dumps({"layer.weight": [1.0]}),
}


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path) as made:
        made.start_coordinator()
        initial = tmp_path / "initial"
        initial.write_bytes(file_of(0.0))
        digest = sha256(file_of(0.0))
        made.admin.put_blob(initial, digest)
        given = {
            "name": "demo",
            "task": TASK,
            "classes": CLASSES,
            "rounds": 1,
            "weighting": {"kind": "sizes"},
        }
        config = RunConfig.model_validate(given)
        manifest = tuple(TensorSpec.model_validate(spec) for spec in MANIFEST)
        made.admin.create(RunRequest(config=config, initial=InitialBlob(digest=digest, manifest=manifest)))
        yield made


def site(at: Deployment, name: str) -> ManualClient:
    """A registered client by hand, enrolled in the run."""
    url = f"{at.urls['coordinator']}/api/v1"
    join = {"Authorization": f"Bearer {at.processes.environment['FEDDISCO_JOIN_TOKEN']}"}
    answer = httpx.post(f"{url}/clients", json={"name": name}, headers=join)
    token = {"Authorization": f"Bearer {answer.json()['token']}"}
    made = ManualClient(httpx.Client(base_url=url, headers=token, timeout=30), name)
    assert made.enrol("demo", 10).status_code == 200
    return made


def test_a_run_survives_what_is_sent_to_it(coordinator: Deployment) -> None:
    hostile, honest = site(coordinator, "hostile"), site(coordinator, "honest")
    hostile.until("train")
    before = coordinator.admin.run("demo").model
    for code, body in ATTACKS.items():
        refused = hostile.upload("demo", 1, body)
        assert (refused.status_code, refused.json()["code"]) == (422, code)
        assert refused.json()["hint"]
    assert coordinator.admin.run("demo").model == before
    first = hostile.upload("demo", 1, file_of(1.0))
    assert hostile.upload("demo", 1, file_of(1.0)).json() == first.json()
    assert hostile.upload("demo", 1, file_of(7.0)).json()["code"] == "update-already-received"
    honest.until("train")
    assert honest.upload("demo", 1, file_of(3.0)).status_code == 200
    coordinator.wait_for(lambda: coordinator.status("demo") is RunStatus.COMPLETED, "the run completes")
    late = honest.upload("demo", 1, file_of(7.0))
    assert (late.status_code, late.json()["code"]) == (409, "run-over")
    assert coordinator.admin.run("demo").model == sha256(file_of(2.0)), "the mean of 1 and 3"
    page = httpx.get(f"{coordinator.urls['coordinator']}/runs/demo").text
    assert "not-finite" in page or "NaN" in page
    for client in (hostile, honest):
        client.http.close()

"""Models written for other programs say what they said before, and cards say what is in the rows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from feddisco.exporting import Deployable, export_model, make_inputs
from feddisco.loaded import LoadedModel
from shared.model_files import ModelFacts
from shared.problems import InvalidConfiguration
from shared.tasks import load_task

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("exporting")]  # imports ONNX once

TABLE = {"columns": ["age", "pressure"], "target": "outcome", "mean": [50, 120], "deviation": [20, 15]}
TASKS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "digits": ("digits", {}, None),
    "images": ("imagefolder", {"classes": ["a b", "c"], "size": [20, 24]}, None),
    "grey": ("imagefolder", {"classes": ["a", "b"], "size": 16, "channels": 1}, "resnet18-gn"),
    "table": ("csv", {"classes": ["well", "ill"], **TABLE}, None),
    "texts": ("csv", {"kind": "text", "columns": ["t"], "target": "c", "classes": ["x", "y"]}, None),
    "regression": ("csv", {"edges": [1, 2], **TABLE}, None),
}


def made(name: str) -> LoadedModel:
    task_name, options, model = TASKS[name]
    task = load_task(task_name, options)
    facts = ModelFacts(
        run="x", round=1, rounds=1, task=task_name, task_options=options, model=model, classes=task.classes,
        algorithm="fedavg", weighting="disco", model_digest="0" * 64,
    )  # fmt: skip
    return LoadedModel(task.build_model(model, 3).eval(), task, facts)


def run_torchscript(path: Path) -> Callable[[Tensor], Tensor]:
    with pytest.warns(FutureWarning, match="torch.jit.load"):
        found: Callable[[Tensor], Tensor] = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return found


def run_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


RUN = {"torchscript": run_torchscript, "onnx": run_onnx}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "grey" else ()) for name in TASKS]
)
@pytest.mark.parametrize("format", RUN)
def test_raw_inputs_of_any_number_give_what_the_model_says(
    tmp_path: Path, name: str, format: Literal["torchscript", "onnx"]
) -> None:
    loaded = made(name)
    files = export_model(loaded, tmp_path / "model.bin", format)
    run = RUN[format](files[0])
    for number in (1, 5):
        inputs = make_inputs(loaded.task, number)
        with torch.inference_mode():
            wanted = loaded.task.predict(loaded.model(loaded.task.prepare(inputs, None)))
            found = run(inputs)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert json.loads((tmp_path / "model.bin.json").read_text())["task"] == loaded.facts.task
    labels = tmp_path / "model.bin.labels.txt"
    assert labels.exists() == (name != "regression")
    assert not labels.exists() or labels.read_text().splitlines() == list(loaded.classes)


class Fickle(nn.Module):
    """What it does depends on its input: a trace remembers one way only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return found if float(inputs.sum()) > float(self.turn) else -100 * found

    turn = 0.0


def test_what_would_say_something_else_is_not_written(tmp_path: Path) -> None:
    loaded = made("table")
    fickle = Fickle().eval()
    fickle.turn = float("inf")
    sums = [float(loaded.task.prepare(make_inputs(loaded.task, number), None).sum()) for number in (2, 3)]
    assert sums[0] != sums[1]
    fickle.turn = sum(sums) / 2  # between the two that it is made and checked with
    with pytest.raises(InvalidConfiguration, match="says something else than before"):
        export_model(LoadedModel(fickle, loaded.task, loaded.facts), tmp_path / "model.pt", "torchscript")
    with pytest.raises(InvalidConfiguration, match="cannot be written as onnx"):
        export_model(LoadedModel(fickle, loaded.task, loaded.facts), tmp_path / "model.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_facts_are_in_the_file(tmp_path: Path) -> None:
    loaded = made("digits")
    export_model(loaded, tmp_path / "model.pt", "torchscript")
    extra = {"feddisco.json": ""}
    with pytest.warns(FutureWarning, match="torch.jit.load"):
        torch.jit.load(io.BytesIO((tmp_path / "model.pt").read_bytes()), _extra_files=extra)  # type: ignore[no-untyped-call]
    assert json.loads(extra["feddisco.json"])["classes"] == list("0123456789")
    onnx = pytest.importorskip("onnx")
    export_model(loaded, tmp_path / "model.onnx", "onnx")
    properties = onnx.load(tmp_path / "model.onnx").metadata_props
    assert {each.key for each in properties} >= {"feddisco"}


def test_a_deployable_model_needs_no_more_than_raw_inputs() -> None:
    loaded = made("digits")
    said = Deployable(loaded.task, loaded.model)(make_inputs(loaded.task, 4))
    assert said.shape == (4, 10)
    torch.testing.assert_close(said.sum(dim=1), torch.ones(4))

"""``feddisco.simulate``: a run on this machine, and what came of it."""

from __future__ import annotations

import html
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from feddisco.admin import check_config, load_config
from feddisco.beside import place_beside
from feddisco.loaded import LoadedModel, load
from feddisco.result_tables import import_pandas, scores_of
from shared.config import RunConfig
from shared.model_files import ModelFacts, read_tensors, write_model
from shared.problems import InvalidConfiguration
from shared.tasks import task_of
from shared.wire.tensors import tied_names
from simulation.results import Results
from simulation.run import simulate as run_simulation

if TYPE_CHECKING:
    import pandas as pd

    from simulation.kernels import KernelsName

__all__ = ["Result", "simulate"]

RESULTS = (".jsonl", ".json")
"""What a result file's name may end with, and its model's does not."""


@dataclass(frozen=True)
class Result:
    """A run's result file and its model; tables are DataFrames (``pip install 'feddisco[tables]'``)."""

    path: Path
    config: RunConfig
    model_path: Path

    @property
    def digest(self) -> str:
        """SHA-256 of the tensors of the model that the run ended with; of its newest so far."""
        return str(self._lines()[-1].get("model", ""))

    @property
    def model(self) -> LoadedModel:
        """Model, transform and classes, as :func:`feddisco.load` gives them.

        Raises :class:`InvalidConfiguration` if the file's rounds were not trained by this function.
        """
        if not self.model_path.exists():
            raise InvalidConfiguration(
                f"{self.path} has the rounds, but no model lies beside it.",
                hint="Commands keep none; feddisco.simulate with another `out` does.",
            )
        task = self.config.task
        return load(self.model_path, allow=[name for name in (task, self.config.model) if name is not None])

    @property
    def rounds(self) -> pd.DataFrame:
        """A row a round: its scores, seconds and the model's digest."""
        found = [scores_of(line) for line in self._rounds()]
        frame: pd.DataFrame = import_pandas().DataFrame(found)
        return frame.set_index("round") if found else frame

    @property
    def ledger(self) -> pd.DataFrame:
        """A row for each client in each round: its weight, local steps and loss."""
        columns = ("participants", "weights", "steps", "local_loss")
        rows = [
            dict(zip(("round", "client", "weight", "steps", "loss"), (line["round"], *cells), strict=True))
            for line in self._rounds()
            for cells in zip(*(line[name] for name in columns), strict=True)
        ]
        frame: pd.DataFrame = import_pandas().DataFrame(rows)
        return frame

    def _lines(self) -> list[dict[str, Any]]:
        return Results(self.path).lines()

    def _rounds(self) -> list[dict[str, Any]]:
        return [line for line in self._lines() if line["kind"] == "round"]

    def _repr_html_(self) -> str:
        """For notebooks: what was run, and its last rounds."""
        rows = self._rounds()
        shown = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(line)) + "</tr>"
            for line in rows[-10:]
        )
        config = self.config
        title = f"{config.name}: {config.task}, {config.algorithm.name}, {config.weighting.kind}"
        return (
            f"<table><caption>{html.escape(title)}; round {len(rows)} of {self.config.rounds}</caption>"
            f"<tr><th>round</th><th>accuracy</th><th>loss</th><th>seconds</th></tr>{shown}</table>"
        )


def _cells(line: Mapping[str, Any]) -> list[str]:
    values = (line["accuracy"], line["loss"], line["seconds"])
    return [str(line["round"]), *("" if value is None else f"{value:.4f}" for value in values)]


def simulate(
    config: RunConfig | Mapping[str, Any] | str | Path,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    processes: int = 1,
    kernels: KernelsName = "torch",
    device: str = "cpu",
    keep_checkpoint: bool = False,
    quiet: bool = True,
) -> Result:
    """Run a configuration (a file, a mapping, or ``demo``) without a coordinator.

    ``data`` is where its data lie. ``out`` is the result file, beside which the model is put: under its name,
    with ``.safetensors`` for ``.jsonl`` or after any other ending. An unfinished one is gone on with, also
    with more rounds than it was begun with; an ended one if it was run with ``keep_checkpoint``. Without it,
    both are temporary, and go with the result. The models are those of a deployment, bit for bit, if PyTorch
    has one thread, as a worker on one core has.

    Raises:
        InvalidConfiguration: names each field and the value received, or says why the run cannot start.
    """
    given = _check(config)
    folder = tempfile.mkdtemp(prefix="feddisco-") if out is None else None
    path = Path(folder) / "run.jsonl" if folder is not None else Path(str(out))
    path.parent.mkdir(parents=True, exist_ok=True)
    model_path, tensors = (place_beside(path, end, RESULTS) for end in (".safetensors", ".tensors"))
    run_simulation(
        given,
        source=None if data is None else Path(data),
        out=path,
        kernels=kernels,
        processes=processes,
        device=device,
        keep_model=tensors,
        keep_checkpoint=keep_checkpoint,
        say=(lambda line: None) if quiet else print,
    )
    result = Result(path, given, model_path)
    if folder is not None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    if tensors.exists():
        write_model(model_path, read_tensors(tensors), _describe(result))
        tensors.unlink()
    return result


def _check(config: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    return (
        check_config(dict(config), "The configuration")
        if isinstance(config, Mapping)
        else load_config(config)
    )


def _describe(result: Result) -> ModelFacts:
    """What the run's model is of, from its result file and its task."""
    config, task, lines = result.config, task_of(result.config), result._lines()
    last = lines[-1]
    number = last.get("round") or max(line["round"] for line in lines if line["kind"] == "round")
    line = next(line for line in lines if line.get("round") == number and line["kind"] == "round")
    scores = {name: line[name] for name in ("accuracy", "loss") if line[name] is not None} | line["measures"]
    return ModelFacts(
        run=config.name,
        round=number,
        rounds=config.rounds,
        task=config.task,
        task_options=config.task_options,
        model=config.model or getattr(task, "default_model", None),
        classes=task.classes,
        input_shape=tuple(task.input_shape),
        preprocessing=task.describe_inputs(),
        algorithm=config.algorithm.name,
        weighting=config.weighting.kind,
        scores=scores,
        per_category=line["per_category"],
        model_digest=line["model"],
        tied=tied_names(task.build_model(config.model, config.seed)),
        data_licence=config.data_licence,
        made_with=lines[0]["versions"] | {"torch": torch.__version__},
    )

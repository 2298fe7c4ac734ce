"""TensorBoard: a folder a run with its curves and its configuration, written by TensorBoard's own package."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING

from server.sinks.base import SinkUnavailable, list_round_numbers, list_scores
from shared.problems import InvalidConfiguration
from shared.schemas import EvaluationView, RoundView, RunView

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

__all__ = ["TensorBoardSink"]

OPEN_FILES = 32


class TensorBoardSink:
    """A file a run and process, flushed after each call; those of the runs told of last stay open."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboard
        except ImportError as error:
            raise InvalidConfiguration(
                "FEDDISCO_TENSORBOARD_FOLDER needs a package that is not installed",
                hint="pip install 'feddisco[tensorboard]'",
            ) from error
        del tensorboard
        self._folder = folder
        self._writers: dict[str, EventFileWriter] = {}

    def begin(self, run: RunView) -> None:
        text = json.dumps(run.config.model_dump(mode="json"), indent=1, ensure_ascii=False)
        lines = "\n".join(f"    {line}" for line in text.splitlines())  # Markdown: as it is
        self._write(run, 0, run.created_at, {}, {"configuration": lines})

    def note_taken(self, run: str, round: int, client: str, at: dt.datetime) -> None:
        """Nothing that TensorBoard has a place for."""

    def write_round(self, run: RunView, round: RoundView) -> None:
        numbers = list_round_numbers(round)
        self._write(run, round.round, round.completed_at or round.opened_at, numbers)

    def write_scores(self, run: RunView, scores: EvaluationView) -> None:
        self._write(run, scores.round, scores.at, list_scores(run, scores))

    def end(self, run: RunView, model: Path | None) -> None:
        how = f"{run.status.value} after {run.completed_rounds} rounds; model {run.model}"
        take = f"feddisco run model {run.run} {run.run}.safetensors"
        at = run.finished_at or run.created_at
        self._write(run, run.completed_rounds, at, {}, {"end": f"{how}\n\n    {take}"})
        self._close(run.run)

    def _write(
        self,
        run: RunView,
        step: int,
        at: dt.datetime,
        numbers: dict[str, float],
        texts: dict[str, str] | None = None,
    ) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        values = [_make_number(name, value) for name, value in numbers.items()]
        values += [_make_text(name, text) for name, text in (texts or {}).items()]
        try:
            writer = self._find_writer(run.run)
            for summary in values:
                writer.add_event(Event(wall_time=at.timestamp(), step=step, summary=summary))
            writer.flush()
        except OSError as error:
            self._writers.pop(run.run, None)
            raise SinkUnavailable(f"{self._folder}: {error.strerror or error}") from error

    def _find_writer(self, run: str) -> EventFileWriter:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if run not in self._writers:
            while len(self._writers) >= OPEN_FILES:
                self._close(next(iter(self._writers)))
            self._writers[run] = EventFileWriter(str(self._folder / run))
        return self._writers[run]

    def _close(self, run: str) -> None:
        self._writers.pop(run).close()


def _make_number(name: str, value: float) -> Summary:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _make_text(name: str, text: str) -> Summary:
    """As the text plugin writes it; its own function imports TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text import metadata

    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    about = metadata.create_summary_metadata(display_name=name, description="")
    return Summary(value=[Summary.Value(tag=f"{name}/text_summary", metadata=about, tensor=tensor)])

"""The sinks that the settings name."""

from __future__ import annotations

from server.settings import Settings
from server.sinks.base import Sink

__all__ = ["FOLDER", "make_sinks"]

FOLDER = "sinks"
"""In the data folder: how far each has come."""


def make_sinks(settings: Settings) -> list[Sink]:
    """Raises InvalidConfiguration where a package is missing."""
    found: list[Sink] = []
    if settings.mlflow_url is not None:
        from server.sinks.mlflow import MlflowSink

        token = settings.mlflow_token
        secret = None if token is None else token.get_secret_value()
        found.append(MlflowSink(settings.mlflow_url, settings.mlflow_experiment, secret))
    if settings.tensorboard_folder is not None:
        from server.sinks.tensorboard import TensorBoardSink

        found.append(TensorBoardSink(settings.tensorboard_folder))
    if settings.otlp_url is not None:
        from server.sinks.traces import TraceSink

        found.append(TraceSink(settings.otlp_url))
    return found

"""MLflow: curves, configuration and model of each run, by its REST API (https://mlflow.org/docs, REST API).

Its Python client would bring fifteen packages and an older cachetools; six calls need none of them.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import httpx

from server.sinks.base import SinkRefused, SinkUnavailable, list_round_numbers, list_scores
from shared.schemas import EvaluationView, RoundView, RunStatus, RunView

__all__ = ["MlflowSink"]

API = "/api/2.0/mlflow"
PROXIED = "mlflow-artifacts:"
SECONDS = 10.0
UNNAMEABLE = re.compile(r"[^\w/. -]")
LATER = frozenset({401, 403, 408, 425, 429})
TOO_LARGE = 413
LONGEST_KEY, LONGEST_VALUE = 250, 6000
MOST_PARAMETERS, MOST_METRICS = 100, 1000
"""In one call; all by MLflow's limits."""
STATUSES = {RunStatus.COMPLETED: "FINISHED", RunStatus.STOPPED: "KILLED"}


class MlflowSink:
    """``token``: of a bearer, or ``USER:PASSWORD``. Our run is theirs with its name as a tag."""

    name = "mlflow"

    def __init__(self, url: str, experiment: str, token: str | None = None) -> None:
        self._experiment_name = experiment
        headers, auth = {}, None
        if token is not None and ":" in token:
            user, _, password = token.partition(":")
            auth = httpx.BasicAuth(user, password)
        elif token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, auth=auth, timeout=SECONDS)
        self._experiment: str | None = None
        self._runs: dict[str, dict[str, Any]] = {}

    def begin(self, run: RunView) -> None:
        found = self._find_run(run)
        settings = {make_key(key): value for key, value in flatten(run.config.model_dump(mode="json"))}
        parameters = [{"key": key, "value": value} for key, value in settings.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            batch = parameters[first : first + MOST_PARAMETERS]
            self._call("POST", f"{API}/runs/log-batch", {"run_id": found["run_id"], "params": batch})
        body = json.dumps(run.config.model_dump(mode="json"), indent=1).encode()
        self._put_artifact(found, "configuration.json", body)

    def note_taken(self, run: str, round: int, client: str, at: dt.datetime) -> None:
        """Nothing that MLflow has a place for."""

    def write_round(self, run: RunView, round: RoundView) -> None:
        at = round.completed_at or round.opened_at
        self._write(run, round.round, at, list_round_numbers(round))

    def write_scores(self, run: RunView, scores: EvaluationView) -> None:
        self._write(run, scores.round, scores.at, list_scores(run, scores))

    def end(self, run: RunView, model: Path | None) -> None:
        found = self._find_run(run)
        if model is not None and run.completed_rounds:
            self._put_artifact(found, f"{run.run}.safetensors", model.read_bytes())
        tags = [{"key": "feddisco.model", "value": run.model}]
        self._call("POST", f"{API}/runs/log-batch", {"run_id": found["run_id"], "tags": tags})
        ended = {"run_id": found["run_id"], "status": STATUSES.get(run.status, "FAILED")}
        if run.finished_at is not None:
            ended["end_time"] = milliseconds(run.finished_at)
        self._call("POST", f"{API}/runs/update", ended)

    # ------------------------------------------------------------ theirs

    def _write(self, run: RunView, step: int, at: dt.datetime, numbers: dict[str, float]) -> None:
        found, when = self._find_run(run), milliseconds(at)
        metrics = [
            {"key": make_key(name), "value": value, "timestamp": when, "step": step}
            for name, value in numbers.items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            batch = metrics[first : first + MOST_METRICS]
            self._call("POST", f"{API}/runs/log-batch", {"run_id": found["run_id"], "metrics": batch})

    def _find_run(self, run: RunView) -> dict[str, Any]:
        """Theirs of our run, made if there is none: its ``info``."""
        if run.run not in self._runs:
            experiment = self._find_experiment()
            wanted = f"tags.`feddisco.run` = '{run.run}'"
            asked = {"experiment_ids": [experiment], "filter": wanted, "max_results": 1}
            known = self._call("POST", f"{API}/runs/search", asked).get("runs", [])
            self._runs[run.run] = known[0]["info"] if known else self._make_run(run, experiment)
        return self._runs[run.run]

    def _make_run(self, run: RunView, experiment: str) -> dict[str, Any]:
        tags = [{"key": "feddisco.run", "value": run.run}, {"key": "mlflow.source.name", "value": "feddisco"}]
        body = {
            "experiment_id": experiment,
            "run_name": run.run,
            "start_time": milliseconds(run.created_at),
            "tags": tags,
        }
        made: dict[str, Any] = self._call("POST", f"{API}/runs/create", body)["run"]["info"]
        return made

    def _find_experiment(self) -> str:
        if self._experiment is None:
            asked = {"experiment_name": self._experiment_name}
            answer = self._send("GET", f"{API}/experiments/get-by-name", params=asked)
            if answer.status_code == httpx.codes.NOT_FOUND:
                made = self._call("POST", f"{API}/experiments/create", {"name": self._experiment_name})
                self._experiment = str(made["experiment_id"])
            else:
                self._experiment = str(_read(answer)["experiment"]["experiment_id"])
        return self._experiment

    def _put_artifact(self, found: dict[str, Any], name: str, body: bytes) -> None:
        """Through MLflow's server, where it takes files; a store that only its clients reach gets none."""
        place = str(found.get("artifact_uri", ""))
        if not place.startswith(PROXIED):
            return
        path = place.removeprefix(PROXIED).lstrip("/")
        address = f"/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        _read(self._send("PUT", address, content=body))

    def _call(self, method: str, address: str, body: dict[str, Any]) -> dict[str, Any]:
        return _read(self._send(method, address, json=body))

    def _send(self, method: str, address: str, **how: Any) -> httpx.Response:
        try:
            return self._http.request(method, address, **how)
        except httpx.HTTPError as error:
            self._runs.clear()
            raise SinkUnavailable(f"{type(error).__name__} at {self._http.base_url}") from error


def _read(answer: httpx.Response) -> dict[str, Any]:
    """What it answers. Only MLflow itself refuses for good: another server's error says nothing of a run."""
    status = answer.status_code
    if status in LATER or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise SinkUnavailable(f"it answers {status}")
    if status == TOO_LARGE or (status >= httpx.codes.BAD_REQUEST and _is_mlflows(answer)):
        raise SinkRefused(f"{status} {answer.text[:200]}")
    if status >= httpx.codes.MULTIPLE_CHOICES:
        raise SinkUnavailable(f"{answer.url} answers {status}, and not as MLflow does; is the address right?")
    try:
        found: dict[str, Any] = answer.json() if answer.content else {}
    except ValueError as error:
        raise SinkUnavailable("what answers there is no MLflow server") from error
    return found


def _is_mlflows(error: httpx.Response) -> bool:
    try:
        return "error_code" in error.json()
    except (ValueError, TypeError):
        return False


def make_key(name: str) -> str:
    """A name of a metric or parameter as MLflow takes it: some characters, a path that is as short as can be.

    >>> make_key("recall:cat"), make_key("/a//b/"), make_key("../x"), make_key("Größe (m²)")
    ('recall/cat', 'a/b', '_/x', 'Größe _m²_')
    """
    plain = UNNAMEABLE.sub("_", name.replace(":", "/"))[:LONGEST_KEY]
    parts = ["_" if part in (".", "..") else part for part in plain.split("/") if part]
    return "/".join(parts) or "_"


def milliseconds(at: dt.datetime) -> int:
    return round(at.timestamp() * 1000)


def flatten(document: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    """A configuration as MLflow's parameters.

    >>> flatten({"rounds": 3, "local": {"epochs": 1}, "model": None})
    [('rounds', '3'), ('local.epochs', '1')]
    """
    found: list[tuple[str, str]] = []
    for key, value in document.items():
        if isinstance(value, dict):
            found += flatten(value, f"{before}{key}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            found.append((f"{before}{key}", text[:LONGEST_VALUE]))
    return found

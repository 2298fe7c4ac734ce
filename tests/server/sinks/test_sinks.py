"""Sinks: what TensorBoard, a collector of traces and MLflow find, read by their own programs."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.sinks import follow
from server.sinks.mlflow import MlflowSink
from server.sinks.traces import TraceSink
from tests.helpers.live_coordinator import Live, enrolled, file_of, live, sha256
from tests.server.api.test_run_gauges import scrape

MLFLOW = os.environ.get("MLFLOW") or shutil.which("mlflow")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SECONDS", 0.1)
    monkeypatch.setattr(follow, "LONGEST_SECONDS", 0.2)


def play(at: Live, rounds: int = 2) -> None:
    """A run of so many rounds with two sites and a judge, to its end."""
    at.create(min_clients=2, rounds=rounds, weighting={"kind": "sizes"})
    judge = at.site("judge")
    assert judge.enrol("demo", 50, role="evaluator").status_code == 200
    sites = enrolled(at, [10, 30])
    for number in range(rounds + 1):
        for place, site in enumerate(sites if number else []):
            assert site.until("train")["round"] == number
            assert site.upload("demo", number, file_of(1.0 + place + number)).status_code == 200
        assert judge.until("evaluate")["round"] == number
        scores = {"loss": 2.0 - number / 2, "accuracy": 0.25 + number / 4, "examples": 50}
        answer = judge.http.put(
            f"/runs/demo/rounds/{number}/metrics", json={**scores, "extra": {"auroc": 0.5}}
        )
        assert answer.status_code == 204, answer.text
    at.wait_for(lambda: at.run()["status"] == "completed")


def wait_until_told(at: Live, sink: str) -> None:
    newest = at.coordinator.store.latest_event_id()
    file = at.coordinator.settings.data_folder / "sinks" / f"{sink}.json"
    at.wait_for(lambda: file.exists() and json.loads(file.read_text())["event"] >= newest, seconds=60)


# -------------------------------------------------------------------- TensorBoard


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def read_texts(folder: Path) -> dict[str, str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in found.Tags()["tensors"]}


def test_tensorboard_reads_the_curves(migrated_sqlite: Path, tmp_path: Path) -> None:
    """Also those of what happened while the folder could not be written; no round waited for it."""
    folder = tmp_path / "curves"
    folder.write_text("a file is in the way")
    with live(sqlite_copy(migrated_sqlite, tmp_path), tmp_path / "data", tensorboard_folder=folder) as at:
        play(at)
        at.wait_for(lambda: scrape(at).get('feddisco_sink_failures_total{sink="tensorboard"}', 0) > 1)
        assert scrape(at)['feddisco_sink_behind_events{sink="tensorboard"}'] > 0
        assert at.http().get(f"{at.url}/readyz").json()["status"] == "ok"
        folder.unlink()
        wait_until_told(at, "tensorboard")
        curves = read_curves(folder / "demo")
        assert curves["accuracy"] == [(0, 0.25), (1, 0.5), (2, 0.75)]
        assert curves["loss"] == [(0, 2.0), (1, 1.5), (2, 1.0)]
        assert curves["auroc"] == [(0, 0.5), (1, 0.5), (2, 0.5)]
        assert curves["weight/site-1"] == [(1, 0.75), (2, 0.75)]
        assert [value for _, value in curves["updates"]] == [2, 2]
        said = read_texts(folder / "demo")
        assert '"rounds": 2' in said["configuration/text_summary"]
        assert f"model {at.run()['model']}" in said["end/text_summary"]
        at.create("later")
        at.wait_for(lambda: (folder / "later").exists())
    with live(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path / "data", tensorboard_folder=folder) as at:
        at.create("third")
        at.wait_for(lambda: (folder / "third").exists())
        assert read_curves(folder / "demo") == curves, "told once, also after a restart"


def sqlite_copy(template: Path, folder: Path) -> str:
    shutil.copyfile(template, folder / "test.sqlite")
    return f"sqlite:///{folder / 'test.sqlite'}"


# -------------------------------------------------------------------- traces


class Collector(BaseHTTPRequestHandler):
    """An OTLP receiver: what it is sent, taken apart by OpenTelemetry's own messages."""

    spans: list[Any]
    status_of: Callable[[list[Any]], int]

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        assert self.path == "/v1/traces"
        scopes = [scope for resource in sent.resource_spans for scope in resource.scope_spans]
        spans = [span for scope in scopes for span in scope.spans]
        status = type(self).status_of(spans)
        type(self).spans.extend(spans if status == 200 else [])
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Silent."""


@contextmanager
def collecting(
    status_of: Callable[[list[Any]], int] = lambda spans: 200,
) -> Iterator[tuple[str, list[Any]]]:
    kind = type("OwnCollector", (Collector,), {"spans": [], "status_of": staticmethod(status_of)})
    with serving(kind) as url:
        yield url, kind.spans  # type: ignore[attr-defined]


@contextmanager
def serving(kind: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def read_round(span: Any) -> int:
    (found,) = [one.value.int_value for one in span.attributes if one.key == "feddisco.round"]
    return int(found)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_spans_that_are_refused_for_good_keep_no_others(
    status: int, migrated_sqlite: Path, tmp_path: Path
) -> None:
    """They were told again for ever, and no later round ever was."""
    database = sqlite_copy(migrated_sqlite, tmp_path)

    def refuse_first_round(spans: list[Any]) -> int:
        return status if {read_round(span) for span in spans} == {1} else 200

    with (
        collecting(refuse_first_round) as (url, spans),
        live(database, tmp_path / "data", otlp_url=url) as at,
    ):
        play(at)
        wait_until_told(at, "traces")
        assert {read_round(span) for span in spans} == {2}


def test_a_collector_that_is_not_there_yet_is_told_all(migrated_sqlite: Path, tmp_path: Path) -> None:
    """Of a wrong address nothing is lost; told again, a round is whole."""
    database, tries = sqlite_copy(migrated_sqlite, tmp_path), iter([404, 404, 401])
    with (
        collecting(lambda spans: next(tries, 200)) as (url, spans),
        live(database, tmp_path / "data", otlp_url=url) as at,
    ):
        play(at)
        wait_until_told(at, "traces")
        names = [span.name for span in spans if read_round(span) == 1]
        assert {"round", "poll site-0", "poll site-1", "evaluation judge"} <= set(names)
        assert {read_round(span) for span in spans} == {1, 2}


def test_a_large_round_is_told_in_pieces(migrated_sqlite: Path, tmp_path: Path) -> None:
    pieces: list[int] = []

    def count(spans: list[Any]) -> int:
        pieces.append(len(spans))
        return 200

    database = sqlite_copy(migrated_sqlite, tmp_path)
    with live(database, tmp_path / "data") as at, collecting(count) as (url, spans):
        play(at, rounds=1)
        store, now = at.coordinator.store, at.coordinator.clock()
        view = store.round_view("demo", 1, 1)
        rows = [view.ledger[0].model_copy(update={"client": f"site-{index}"}) for index in range(1000)]
        TraceSink(url).write_round(store.run_view("demo", now), view.model_copy(update={"ledger": rows}))
        assert pieces == [512, 491]
        assert len({span.trace_id for span in spans}) == 1


def test_a_round_is_a_trace(migrated_sqlite: Path, tmp_path: Path) -> None:
    database = sqlite_copy(migrated_sqlite, tmp_path)
    with collecting() as (url, spans), live(database, tmp_path / "data", otlp_url=url) as at:
        play(at)
        wait_until_told(at, "traces")
        rounds = [span for span in spans if span.name == "round"]
        assert len(rounds) == 2
        assert len({span.trace_id for span in spans}) == 2
        first = {span.name: span for span in spans if span.trace_id == rounds[0].trace_id}
        names = {f"{what} site-{index}" for what in ("poll", "upload") for index in (0, 1)}
        assert set(first) == {"round", "draw", "aggregation", "evaluation judge"} | names
        root = first.pop("round")
        assert (len(root.parent_span_id), len(root.trace_id), len(root.span_id)) == (0, 16, 8)
        assert {span.parent_span_id for span in first.values()} == {root.span_id}
        view = at.admin.get("/runs/demo/rounds/1").json()
        opened, completed = root.start_time_unix_nano, root.end_time_unix_nano
        assert abs(completed - opened - 1e9 * seconds_between(view)) < 1e6
        for name in ("poll site-0", "upload site-0", "aggregation"):
            assert (
                opened <= first[name].start_time_unix_nano <= first[name].end_time_unix_nano <= completed
            ), name
        assert first["poll site-1"].end_time_unix_nano == first["upload site-1"].start_time_unix_nano
        about = {one.key: one.value for one in first["upload site-1"].attributes}
        assert about["feddisco.run"].string_value == "demo"
        assert about["feddisco.weight"].double_value == 0.75


def seconds_between(view: dict[str, Any]) -> float:
    import datetime as dt

    ends = [dt.datetime.fromisoformat(view[name]) for name in ("opened_at", "completed_at")]
    return (ends[1] - ends[0]).total_seconds()


# -------------------------------------------------------------------- MLflow


class Mlflow(BaseHTTPRequestHandler):
    """What is asked of an MLflow server, by its rules; another one answers unless ``is_there``."""

    is_there: bool
    metrics: list[dict[str, Any]]
    parameters: list[dict[str, str]]

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not type(self).is_there:
            self._send(404, b"<html><h1>404 Not Found</h1></html>")
            return
        match self.path.partition("?")[0].removeprefix("/api/2.0/mlflow/"):
            case "experiments/get-by-name":
                self._send_json(404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
            case "experiments/create":
                self._send_json(200, {"experiment_id": "1"})
            case "runs/create":
                self._send_json(200, {"run": {"info": {"run_id": "theirs"}}})
            case "runs/log-batch":
                self._log(given)
            case _:
                self._send_json(200, {})

    do_GET = do_POST

    def _log(self, given: dict[str, Any]) -> None:
        metrics, parameters = given.get("metrics", []), given.get("params", [])
        keys = [one["key"] for one in metrics + parameters]
        if len(metrics) > 1000 or len(parameters) > 100 or not all(map(self._is_key, keys)):
            self._send_json(400, {"error_code": "INVALID_PARAMETER_VALUE"})
            return
        type(self).metrics.extend(metrics)
        type(self).parameters.extend(parameters)
        self._send_json(200, {})

    @staticmethod
    def _is_key(key: str) -> bool:
        """As MLflow's validation says."""
        shortest = posixpath.normpath(key)
        is_path = shortest == key and shortest != "." and not shortest.startswith(("..", "/"))
        return is_path and len(key) <= 250 and re.fullmatch(r"[/\w.\- ]+", key) is not None

    def _send_json(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def mlflow() -> Iterator[tuple[str, type[Mlflow]]]:
    kind = type("OwnMlflow", (Mlflow,), {"is_there": True, "metrics": [], "parameters": []})
    with serving(kind) as url:
        yield url, kind


def test_an_address_that_leads_elsewhere_loses_no_history(
    migrated_sqlite: Path, tmp_path: Path, mlflow: tuple[str, type[Mlflow]]
) -> None:
    """The 404 of another server was taken for a refusal by MLflow, of each event there had been."""
    url, server = mlflow
    server.is_there = False
    with live(sqlite_copy(migrated_sqlite, tmp_path), tmp_path / "data", mlflow_url=url) as at:
        play(at)
        at.wait_for(lambda: scrape(at).get('feddisco_sink_failures_total{sink="mlflow"}', 0) > 1)
        server.is_there = True
        wait_until_told(at, "mlflow")
    told = [(one["step"], one["value"]) for one in server.metrics if one["key"] == "accuracy"]
    assert told == [(0, 0.25), (1, 0.5), (2, 0.75)]


def test_many_metrics_and_awkward_names_are_taken(
    migrated_sqlite: Path, tmp_path: Path, mlflow: tuple[str, type[Mlflow]]
) -> None:
    url, server = mlflow
    awkward = [
        "a//b",
        "/x",
        "..",
        "../up",
        "a/./b",
        "what?",
        "of a class: cat",
        "",
        "x" * 251,
        "y" * 249 + "/z",
    ]
    with live(sqlite_copy(migrated_sqlite, tmp_path), tmp_path / "data") as at:
        play(at, rounds=1)
        store = at.coordinator.store
        run, scores = store.run_view("demo", at.coordinator.clock()), store.evaluations("demo")[0]
    names = [*awkward, *(f"class {number}" for number in range(1500))]
    sink = MlflowSink(url, "skin")
    sink.write_scores(run, scores.model_copy(update={"extra": dict.fromkeys(names, 0.5)}))
    assert len(server.metrics) == 1502 + len(awkward)
    assert {"a/b", "x", "_", "_/up", "of a class/ cat", "x" * 250} <= {one["key"] for one in server.metrics}
    options = {name: 1 for name in awkward if name}
    config = run.config.model_copy(update={"task_options": options})
    sink.begin(run.model_copy(update={"config": config}))
    assert {"task_options.a/b", "task_options.what_"} <= {one["key"] for one in server.parameters}


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """A real one, with SQLite and a folder of artefacts."""
    folder.mkdir(exist_ok=True)
    command = [str(MLFLOW), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, *store], stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
        )
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.5)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # it has processes of its own
        server.wait(60)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_a_sink_that_does_not_answer_keeps_nobody(migrated_sqlite: Path, tmp_path: Path) -> None:
    """Nobody listens there: rounds complete, the coordinator is well, and it ends in good time."""
    url = f"http://127.0.0.1:{free_port()}"
    database = sqlite_copy(migrated_sqlite, tmp_path)
    with live(database, tmp_path / "data", mlflow_url=url, otlp_url=url) as at:
        play(at, rounds=1)
        at.wait_for(lambda: scrape(at).get('feddisco_sink_failures_total{sink="mlflow"}', 0) > 1)
        assert at.http().get(f"{at.url}/readyz").json()["status"] == "ok"
        began = time.monotonic()
    assert time.monotonic() - began < 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(MLFLOW is None, reason="no mlflow on PATH (or in MLFLOW)")
def test_mlflow_has_curves_configuration_and_model(migrated_sqlite: Path, tmp_path: Path) -> None:
    """From a server that is started only when the run has ended."""
    port, database = free_port(), sqlite_copy(migrated_sqlite, tmp_path)
    with live(
        database, tmp_path / "data", mlflow_url=f"http://127.0.0.1:{port}", mlflow_experiment="skin"
    ) as at:
        play(at)
        with mlflow_server(tmp_path / "mlflow", port) as url:
            wait_until_told(at, "mlflow")
            ours = at.run()
            api = httpx.Client(base_url=f"{url}/api/2.0", timeout=30)
            experiment = api.get("/mlflow/experiments/get-by-name", params={"experiment_name": "skin"}).json()
            number = experiment["experiment"]["experiment_id"]
            (found,) = api.post("/mlflow/runs/search", json={"experiment_ids": [number]}).json()["runs"]
            info = found["info"]
            assert (info["run_name"], info["status"]) == ("demo", "FINISHED")
            assert abs(info["end_time"] - info["start_time"]) < 600_000
            parameters = {one["key"]: one["value"] for one in found["data"]["params"]}
            assert (parameters["rounds"], parameters["weighting.kind"]) == ("2", "sizes")
            tags = {one["key"]: one["value"] for one in found["data"]["tags"]}
            assert tags["feddisco.model"] == ours["model"]
            asked = {"run_id": info["run_id"], "metric_key": "accuracy"}
            curve = api.get("/mlflow/metrics/get-history", params=asked).json()["metrics"]
            assert [(one["step"], one["value"]) for one in curve] == [(0, 0.25), (1, 0.5), (2, 0.75)]
            place = info["artifact_uri"].removeprefix("mlflow-artifacts:").lstrip("/")
            model = api.get(f"/mlflow-artifacts/artifacts/{place}/demo.safetensors")
            assert sha256(model.content) == ours["model"]
            api.close()

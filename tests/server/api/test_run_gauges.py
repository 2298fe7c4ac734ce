"""Metrics of each run, and the files in ``deploy/`` that use them."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import yaml
from typer.testing import CliRunner

from feddisco.main import app
from server.monitoring.metrics import Telemetry
from shared import problems
from shared.schemas import EnrolmentStatus, RunStatus
from tests.helpers.live_coordinator import Live, enrolled, file_of, live

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def scrape(at: Live) -> dict[str, float]:
    text = at.admin.get(f"{at.url}/metrics").text
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    }


def test_a_run_has_its_gauges_until_it_ends(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=1, rounds=3, weighting={"kind": "sizes"})
        assert scrape(at)['feddisco_run_rounds{run="demo"}'] == 3
        judges = [at.site(name) for name in ("judge", "second")]
        for judge in judges:
            assert judge.enrol("demo", 50, role="evaluator").status_code == 200
        (site,) = enrolled(at, [10])
        site.until("train")
        assert site.upload("demo", 1, file_of(1.0)).status_code == 200
        at.wait_for(lambda: at.run()["completed_rounds"] == 1)
        for judge, accuracy in zip(judges, (0.5, 0.75), strict=True):
            for round in (0, 1):
                body = {"loss": 2.0 - accuracy, "accuracy": accuracy, "examples": 50}
                assert judge.http.put(f"/runs/demo/rounds/{round}/metrics", json=body).status_code == 204
        # when clients were seen is written every few seconds
        at.wait_for(lambda: 'feddisco_run_silent_seconds{run="demo"}' in scrape(at))
        found = scrape(at)
        assert found['feddisco_run_round{run="demo"}'] == 1
        assert found['feddisco_run_accuracy{run="demo"}'] == 0.625
        assert found['feddisco_run_loss{run="demo"}'] == 1.375
        assert found['feddisco_run_bytes{run="demo"}'] > 2 * 17 * 4
        assert found['feddisco_run_open_seconds{run="demo"}'] >= 0
        assert found['feddisco_run_silent_seconds{run="demo"}'] >= 0
        assert not [name for name in found if "_created" in name]
        assert at.admin.post("/runs/demo/stop", json={"reason": "enough"}).status_code == 200
        assert not [name for name in scrape(at) if name.startswith("feddisco_run_")]


def test_alerts_and_dashboard_name_metrics_that_there_are(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data") as at:
        at.create()
        text = at.admin.get(f"{at.url}/metrics").text
    families = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    known = families | {f"{name}_bucket" for name in families}
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana" / "feddisco.json").read_text())
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 20
    used = {name for expression in asked for name in re.findall(r"feddisco_\w+", expression)}
    assert used - known == set()
    assert {name for name in families if name.startswith("feddisco_run_")} <= used


def labels_by_metric() -> dict[str, set[str]]:
    """By family, as in an expression; those of :meth:`Telemetry.watch` have none."""
    known = Telemetry().registry._names_to_collectors
    return {name: set(getattr(collector, "_labelnames", ())) for name, collector in known.items()}


def test_alerts_dashboard_and_document_name_labels_that_there_are() -> None:
    known = labels_by_metric()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana" / "feddisco.json").read_text())
    document = (DEPLOY.parent / "docs" / "operations.md").read_text()
    shown = [(rule["expr"], " ".join(rule["annotations"].values())) for rule in rules]
    shown += [(target["expr"], target["legendFormat"]) for p in board["panels"] for target in p["targets"]]
    shown += [(code, "") for code in re.findall(r"`([^`\n]*feddisco_[^`\n]*)`", document)]
    asked = 0
    for expression, words in shown:
        metrics = re.findall(r"feddisco_\w+", expression)
        allowed = set().union(*(known.get(name, set()) for name in metrics)) - {"le"}
        selected = re.findall(r"(\w+)=~?\"", expression)
        selected += re.split(r"\W+", ",".join(re.findall(r"by \(([^)]*)\)", expression)))
        told = re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", words)
        used = {name for name in (*selected, *told) if name} - {"le"}
        if metrics:
            asked += len(used)
            assert used <= allowed, expression
    assert asked > 25
    for variable in board["templating"]["list"]:
        if found := re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]):
            assert found[2] in known[found[1]]


def test_alerts_and_document_ask_for_values_that_there_are(database_url: str, tmp_path: Path) -> None:
    """An alert on a status or code that is never told is never raised."""
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    text += (DEPLOY.parent / "docs" / "operations.md").read_text()
    with live(database_url, tmp_path / "data") as at:
        told = set(re.findall(r'feddisco_stored\{noun="(\w+)",status="(\w+)"\}', "\n".join(scrape(at))))
    asked = set(re.findall(r'feddisco_stored\{noun="(\w+)",status="(\w+)"\}', text))
    assert len(asked) >= 4
    possible = {("runs", str(status)) for status in RunStatus}
    possible |= {("enrolments", str(status)) for status in EnrolmentStatus}
    assert asked <= told | possible
    codes = set(re.findall(r'feddisco_problems_total\{code="([^"]+)"\}', text))
    assert codes
    assert codes <= {kind.code for kind in _below(problems.Problem)}


def _below(kind: type[problems.Problem]) -> list[type[problems.Problem]]:
    return [found for below in kind.__subclasses__() for found in (below, *_below(below))]


def test_the_units_call_commands_with_flags_that_there_are() -> None:
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read(path)
        program, command, *flags = unit["Service"]["ExecStart"].split()
        assert program.endswith("/bin/feddisco")
        told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        for flag in (word for word in flags if word.startswith("--")):
            assert flag in told, f"{path.name}: {flag}"


def test_prometheus_and_the_proxies_agree_on_the_address() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["metrics_path"] == "/metrics"
    (host,) = scraped["static_configs"][0]["targets"]
    for name in ("Caddyfile", "nginx.conf"):
        text = (DEPLOY / "proxy" / name).read_text()
        assert host in text
        assert "127.0.0.1:8000" in text

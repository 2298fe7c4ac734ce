"""The chart and the compose file: they name settings that there are, and start what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "feddisco"
HELM = os.environ.get("HELM") or shutil.which("helm")
TOKENS = (
    *("--set", "secret.FEDDISCO_ADMIN_TOKEN=a-secret-of-16-or-more"),
    *("--set", "secret.FEDDISCO_VIEWER_TOKEN=another-of-16-or-more"),
)


def test_the_chart_names_settings_that_there_are() -> None:
    text = "\n".join(path.read_text() for path in CHART.rglob("*") if path.is_file())
    named = {name.lower() for name in re.findall(r"FEDDISCO_([A-Z][A-Z0-9_]+)", text)}
    assert named - set(Settings.model_fields) == set()
    assert {"admin_token", "database_url", "data_folder", "blob_store"} <= named
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(re.findall(r"\.Values\.(\w+)", text)) == set(values)


def test_the_chart_keeps_every_secret_that_it_is_given() -> None:
    """Also one that values.yaml only mentions, such as S3's: it was left out without a word."""
    template = (CHART / "templates" / "secret.yaml").read_text()
    assert 'range $name, $value := omit .Values.secret "FEDDISCO_ADMIN_TOKEN"' in template
    values = (CHART / "values.yaml").read_text()
    under = values[values.index("\nsecret:") : values.index("\nsettings:")]
    named = {name.lower() for name in re.findall(r"FEDDISCO_(\w+):", under)}
    assert {"s3_access_key_id", "s3_secret_access_key"} <= named
    assert named <= {name for name, field in Settings.model_fields.items() if "SecretStr" in str(field)} | {
        "database_url",
        "s3_access_key_id",
    }


def test_the_compose_file_has_a_coordinator_alone() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    always = {name for name, service in services.items() if "profiles" not in service}
    assert always == {"database", "migrate", "coordinator"}
    for name in always:
        assert set(services[name].get("depends_on", {})) <= always, name
    assert "COMPOSE_PROFILES=demo" in (ROOT / ".env.example").read_text().splitlines()


def run_helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *words], capture_output=True, text=True, check=False, timeout=60)


def render(*options: str) -> list[dict[str, Any]]:
    done = run_helm("template", "demo", str(CHART), "--kube-version", "1.29.0", *TOKENS, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.mark.skipif(HELM is None, reason="no helm on PATH (or in HELM)")
def test_the_chart_is_rendered() -> None:
    linted = run_helm("lint", "--strict", str(CHART), *TOKENS)
    assert linted.returncode == 0, linted.stdout
    plain = {document["kind"]: document for document in render()}
    assert set(plain) == {"Secret", "PersistentVolumeClaim", "Service", "Deployment"}
    pod = plain["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {variable["name"] for variable in container["env"]} >= {"FEDDISCO_HOST", "FEDDISCO_LOG_FORMAT"}
    assert pod["initContainers"][0]["args"] == ["server", "migrate"]
    assert container["envFrom"] == [{"secretRef": {"name": plain["Secret"]["metadata"]["name"]}}]
    assert (
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
        == plain["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert plain["Service"]["spec"]["selector"] == plain["Deployment"]["spec"]["selector"]["matchLabels"]
    more = render(
        *(
            "--set",
            "ingress.enabled=true,ingress.tlsSecret=tls,serviceMonitor.enabled=true,existingSecret=ours",
        ),
        *("--set", "replicas=2,settings.FEDDISCO_BLOB_STORE=s3://bucket/feddisco"),
    )
    keys = {"FEDDISCO_DATABASE_URL": "postgresql://one", "FEDDISCO_S3_SECRET_ACCESS_KEY": "key"}
    given = ",".join(f"secret.{name}={value}" for name, value in keys.items())
    (secret,) = (document for document in render("--set", given) if document["kind"] == "Secret")
    assert keys.items() <= secret["stringData"].items()
    found = {document["kind"]: document for document in more}
    assert set(found) == {"PersistentVolumeClaim", "Service", "Deployment", "Ingress", "ServiceMonitor"}
    assert found["Ingress"]["spec"]["tls"][0]["secretName"] == "tls"


@pytest.mark.skipif(HELM is None, reason="no helm on PATH (or in HELM)")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "replicas=2", *TOKENS), "several replicas share no volume"),
        (("--set", "replicas=2,settings.FEDDISCO_BLOB_STORE=s3://bucket/x", *TOKENS), "share one database"),
        ((), "secret.FEDDISCO_ADMIN_TOKEN, or existingSecret"),
        (("--set", "ingress.enabled=true", *TOKENS), "tokens cross this connection"),
    ],
)
def test_the_chart_refuses_what_cannot_work(options: tuple[str, ...], said: str) -> None:
    done = run_helm("template", "demo", str(CHART), "--kube-version", "1.29.0", *options)
    assert done.returncode != 0
    assert said in done.stderr

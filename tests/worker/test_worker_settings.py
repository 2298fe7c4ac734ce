"""The worker's settings: from flags and environment, each with its paragraph, faults named as both."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.config import Partition
from shared.join_codes import JoinCode, write_join_code
from shared.problems import InvalidConfiguration
from worker.settings import WorkerSettings, load

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings-worker.md"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WorkerSettings.model_fields:
        monkeypatch.delenv(f"FEDDISCO_{name.upper()}", raising=False)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDISCO_TASK", "cifar10")
    monkeypatch.setenv("FEDDISCO_THREADS", "3")
    settings = load({"task": "digits", "threads": None})
    assert (settings.task, settings.threads) == ("digits", 3)


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDISCO_JOIN_TOKEN", "")  # as docker compose passes a variable without value
    assert load().join_code() is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("run", "run"), ("niid2:5+1", Partition.model_validate({"kind": "niid2", "clients": 6, "unbiased": 1}))],
)
def test_a_partition_in_its_short_form(monkeypatch: pytest.MonkeyPatch, text: str, value: object) -> None:
    monkeypatch.setenv("FEDDISCO_PARTITION", text)
    assert load().partition == value


def test_task_options_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDISCO_TASK_OPTIONS", '{"size": 32}')
    assert load().task_options == {"size": 32}


def test_algorithms_are_patterns_with_commas_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDISCO_ALGORITHMS", "ours.fedslow:*, theirs:FedFast,")
    assert load().algorithms == ("ours.fedslow:*", "theirs:FedFast")
    assert load({"algorithms": "one:A"}).algorithms == ("one:A",)


def test_a_mistyped_metric_is_told_once() -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        load({"metrics": "klx"})
    assert str(refused.value).count("--metrics") == 1


def test_the_join_code_comes_from_its_file_without_the_line_end(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_text("  the-code\n")
    assert load({"join_token_file": path}).join_code() == JoinCode("the-code")
    path.write_bytes(b"\xef\xbb\xbfthe-code\r\n")
    assert load({"join_token_file": path}).join_code() == JoinCode("the-code"), "as some editors save it"
    assert load({"join_token": "direct", "join_token_file": path}).join_code() == JoinCode("direct")
    assert load({"join": "first", "join_token": "direct"}).join_code() == JoinCode("first")


def test_a_join_code_from_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    code = JoinCode("a-token", "https://coordinator.example:8000", "0a" * 32)
    for name in ("join", "join_token"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{write_join_code(code)}\nmore"))
        assert load({name: "-"}).join_code() == code
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert load({"join": "-"}).join_code() is None


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(load({"join_token": "hunter2"}))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"url": "coordinator:8000"}, r"--url \(FEDDISCO_URL\): .* is not a web address"),
        ({"url": "https://user:secret@host"}, r"--url .*leave secrets and queries out"),
        ({"task_options": "{size: 32}"}, r"--task-options \(FEDDISCO_TASK_OPTIONS\): is not JSON"),
        ({"partition": "stripes:3"}, r"--partition .*'stripes:3' is none of iid:N"),
        ({"ca_file": "/no/such/file"}, r"--ca-file .*there is nothing at /no/such/file"),
        ({"name": "North Hospital"}, r"--name "),
        ({"precision": "float8"}, r"--precision .*'bfloat16'"),
        ({"wait_seconds": 1000}, r"--wait-seconds .*less than or equal to 60"),
        ({"threads": 0, "index": -1}, r"--index .*; --threads "),
    ],
)
def test_a_fault_names_flag_variable_and_reason(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words) as caught:
        load(flags)
    assert "secret@" not in str(caught.value)


def test_a_trailing_slash_of_the_address_does_not_matter() -> None:
    assert load({"url": "https://host/feddisco/"}).url == "https://host/feddisco"


def test_every_setting_has_its_paragraph_and_no_other() -> None:
    described = re.findall(r"^### `--([a-z-]+)`, `FEDDISCO_([A-Z_]+)`$", DOCUMENT.read_text(), re.MULTILINE)
    assert [flag.replace("-", "_") for flag, _ in described] == list(WorkerSettings.model_fields)
    assert all(flag.replace("-", "_").upper() == variable for flag, variable in described)

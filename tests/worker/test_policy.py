"""The site's policy: its file, what decides beside it, and that every key of it declines what is outside."""

from __future__ import annotations

import html
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from feddisco.main import app
from shared.config import RunConfig
from shared.faults import Fault, FaultCode
from shared.problems import InvalidConfiguration
from shared.schemas import UpdateReport
from tests.helpers.live_coordinator import JOIN, Live
from tests.helpers.worker_crew import create, keep, worker
from worker.client import CoordinatorClient
from worker.faults import LocalFault
from worker.policy import DEALT, OWN, Policy, allows
from worker.policy.check import check_assisting
from worker.policy.document import SETTINGS, format_policy, load_policy, parse_policy, read_policy
from worker.policy.watch import PolicyChanged, PolicyWatch
from worker.settings import WorkerSettings, load

DOCS = Path(__file__).resolve().parents[2] / "docs"
OTHER = "tests.helpers.own_tasks:Own"
FINGERPRINT = ":".join(["AB"] * 32)


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read_told(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "told.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------- the file


def test_the_example_is_the_default_policy_and_states_every_key(tmp_path: Path) -> None:
    found = read_policy(write(tmp_path, format_policy()))
    assert found.policy == OWN
    assert set(found.lines) == set(Policy.model_fields)
    lines = format_policy().splitlines()
    assert all(lines[line - 1].startswith(f"{key}: ") for key, line in found.lines.items())


def test_the_document_shows_the_example() -> None:
    assert f"```yaml\n{format_policy()}```" in (DOCS / "policy.md").read_text(encoding="utf-8")


_patterns = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3).map(tuple)
_most = st.none() | st.integers(1, 10**12)
POLICIES = st.builds(
    Policy,
    runs=_patterns,
    coordinators=st.sampled_from([(), (FINGERPRINT,), (f"sha256:{'0' * 63}1", "f" * 64)]),
    tasks=_patterns,
    algorithms=_patterns,
    models=_patterns,
    most_parameters=_most,
    most_rounds=_most,
    most_epochs=_most,
    fewest_trainers=st.integers(1, 100),
    sums_only=st.booleans(),
    smallest_sum=st.integers(3, 100),
    smallest_difference=st.integers(1, 100),
    features=st.sampled_from(["nothing", "means", "covariances"]),
    most_epsilon=st.none() | st.floats(0.001, 100),
    epsilon_delta=st.floats(1e-12, 0.5),
    tell_epsilon=st.booleans(),
    disclosure=st.sampled_from(["none", "noised", "exact"]),
    epsilon=st.floats(0.001, 100),
    metrics=st.lists(st.sampled_from(["kl", "l1", "l2", "cosine"]), unique=True).map(tuple),
    labels=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
    tell=st.sampled_from(["sentences", "full"]),
)


@settings(max_examples=30, deadline=None)
@example(Policy(labels={"\x85": "\u2028 grün"}))
@given(POLICIES)
def test_any_policy_that_is_printed_is_read_again(policy: Policy) -> None:
    assert parse_policy(format_policy(policy), Path("policy.yaml")).policy == policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: ['a']\nmost_round: 3\n", "line 2: there is no key 'most_round' (did you mean most_rounds?)"),
        ("nonsense: 1\n", "line 1: there is no key 'nonsense'"),
        (
            "most_rounds: '200'\n",
            "line 1: most_rounds: input should be a valid integer: write 200, received '200'",
        ),
        ("most_rounds: true\n", "line 1: most_rounds: "),
        (
            "\n\nmost_epochs: 0\n",
            "line 3: most_epochs: input should be greater than or equal to 1, received 0",
        ),
        ("most_steps: 1.5\n", "line 1: most_steps: "),
        ("sums_only: 'yes'\n", "line 1: sums_only: "),
        ("epsilon: true\n", "line 1: epsilon: "),
        ("most_epsilon: 0\n", "line 1: most_epsilon: input should be greater than 0, received 0"),
        ("most_epsilon: '8'\n", "line 1: most_epsilon: "),
        ("epsilon: .nan\n", "line 1: epsilon: "),
        ("epsilon: 0\n", "line 1: epsilon: "),
        ("disclosure: nothing\n", "line 1: disclosure: input should be 'none', 'noised' or 'exact'"),
        (
            "metrics:\n- kl\n- l3\n",
            "line 3: metrics: input should be 'kl', 'l1', 'l2' or 'cosine', or package.module:attribute, "
            "received 'l3'.",
        ),
        ("targets: uniform\n", "line 1: targets: "),
        ("runs: []\n", "line 1: runs: input should be a list of at least 1 item, received []"),
        ("metrics: [KL]\n", "line 1: metrics: input should be 'kl', 'l1', 'l2' or 'cosine', or package."),
        ("metrics: ['a:b:c']\n", "'cosine', or package.module:attribute, received 'a:b:c'."),
        ("runs:\n  - a\n  - 7\n", "line 3: runs: input should be text: put it in quotes, '7', received 7"),
        ("runs: skin\n", "runs: input should be a list: write [skin], received 'skin'"),
        ("parts:\n", "parts: input should be a list, received None"),
        ("labels: {no: b}\n", "labels: input should be text: YAML takes yes, no"),
        ("epsilon: 1e-1\n", "epsilon: input should be a valid number: write 0.1, received '1e-1'"),
        ("most_parameters: 1.0e+5\n", "write 100000, received 100000.0"),
        ("labels:\n  mel: melanoma\n  bcc: 3\n", "line 3: labels: "),
        ("coordinators: [abc]\n", "line 1: coordinators: is not a SHA-256 fingerprint"),
        ("tell: all\n", "line 1: tell: "),
        ("runs: [a]\nruns: [b]\n", "'runs' on line 1 and again on line 2"),
        ("runs: [*]\n", "line 1, column"),
        ("- runs\n", "line 1: is no mapping"),
        ("", "line 1: is no mapping"),
        ("most_rounds: x\nmost_epochs: y\n", "line 2: most_epochs: "),
    ],
)
def test_a_refusal_names_the_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidConfiguration, match=re.escape(said)) as refused:
        read_policy(path)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"runs: ['\xff']\n")
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    for name, said in (
        ("missing", "is not there"),
        ("bytes", "is not UTF-8"),
        ("large", "is larger"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(InvalidConfiguration, match=said):
            read_policy(tmp_path / name)


def test_a_wrong_item_is_not_told_as_a_short_list_as_well(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        read_policy(write(tmp_path, "runs: [2024-01-01]\n"))
    assert "put it in quotes, '2024-01-01'" in str(refused.value)
    assert "at least 1 item" not in str(refused.value)


# ---------------------------------------------------------------- what decides


def loaded(**flags: Any) -> WorkerSettings:
    return load(flags)


def test_without_file_and_settings_the_defaults_hold_by_kind_of_data() -> None:
    found = load_policy(loaded())
    assert (found.own, found.dealt) == (OWN, DEALT)
    assert (OWN.disclosure, OWN.epsilon, OWN.fewest_trainers, OWN.tell) == ("noised", 1.0, 2, "sentences")
    assert (DEALT.disclosure, DEALT.most_rounds, DEALT.fewest_trainers) == ("exact", None, 1)


def test_defaults_of_settings_are_those_of_the_policy() -> None:
    given = WorkerSettings()
    for name in set(SETTINGS) - {"disclosure", "algorithms"}:
        assert getattr(given, name) == getattr(OWN, name), name
    assert (given.disclosure, given.algorithms) == (None, ())


def test_a_setting_decides_where_the_file_does_not(tmp_path: Path) -> None:
    file = write(tmp_path, "runs: [ours]\nepsilon: 0.5\n")
    found = load_policy(loaded(policy=file, metrics="kl,l1", algorithms="ours:*"))
    for policy, default in ((found.own, OWN), (found.dealt, DEALT)):
        assert (policy.runs, policy.epsilon, policy.metrics) == (("ours",), 0.5, ("kl", "l1"))
        assert policy.algorithms == ("*", "ours:*")
        assert (policy.disclosure, policy.most_rounds) == (default.disclosure, default.most_rounds)
    assert found.where("epsilon") == f"{file} line 2"
    assert (found.where("metrics"), found.where("sizes")) == ("--metrics", "the default policy")


VALUES = {
    "algorithms": "ours:*", "disclosure": "exact", "epsilon": "1", "metrics": "kl", "sizes": "exact",
    "on_broken": "skip", "on_changed_data": "enrol", "labels": "{}", "tell": "full",
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_what_file_and_setting_both_decide_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"FEDDISCO_{name.upper()}", VALUES[name])
    file = write(tmp_path, format_policy())
    line = read_policy(file).lines[name]
    flag = f"--{name.replace('_', '-')} (FEDDISCO_{name.upper()})"
    with pytest.raises(InvalidConfiguration) as refused:
        load_policy(loaded(policy=file))
    assert str(refused.value).startswith(f"{flag} and {file} line {line} decide the same.")


def test_patterns_for_names_do_not_fit_import_paths() -> None:
    assert allows(("*",), "fedprox")
    assert not allows(("*", "fed*"), "theirs:Algorithm")
    assert not allows(("*:*",), "fedprox")
    assert allows(("fedavg", "theirs:*"), "theirs:Algorithm")


# ---------------------------------------------------------------- every key declines what is outside


def _limit(code: FaultCode, allowed: int, asked: int) -> Fault:
    return Fault(code, counts={"allowed": allowed, "asked": asked})


L1, HALVES = {"kind": "disco", "metric": "l1"}, {"kind": "disco", "target": [0.5, *[0.5 / 9] * 9]}
OUTSIDE: dict[str, tuple[str, dict[str, Any], Fault]] = {
    "runs": ("[good]", {}, Fault(FaultCode.RUN_NOT_ALLOWED)),
    "algorithms": ("[fedavg]", {"algorithm": "fedprox"}, Fault(FaultCode.ALGORITHM_NOT_ALLOWED)),
    "models": ("[default]", {"model": "mlp"}, Fault(FaultCode.MODEL_NOT_ALLOWED)),
    "parts": (
        '["ours:*"]',
        {"local": {"steps": 1, "loss": "theirs.losses:Focal"}},
        Fault(FaultCode.PART_NOT_ALLOWED),
    ),
    "most_rounds": ("1", {"rounds": 2}, _limit(FaultCode.TOO_MANY_ROUNDS, 1, 2)),
    "most_epochs": ("2", {"local": {"epochs": 3}}, _limit(FaultCode.TOO_MANY_EPOCHS, 2, 3)),
    "most_steps": ("3", {"local": {"steps_range": [1, 4]}}, _limit(FaultCode.TOO_MANY_STEPS, 3, 4)),
    "largest_batch": (
        "64",
        {"local": {"steps": 1, "batch_size": 65}},
        _limit(FaultCode.BATCH_TOO_LARGE, 64, 65),
    ),
    "fewest_trainers": ("2", {"min_clients": 1, "quorum": 1}, _limit(FaultCode.TOO_FEW_TRAINERS, 2, 1)),
    "fewest_updates": ("2", {"quorum": 1}, _limit(FaultCode.TOO_FEW_UPDATES, 2, 1)),
    "smallest_sum": (
        "4",
        {"min_clients": 3, "quorum": 2, "secure": {}},
        _limit(FaultCode.TOO_FEW_IN_SUM, 4, 3),
    ),
    "disclosure": ("none", {"weighting": {"kind": "disco"}}, Fault(FaultCode.NOTHING_TOLD)),
    "metrics": ("[kl]", {"weighting": L1}, Fault(FaultCode.OTHER_METRIC)),
    "targets": ("[uniform]", {"weighting": HALVES}, Fault(FaultCode.TARGET_NOT_ALLOWED)),
    "models_handed_on": ("false", {"average_every": 2}, Fault(FaultCode.MODELS_HANDED_ON)),
    "features": ("nothing", {"algorithm": "fedfm"}, Fault(FaultCode.FEATURES_NOT_TOLD)),
    "features of a calibration": (
        "means",
        {"rounds": 2, "calibration": "ccvr"},
        Fault(FaultCode.FEATURES_NOT_TOLD),
    ),
}
GOOD: dict[str, Any] = {
    "rounds": 1, "min_clients": 2, "quorum": 2, "weighting": {"kind": "sizes"}, "local": {"steps": 3},
}  # fmt: skip


@pytest.mark.parametrize("key", OUTSIDE)
def test_a_run_outside_is_declined_and_the_next_one_trained(at: Live, tmp_path: Path, key: str) -> None:
    value, config, told = OUTSIDE[key]
    key = key.partition(" ")[0]
    file = write(tmp_path, f"# what the officer says\n{key}: {value}\n")
    create(at, name="bad", **(GOOD | {"autostart": False} | config))
    create(at, name="good", **GOOD)
    crew = [worker(at, tmp_path, name, policy=file) for name in ("north", "south")]
    assert [member.join() for member in crew] == [0, 0], crew[0].log
    assert at.run("good")["status"] == "completed"
    rows = at.run("bad")["enrolments"]
    assert [(row["status"], row["reason"]) for row in rows] == [("declined", told.sentence)] * 2
    event = next(event for event in at.events("bad") if event["kind"] == "client_declined")
    assert event["detail"]["code"] == told.code
    assert f"{file} line 2 has {key}: " in crew[0].log
    page = html.unescape(at.admin.get(f"{at.url}/runs/bad").text)
    assert page.count(told.sentence) == 4  # for both, beside the client and in the log of events


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("tasks", "['ours:*']", Fault(FaultCode.TASK_NOT_ALLOWED)),
        ("sums_only", "true", Fault(FaultCode.SUMS_ONLY)),
        ("most_parameters", "100", None),
    ],
)
@pytest.mark.parametrize("role", ["trainer", "evaluator"])
def test_where_no_run_is_inside_all_are_declined(
    at: Live, tmp_path: Path, key: str, value: str, told: Fault | None, role: str
) -> None:
    create(at, **GOOD)
    member = worker(at, tmp_path, "north", policy=write(tmp_path, f"{key}: {value}\n"), role=role)
    assert member.join() == 4
    (row,) = at.run()["enrolments"]
    if told is None:
        size = sum(_count(tensor["shape"]) for tensor in at.run()["manifest"])
        told = _limit(FaultCode.MODEL_TOO_LARGE, 100, size)
    assert (row["status"], row["reason"]) == ("declined", told.sentence)


def _count(shape: list[int]) -> int:
    return 1 if not shape else shape[0] * _count(shape[1:])


def test_nothing_that_a_run_outside_names_is_imported(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"algorithm": OTHER}))
    member = worker(at, tmp_path, "north", policy=write(tmp_path, "algorithms: ['*', 'tests.other:*']\n"))
    assert member.join() == 4
    assert at.run()["enrolments"][0]["reason"] == Fault(FaultCode.ALGORITHM_NOT_ALLOWED).sentence


def test_an_evaluator_is_not_bound_by_what_concerns_training(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1, "weighting": L1}))
    file = write(tmp_path, "fewest_trainers: 9\nmost_steps: 1\n")
    judge = worker(at, tmp_path, "judge", policy=file, role="evaluator")
    trainer = worker(at, tmp_path, "north", metrics="l1")
    assert [judge.join(), trainer.join()] == [0, 0], judge.log


def test_of_two_faults_the_default_declines_a_run_with_one_trainer(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1}))
    member = worker(at, tmp_path, "north", policy=None)
    assert member.join() == 4
    told = _limit(FaultCode.TOO_FEW_TRAINERS, 2, 1)
    assert at.run()["enrolments"][0]["reason"] == told.sentence
    assert "(1; the default policy has fewest_trainers: 2)" in member.log


def test_what_the_run_deals_needs_no_policy(at: Live, tmp_path: Path) -> None:
    create(
        at, rounds=1, min_clients=1, partition="iid:1", weighting=L1, local={"epochs": 60, "batch_size": 5000}
    )
    assert worker(at, tmp_path, "north", policy=None, partition="run").join() == 0
    assert at.run()["enrolments"][0]["grade"] == "exact"


# ---------------------------------------------------------------- a file that was changed between two starts


@pytest.mark.parametrize(
    ("text", "config", "said"),
    [
        ("assistant: false", {"distillation": {}}, "line 1 has assistant: false)"),
        ("assistant: true\nmost_epsilon: 8", {"distillation": {}}, "(a step without noise;"),
        (
            "assistant: true\nmost_steps: 500",
            {"distillation": {"steps": 600}},
            "line 2 has most_steps: 500)",
        ),
        ("assistant: true\nlargest_batch: 64", {"weighting": {"kind": "fedlaw"}}, "has largest_batch: 64)"),
        ("assistant: true\nmost_epochs: 5", {"weighting": {"kind": "fedlaw"}}, "(20; "),
    ],
)
def test_an_assistants_step_is_a_training_on_its_data(
    text: str, config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = RunConfig.model_validate({"name": "demo", "assistant": "judge", **config})
    check_assisting(run, load_policy(WorkerSettings(url="http://nowhere", policy=None)), dealt=True)
    policy = load_policy(WorkerSettings(url="http://nowhere", policy=write(tmp_path, text)))
    with pytest.raises(LocalFault, match=re.escape(said)) as refused:
        check_assisting(run, policy, dealt=False)
    assert refused.value.told.code is FaultCode.NOT_ASSISTANT


def test_a_run_that_is_no_longer_inside_is_left_before_any_work(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1, "rounds": 3, "max_attempts": 1}))
    site = at.site("site")
    assert site.enrol("demo", 100, task="digits", classes=at.run()["classes"]).status_code == 200
    keep(at, tmp_path, site)
    file = write(tmp_path, "fewest_trainers: 1\nmost_rounds: 2\n")
    member = worker(at, tmp_path, "site", policy=file)
    assert member.join() == 4
    row = at.run()["enrolments"][0]
    assert (row["status"], row["reason"]) == ("declined", _limit(FaultCode.TOO_MANY_ROUNDS, 2, 3).sentence)
    assert not [event for event in at.events() if event["kind"] == "assignment_taken"]

    file.write_text("fewest_trainers: 1\nmost_rounds: 3\n")
    again = worker(at, tmp_path, "site", policy=file)
    at.wait_for(lambda: "demo: enrolled" in again.log)
    at.wait_for(lambda: at.admin.post("/runs/demo/resume").status_code == 200)
    assert again.join() == 0
    assert at.run()["status"] == "completed"


def test_a_run_that_is_changed_beyond_the_policy_is_left(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"quorum": 1, "rounds": 3}))
    other = at.site("other")
    assert other.enrol("demo", 100, task="digits", classes=at.run()["classes"]).status_code == 200
    member = worker(at, tmp_path, "north", policy=write(tmp_path, "fewest_updates: 1\nmost_rounds: 3\n"))
    train = other.until("train")
    at.wait_for(lambda: [event for event in at.events() if event["kind"] == "update_received"])
    assert at.admin.patch("/runs/demo", json={"rounds": 9}).status_code == 200
    model = other.http.get(f"/blobs/{train['model']}").content
    assert other.upload("demo", 1, model).status_code == 200
    assert member.join() == 4
    (row,) = [row for row in at.run()["enrolments"] if row["client"] == "north"]
    assert (row["status"], row["reason"]) == ("declined", _limit(FaultCode.TOO_MANY_ROUNDS, 3, 9).sentence)
    sent = [event for event in at.events() if event["kind"] == "update_received"]
    assert [event["round"] for event in sent if event["client"] == "north"] == [1]


@pytest.mark.parametrize(
    ("before", "after", "told"), [("exact", "rounded", 1400), ("rounded", "exact", 1438)]
)
def test_sizes_that_are_told_otherwise_are_enrolled_anew(
    at: Live, tmp_path: Path, before: str, after: str, told: int
) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1, "max_attempts": 1, "autostart": False}))
    file = write(tmp_path, f"fewest_trainers: 1\nsizes: {before}\n")
    first = worker(at, tmp_path, "north", policy=file, wait_seconds=0.5)
    at.wait_for(lambda: "demo: enrolled" in first.log)
    write(tmp_path, f"fewest_trainers: 1\nsizes: {after}\n")
    at.wait_for(lambda: f"{file} line 2 has sizes: {after}; leaving, and enrolling anew" in first.log)
    at.wait_for(lambda: at.run()["enrolments"][0]["examples"] == told)
    assert f"The policy now has sizes: {after} ({file} line 2); it had {before}" in first.log
    assert at.admin.post("/runs/demo/start").status_code == 200
    at.wait_for(lambda: at.run()["status"] == "completed")
    (sent,) = [each["content"] for each in read_told(tmp_path / "north") if each["what"].endswith("/update")]
    assert sent["examples"] == told


@pytest.mark.parametrize("mode", ["enrol", "decline", "continue"])
def test_a_leave_that_is_cut_off_is_no_change_of_the_data(at: Live, tmp_path: Path, mode: str) -> None:
    """It leaves again and enrols anew, whatever the site does about changed data."""
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1, "autostart": False}))
    file = write(tmp_path, f"fewest_trainers: 1\non_changed_data: {mode}\n")
    cut: list[str] = []

    class Busy(httpx.HTTPTransport):
        """The first request to leave does not arrive."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "DELETE" and not cut:
                cut.append(request.url.path)
                return httpx.Response(503, request=request)
            return super().handle_request(request)

    member = worker(at, tmp_path, "north", policy=file, transport=Busy(), wait_seconds=0.5)
    at.wait_for(lambda: "demo: enrolled" in member.log)
    write(tmp_path, f"fewest_trainers: 1\non_changed_data: {mode}\nsizes: rounded\n")
    at.wait_for(lambda: "leaving it was cut off (sizes told otherwise)" in member.log)
    at.wait_for(lambda: at.run()["enrolments"][0]["examples"] == 1400)
    assert cut
    assert "the data here have changed" not in member.log
    assert at.admin.post("/runs/demo/start").status_code == 200
    assert member.join() == 0


# ---------------------------------------------------------------- a file that is changed while a worker runs


def test_what_is_forbidden_in_the_middle_of_a_round_does_not_leave(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1, "max_attempts": 1, "local": {"steps": 50_000}}))
    member = worker(at, tmp_path, "north", policy=write(tmp_path, "fewest_trainers: 1\n"))
    at.wait_for(lambda: [event for event in at.events() if event["kind"] == "assignment_taken"])
    file = write(tmp_path, "fewest_trainers: 1\nruns: [other]\n")
    assert member.join() == 4
    assert f"The policy {file} has been changed. It is read again, " in member.log
    row = at.run()["enrolments"][0]
    assert (row["status"], row["reason"]) == ("declined", Fault(FaultCode.RUN_NOT_ALLOWED).sentence)
    assert not [event for event in at.events() if event["kind"] == "update_received"]
    noted = [
        json.loads(line)["what"] for line in (tmp_path / "north" / "told.jsonl").read_text().splitlines()
    ]
    assert noted == ["POST /runs/demo/enrolments", "POST /runs/demo/decline"]


def test_while_the_policy_is_broken_nothing_is_sent(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1, "autostart": False}))
    asked: list[str] = []

    class Counted(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            return super().handle_request(request)

    file = write(tmp_path, "fewest_trainers: 1\n")
    member = worker(at, tmp_path, "north", policy=file, transport=Counted(), wait_seconds=0.5)
    at.wait_for(lambda: "demo: enrolled" in member.log)
    write(tmp_path, "fewest_trainers: one\n")
    at.wait_for(lambda: "Nothing is sent, not even a request for work, until the policy" in member.log)
    before = len(asked)
    file.unlink()
    at.wait_for(lambda: f"the policy {file} is not there." in member.log)
    assert at.admin.post("/runs/demo/start").status_code == 200
    assert len(asked) == before
    write(tmp_path, "fewest_trainers: 1\n")
    assert member.join() == 0
    assert at.run()["status"] == "completed"


@pytest.mark.parametrize("given", ["stdin", "file"])
def test_a_join_code_is_read_once_whatever_changes(
    at: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """The line of the standard input is gone then, and the file may be."""
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1}))
    policy, code = write(tmp_path, "fewest_trainers: 1\n"), tmp_path / "code"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{JOIN}\n"))
    code.write_text(JOIN)

    class ChangedOnTheWay(httpx.HTTPTransport):
        """The policy is changed before the coordinator has heard of the first registration."""

        has_changed = False

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if not self.has_changed:
                assert request.url.path.endswith("/clients")
                self.has_changed = True
                policy.write_text("fewest_trainers: 1\nmost_rounds: 9\n")
                code.unlink()
                raise httpx.ConnectError("not there")
            return super().handle_request(request)

    joins: dict[str, Any] = {"join": "-"} if given == "stdin" else {"join_token_file": code}
    more: dict[str, Any] = {"join_token": None, "policy": policy, "transport": ChangedOnTheWay(), **joins}
    member = worker(at, tmp_path, "north", **more)
    assert member.join() == 0, member.log
    assert "has been changed. It is read again" in member.log
    assert at.run()["status"] == "completed"


def test_what_is_allowed_again_is_taken_part_in(at: Live, tmp_path: Path) -> None:
    create(at, **(GOOD | {"min_clients": 1, "quorum": 1}))
    write(tmp_path, "fewest_trainers: 2\n")
    member = worker(
        at, tmp_path, "north", policy=tmp_path / "policy.yaml", exit_when_finished=False, wait_seconds=0.5
    )
    at.wait_for(lambda: "demo: not taking part" in member.log)
    write(tmp_path, "fewest_trainers: 1\n")
    at.wait_for(lambda: at.run()["status"] == "completed")


def test_a_file_is_another_by_what_stands_in_it(tmp_path: Path) -> None:
    file = write(tmp_path, "runs: [a]\n")
    watch = PolicyWatch(file)
    assert not watch.has_changed()
    os.utime(file, (1, 1))
    file.chmod(0o640)
    assert not watch.has_changed()
    other = tmp_path / "other.yaml"
    other.write_text("runs: [b]\n")
    other.replace(file)
    with pytest.raises(PolicyChanged, match="has been changed"):
        watch.check()
    file.unlink()
    assert watch.has_changed()
    write(tmp_path, "runs: [a]\n")
    assert not watch.has_changed()  # back as it was
    PolicyWatch(None).check()


def test_an_update_on_its_way_is_cut(tmp_path: Path) -> None:
    """Part by part it is looked whether it may still leave."""
    path, sent = tmp_path / "update", list[int]()
    path.write_bytes(bytes(4 << 20))

    def look() -> None:
        if sent:
            raise PolicyChanged("forbidden")

    class Network(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            for part in request.stream:  # type: ignore[union-attr]
                sent.append(len(part))
            raise AssertionError("all of it came")

    client = CoordinatorClient("http://127.0.0.1:1", token="t", transport=Network(), before_sending=look)
    report = UpdateReport(attempt=1, steps=1, examples=1)
    with pytest.raises(PolicyChanged):
        client.upload("demo", 1, report, path, "0" * 64)
    assert sent == [1 << 20]


def test_a_policy_that_is_wrong_ends_the_start_with_its_line(at: Live, tmp_path: Path) -> None:
    member = worker(at, tmp_path, "north", policy=write(tmp_path, "runs: [a]\nsizes: about\n"))
    assert member.join() == 2
    assert f"{tmp_path / 'policy.yaml'} line 2: sizes: " in member.log
    assert at.admin.get("/clients").json() == []


def test_fingerprints_need_a_certificate(at: Live, tmp_path: Path) -> None:
    file = write(tmp_path, f"coordinators: ['{FINGERPRINT}']\n")
    member = worker(at, tmp_path, "north", policy=file)
    assert member.join() == 2
    assert f"{file} line 1: {at.url} has no certificate to compare" in member.log


# ---------------------------------------------------------------- the command


def test_the_example_is_printed_and_checked(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["worker", "policy", "--example"])
    assert (printed.exit_code, printed.stdout) == (0, format_policy())
    path = write(tmp_path, printed.stdout)
    checked = CliRunner().invoke(app, ["worker", "policy", "--check", str(path)])
    assert checked.output == f"{path} is a valid policy. It changes 0 of {len(Policy.model_fields)} keys.\n"
    path.write_text("# ours\nmost_rounds: 7\nruns: ['*']\n")
    checked = CliRunner().invoke(app, ["worker", "policy", "--check", str(path)])
    assert "It changes 1 of " in checked.output
    assert "line 2: most_rounds: 7 (default 1000)" in checked.output
    path.write_text("runs: ['*']\nalgorithms: [fed*, fedprx, 'ours:Slow']\ntasks: [csv]\n")
    checked = CliRunner().invoke(app, ["worker", "policy", "--check", str(path)])
    assert checked.exit_code == 0
    assert re.findall(r"line (\d): \w+: '(\w+)' is none of this version", checked.output) == [("2", "fedprx")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [mlp, default, bert]", ["models: 'bert' is none of this version"]),
        ("parts: ['ours.*', 'ours.*:*']", ["parts: 'ours.*' fits no import path, which has a colon"]),
        (
            "metrics: [kl, 'ours.far:away']",
            ["'ours.far:away' is answered only with disclosure: exact", "is not allowed by parts"],
        ),
        ("metrics: ['ours.far:away']\ndisclosure: exact\nparts: ['ours.*:*']", []),
        ("sums_only: true\ntell_epsilon: true", ["line 2: tell_epsilon: true tells the number of examples"]),
        ("most_epsilon: 2\nassistant: true", ["line 2: assistant: true lets", "it does not work as one"]),
        ("assistant: true", []),
    ],
)
def test_what_decides_nothing_or_takes_back_is_said(tmp_path: Path, text: str, said: list[str]) -> None:
    path = write(tmp_path, text)
    checked = CliRunner().invoke(app, ["worker", "policy", "--check", str(path)])
    assert checked.exit_code == 0
    assert not [each for each in said if each not in checked.output], checked.output
    beyond = [line for line in checked.output.splitlines()[1:] if "(default " not in line]
    assert bool(beyond) == bool(said), beyond


@pytest.mark.parametrize("arguments", [(), ("--example", "--check", "x"), ("--check", "missing.yaml")])
def test_what_the_command_refuses(arguments: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(app, ["worker", "policy", *arguments])
    assert isinstance(answer.exception, InvalidConfiguration)

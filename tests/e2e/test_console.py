"""The operator's commands as processes, against a real coordinator and workers with a task of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from server.blobs import DiskBlobs
from shared.schemas import RunStatus
from shared.wire.digests import digest_of
from tests.helpers.processes import Deployment, deployment

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("outside")]

OWN_TASK = '''
"""Two blobs of points, as a site might have written its own task."""

import torch
from torch import nn

from shared.data import Examples
from shared.seeds import torch_generator
from shared.tasks.base import Task


class Blobs(Task):
    name = "blobs"
    default_model = "linear"
    classes = ("left", "right")
    input_shape = (2,)

    def load(self, split, source, seed):
        generator = torch_generator(seed, "blobs-" + split)
        targets = torch.arange(60) % 2
        centres = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
        return Examples(centres[targets] + 0.3 * torch.randn(60, 2, generator=generator), targets)

    def build_model(self, model, seed):
        layer = nn.Linear(2, 2)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.zero_()
        return layer
'''
TASK = "site_code:Blobs"
CONFIG = {
    "name": "own",
    "task": TASK,
    "rounds": 2,
    "partition": "iid:2",
    "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.1},
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The sites and the operator can import the task, the coordinator cannot."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "site_code.py").write_text(OWN_TASK)
    with deployment(folder / "system") as made:
        made.start_coordinator()
        made.processes.environment["FEDDISCO_URL"] = made.urls["coordinator"]
        made.processes.environment["PYTHONPATH"] = str(folder)
        yield made


def write(folder: Path, **changes: object) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG | changes))
    return str(path)


@pytest.fixture(scope="module")
def completed(system: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The run ``own``, created and watched from the console."""
    folder = tmp_path_factory.mktemp("run")
    code = system.console("clients", "invite", "--uses", "3", "--days", "1").splitlines()
    assert re.match(r"join code \d+, valid for 3 clients, until \S+ At a site", code[1])
    said = system.console("run", "create", write(folder))
    assert said.startswith("Run own is enrolling: 0 of 2 trainers are ready")
    assert system.console("run", "create", write(folder), code=2).startswith("feddisco: there is a run 'own'")
    again = system.console("run", "create", write(folder), "--if-absent")
    assert again == "Run own already exists and is left as it is.\n"
    join = folder / "join-code"
    join.write_text(code[0])
    del system.processes.environment["FEDDISCO_JOIN_TOKEN"]
    part = ("--task", TASK, "--join-token-file", str(join))
    system.start_worker("judge", *part, "--role", "evaluator")
    system.wait_for(lambda: system.admin.run("own").enrolments, "the evaluator takes part: the run is short")
    for name in ("north", "south"):
        system.start_worker(name, *part, "--partition", "run")
    watched = system.console("run", "watch", "own")
    assert re.search(r"^round +2/2 +accuracy +\d+\.\d\d % ", watched, re.MULTILINE)
    return system


def test_a_run_with_a_task_of_ones_own(completed: Deployment) -> None:
    shown = completed.console("run", "show", "own")
    assert "own  completed  2/2 rounds" in shown
    assert re.search(r"│ north +│ +trainer │ +(ready|finished) │ +[01] │ +30 │", shown)
    assert "Ledger of round 2" in shown
    assert "Round 2, scored by judge" in shown
    assert re.search(r"│ own +│ +completed │ +site_code:Blobs", completed.console("run", "list"))
    evaluation = completed.rounds("own")[-1].evaluations[0]
    assert evaluation.accuracy is not None
    assert evaluation.accuracy > 0.9


def test_the_model_is_downloaded(completed: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    said = completed.console("run", "model", "own", str(out), "--plain")
    assert digest_of(out) == completed.rounds("own")[-1].scored_model
    assert str(digest_of(out)) in said
    completed.console("run", "model", "own", str(out), "--round", "1", "--plain")
    assert digest_of(out) == completed.rounds("own")[0].scored_model
    told = completed.console("run", "model", "own", str(out), "--round", "9", code=2)
    assert told.startswith("feddisco: Run own has no completed round 9. Completed are 1 to 2;")


def test_a_replayed_round_is_the_stored_one_unless_a_file_is_damaged(completed: Deployment) -> None:
    assert "the same as stored" in completed.console("replay", "own", "2")
    assert "no round 9" in completed.console("replay", "own", "9", code=2)
    update = completed.rounds("own")[0].ledger[0].update
    path = DiskBlobs(completed.data_folder / "blobs").path(str(update))
    path.chmod(0o644)
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    told = completed.console("replay", "own", "1", code=2)
    path.write_bytes(intact)
    assert re.match(rf"feddisco: blob {update} in \S+ is damaged", told)
    assert "Traceback" not in told


def test_clients_are_listed_and_revoked(completed: Deployment) -> None:
    listed = completed.console("clients", "list")
    assert [name for name in ("north", "south", "judge") if name in listed] == ["north", "south", "judge"]
    assert completed.console("clients", "revoke", "south") == "south is revoked.\n"
    assert re.search(r"│ south +│ +revoked │", completed.console("clients", "list"))
    process = completed.processes.running["south"]
    assert process.wait(60) == 3
    assert "has revoked this client's token" in completed.log("south")
    assert "no client" in completed.console("clients", "revoke", "nobody", code=2)


def test_a_run_is_paused_resumed_and_stopped(system: Deployment, tmp_path: Path) -> None:
    config = write(tmp_path, name="held", task="digits", min_clients=2)
    system.console("run", "create", config)
    told = system.console("run", "pause", "held", code=2)
    assert told.startswith("feddisco: ")
    assert "enrolling" in told
    said = system.console("run", "stop", "held", "--reason", "changed our minds")
    assert said == "held is stopped: changed our minds.\n"
    assert system.admin.run("held").reason == "changed our minds"
    assert system.status("held") is RunStatus.STOPPED
    assert "changed our minds" in system.console("run", "show", "held")
    system.console("run", "watch", "held", code=1)
    assert "stopped" in system.console("run", "resume", "held", code=2)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"rounds": 0}, ("rounds", "0")),
        ({"algorithm": {"name": "fedprox", "parameters": {"mu": -1}}, "task": "digits"}, ("mu", "-1")),
        ({"weighting": {"kind": "disco", "a": -0.5}}, ("weighting.disco.a", "-0.5")),
        ({"task": "digitz"}, ("task", "'digitz'", "digits")),
        ({"task": "site_code:Nothing"}, ("site_code:Nothing", "cannot be imported")),
        ({"local": {"momemtum": 0.5}}, ("local.momemtum", "0.5")),
    ],
)
def test_a_wrong_configuration_names_field_and_value(
    system: Deployment, tmp_path: Path, changes: dict[str, object], parts: tuple[str, ...]
) -> None:
    config = write(tmp_path, name="wrong", **{k: v for k, v in changes.items() if k != "name"})
    told = system.console("run", "create", config, code=2)
    assert told.startswith("feddisco: ")
    assert [part for part in parts if part not in told] == []
    assert "Traceback" not in told
    assert "wrong" not in [run.run for run in system.admin.runs()]


def test_no_token_and_a_wrong_one(system: Deployment, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("not-the-token-of-anybody")
    told = system.console("run", "create", "demo", "--admin-token-file", str(tmp_path / "token"), code=2)
    assert told.startswith("feddisco: ")
    missing = system.console("run", "list", "--admin-token-file", str(tmp_path / "none"), code=2)
    assert "No admin token" in missing
    nowhere = system.console("run", "list", "--url", "http://127.0.0.1:9", code=2)
    assert nowhere.startswith("feddisco: Nothing listens on 127.0.0.1 port 9")

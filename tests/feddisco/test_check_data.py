"""``feddisco check-data`` and ``feddisco worker leave``, as typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from feddisco.check_data import _list_leaving
from feddisco.main import main
from shared.config import RunConfig
from shared.schemas import Role
from shared.tasks import load_task
from worker.policy import Policy

ROOT = Path(__file__).resolve().parents[2]


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def typed(*arguments: object, cwd: Path) -> Ended:
    """The command as a process."""
    command = [sys.executable, "-m", "feddisco", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDDISCO_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """The command in this process, which has imported PyTorch already."""
    for name in [name for name in os.environ if name.startswith("FEDDISCO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["feddisco", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


def images(folder: Path, numbers: dict[str, int], suffix: str = ".png") -> Path:
    random = np.random.default_rng(0)
    for name, number in numbers.items():
        (folder / name).mkdir(parents=True)
        for index in range(number):
            pixels = random.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}{suffix}")
    return folder


def test_good_data_are_described(tmp_path: Path) -> None:
    data = images(tmp_path / "data", {"train/melanoma": 6, "train/nevus": 2, "test/nevus": 1})
    (data / "train" / "nevus" / "notes.txt").write_text("x")
    deep = np.arange(480, dtype=np.uint16).reshape(20, 24) * 8
    Image.fromarray(deep).save(data / "train" / "melanoma" / "deep.tif")
    first = data / "train" / "melanoma" / "0.png"
    (data / "train" / "nevus" / "same.png").write_bytes(first.read_bytes())
    classes = "melanoma,nevus,keratosis"
    done = typed("check-data", "--task", "imagefolder", "--data", data, "--classes", classes, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        "train: 10 examples", "melanoma         7", "nevus            3", "keratosis        0",
        "test: 1 example\n",
        "left out, no image by the name's ending: 1 (train/nevus/notes.txt)",
        "Images: 10 PNG colour, 1 TIFF grey, 16 bits", "Width x height: 11 24 x 20",
        "Grey values of more than 8 bits go from 0 to 3832.", """--task-options '{"bits": 12}'""",
        "discrepancy d (kl, target uniform): 0.48", "discrepancy d (cosine",
        "Doubles: 1 within a split, 0 in train and test; 1 of all of them under two labels.",
        "the number of examples (10), the numbers left out (not-an-image 1), the discrepancy d (noised with",
    ):  # fmt: skip
        assert said in done.stdout, (said, done.stdout)


def test_data_that_a_run_would_decline(tmp_path: Path, run_here: Callable[..., Ended]) -> None:
    data = images(tmp_path / "data", {"melanoma": 2, "Nevi": 3, "freckle": 1})
    (tmp_path / "run.yaml").write_text(
        "name: skin\ntask: imagefolder\ntask_options: {classes: [melanoma, nevus], size: 32}\n"
        "weighting: {kind: disco, metric: l1, target: [0.9, 0.1]}\n"
    )
    done = run_here("check-data", "--run", "run.yaml", "--data", data)
    assert (done.returncode, done.stderr) == (1, "")
    assert "the folder 'Nevi' (3 images) is none of the classes. Did you mean nevus?" in done.stdout
    assert "the folder 'freckle' (1 images) is none of the classes." in done.stdout
    assert "train: cannot be used. data: Nevi/0.png" in done.stdout
    (data / "freckle" / "0.png").unlink()
    labels = '{"Nevi": "nevus", "nevi ": "nevus", "mole": "nevus"}'
    done = run_here("check-data", "--run", "run.yaml", "--data", data, "--labels", labels, "--metrics", "l1")
    assert done.returncode == 0, done.stdout
    assert "labels: nothing here is called 'mole'." in done.stdout
    assert "labels: nothing here is called 'nevi '. Did you mean Nevi?" in done.stdout
    assert "discrepancy d (l1, target (0.9, 0.1)): 1" in done.stdout


def test_broken_data_and_what_skipping_leaves(tmp_path: Path, run_here: Callable[..., Ended]) -> None:
    data = images(tmp_path / "data", {"a": 3, "b": 2})
    (data / "a" / "0.png").write_bytes(b"")
    command = ("check-data", "--task", "imagefolder", "--data", data)
    done = run_here(*command)
    assert done.returncode == 1
    assert "No classes are given (--classes, --run): taking the folders a, b." in done.stdout
    assert "train: cannot be used. data: a/0.png in" in done.stdout
    done = run_here(*command, "--on-broken", "skip")
    assert done.returncode == 0
    assert "left out, empty files: 1 (a/0.png is empty (0 bytes))" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "imagefolder"), "data: no place given for images"),
        (("--task", "digit"), "there is no built-in task 'digit'. Did you mean digits"),
        (("--task", "imagefolder", "--data", "gone"), "at gone, which does not exist"),
    ],
)
def test_wrong_settings_are_a_sentence(
    run_here: Callable[..., Ended], arguments: tuple[str, ...], said: str
) -> None:
    done = run_here("check-data", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_leaving_without_a_client_is_a_sentence(run_here: Callable[..., Ended]) -> None:
    done = run_here("worker", "leave", "skin", "--url", "http://127.0.0.1:1", "--state", "state")
    assert done.returncode == 2
    assert "no client of http://127.0.0.1:1 is registered in state" in done.stderr


def test_a_folder_of_one_split_is_described_once(tmp_path: Path, run_here: Callable[..., Ended]) -> None:
    data = images(tmp_path / "data", {"a": 3, "b": 2})
    done = run_here("check-data", "--task", "imagefolder", "--data", data)
    assert done.returncode == 0
    assert "test: the same examples, since there are no folders train and test." in done.stdout
    assert "Doubles: none." in done.stdout
    (data / "c").mkdir()
    (data / "c" / "0.png").write_bytes(b"")
    done = run_here("check-data", "--task", "imagefolder", "--data", data)
    assert (done.returncode, done.stdout.count("cannot be used")) == (1, 1)


def test_a_trainer_needs_no_test_set(tmp_path: Path, run_here: Callable[..., Ended]) -> None:
    (tmp_path / "train.csv").write_text("age,verdict\n1,good\n2,bad\n")
    options = '{"columns": ["age"], "target": "verdict", "classes": ["good", "bad"]}'
    done = run_here("check-data", "--task", "csv", "--task-options", options, "--data", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "test: none here; trainers need none. data: looked for test.csv" in done.stdout


TABLE = """
name: skin
task: csv
task_options: {columns: [age], target: verdict, classes: [good, bad]}
min_clients: 3
quorum: 2
"""


@pytest.mark.parametrize(
    ("policy", "run", "said"),
    [
        ("", "", ["The site's policy allows the run.", "the number of examples (123)", "steps, loss and"]),
        ("runs: [heart]\nmost_rounds: 3", "", ["line 1 has runs: [heart])", "line 2 has most_rounds: 3)"]),
        ("most_parameters: 10", "", ["limits models to 10 numbers, the run's has 514."]),
        ("", "weighting: {kind: disco, metric: l1}", ["the default policy has metrics: [kl])"]),
        ("sizes: rounded", "", ["the number of examples to two significant digits (120)"]),
        ("disclosure: exact", "weighting: {kind: disco}", ["the discrepancy d (exact)"]),
        ("", "secure: {}", ["the kind of device, in each round the trained model, masked,"]),
    ],
)
def test_what_the_policy_says_of_the_run(
    tmp_path: Path, run_here: Callable[..., Ended], policy: str, run: str, said: list[str]
) -> None:
    (tmp_path / "train.csv").write_text("age,verdict\n" + "1,good\n2,bad\n3,bad\n" * 41)
    (tmp_path / "run.yaml").write_text(f"{TABLE}{run}\n")
    (tmp_path / "policy.yaml").write_text(f"{policy}\nfewest_updates: 2\n")
    done = run_here("check-data", "--run", "run.yaml", "--data", tmp_path, "--policy", "policy.yaml")
    assert not [each for each in said if each not in done.stdout], done.stdout
    is_declined = "The run would be declined:" in done.stdout
    assert done.returncode == int(is_declined)
    assert is_declined == ("Nothing would leave this site but that it declines" in done.stdout)
    assert is_declined == any(" has " in each for each in said)
    assert ("of examples (123)" in done.stdout) == (said[0].startswith("The site's") or "exact" in policy)


@pytest.mark.parametrize(
    ("policy", "changed", "is_imported"),
    [
        ("", "weighting: {kind: disco, metric: 'foreign_part:measure'}", False),
        (
            "metrics: ['foreign_part:measure']",
            "weighting: {kind: disco, metric: 'foreign_part:measure'}",
            False,
        ),
        (
            "disclosure: exact\nmetrics: ['foreign_part:measure']\nparts: ['foreign_part:*']",
            "weighting: {kind: disco, metric: 'foreign_part:measure'}",
            True,
        ),
        ("tasks: ['*']", "task: foreign_part:Task", False),
    ],
)
def test_nothing_that_the_policy_forbids_is_imported(
    tmp_path: Path,
    run_here: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    changed: str,
    is_imported: bool,
) -> None:
    trace = tmp_path / "imported"
    (tmp_path / "foreign_part.py").write_text(
        f"open({str(trace)!r}, 'w').close()\n\ndef measure(p, q):\n    return 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_part", raising=False)
    (tmp_path / "train.csv").write_text("age,verdict\n1,good\n2,bad\n")
    table = TABLE.replace("task: csv\n", "") if changed.startswith("task:") else TABLE
    (tmp_path / "run.yaml").write_text(f"{table}{changed}\n")
    (tmp_path / "policy.yaml").write_text(f"{policy}\nfewest_updates: 2\n")
    done = run_here("check-data", "--run", "run.yaml", "--data", tmp_path, "--policy", "policy.yaml")
    assert trace.exists() == is_imported, done
    said = "discrepancy d (foreign_part:measure" if is_imported else "policy does not allow"
    assert said in done.stdout + done.stderr


def test_without_a_run_there_is_nothing_to_compare(tmp_path: Path, run_here: Callable[..., Ended]) -> None:
    (tmp_path / "train.csv").write_text("age,verdict\n1,good\n2,bad\n")
    (tmp_path / "policy.yaml").write_text("disclosure: none\n")
    options = '{"columns": ["age"], "target": "verdict", "classes": ["good", "bad"]}'
    command = ("check-data", "--task", "csv", "--task-options", options, "--policy", "policy.yaml")
    done = run_here(*command, "--data", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "policy allows" not in done.stdout
    assert "discrepancy d (noised" not in done.stdout


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("age;verdict\n1;good\n", """separated by ';': say so by --task-options '{"delimiter": ";"}'"""),
        ("Age,verdict\n1,good\n", "Names are compared letter by letter"),
        ("ages,verdict\n1,good\n", "Is 'age' the column 'ages'? Rename it in the table."),
        ("size,verdict\n1,good\n", "Add the columns to the table; further ones are no matter."),
        ("age,verdict\n,good\n", "line 2: column 'age': '' is not a finite number. Mend or remove"),
        ("age,verdict\n1,gr\u00fcn\n", "is not UTF-8 (byte 17). Save it as CSV in UTF-8."),
    ],
)
def test_a_table_that_a_run_would_decline(
    tmp_path: Path, run_here: Callable[..., Ended], table: str, said: str
) -> None:
    """Exit code 1 although the test set is fine, and what to do about it."""
    (tmp_path / "train.csv").write_text(table, encoding="latin-1")
    (tmp_path / "test.csv").write_text("age,verdict\n1,good\n")
    options = '{"columns": ["age"], "target": "verdict", "classes": ["good", "bad"]}'
    command = ("check-data", "--task", "csv", "--task-options", options)
    done = run_here(*command, "--data", tmp_path)
    assert done.returncode == 1, done.stdout
    assert f"train: cannot be used. data: train.csv in {tmp_path}" in done.stdout
    assert said in done.stdout
    done = run_here(*command)
    assert "Task csv without --data" in done.stdout
    assert "Say where it lies: --data PATH." in done.stdout


RUN: dict[str, Any] = {"name": "demo", "task": "digits", "rounds": 4, "min_clients": 3, "local": {"steps": 1}}
ASSISTED = {"assistant": "judge", "distillation": {"steps": 5}, "weighting": "sizes"}
ONLY_WHERE: dict[str, tuple[Role, dict[str, Any], str]] = {
    "discrepancy `d_k`": (Role.TRAINER, {"weighting": "disco"}, "the discrepancy d (noised"),
    "loss of the received model": (Role.TRAINER, {"weighting": "qfedavg"}, "losses of the received"),
    "sums by class of the features": (
        Role.TRAINER,
        {"algorithm": "fedfm"},
        "sums by class of features (fedfm)",
    ),
    "the same, and sums of products": (
        Role.TRAINER,
        {"calibration": "ccvr"},
        "features by class (calibration)",
    ),
    "the same weights, as they are": (Role.TRAINER, {"average_every": 2}, "as it is, to one other site"),
    "weights of the trained model once more": (Role.TRAINER, ASSISTED, "to the run's assistant (judge)"),
    "epsilon of private training": (
        Role.TRAINER,
        {"dp": {"epsilon": 8, "delta": 1e-5, "clip": 1.0}, "secure": {}},
        "in each round epsilon",
    ),
    "what an assistant makes": (Role.EVALUATOR, ASSISTED, "what it makes of its training data"),
    "scores on test data": (Role.EVALUATOR, {}, "the scores of each model"),
}
"""By how the row of docs/privacy.md begins: a run in which it leaves, and what is said of it."""


def test_every_row_of_the_document_that_leaves_only_somewhere_is_listed_there() -> None:
    document = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", document.split("## The discrepancy")[0], re.MULTILINE)
    only = [what for what, when in rows if "only" in when]
    assert len(only) == len(ONLY_WHERE)
    allowing = Policy(features="covariances", models_handed_on=True, assistant=True, tell_epsilon=True)
    examples = load_task("digits").load("train", None, 0)
    plain = RunConfig.model_validate(RUN | {"weighting": "sizes"})
    for what in only:
        (key,) = [key for key in ONLY_WHERE if what.startswith(key)]
        role, changed, said = ONLY_WHERE[key]
        config = RunConfig.model_validate(RUN | changed)
        assert said in ", ".join(_list_leaving(examples, role, config, allowing)), key
        assert said not in ", ".join(_list_leaving(examples, Role.TRAINER, plain, allowing)), key


def test_label_counts_enter_a_secure_sum_with_a_global_target() -> None:
    config = RunConfig.model_validate(
        RUN | {"secure": {}, "weighting": {"kind": "disco", "target": "global"}}
    )
    leaving = ", ".join(
        _list_leaving(load_task("digits").load("train", None, 0), Role.TRAINER, config, Policy())
    )
    assert "the number of examples and the label counts enter that sum" in leaving

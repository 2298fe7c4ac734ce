"""Scores over a whole test set, against numbers computed by scikit-learn and by hand."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

import feddisco
from shared.config import RunConfig
from shared.metric_names import OF_A_CLASS, OVER_ALL, check_metrics
from shared.problems import InvalidConfiguration
from shared.run_files import check_config
from shared.scores import is_lower_better
from shared.training.metrics import compute_confusion, compute_metrics

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def said() -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities that know something of 200 skewed targets."""
    random = np.random.default_rng(3)
    targets = random.choice(3, size=200, p=[0.7, 0.2, 0.1])
    logits = random.normal(size=(200, 3))
    logits[np.arange(200), targets] += 1.0
    return torch.tensor(logits).softmax(dim=1).float(), torch.tensor(targets)


@pytest.mark.long
def test_over_all_classes(said: tuple[torch.Tensor, torch.Tensor]) -> None:
    probabilities, targets = said
    scores, truth, guesses = probabilities.numpy(), targets.numpy(), probabilities.argmax(dim=1).numpy()
    expected = {
        "auroc": np.mean([sklearn_metrics.roc_auc_score(truth == c, scores[:, c]) for c in range(3)]),
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(truth, guesses),
        "cohen_kappa": sklearn_metrics.cohen_kappa_score(truth, guesses),
        "macro_f1": sklearn_metrics.f1_score(truth, guesses, average="macro"),
        "weighted_f1": sklearn_metrics.f1_score(truth, guesses, average="weighted"),
    }
    assert compute_metrics(tuple(expected), probabilities, targets, CLASSES) == pytest.approx(
        expected, rel=1e-5
    )
    matrix = sklearn_metrics.confusion_matrix(truth, guesses, normalize="true")
    assert np.array(compute_confusion(probabilities, targets)) == pytest.approx(matrix, abs=5e-5)


def test_of_one_class(said: tuple[torch.Tensor, torch.Tensor]) -> None:
    probabilities, targets = said
    own, guessed = targets.numpy() == 2, probabilities.argmax(dim=1).numpy() == 2
    expected = {
        "auroc:owl": sklearn_metrics.roc_auc_score(own, probabilities[:, 2].numpy()),
        "f1:owl": sklearn_metrics.f1_score(own, guessed),
        "precision:owl": sklearn_metrics.precision_score(own, guessed),
        "sensitivity:owl": sklearn_metrics.recall_score(own, guessed),
        "specificity:owl": sklearn_metrics.recall_score(~own, ~guessed),
    }
    assert {name.partition(":")[0] for name in expected} == set(OF_A_CLASS)
    assert compute_metrics(tuple(expected), probabilities, targets, CLASSES) == pytest.approx(
        expected, rel=1e-5
    )


def test_the_calibration_error_by_hand() -> None:
    """Four answers of 0.9 and three right, four of 0.6 and none right: 1/2 * 0.15 + 1/2 * 0.6."""
    sure, unsure = [0.9, 0.1], [0.6, 0.4]
    probabilities = torch.tensor([sure] * 4 + [unsure] * 4)
    targets = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    found = compute_metrics(["calibration_error"], probabilities, targets, ("a", "b"))
    assert found == pytest.approx({"calibration_error": 0.375})
    assert is_lower_better("calibration_error")


def test_what_a_test_set_leaves_undefined_is_left_out() -> None:
    """No owl, and never said owl: three scores have no value; the others are of cats and dogs."""
    probabilities = torch.tensor([[0.8, 0.2, 0.0], [0.3, 0.7, 0.0], [0.6, 0.4, 0.0]])
    targets = torch.tensor([0, 1, 1])
    names = ["auroc", "balanced_accuracy", *(f"{kind}:owl" for kind in OF_A_CLASS)]
    found = compute_metrics(names, probabilities, targets, CLASSES)
    assert found == pytest.approx({"auroc": 1.0, "balanced_accuracy": 0.75, "specificity:owl": 1.0})
    assert compute_confusion(probabilities, targets)[2] == [0, 0, 0]
    alone = compute_metrics(OVER_ALL, probabilities[:1], targets[:1], CLASSES)
    assert "auroc" not in alone
    assert alone["balanced_accuracy"] == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("auc", r"did you mean auroc\? \(received 'auc'\)\.$"),
        ("sensitivity", "did you mean sensitivity:CLASS"),
        ("macro_f1:owl", "did you mean"),
        ("sensitivity:", "did you mean sensitivity:CLASS"),
        ("accuracy", "is in every evaluation: leave it out"),
        ("zzz", "metrics.0: is none of auroc, balanced_accuracy"),
        (":owl", "metrics.0: is none of auroc, balanced_accuracy"),
    ],
)
def test_a_name_that_is_no_metric_is_refused_once(name: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as refused:
        check_config({"name": "a", "metrics": [name]}, "run.yaml")
    assert str(refused.value).count(repr(name)) == 1


def test_no_metrics_is_what_a_run_has_that_names_none() -> None:
    assert RunConfig(name="a", metrics=()) == RunConfig(name="a")


def test_a_class_that_the_run_has_not_and_a_task_without_classes() -> None:
    with pytest.raises(InvalidConfiguration, match="the run has no class 'emu'"):
        check_metrics(["sensitivity:emu"], CLASSES)
    with pytest.raises(InvalidConfiguration, match="the task's model says a number"):
        check_metrics(["auroc"], CLASSES, outputs=1)


def configure(**fields: Any) -> dict[str, Any]:
    local = {"steps": 3, "batch_size": 16, "learning_rate": 0.1}
    return {"name": "scored", "task": "digits", "rounds": 2, "partition": "iid:2", "local": local, **fields}


@pytest.mark.long
def test_a_simulation_has_them_in_its_lines_and_goes_by_them(tmp_path: Path) -> None:
    asked = {
        "metrics": ["macro_f1", "sensitivity:7", "confusion_matrix"],
        "stop_when": {"metric": "macro_f1", "patience": 5},
        "shadow": ["uniform"],
    }
    result = feddisco.simulate(configure(**asked), out=tmp_path / "r.jsonl")
    plain = feddisco.simulate(configure(), out=tmp_path / "plain.jsonl")
    assert list(result.rounds["model"]) == list(plain.rounds["model"])
    assert result.rounds["macro_f1"].between(0, 1).all()
    sevens = result.rounds["accuracy: 7"]
    assert list(result.rounds["sensitivity:7"]) == pytest.approx(list(sevens))


def test_the_documented_task_has_its_own_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "scores.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) <= 20
    module = ModuleType("documented_triage")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "documented_triage", module)
    result = feddisco.simulate(configure(task="documented_triage:Triage"), out=tmp_path / "r.jsonl")
    assert result.rounds["cost of errors"].between(0, 10).all()


def test_every_metric_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "scores.md").read_text()
    assert [name for name in OVER_ALL if f"`{name}`" not in text] == []
    assert [kind for kind in OF_A_CLASS if f"`{kind}:CLASS`" not in text] == []

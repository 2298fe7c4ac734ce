"""``import feddisco``: quick, whole, and what the documents use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

import feddisco
from feddisco.beside import place_beside
from feddisco.exporting import SUFFIXES
from shared.config import RunConfig
from shared.problems import InvalidConfiguration
from shared.schemas import JoinTokenRequest, RunRequest
from simulation.run import simulate
from tests.helpers.live_coordinator import ADMIN, Live, live

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "name": "small",
    "task": "digits",
    "partition": "niid2:5+1",
    "rounds": 2,
    "local": {"steps": 5, "batch_size": 16},
}


def test_importing_it_brings_nothing_heavy() -> None:
    program = (
        "import sys, feddisco; sys.exit(str({'torch', 'numpy', 'pydantic', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


def test_every_public_name_is_there_and_no_other() -> None:
    assert set(feddisco.__all__) == set(feddisco._PLACES)
    assert all(getattr(feddisco, name) is not None for name in feddisco.__all__)
    assert set(feddisco.__all__) <= set(dir(feddisco))
    with pytest.raises(AttributeError, match="no attribute 'federate'"):
        feddisco.federate  # noqa: B018


def test_documents_import_from_feddisco_only() -> None:
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            found += [
                f"{path.name}: {line}"
                for line in block.splitlines()
                if re.match(r"\s*(from|import) (shared|server|worker|simulation)\b", line)
            ]
            for names in re.findall(r"^from feddisco import (.*)$", block, re.MULTILINE):
                assert {name.strip() for name in names.split(",")} <= set(feddisco.__all__)
    assert found == []


def test_a_result_has_tables_a_model_and_the_commands_digest(tmp_path: Path, one_thread: None) -> None:
    result = feddisco.simulate(SMALL, out=tmp_path / "run.jsonl")
    digest = simulate(
        RunConfig.model_validate(SMALL), source=None, out=tmp_path / "again", say=lambda line: None
    )
    assert result.digest == digest == result.model.facts.model_digest
    assert list(result.rounds.index) == [1, 2]
    assert result.rounds["model"].iloc[-1] == digest
    assert result.ledger.groupby("round")["weight"].sum().tolist() == pytest.approx([1, 1])
    assert len(result.ledger) == 12
    assert result.model.facts.scores["accuracy"] == result.rounds["accuracy"].iloc[-1]
    assert feddisco.simulate(SMALL, out=tmp_path / "run.jsonl").digest == digest, "done already"
    result.model_path.unlink()
    with pytest.raises(InvalidConfiguration, match="no model lies beside it"):
        _ = feddisco.simulate(SMALL, out=tmp_path / "run.jsonl").model


def test_the_best_model_is_kept_where_the_run_keeps_it(tmp_path: Path, one_thread: None) -> None:
    given = SMALL | {
        "rounds": 4,
        "keep": "best",
        "local": {"steps": 20, "batch_size": 16, "learning_rate": 0.5},
    }
    result = feddisco.simulate(given)
    assert result.model.facts.round == int(result.rounds["accuracy"].idxmax())
    assert result.model.facts.model_digest == result.digest


def test_a_notebook_shows_it_escaped(tmp_path: Path) -> None:
    result = feddisco.simulate(SMALL | {"rounds": 1}, out=tmp_path / "run.jsonl")
    shown = result._repr_html_()
    assert "round 1 of 1" in shown
    hostile = result.config.model_copy(update={"task": "<script>"})
    assert "<script>" not in type(result)(result.path, hostile, result.model_path)._repr_html_()


def test_a_wrong_configuration_is_said_in_a_sentence() -> None:
    with pytest.raises(InvalidConfiguration, match=r"rounds: .* \(received 0\)"):
        feddisco.simulate(SMALL | {"rounds": 0})


def test_results_whose_names_have_dots_share_no_model(tmp_path: Path) -> None:
    one_round = SMALL | {"rounds": 1}
    slow, fast, odd = (
        feddisco.simulate(one_round | {"seed": seed}, out=tmp_path / name)
        for seed, name in enumerate(("lr0.1", "lr0.5", "x.safetensors"))
    )
    for result in (slow, fast, odd):
        assert result.model.facts.model_digest == result.digest
    assert slow.digest != fast.digest
    names = {path.name for path in tmp_path.iterdir()}
    assert {"lr0.1.safetensors", "lr0.5.safetensors", "x.safetensors.safetensors"} <= names


@pytest.mark.parametrize(
    ("out", "beside"),
    [
        ("skin.onnx", "skin.json"),
        ("skin-v1.2", "skin-v1.2.json"),
        ("model.json", "model.json.json"),
        ("folder.d/skin.pt", "folder.d/skin.json"),
    ],
)
def test_a_file_beside_another_never_replaces_it(out: str, beside: str) -> None:
    assert place_beside(Path(out), ".json", SUFFIXES.values()) == Path(beside)


def test_the_client_speaks_to_a_coordinator(migrated_sqlite: Path, tmp_path: Path) -> None:
    (tmp_path / "test.sqlite").write_bytes(migrated_sqlite.read_bytes())
    with (
        live(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path) as at,
        feddisco.Client(at.url, token=ADMIN) as client,
    ):
        client.create(request_of(at))
        assert [run.run for run in client.runs()] == ["small"]
        assert (client.rounds("small"), client.evaluations("small")) == ([], [])
        assert [event.kind for event in client.log("small")] == ["run_created"]
        assert client.log("small", client.log()[-1].id) == []
        token = client.invite(JoinTokenRequest(uses=1))
        assert token.id in [each.id for each in client.join_tokens()]
        client.revoke_join_token(token.id)
        assert next(each for each in client.join_tokens() if each.id == token.id).revoked_at is not None
        assert client.control("small", "stop", "enough").status.value == "stopped"


def request_of(at: Live) -> RunRequest:

    return RunRequest(config=RunConfig.model_validate(SMALL))


@pytest.mark.long
def test_the_example_notebook_runs() -> None:
    notebook = nbformat.read(ROOT / "docs" / "example.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(ROOT)}}).execute()
    last = notebook.cells[-1].outputs[0]["data"]["text/plain"]
    assert last.startswith("('0', '1'")

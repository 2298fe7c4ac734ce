"""A run's model taken home: which round, what the file says of itself, and using it from the file alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn
from typer.testing import CliRunner, Result

from feddisco.admin import AdminClient
from feddisco.cards import write_card, write_text
from feddisco.loaded import LoadedModel, load
from feddisco.main import app
from feddisco.model_choice import choose_model
from feddisco.models import describe_model
from shared import wire
from shared.model_files import LARGEST_BYTES, ModelFacts, read_facts, read_tensors, write_model
from shared.problems import InvalidConfiguration, Problem
from shared.schemas import EnrolmentStatus, Role
from shared.tasks import load_task
from shared.wire.digests import digest_of
from shared.wire.tensors import state_of, tied_names
from tests.helpers import awkward_model
from tests.helpers.live_coordinator import ADMIN, Live, live
from tests.helpers.own_tasks import Slow
from tests.helpers.worker_crew import create, worker

OWN = "tests.helpers.own_tasks:Slow"


@pytest.fixture(scope="module")
def trained(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Runs ``demo`` (three rounds, scored), ``own`` (a task of one's own) and ``waiting`` (nobody came)."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "test.sqlite").write_bytes(migrated_sqlite.read_bytes())
    with live(f"sqlite:///{folder / 'test.sqlite'}", folder) as at:
        local = {"steps": 30, "batch_size": 16, "learning_rate": 0.05}
        create(at, rounds=3, local=local, partition="iid:2", weighting={"kind": "sizes"})
        part = {"partition": "run", "run": "demo"}
        crew = [worker(at, folder, f"site-{index}", index=index, **part) for index in range(2)]
        crew.append(worker(at, folder, "judge", role=Role.EVALUATOR, run="demo"))
        assert [member.join() for member in crew] == [0, 0, 0], crew[0].log
        create(at, name="own", task=OWN, task_options={"seconds_a_step": 0.0}, rounds=1, min_clients=1)
        alone = worker(at, folder, "own", task=OWN, task_options={"seconds_a_step": 0.0}, run="own")
        assert alone.join() == 0, alone.log
        create(at, name="waiting")
        yield at


def console(at: Live, *arguments: object, code: int = 0) -> Result:
    variables = {"FEDDISCO_ADMIN_TOKEN": ADMIN, "FEDDISCO_URL": at.url}
    answer = CliRunner().invoke(app, [str(part) for part in arguments], env=variables)
    assert answer.exit_code == code, (answer.output, answer.exception)
    return answer


def refusal(at: Live, *arguments: object) -> str:
    answer = console(at, *arguments, code=1)
    assert isinstance(answer.exception, InvalidConfiguration)
    return str(answer.exception)


def write_digit(path: Path, number: int) -> int:
    """An image of the collection as a picture file; returns its class."""
    examples = load_task("digits").load("test", None, 0)
    pixels = (examples.inputs[number, 0].float() * (255 / 16)).round().to(torch.uint8).numpy()
    Image.fromarray(pixels).save(path)
    return int(examples.targets[number])


# ---------------------------------------------------------------- which round


def test_the_newest_is_taken_and_a_better_one_is_named(trained: Live, tmp_path: Path) -> None:
    scores = {
        one["round"]: one["evaluations"][0]["accuracy"]
        for one in trained.admin.get("/runs/demo/rounds").json()
    }
    best = max(scores, key=lambda number: (scores[number], -number))
    said = console(trained, "run", "model", "demo", tmp_path / "last.safetensors").output
    assert f"round 3 of 3, accuracy {100 * scores[3]:.2f} %" in said
    assert ("was better" in said) == (scores[best] > scores[3])
    console(trained, "run", "model", "demo", tmp_path / "best.safetensors", "--round", "best")
    assert read_facts(tmp_path / "best.safetensors").round == best
    console(
        trained, "run", "model", "demo", tmp_path / "loss.safetensors", "--round", "best", "--metric", "loss"
    )
    assert (
        read_facts(tmp_path / "loss.safetensors").scores["loss"]
        <= read_facts(tmp_path / "last.safetensors").scores["loss"]
    )


def test_a_run_without_a_completed_round_gives_no_model(trained: Live, tmp_path: Path) -> None:
    out = tmp_path / "none.safetensors"
    assert "no completed round yet" in refusal(trained, "run", "model", "waiting", out)
    assert "no completed round yet" in refusal(trained, "run", "model", "waiting", out, "--round", "best")
    assert list(tmp_path.iterdir()) == []
    assert "the initial model" in console(trained, "run", "model", "waiting", out, "--round", "0").output
    assert read_facts(out).round == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--round", "9"), "no completed round 9"),
        (("--round", "newest"), "no completed round newest"),
        (("--round", "best", "--metric", "beauty"), "No round of demo has a score called 'beauty'"),
    ],
)
def test_what_is_not_there_is_named(
    trained: Live, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refusal(trained, "run", "model", "demo", tmp_path / "x", *arguments)


def test_a_site_takes_the_model_home_with_its_own_credential(
    trained: Live, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    states = next(tmp_path_factory.getbasetemp().glob("trained*"))
    out = tmp_path / "model.safetensors"
    asked = ("worker", "model", "demo", out, "--state")
    said = console(trained, *asked, states / "site-0").output
    assert "round 3 of 3; tensors sha256" in said, "a trainer sees no scores"
    judged = console(trained, *asked, states / "judge", "--round", "best").output
    assert "accuracy" in judged
    assert load(out).classes == tuple("0123456789")
    assert "sees no other's scores" in refusal(trained, *asked, states / "site-0", "--round", "best")
    own = console(trained, "worker", "model", "own", out, "--state", states / "own").output
    assert f"--allow {OWN}" in own
    assert "no client of" in refusal(trained, "worker", "model", "demo", out, "--state", tmp_path / "none")
    asked_for_another = ("worker", "model", "demo", out, "--state", states / "own")
    assert isinstance(console(trained, *asked_for_another, code=1).exception, Problem)


def test_a_site_takes_what_the_run_keeps(trained: Live, tmp_path_factory: pytest.TempPathFactory) -> None:
    states = next(tmp_path_factory.getbasetemp().glob("trained*"))
    token = json.loads((states / "site-0" / "credential.json").read_text())["token"]
    with AdminClient(trained.url, token=token) as client:
        view, rounds = client.run("demo"), client.rounds("demo")
    best = next(one for one in rounds if one.round == 2)
    kept = view.model_copy(
        update={"config": view.config.model_copy(update={"keep": "best"}), "model": best.scored_model}
    )
    assert choose_model(view, rounds).number == 3
    assert choose_model(kept, rounds).number == 2


# ---------------------------------------------------------------- what the file says


def test_the_file_says_what_it_is_of_and_the_stored_digest_stays(trained: Live, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    console(trained, "run", "model", "demo", out, "--round", "2")
    facts = read_facts(out)
    stored = trained.admin.get("/runs/demo/rounds/2").json()["scored_model"]
    assert (facts.run, facts.round, facts.rounds, facts.task, facts.model) == ("demo", 2, 3, "digits", "mlp")
    assert facts.classes == tuple("0123456789")
    assert facts.preprocessing["range"] == [0, 16]
    assert facts.test_examples == 359
    assert set(facts.per_category) == set(facts.classes)
    assert facts.model_digest == stored
    assert wire.write(tmp_path / "again", {"model": read_tensors(out)}).digest == stored
    console(trained, "run", "model", "demo", tmp_path / "plain", "--round", "2", "--plain")
    assert digest_of(tmp_path / "plain") == stored
    with safe_open(out, "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["feddisco"])["run"] == "demo"


def test_tied_weights_load_strictly_in_plain_pytorch(tmp_path: Path) -> None:
    model = awkward_model.build()
    with torch.no_grad():
        model.down.weight.fill_(0.25)
    tied = tied_names(model)
    assert tied == {"up.weight": "down.weight"}
    facts = facts_of(tied=tied)
    write_model(tmp_path / "tied.safetensors", state_of(model), facts)
    plain = awkward_model.build()
    plain.load_state_dict(load_file(tmp_path / "tied.safetensors"), strict=True)
    assert plain.up.weight is plain.down.weight
    assert float(plain.up.weight.detach()[0, 0]) == 0.25
    unique = wire.write(tmp_path / "unique", {"model": state_of(model)}).digest
    again = wire.write(tmp_path / "again", {"model": read_tensors(tmp_path / "tied.safetensors", tied)})
    assert again.digest == unique
    load_model(awkward_model.build(), tmp_path / "unique", strict=True)  # wants each tensor once


def facts_of(**changes: object) -> ModelFacts:
    given = {
        "run": "x", "round": 1, "rounds": 1, "task": "digits", "classes": tuple("0123456789"),
        "algorithm": "fedavg", "weighting": "disco", "model_digest": "0" * 64,
    }  # fmt: skip
    return ModelFacts.model_validate(given | changes)


def test_the_header_stays_small(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(1)}
    many = {f"class {number:060}": 0.5 for number in range(16_000)}
    write_model(tmp_path / "many", tensors, facts_of(per_category=many))
    assert read_facts(tmp_path / "many").per_category == {}
    with pytest.raises(InvalidConfiguration, match="--plain"):
        write_model(tmp_path / "huge", tensors, facts_of(task_options={"text": "x" * LARGEST_BYTES}))
    assert not (tmp_path / "huge").exists()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"run": 1}', "[" * 5000])
def test_a_file_that_lies_about_itself_is_refused(tmp_path: Path, text: str) -> None:
    wire.write(tmp_path / "bad", {"model": {"a": torch.zeros(1)}}, metadata={"feddisco": text})
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        read_facts(tmp_path / "bad")


def test_no_model_file_is_said_in_a_sentence(tmp_path: Path) -> None:
    wire.write(tmp_path / "plain", {"model": {"a": torch.zeros(1)}})
    (tmp_path / "text").write_text("hello, this is no model")
    with pytest.raises(InvalidConfiguration, match="does not say what they are of"):
        read_facts(tmp_path / "plain")
    with pytest.raises(InvalidConfiguration, match="is no model file"):
        read_facts(tmp_path / "text")
    with pytest.raises(InvalidConfiguration, match="No such file"):
        read_facts(tmp_path / "nowhere")


# ---------------------------------------------------------------- using it


def test_one_line_gives_model_transform_and_classes(trained: Live, tmp_path: Path) -> None:
    out = tmp_path / "digits.safetensors"
    console(trained, "run", "model", "demo", out)
    loaded = load(out)
    model, transform, classes = loaded
    assert isinstance(model, nn.Module)
    assert not model.training
    labels = [write_digit(tmp_path / f"{number}.png", number) for number in range(30)]
    paths = [tmp_path / f"{number}.png" for number in range(30)]
    with torch.inference_mode():
        places = model(transform(paths)).argmax(dim=1)
    examples = load_task("digits").load("test", None, 0)
    assert torch.equal(transform(paths), transform(examples.inputs[:30]))
    assert transform(paths[0]).shape == (1, 1, 8, 8)
    said = [each.label for each in loaded.predict(*paths)]
    assert said == [classes[place] for place in places]
    assert np.mean([int(one or -1) == label for one, label in zip(said, labels, strict=True)]) > 0.7


@pytest.mark.parametrize("target", [{"classes": ["ill", "well"]}, {"edges": [0.5]}])
def test_no_class_is_predicted_where_the_model_gives_no_finite_number(
    tmp_path: Path, target: dict[str, Any]
) -> None:
    task = load_task("csv", {"columns": ["age", "score"], "target": "y", **target})
    model = task.build_model(None, 0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    facts = ModelFacts(
        run="x", round=1, rounds=1, task="csv", classes=task.classes, algorithm="fedavg", weighting="disco",
        model_digest="0" * 64,
    )  # fmt: skip
    table = tmp_path / "new.csv"
    table.write_text("age,score\n1,2\n3e38,3e38\n2,1\n")
    said = LoadedModel(model, task, facts).predict(table)
    assert [each.name for each in said] == [f"{table}, line 2", f"{table}, line 4"]
    (sentence,) = said.left_out.name_each()
    assert sentence.startswith(f"{table}, line 3 gets no finite number from the model")


def test_predict_prints_class_and_probability_and_names_what_it_cannot_read(
    trained: Live, tmp_path: Path
) -> None:
    out = tmp_path / "digits.safetensors"
    console(trained, "run", "model", "demo", out)
    write_digit(tmp_path / "zero.png", 0)
    (tmp_path / "broken.png").write_bytes(b"<html>not found</html>")
    lines = console(trained, "predict", out, tmp_path / "zero.png", "--top", "3").output.splitlines()
    name, *pairs = lines[0].split("\t")
    assert (len(lines), name, len(pairs)) == (1, str(tmp_path / "zero.png"), 6)
    assert float(pairs[1]) >= float(pairs[3]) >= float(pairs[5])
    answer = console(
        trained, "predict", out, tmp_path / "broken.png", tmp_path / "zero.png", "--json", code=1
    )
    told = json.loads(answer.stdout)
    assert told["class"] == pairs[0]
    assert sum(told["probabilities"].values()) == pytest.approx(1)
    assert "broken.png is not an image: it is a web page" in answer.stderr


def test_code_that_a_file_names_is_not_imported_unasked(trained: Live, tmp_path: Path) -> None:
    out = tmp_path / "own.safetensors"
    said = console(trained, "run", "model", "own", out).output
    assert "Without preprocessing" in said
    assert read_facts(out).preprocessing == {}
    for allow in ([], ["tests.helpers.own_tasks:Own"], ["tests.other*"]):
        with pytest.raises(InvalidConfiguration, match="not imported unasked"):
            load(out, allow=allow)
    assert isinstance(load(out, allow=["tests.helpers.*"]).task, Slow)
    console(trained, "run", "model", "own", out, "--allow", "tests.helpers.*")
    assert read_facts(out).preprocessing["range"] == [0, 16]


@pytest.fixture
def foreign(trained: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The run ``foreign``: its model is code that only its operator knows. Gives the module's name."""
    (tmp_path / "foreign_nets.py").write_text(
        "from torch import nn\n\n\ndef make(outputs, shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = tmp_path / "foreign.yaml"
    given.write_text("name: foreign\ntask: digits\nrounds: 1\nmodel: foreign_nets:make\n")
    console(trained, "run", "create", given, "--if-absent")
    sys.modules.pop("foreign_nets", None)
    yield "foreign_nets"
    sys.modules.pop("foreign_nets", None)


@pytest.mark.parametrize("command", ["model", "card"])
def test_a_model_of_ones_own_is_imported_where_it_is_allowed(
    trained: Live, tmp_path: Path, foreign: str, command: str
) -> None:
    out = tmp_path / "made"
    asked = ["run", command, "foreign", *([out] if command == "model" else ["--out", out]), "--round", "0"]
    said = console(trained, *asked).output
    assert foreign not in sys.modules
    assert ("--allow foreign_nets:make" in said) == (command == "model")
    if command == "model":
        assert read_facts(out).preprocessing["range"] == [0, 16], "the task is built in"
    else:
        assert "| range | \\[0, 16\\] |" in out.read_text()
    assert "tied" not in console(trained, *asked, "--allow", "foreign_nets:*").output
    assert foreign in sys.modules


def test_a_card_is_written_where_the_model_is_not_installed(
    trained: Live, tmp_path: Path, foreign: str
) -> None:
    (tmp_path / "foreign_nets.py").unlink()
    card = console(trained, "run", "card", "foreign", "--round", "0", "--allow", "foreign_nets:*").output
    assert "| model | foreign\\_nets:make |" in card


def test_a_model_that_was_taken_home_starts_another_run(trained: Live, tmp_path: Path) -> None:
    out = tmp_path / "start.safetensors"
    console(trained, "run", "model", "demo", out)
    given = tmp_path / "again.yaml"
    given.write_text("name: again\ntask: digits\nrounds: 1\n")
    console(trained, "run", "create", given, "--weights", out)
    assert trained.run("again")["initial_model"] == read_facts(out).model_digest


# ---------------------------------------------------------------- for others


def test_a_run_is_exported_with_its_labels(trained: Live, tmp_path: Path) -> None:
    said = console(trained, "run", "export", "demo", "--out", tmp_path / "demo.pt", "--format", "torchscript")
    assert "demo: round 3 of 3" in said.output
    assert (tmp_path / "demo.labels.txt").read_text().split() == list("0123456789")
    assert json.loads((tmp_path / "demo.json").read_text())["round"] == 3
    with pytest.warns(FutureWarning, match=r"torch\.jit\.load"):
        exported = torch.jit.load(tmp_path / "demo.pt")  # type: ignore[no-untyped-call]
    out = tmp_path / "demo.safetensors"
    console(trained, "run", "export", "demo", "--out", out)
    write_digit(tmp_path / "zero.png", 0)
    loaded = load(out)
    inputs = loaded.task.read_inputs([tmp_path / "zero.png"]).inputs
    (said_by_model,) = loaded.predict(tmp_path / "zero.png")
    assert said_by_model.probabilities is not None
    assert exported(inputs)[0].tolist() == pytest.approx(list(said_by_model.probabilities.values()), abs=1e-5)


def test_a_card_tells_what_the_rows_say_and_names_no_client(trained: Live, tmp_path: Path) -> None:
    card = console(trained, "run", "card", "demo").output
    view, last = trained.run("demo"), trained.admin.get("/runs/demo/rounds/3").json()
    assert f"SHA-256 `{last['scored_model']}`" in card
    assert f"| accuracy | {last['evaluations'][0]['accuracy']:.4f} |" in card
    assert "On 359 test examples of one evaluator" in card
    assert "| range | \\[0, 16\\] |" in card
    for row in last["ledger"]:
        assert f"| {row['index'] + 1} | {row['examples']} | {row['weight']:.4f} |" in card
    assert not [one["client"] for one in view["enrolments"] if one["client"] in card]
    console(trained, "run", "card", "demo", "--out", tmp_path / "card.md", "--round", "1")
    assert "This is round 1 of 3" in (tmp_path / "card.md").read_text()


def test_a_card_repeats_no_reason_in_somebodys_words(trained: Live) -> None:
    with AdminClient(trained.url, token=ADMIN) as client:
        view, rounds = client.run("demo"), client.rounds("demo")
    said = {"included": False, "status": "failed", "reason": "site-0: /data/mueller.png is broken"}
    told = [
        one.model_copy(
            update={"ledger": [type(row).model_validate(row.model_dump() | said) for row in one.ledger]}
        )
        for one in rounds
    ]
    choice = choose_model(view, told)
    card = write_card(view, told, choice, describe_model(view, choice, ()))
    assert "mueller" not in card
    assert card.count("| failed |") == 2


def test_a_card_without_the_tasks_code_says_that_the_preprocessing_is_not_known(trained: Live) -> None:
    with AdminClient(trained.url, token=ADMIN) as client:
        view, rounds = client.run("demo"), client.rounds("demo")
    of_its_own = view.model_copy(update={"config": view.config.model_copy(update={"task": "clinic:Task"})})
    choice = choose_model(of_its_own, rounds)
    card = write_card(of_its_own, rounds, choice, describe_model(of_its_own, choice, ()))
    said = card.partition("## Preprocessing\n\n")[2].partition("\n")[0]
    assert said.startswith("Without preprocessing: ")
    assert "--allow" in said.replace("\\", "")


def test_a_card_counts_who_trained_and_who_scored(trained: Live) -> None:
    """Not who was refused, has declined, or has not scored this model."""
    with AdminClient(trained.url, token=ADMIN) as client:
        view, rounds = client.run("demo"), client.rounds("demo")
    choice = choose_model(view, rounds)
    model = describe_model(view, choice, ())
    some = view.enrolments[0]
    beside = [
        some.model_copy(update={"client": f"late-{number}", "role": role, "status": status, "examples": 5000})
        for number, (role, status) in enumerate(
            [
                (Role.TRAINER, EnrolmentStatus.REFUSED),
                (Role.TRAINER, EnrolmentStatus.DECLINED),
                (Role.TRAINER, EnrolmentStatus.READY),
                (Role.EVALUATOR, EnrolmentStatus.READY),
            ]
        )
    ]
    more = view.model_copy(update={"enrolments": (*view.enrolments, *beside)})
    card = write_card(more, rounds, choice, model)
    assert card == write_card(view, rounds, choice, model)
    rows = rounds[-1].ledger
    assert f"{len(rows)} clients with {sum(row.examples for row in rows)} examples trained it" in card
    first = choose_model(view, rounds, "0")
    initial = write_card(more, rounds, first, describe_model(view, first, ()))
    assert "This is the initial model, which nobody has trained." in initial
    assert "trained it together" not in initial


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert\\(1\\)&lt;/script&gt;"),
        ("a | b", "a \\| b"),
        ("# head", "\\# head"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("0.961", "0.961"),
        ("two\nlines", "two lines"),
        ("[x](http://y)", "\\[x\\]\\(http://y\\)"),
        ("\x1b[2J", "\\\\x1b\\[2J"),
    ],
)
def test_foreign_text_is_text_in_a_card(text: str, written: str) -> None:
    assert write_text(text) == written

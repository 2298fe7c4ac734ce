"""What a configuration's partition means in a run: own tests, thin tests, keys; other kinds of tasks."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shared.config import RunConfig
from simulation.jobs import WorkbenchSpec, workbench_of
from simulation.run import Results, simulate


def config(**changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "name": "small",
        "rounds": 2,
        "partition": "iid:3",
        "local": {"steps": 3, "batch_size": 8, "learning_rate": 0.05},
    }
    return RunConfig.model_validate(given | changes)


def rounds(given: RunConfig, out: Path, **more: Any) -> list[dict[str, Any]]:
    simulate(given, source=more.pop("source", None), out=out, say=lambda line: None, **more)
    return Results(out).lines()[1:-1]


def test_each_client_is_scored_on_the_examples_it_kept(tmp_path: Path) -> None:
    given = config(partition={"kind": "niid1", "clients": 3, "held_out": 0.2})
    whole = WorkbenchSpec.of(config(partition={"kind": "niid1", "clients": 3})).build()
    workbench = WorkbenchSpec.of(given).build()
    for index in range(3):
        kept, tested = len(workbench.training_examples(index)), len(workbench.own_test_examples(index))
        assert tested == (kept + tested) // 5
        assert kept + tested == len(whole.training_examples(index))
    for line in rounds(given, tmp_path / "r.jsonl"):
        right = [s * len(workbench.own_test_examples(k)) for k, s in enumerate(line["per_client"])]
        assert right == pytest.approx([round(number) for number in right])  # whole numbers of images
        assert len(right) == 3
    assert rounds(config(), tmp_path / "none.jsonl")[0]["per_client"] == []


def test_a_process_that_outlives_an_engine_reads_changed_data_for_the_next(tmp_path: Path) -> None:
    given = config(task="femnist", partition="iid:1")
    spec = WorkbenchSpec.of(given, writers(tmp_path / "data"))
    one = workbench_of(replace(spec, engine="one"))
    assert workbench_of(replace(spec, engine="one")) is one
    one.class_counts(0)
    (tmp_path / "data" / "w1" / "0" / "0.png").rename(
        tmp_path / "data" / "w1" / "1" / "0.png"
    )  # labelled anew
    two = workbench_of(replace(spec, engine="two"))
    assert [made.class_counts(0)[:2] for made in (one, two)] == [[7, 7], [6, 8]]


def test_the_common_test_set_is_thinned(tmp_path: Path) -> None:
    given = config(partition={"kind": "iid", "clients": 3, "test_rho": 9})
    thin = WorkbenchSpec.of(given).build().test_examples
    digits = [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]  # of each class, see tests/shared/test_tasks.py
    kept = [int(round(n * 9 ** (-c / 9), 6)) for c, n in enumerate(digits)]
    assert thin.targets.bincount().tolist() == kept
    assert kept[-1] == 4


def test_what_is_dealt_to_nobody_is_scored_beside_the_test_set(tmp_path: Path) -> None:
    given = config(partition={"kind": "iid", "clients": 3, "validation": 100})
    workbench = WorkbenchSpec.of(given).build()
    kept = workbench.validation_examples()
    assert kept is not None
    assert len(kept) == 100
    without = WorkbenchSpec.of(config()).build()
    whole = sum(len(without.training_examples(index)) for index in range(3))
    assert sum(len(workbench.training_examples(index)) for index in range(3)) == whole - 100
    lines = rounds(given, tmp_path / "r.jsonl")
    right = [100 * line["validation_accuracy"] for line in lines]
    assert right == pytest.approx([round(number) for number in right])  # whole numbers of images
    assert right[0] != 100 * lines[0]["accuracy"]
    assert "validation_accuracy" not in rounds(config(), tmp_path / "none.jsonl")[0]


def writers(folder: Path) -> Path:
    for writer, number in (("w1", 12), ("w2", 20), ("w10", 30)):
        for i in range(number):
            path = folder / writer / str(i % 10) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = io.BytesIO()
            Image.new("L", (28, 28), 8 * i).save(stream, "PNG")
            path.write_bytes(stream.getvalue())
    return folder


@pytest.mark.long
def test_a_client_is_a_writer_whichever_engine_trains_it(tmp_path: Path) -> None:
    source, cache = writers(tmp_path / "data"), tmp_path / "cache"
    given = config(task="femnist", partition="by-key:3", local={"steps_range": (1, 4), "batch_size": 8})
    one = rounds(given, tmp_path / "one.jsonl", source=source, cache=cache)
    assert len({path.stem for path in cache.iterdir()}) == 2  # training and test images, decoded
    two = rounds(given, tmp_path / "two.jsonl", source=source, cache=cache, processes=2)
    assert [line["model"] for line in one] == [line["model"] for line in two]
    workbench = WorkbenchSpec.of(given, source, cache).build()
    assert [len(workbench.training_examples(k)) for k in range(3)] == [
        11,
        18,
        27,
    ]  # a tenth is in the test set
    steps = [steps for line in one for steps in line["steps"]]
    assert all(1 <= number <= 4 for number in steps)
    assert len(set(steps)) > 1


@pytest.mark.parametrize("algorithm", ["fedavg", "moon", "feddyn"])
def test_a_regression_and_texts_go_through_every_part(tmp_path: Path, algorithm: str) -> None:
    for split in ("train", "test"):
        rows = [
            f"{i / 60},{i},{'good' if i % 3 else 'bad'} news,{'yes' if i % 3 else 'no'}" for i in range(60)
        ]
        (tmp_path / f"{split}.csv").write_text("\n".join(["share,number,text,label", *rows]))
    numbers = {"columns": ["share"], "target": "number", "edges": [20, 40]}
    texts = {"kind": "text", "columns": ["text"], "target": "label", "classes": ["no", "yes"], "length": 8}
    for name, options in (("numbers", numbers), ("texts", texts)):
        local = {"epochs": 1, "learning_rate": 1e-4}
        given = config(task="csv", task_options=options, algorithm=algorithm, local=local)
        line = rounds(given, tmp_path / f"{name}.jsonl", source=tmp_path)[-1]
        assert (line["accuracy"] is None) == (name == "numbers")
        assert set(line["measures"]) == ({"mean absolute error"} if name == "numbers" else set())

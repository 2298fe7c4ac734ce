"""Text and table tasks: AG News, Facebook comments, one's own CSV; small files and the real archives."""

from __future__ import annotations

import csv
import io
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shared
from shared.config import Partition, RunConfig
from shared.data.partition import partition
from shared.data.tokens import VOCABULARY, bucket, encode, tokens
from shared.models import build_model
from shared.models.textcnn import Features
from shared.problems import InvalidConfiguration
from shared.tasks import load_task, task_of
from shared.tasks.base import Task
from shared.training.evaluation import evaluate

CPU = torch.device("cpu")


def written(folder: Path, **files: str) -> Path:
    """Files ``NAME.csv`` in the folder."""
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


# ---------------------------------------------------------------- texts


def test_a_token_has_the_same_number_everywhere() -> None:
    # CRC-32 of b"123456789" is 0xCBF43926 (the algorithm's published check value)
    assert bucket("123456789") == 1 + 0xCBF43926 % 31_999
    assert tokens("It's 5 o'clock; ÄPFEL_2 --") == ["it", "s", "5", "o", "clock", "äpfel_2"]
    numbers = encode(["a b", "", "b a b a"], 3)
    a, b = bucket("a"), bucket("b")
    assert numbers.tolist() == [[a, b, 0], [0, 0, 0], [b, a, b]]
    assert numbers.dtype == np.int16
    found = {bucket(str(number)) for number in range(200_000)}
    assert (min(found), max(found)) == (1, VOCABULARY - 1)


def parts(model: nn.Module) -> tuple[nn.Module, Features, nn.Linear]:
    assert isinstance(model.features, Features)
    assert isinstance(model.classifier, nn.Linear)
    return model, model.features, model.classifier


def test_textcnn_sees_padding_as_if_it_were_not_cut() -> None:
    torch.manual_seed(0)
    model, features, classifier = parts(build_model("textcnn", 4, (60,)).eval())
    texts = torch.randint(1, VOCABULARY, (6, 60))
    for row, length in enumerate((0, 1, 3, 7, 20, 25)):
        texts[row, length:] = 0
    embedded = features.embedding(texts).transpose(1, 2)  # nothing cut
    best = [torch.relu(layer(embedded)).amax(dim=2) for layer in features.convolutions]
    torch.testing.assert_close(model(texts), classifier(torch.cat(best, dim=1)))
    torch.testing.assert_close(model(texts[2:3]), model(texts)[2:3])


def test_the_paddings_vector_stays_zero() -> None:
    model, features, _ = parts(build_model("textcnn", 2, (10,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    loss = nn.functional.cross_entropy(model(torch.tensor([[5, 6, 7] + [0] * 7])), torch.tensor([1]))
    loss.backward()  # type: ignore[no-untyped-call]
    before = features.embedding.weight.detach().clone()
    optimizer.step()
    after = features.embedding.weight.detach()
    assert torch.equal(after[0], torch.zeros(32))
    assert not torch.equal(after[5], before[5] * (1 - 0.01))  # not by weight decay alone


@pytest.mark.parametrize(
    ("task", "model", "said"),
    [
        ("ag-news", "mlp", "mlp takes numbers, the task gives texts"),
        ("digits", "textcnn", "textcnn takes texts, the task gives numbers"),
    ],
)
def test_a_model_of_the_other_kind_is_refused(task: str, model: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_task(task).build_model(model, 0)


# ---------------------------------------------------------------- AG News

NEWS = '"3","Oil, again","up\\by 5"\n"1","","Peace ""talks"" resume"\n'


@pytest.mark.parametrize("header", ["", "Class Index,Title,Description\n"])
def test_ag_news_joins_title_and_description(tmp_path: Path, header: str) -> None:
    (tmp_path / "ag_news_csv").mkdir()
    written(tmp_path / "ag_news_csv", test=header + NEWS)
    task = load_task("ag-news", {"length": 6})
    examples = task.load("test", tmp_path, 0)
    assert [task.classes[label] for label in examples.targets] == ["Business", "World"]
    words = [["oil", "again", "up", "by", "5"], ["peace", "talks", "resume"]]
    expected = [[*map(bucket, row), *[0] * (6 - len(row))] for row in words]
    assert task.prepare(examples.inputs, None).tolist() == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"1","a","b"\n"5","a","b"\n', r"test.csv in .*, line 2: the class is '5', not one of 1 to 4"),
        ('"1","a"\n', "line 1: has 2 fields, not class, title, description"),
        ("", "holds no rows"),
        ('"1","a","b" c\n', r"line 1: .*expected after"),
    ],
)
def test_a_file_that_is_not_ag_news(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_task("ag-news").load("test", written(tmp_path, test=text), 0)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_bytes(b'"1","\xff","b"\n')
    with pytest.raises(InvalidConfiguration, match=r"test\.csv in .* is not UTF-8"):
        load_task("ag-news").load("test", tmp_path, 0)
    with pytest.raises(InvalidConfiguration, match=r"looked for train\.csv in"):
        load_task("ag-news").load("train", tmp_path, 0)


@pytest.mark.data
def test_the_real_ag_news_archive(data_folder: Path) -> None:
    place = data_folder / "ag-news-subset.zip"
    task = load_task("ag-news")
    test = task.load("test", place, 0)
    assert torch.bincount(test.targets).tolist() == [1900] * 4
    with zipfile.ZipFile(place) as archive:
        row = list(csv.reader(io.StringIO(archive.read("ag_news_csv/test.csv").decode())))[1234]
    words = [bucket(word) for word in tokens(f"{row[1]} {row[2]}".replace("\\", " "))]
    assert test.inputs[1234, : len(words)].tolist() == words
    assert test.inputs[1234, len(words) :].sum() == 0
    # 1,900 of the smallest class, 50 clients: shards of 38
    parts = partition(Partition.model_validate("niid2:40+10:2"), test.targets.numpy(), 4, 0)
    assert {len(part) for part in parts} == {4 * 38}


# ---------------------------------------------------------------- Facebook comments


def post(category: float = 5, comments: float = 3, **cells: float) -> str:
    """One line; ``c12=7`` sets the column 12, counted from 1."""
    values = [0.0] * 54
    values[3], values[53] = category, comments
    for name, value in cells.items():
        values[int(name.removeprefix("c")) - 1] = value
    return ",".join(map(str, values)) + "\n"


def test_features_of_a_post_need_no_statistics_of_others(tmp_path: Path) -> None:
    line = post(category=107, comments=12, c1=math.e**4 - 1, c25=-3, c35=36, c39=6, c40=1, c53=1)
    task = load_task("facebook-comments")
    examples = task.load("test", written(tmp_path, Features_TestSet=line), 0)
    (row,) = task.prepare(examples.inputs, None).tolist()
    assert len(row) == task.input_shape[0]
    # 36 logarithms over 4 (all but category, hours, weekdays), then 107 categories, 2 hours, 14 weekdays
    assert row[0] == pytest.approx(1.0)
    assert row[23] == pytest.approx(-math.log(4) / 4)  # column 25 is the 24th of them
    assert row[36 : 36 + 107] == [0.0] * 106 + [1.0]
    assert row[-16:] == [0.5, 0.25, 1.0, *[0.0] * 12, 1.0]
    assert sum(map(abs, row)) == pytest.approx(1 + math.log(4) / 4 + 1 + 0.75 + 2)
    assert examples.targets.tolist() == [12.0]


def test_the_bins_count_for_the_discrepancy_only() -> None:
    task = load_task("facebook-comments")
    assert task.classes == ("0", "1-10", "11-50", "51-200", "201 or more")
    comments = torch.tensor([0.0, 1, 10, 11, 50, 51, 200, 201, 1305])
    assert task.categories(comments).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    outputs = torch.log1p(comments).unsqueeze(1) + 0.5
    assert task.loss(outputs, comments).item() == pytest.approx(0.25)
    other = load_task("facebook-comments", {"edges": [5, 20]})
    assert other.classes == ("0-4", "5-19", "20 or more")
    assert other.categories(comments).tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert sum(p.numel() for p in other.build_model(None, 0).parameters()) == 159 * 128 + 128 + 128 + 1


def test_the_absolute_error_is_told_in_comments(tmp_path: Path) -> None:
    lines = post(comments=0) + post(comments=5) + post(comments=9)
    task = load_task("facebook-comments", {"variant": 3})
    examples = task.load("train", written(tmp_path, Features_Variant_3=lines), 0)

    class Three(nn.Module):
        """Says exp(x) - 1 comments for x = -1 (none), log 5 (four), 1000 (cut off at e^20)."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[-1.0], [math.log(5)], [1000.0]])

    metrics = evaluate(task=task, model=Three(), examples=examples, device=CPU)
    assert metrics.accuracy is None
    assert metrics.extra["mean absolute error"] == pytest.approx((0 + 1 + math.exp(20) - 1 - 9) / 3, rel=1e-5)
    squares = [1.0, (math.log(5) - math.log(6)) ** 2, (1000 - math.log(10)) ** 2]
    assert metrics.loss == pytest.approx(sum(squares) / 3, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (post() + post(category=108), "row 2, column 4: 108 is no page category"),
        (post(comments=-1), "row 1, column 54: -1 is no number of comments"),
        (post(comments=1.5), "row 1, column 54: 1.5 is no number of comments"),
        ("1,2,3\n", r"has \(1, 3\) rows and columns, not 54 columns"),
        ("a,b\n", "is not a table of numbers"),
    ],
)
def test_a_table_that_is_not_facebooks(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        load_task("facebook-comments").load("test", written(tmp_path, Features_TestSet=text), 0)


def test_bins_that_do_not_increase_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"task_options\.edges: .*edges must increase"):
        load_task("facebook-comments", {"edges": [5, 5]})


@pytest.mark.data
def test_the_real_facebook_archive(data_folder: Path) -> None:
    place, task = data_folder / "facebook-comments.zip", load_task("facebook-comments")
    train, test = task.load("train", place, 0), task.load("test", place, 0)
    assert (len(train), len(test)) == (40_949, 10_044)
    assert torch.bincount(task.categories(train.targets)).tolist() == [22_579, 13_703, 3_406, 1_045, 216]
    assert train.targets.max() == 1305
    assert train.inputs.isfinite().all()
    assert train.inputs.abs().max() < 6


# ---------------------------------------------------------------- one's own table

TABLE = "name,age,score,verdict,site\nann,30,1.5,good,b10\nbob,40,-2,bad,b9\ncy,50,0.25,good,b9\n"
TABULAR = {"columns": ["score", "age"], "target": "verdict", "classes": ["bad", "good"]}


def csv_task(**options: object) -> Task:
    return load_task("csv", {**TABULAR, **options})


def test_a_table_of_numbers_in_classes(tmp_path: Path) -> None:
    task = csv_task(mean=[0.5, 40], deviation=[0.5, 10], key="site")
    other = "verdict,site,score,age\nbad,b1,0,0\n"
    source = written(tmp_path, train=TABLE, test=other)
    train, test = task.load("train", source, 0), task.load("test", source, 0)
    assert train.inputs.tolist() == [[1.5, 30], [-2, 40], [0.25, 50]]
    assert task.prepare(train.inputs, None).tolist() == [[2, -1], [-5, 0], [-0.5, 1]]
    assert train.targets.tolist() == [1, 0, 1]
    assert train.keys is not None
    assert test.keys is not None
    assert (train.keys.tolist(), test.keys.tolist()) == ([2, 1, 1], [0])  # b1, b9, b10 over both files
    assert [
        sorted(p)
        for p in partition(
            Partition.model_validate("by-key:2"), train.targets.numpy(), 2, 0, keys=train.keys.numpy()
        )
    ] == [[1, 2], [0]]
    assert train.subset(torch.tensor([2, 0])).to(CPU).keys.tolist() == [1, 2]  # type: ignore[union-attr]
    assert task.build_model(None, 0)(task.prepare(train.inputs, None)).shape == (3, 2)
    assert csv_task().load("train", source, 0).keys is None


def test_texts_in_classes_from_columns_and_files_of_other_names(tmp_path: Path) -> None:
    task = load_task("csv", {
        "kind": "text", "columns": ["name", "age"], "target": "verdict", "classes": ["good", "bad"],
        "train": "all.csv", "delimiter": ";", "length": 5,
    })  # fmt: skip
    examples = task.load("train", written(tmp_path, all=TABLE.replace(",", ";")), 0)
    assert examples.inputs[1].tolist() == [bucket("bob"), bucket("40"), 0, 0, 0]
    assert examples.targets.tolist() == [0, 1, 0]
    assert task.build_model(None, 0)(task.prepare(examples.inputs, None)).shape == (3, 2)


@pytest.mark.parametrize("kind", ["tabular", "text"])
def test_a_regression_has_bins_for_classes(tmp_path: Path, kind: str) -> None:
    run = RunConfig(
        name="r", task="csv",
        task_options={"kind": kind, "columns": ["age"], "target": "score", "edges": [0, 1]},
    )  # fmt: skip
    task = task_of(run)
    assert task.classes == ("below 0", "0 to below 1", "1 or more")
    examples = task.load("train", written(tmp_path, train=TABLE), 0)
    assert examples.targets.tolist() == [1.5, -2, 0.25]
    assert task.categories(examples.targets).tolist() == [2, 0, 1]
    outputs = task.build_model(None, 0)(task.prepare(examples.inputs, None))
    assert outputs.shape == (3, 1)
    assert task.loss(torch.zeros(3, 1), examples.targets).item() == pytest.approx((2.25 + 4 + 0.0625) / 3)
    assert task.measures(torch.zeros(3, 1), examples.targets)["mean absolute error"].tolist() == [
        1.5,
        2,
        0.25,
    ]
    agreed = load_task("csv", run.task_options, task.classes)  # as a worker does, with the run's contract
    assert agreed.classes == task.classes
    with pytest.raises(InvalidConfiguration, match="classes: task 'csv' has the classes"):
        load_task("csv", run.task_options, ("low", "high"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": None}, "give classes .* or edges"),
        ({"edges": [2, 1]}, "edges must increase"),
        ({"columns": ["verdict"]}, "without the target 'verdict'"),
        ({"columns": ["age", "age"]}, "columns must be distinct"),
        ({"mean": [1]}, "mean takes one number for each column"),
        ({"kind": "text", "deviation": [1, 1]}, "deviation takes one number for each column of a tabular"),
        ({"deviation": [1, 0]}, r"deviation\.1: .*greater than 0, received 0"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        csv_task(**options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,verdict\n1,bad\n", r"line 1: looked for the columns \['score'\], the header has \['age'"),
        ("age,score,verdict\n1,x,bad\n", "line 2: column 'score': 'x' is not a finite number"),
        ("age,score,verdict\n\n,1,bad\n", "line 3: column 'age': '' is not a finite number"),
        ("age,score,verdict\n1,inf,bad\n", "column 'score': 'inf' is not a finite number"),
        ("age,score,verdict\n1,1,ugly\n", r"column 'verdict': 'ugly' is not one of the classes \['bad'"),
        ("age,score,verdict\n1,1\n", "line 2: has 2 fields, the header has 3"),
        ("age,score,score,verdict\n1,1,7,bad\n", r"line 1: has more than one column \['score'\]"),
        ("age,score,verdict,verdict\n1,1,bad,good\n", r"line 1: has more than one column \['verdict'\]"),
        ('age,score,verdict\n1,"1,5",bad\n', r"'1,5' is not a finite number \(decimals have a point"),
        ("age,score,verdict\n1,3_000,bad\n", "line 2: column 'score': '3_000' is not a finite number"),
        ("age,score,verdict\n", "holds no rows below a header"),
        ("", r"looked for the columns \['score', 'age', 'verdict'\], the header has \[\]"),
    ],
)
def test_a_table_that_does_not_fit(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        csv_task().load("train", written(tmp_path, train=text), 0)


HEADER = "age,score,verdict\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{HEADER},1,bad\nNaN,2,good\n",
            r"no row with a cell in column 'age' that can be used \(line 2: column 'age': '' is not a finite",
        ),
        (
            f"{HEADER}1,1,Bad \n2,2,BAD\n",
            r"column 'verdict' that can be used \(line 2: .*perhaps 'bad': --labels '\{\"Bad \": \"bad\"\}'",
        ),
        (f"{HEADER},1,bad\n1,,bad\n", r"has no row that can be used \(line 2: column 'age'"),
        (f"{HEADER}1\n2\n", r"has no row that can be used \(line 2: has 1 fields, the header has 3\)"),
        (f"{HEADER}\n\n", "holds no rows below a header"),
    ],
)
def test_a_table_of_which_nothing_is_left_says_why(tmp_path: Path, text: str, said: str) -> None:
    task = csv_task()
    task.on_broken = "skip"
    with pytest.raises(InvalidConfiguration, match=said):
        task.load("train", written(tmp_path, train=text), 0)


@pytest.mark.parametrize(
    ("cell", "labels", "said"),
    [
        ("Bad ", {}, r"\(perhaps 'bad': --labels '\{\"Bad \": \"bad\"\}'\)"),
        ("GUT", {"gut": "good"}, r"\(perhaps 'good': --labels '\{\"gut\": \"good\", \"GUT\": \"good\"\}'\)"),
        ("ugly", {}, r"classes \['bad', 'good'\]\. Mend"),
    ],
)
def test_a_label_that_nearly_is_a_class_asks_which_is_meant(
    tmp_path: Path, cell: str, labels: dict[str, str], said: str
) -> None:
    task = csv_task()
    task.labels = labels
    with pytest.raises(InvalidConfiguration, match=said):
        task.load("train", written(tmp_path, train=f"{HEADER}1,1,{cell}\n"), 0)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("score;age\n1;2\n", "separated by ';': save the table with ',', as the model's were"),
        ("scores,age\n1,2\n", "Is 'score' the column 'scores'?"),
        ("age\n1\n", "Add the columns to the table"),
    ],
)
def test_a_table_that_a_model_cannot_read(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "new.csv").write_text(table)
    with pytest.raises(InvalidConfiguration, match=said):
        csv_task().read_inputs([tmp_path / "new.csv"])


def test_a_number_that_32_bits_cannot_hold_is_a_fault_of_its_row(tmp_path: Path) -> None:
    first = "3.4028235677973366e38"  # is rounded to infinity
    new = tmp_path / "new.csv"
    new.write_text(f"score,age\n1,3.40282356e38\n1,1e39\n1,-{first}\n")
    read = csv_task().read_inputs([new])
    assert bool(torch.isfinite(read.inputs).all())
    assert read.names == (f"{new}, line 2",)
    said = "is too large for a number of 32 bits (3.4e38 at most)"
    assert read.left_out.name_each() == [
        f"{new}, line 3: column 'age': '1e39' {said}",
        f"{new}, line 4: column 'age': '-{first}' {said}",
    ]


KEYS = """
from pathlib import Path
from shared.tasks import load_task
options = {"columns": ["age"], "target": "y", "classes": ["a", "b"], "key": "who"}
print(load_task("csv", options).load("train", Path("."), 0).keys.tolist())
"""


def test_keys_that_differ_in_leading_zeros_have_an_order(tmp_path: Path) -> None:
    """In each process: a set of texts is not in the same order in two of them."""
    keys = ["7", "007", "07", "10", "0007", "9"]
    written(tmp_path, train="age,y,who\n" + "".join(f"1,a,{key}\n" for key in keys))
    found = {
        subprocess.run(
            [sys.executable, "-c", KEYS],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(shared.__file__).parents[1]), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert found == {"[3, 1, 2, 5, 0, 4]\n"}


def test_rows_that_a_model_cannot_read_are_named(tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("score,age\n1,2\nhigh,2\n3\n")
    read = csv_task().read_inputs([new])
    assert read.names == (f"{new}, line 2",)
    assert read.left_out.name_each() == [
        f"{new}, line 3: column 'score': 'high' is not a finite number",
        f"{new}, line 4: has 1 fields, the header has 2",
    ]

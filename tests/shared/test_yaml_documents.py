"""YAML as people write it: case D8 of issue 8."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from feddisco.admin import load_config
from shared.documents import parse_json, parse_yaml
from shared.problems import InvalidConfiguration
from worker.policy.document import read_policy
from worker.settings import load


def test_d8_a_key_that_is_there_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: demo\nrounds: 3\ntask: digits\n\nrounds: 5\n")
    with pytest.raises(InvalidConfiguration) as refused:
        load_config(path)
    assert str(refused.value) == (
        f"The configuration {path} has the key 'rounds' on line 2 and again on line 5. "
        "Remove one of the two; neither is preferred."
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {x: 1, y: 2, x: 3}", "'x' on line 1 and again on line 1"),
        ("a:\n- x: 1\n  y: 1\n- x: 1\n  'x': 2\n", "'x' on line 4 and again on line 5"),
        ('{"x": 1,\n"x": 2}', "'x' on line 1 and again on line 2"),
        ("a: [", "is not YAML"),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("a: 1\nb: 2024-13-45", r"line 2, column 4\): '2024-13-45' cannot be read"),
        ("a: 0x_", "'0x_' cannot be read"),
        ("a: !!bool perhaps", "'perhaps' cannot be read"),
        ("a: !!timestamp soon", "'soon' cannot be read"),
        ("a: !!float ''", "'' cannot be read"),
        ("rounds: " + "9" * 5000, r"line 1, column 9\): a number of 5000 characters"),
        ("rounds: 0x" + "f" * 5000, "a number of 5002 characters"),
        (
            "a: 1\nmost_rounds: 0100",
            r"here is unclear \(line 2, column 14\): 0100 is octal to YAML: write '0100'",
        ),
        ("classes: [001, 002]", "001 is octal"),
        ("wait: 1:30", "1:30 is of base 60 to YAML"),
        ("wait: -1:30.5", "of base 60"),
        ("[" * 3000, "in one another too deeply"),
        ("a: 1\nb: x\0y\n", r"here is not YAML \(line 2, column 5\): a character U\+0000\. .* as UTF-8"),
        ("a: 1\r\n\u2028b: \x1b[1m", r"line 3, column 4\): a character U\+001B"),
        ("\x7f", r"line 1, column 1\): a character U\+007F"),
        ("a: \ud800", r"line 1, column 4\): a character U\+D800"),
        ("a: &a [1, *a]", r"here is unclear \(line 1, column 11\): \*a is within what it stands for"),
        ("a: &a {<<: *a}", r"\*a is within what it stands for"),
        ("a: &a\n  b: {c: [*a]}", r"line 2, column 11\): \*a is within what it stands for"),
        ("a: *b", "undefined alias 'b'"),
    ],
)
def test_other_documents_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        parse_yaml(text, "here")


LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 30)
)


@pytest.mark.parametrize("bomb", [LAUGHS, MERGES])
def test_aliases_that_write_out_billions_are_refused_at_once(bomb: str, tmp_path: Path) -> None:
    said = r"is unclear \(line [567], column \d+\): aliases stand for more than 10000 values"
    path = tmp_path / "file.yaml"
    path.write_text(bomb)
    began = time.process_time()
    for read in (load_config, read_policy):
        with pytest.raises(InvalidConfiguration, match=said):
            read(path)
    assert time.process_time() - began < 1


def test_a_file_that_is_not_utf_8_is_told_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes("name: a\ntags: [ähnlich]\n".encode("latin-1"))
    for read in (load_config, read_policy):
        with pytest.raises(InvalidConfiguration, match=r"is not UTF-8 \(line 2\)\. Save it as UTF-8"):
            read(path)


def test_plain_numbers_stay_numbers() -> None:
    text = "[0, -0, 10, 3_000, 0x1F, 0.5, 012.5, '0100', '1:30', 08]"
    assert parse_yaml(text, "here") == [0, 0, 10, 3000, 31, 0.5, 12.5, "0100", "1:30", "08"]


def test_keys_that_only_look_alike_are_fine() -> None:
    text = "base: &base {x: 1, y: 2}\nmore: {<<: *base, x: 3}\nagain: {<<: *base}\n1: a\n'1': b\n"
    found = parse_yaml(text, "here")
    assert found["more"] == {"x": 3, "y": 2}
    assert (found[1], found["1"]) == ("a", "b")


def test_options_as_json_are_read_alike() -> None:
    assert parse_json('{"a": {"b": 1}, "b": 2}') == {"a": {"b": 1}, "b": 2}
    with pytest.raises(
        InvalidConfiguration, match=r"--task-options .*: is not JSON \(the key 'size' is there twice"
    ):
        load({"task_options": '{"size": 8, "size": 16}'})

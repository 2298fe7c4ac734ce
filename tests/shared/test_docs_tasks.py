"""``docs/tasks.md`` names every task, every option with its default, and every kind of partition."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from shared.config import Partition, RunConfig
from shared.models import available as models
from shared.models import model_class
from shared.tasks import available, load_task, task_of
from shared.tasks.base import Task

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
TASKS, PARTITIONS = TEXT.split("# Partitions of one data set")
SECTIONS = dict(re.findall(r"^## `([\w-]+)`\n(.*?)(?=^##? |\Z)", TASKS, re.MULTILINE | re.DOTALL))


def task(name: str) -> Task:
    needed: dict[str, dict[str, Any]] = {
        "imagefolder": {"classes": ["a", "b"]},
        "csv": {"columns": ["x"], "target": "y", "classes": ["a", "b"]},
        "hf-image": {"classes": ["a", "b"], "base": "owner/model"},
        "hf-text": {"columns": ["x"], "target": "y", "classes": ["a", "b"], "base": "owner/model"},
    }
    return load_task(name, needed.get(name, {}))


def test_every_task_has_its_section_in_order() -> None:
    assert list(SECTIONS) == list(available())


@pytest.mark.parametrize("name", available())
def test_a_section_names_each_option_and_the_model(name: str) -> None:
    section = SECTIONS[name]
    for option, field in type(task(name)).Options.model_fields.items():
        assert f"`{option}`" in section, option
        if isinstance(field.default, int) and not isinstance(field.default, bool):
            assert f"`{option}` ({field.default})" in section
    said = set(re.findall(r"[Mm]odel `([\w-]+)`", section))
    assert task(name).default_model in said <= {*models(), "pretrained"}
    assert ("No options" in section) == (not type(task(name)).Options.model_fields)


def test_the_table_of_models_has_each_of_them_and_what_it_takes() -> None:
    _, _, table = TASKS.partition("# Models\n")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\w+)", table, re.MULTILINE)
    assert rows == [(name, model_class(name).takes) for name in models()]


def test_the_example_of_a_table_is_a_configuration() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", SECTIONS["csv"], re.DOTALL)
    assert task_of(RunConfig.model_validate({"name": "own", **yaml.safe_load(block)})).classes == (
        "well",
        "ill",
    )


def test_every_kind_of_partition_and_its_fields_are_there() -> None:
    kinds = get_args(get_args(Partition.model_fields["kind"].annotation)[0])  # beside paths of one's own
    assert set(re.findall(r"^\| `([a-z0-9-]+):N|^\| `([a-z0-9-]+):B", PARTITIONS, re.MULTILINE)) == {
        (kind, "") if kind != "niid2" else ("", kind) for kind in kinds
    }
    for form in re.findall(r"`((?:neighbours|niid2|niid1|iid|by-key):[\d+:.]+)`", PARTITIONS):
        assert Partition.model_validate(form).clients > 1
    for field in set(Partition.model_fields) - {"kind"}:
        assert f"`{field}`" in PARTITIONS, field

"""What must never leave a site, planted in every loader and every fault and looked for at the coordinator.

Each story has a word of its own that stands in a site's data, paths or exceptions. With ``tell: sentences``
no word is found in the coordinator's database, blobs, logs, pages and API; with ``tell: full`` it is, so that
the search can find.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from server.database.migrations import upgrade
from shared.config import Frozen
from shared.data import Examples
from shared.faults import FaultCode
from shared.tasks.base import Split
from shared.tasks.digits import Digits
from tests.helpers.live_coordinator import Live, live
from tests.helpers.worker_crew import create, worker

OWN = f"{__name__}:Telling"
IMAGES = {"classes": ["dark", "light"], "size": 16}
TABLE = {"columns": ["age"], "target": "label", "classes": ["no", "yes"]}
TEXT = TABLE | {"kind": "text"}


class TellingOptions(Frozen):
    place: str = ""


class Telling(Digits):
    """A task whose exceptions say what they saw: a file of the site, which names its word."""

    Options = TellingOptions
    _source: Path | None = None
    _checked = False

    def _fail(self, place: str) -> None:
        assert isinstance(self.options, TellingOptions)
        if self.options.place != place or self._source is None:
            return
        word = (self._source / "word").read_text()
        if place == "memory":
            raise MemoryError(f"no memory for {word}")
        if place == "exit":
            raise SystemExit(f"bad row {word}")
        if place == "file":
            raise FileNotFoundError(2, "No such file", f"/data/{word}.csv")
        raise type(f"Error{word}", (ValueError,), {})(f"bad row {word}")

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        self._source = source
        self._fail("loading")
        self._fail("file")
        self._fail("exit")
        examples = super().load(split, None, seed)
        if self.options == TellingOptions(place="labels") and source is not None:
            return Examples(examples.inputs, torch.full_like(examples.targets, int(7e6)))
        return examples

    def categories(self, targets: torch.Tensor) -> torch.Tensor:
        if self._checked:
            self._fail("counting")
        self._checked = True
        return super().categories(targets)

    def prepare(self, inputs: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        if generator is None:
            self._fail("scoring")
        return super().prepare(inputs, generator)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self._fail("training")
        self._fail("memory")
        return super().loss(outputs, targets)


# ---------------------------------------------------------------- data of the sites


def write_images(folder: Path, classes: tuple[str, ...] = ("dark", "light")) -> None:
    for name in classes:
        (folder / "train" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((8, 8, 3), 60 * number, np.uint8)
            Image.fromarray(pixels).save(folder / "train" / name / f"{number}.png")


def strange_class(folder: Path, word: str) -> None:
    write_images(folder, ("dark", "light", word))


def broken_image(folder: Path, word: str) -> None:
    write_images(folder)
    (folder / "train" / "dark" / f"{word}.png").write_bytes(b"no image")


def image_is_folder(folder: Path, word: str) -> None:
    write_images(folder)
    (folder / "train" / "dark" / f"{word}.png").symlink_to(folder / "nowhere")


def left_out_files(folder: Path, word: str) -> None:
    write_images(folder)
    for name in (f"{word}.docx", f".{word}"):
        (folder / "train" / "dark" / name).write_text(word)


def path_only(folder: Path, word: str) -> None:
    write_images(folder / word, ("grey",))


def table(header: str, row: str) -> Callable[[Path, str], None]:
    def write(folder: Path, word: str) -> None:
        folder.mkdir()
        lines = [header.format(word=word), "3,yes", row.format(word=word)]
        for split in ("train", "test"):
            (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")

    return write


def one_word(folder: Path, word: str) -> None:
    folder.mkdir()
    (folder / "word").write_text(word)


@dataclass(frozen=True)
class Story:
    """A run, a site's data with a word in them, and the code of what is told."""

    name: str
    code: FaultCode | None
    write: Callable[[Path, str], None]
    task: str = "imagefolder"
    options: dict[str, Any] = field(default_factory=lambda: IMAGES)
    settings: dict[str, Any] = field(default_factory=dict)
    role: str = "trainer"

    @property
    def word(self) -> str:
        return f"Kanari{self.name.title().replace('-', '')}Qz"


def own(place: str, code: FaultCode, role: str = "trainer") -> Story:
    return Story(f"own-{place}", code, one_word, OWN, {"place": place}, role=role)


STORIES = (
    Story("class", FaultCode.DATA_UNFIT, strange_class),
    Story("broken", FaultCode.DATA_UNFIT, broken_image),
    Story("dangling", FaultCode.DATA_UNFIT, image_is_folder),
    Story("path", FaultCode.DATA_UNFIT, path_only),
    Story("leftout", None, left_out_files),
    Story("map", FaultCode.DATA_UNFIT, strange_class, settings={"labels": '{"WORD": "WORD"}'}),
    Story("option", FaultCode.CONFIGURATION, strange_class, settings={"task_options": {"size": "WORD"}}),
    Story("pattern", FaultCode.OTHER_RUNS, strange_class, settings={"run": "WORD-*"}),
    Story("cell", FaultCode.DATA_UNFIT, table("age,label", "{word},no"), "csv", TABLE),
    Story("label", FaultCode.DATA_UNFIT, table("age,label", "4,{word}"), "csv", TABLE),
    Story("header", FaultCode.DATA_UNFIT, table("{word},label", "4,no"), "csv", TABLE),
    Story("surplus", FaultCode.DATA_UNFIT, table("age,label", "4,no,{word}"), "csv", TABLE),
    Story("textlabel", FaultCode.DATA_UNFIT, table("age,label", "some text,{word}"), "csv", TEXT),
    Story("texts", None, table("age,label", "{word},no"), "csv", TEXT),
    own("loading", FaultCode.TASK_ERROR),
    own("exit", FaultCode.TASK_ERROR),
    own("file", FaultCode.DATA_UNREADABLE),
    own("counting", FaultCode.TASK_ERROR),
    own("training", FaultCode.TASK_ERROR),
    own("memory", FaultCode.OUT_OF_MEMORY),
    own("scoring", FaultCode.TASK_ERROR, role="evaluator"),
)
FULL = {story.word for story in STORIES} - {"KanariLeftoutQz", "KanariTextsQz"}
"""What ``tell: full`` sends: no fault, no text."""


def play(at: Live, folder: Path, story: Story, tell: str) -> str | None:
    """One site alone in one run; returns the code that the coordinator has of it, once it has one."""
    data = folder / f"{story.word}-data"
    story.write(data, story.word)
    counting = story.name == "own-counting" or story.task == "imagefolder"
    create(
        at,
        name=story.name,
        task=story.task,
        task_options=story.options,
        min_clients=1,
        rounds=1,
        max_attempts=1,
        weighting={"kind": "disco" if counting else "sizes"},
    )
    given = {
        name: value.replace("WORD", story.word) if isinstance(value, str) else {"size": story.word}
        for name, value in story.settings.items()
    }
    state = folder / f"{story.word}-state"
    more = {"run": story.name, "state": state, "exit_when_finished": False, "wait_seconds": 1.0} | given
    member = worker(
        at, folder, f"{story.name}-site", task=story.task, data=data, role=story.role, tell=tell, **more
    )
    try:
        return at.wait_for(lambda: told_of(at, story) if story.code else finished(at, story), 60) or None
    finally:
        at.admin.delete(f"/clients/{story.name}-site")
        assert member.join() == 3, member.log
        if story.code is not None:
            assert story.word in member.log  # the site's people read all of it


def told_of(at: Live, story: Story) -> str | None:
    events = (event for event in at.events(story.name) if event["client"] == f"{story.name}-site")
    return next((event["detail"]["code"] for event in events if "code" in event["detail"]), None)


def finished(at: Live, story: Story) -> bool:
    return bool(at.run(story.name)["status"] == "completed")


# ---------------------------------------------------------------- everything a coordinator has and shows


def everything(at: Live, folder: Path, log: str) -> Iterator[tuple[str, bytes]]:
    yield "log", log.encode()
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
    addresses = ["/", "/metrics", "/healthz", "/readyz", "/api/v1/runs", "/api/v1/clients"]
    for story in STORIES:
        run = f"/runs/{story.name}"
        addresses += [run, f"{run}/rounds/1", f"/api/v1{run}", f"/api/v1{run}/rounds"]
    for address in addresses:
        yield address, at.admin.get(f"{at.url}{address}", timeout=60).content


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tell", ["sentences", pytest.param("full", marks=pytest.mark.slow)])
def test_no_word_of_a_site_reaches_the_coordinator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tell: str
) -> None:
    caplog.set_level(logging.INFO)
    here, sites = tmp_path / "coordinator", tmp_path / "sites"
    here.mkdir()
    sites.mkdir()
    url = f"sqlite:///{here / 'coordinator.db'}"
    upgrade(url)
    with live(url, here / "data") as at:
        codes = {story.name: play(at, sites, story, tell) for story in STORIES}
        found = {
            story.word
            for _, content in everything(at, here, caplog.text)
            for story in STORIES
            if story.word.encode() in content
        }
        page = at.admin.get(f"{at.url}/runs/class").text
    assert codes == {story.name: story.code or True for story in STORIES}
    assert found == (FULL if tell == "full" else set())
    assert ("do not fit the run" in page) == (tell == "sentences")

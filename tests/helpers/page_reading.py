"""Pages as a test reads them: a client of the real application, and HTML taken apart."""

from __future__ import annotations

import dataclasses
import datetime as dt
from html.parser import HTMLParser
from pathlib import Path

from pydantic import SecretStr
from starlette.testclient import TestClient

from server.app import create_app, make_coordinator
from server.database.store import Store
from server.settings import Settings
from tests.browser import seed
from tests.helpers.clocks import clock_by

NOW = seed.FIRST_MOMENT + dt.timedelta(hours=1)
VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclasses.dataclass
class Element:
    name: str
    attributes: dict[str, str]
    parent: Element | None
    text: str = ""

    def inside(self, name: str) -> bool:
        at: Element | None = self
        while at is not None and at.name != name:
            at = at.parent
        return at is not None


class Html(HTMLParser):
    """Every element in order, and the tables as lists of cells. Wrong nesting is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(
            tag, {name: value or "" for name, value in attrs}, self.open[-1] if self.open else None
        )
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop().name == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data
        if any(element.name in ("td", "th") for element in self.open):
            self.tables[-1][-1][-1] += data

    def all(self, name: str) -> list[Element]:
        return [element for element in self.elements if element.name == name]

    def classed(self, name: str) -> list[Element]:
        return [element for element in self.elements if name in element.attributes.get("class", "").split()]


def client_on(url: str, folder: Path) -> tuple[TestClient, Store]:
    settings = Settings(data_folder=folder, database_url=SecretStr(url))
    coordinator = make_coordinator(settings, clock_by(lambda: NOW))
    app, headers = create_app(coordinator), {"Accept": "text/html"}
    return TestClient(app, "http://127.0.0.1", headers=headers), coordinator.store


def read(client: TestClient, path: str) -> Html:
    return Html(client.get(path).text)

"""A change costs one rendering, whoever looks; nobody sees what is not theirs or is over."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from server.database.store import Store
from server.lifecycle.events import PauseRequested
from server.pages.kept import REFETCH, KeptPages, PageKey
from server.web.security import ANYBODY, Person
from shared.problems import NotFound
from shared.schemas import UserRole
from tests.browser import seed
from tests.helpers.live_coordinator import ADMIN, Live, live
from tests.helpers.page_reading import client_on
from tests.server.pages.test_acting import VIEWER, Browser

HERE = PageKey("/runs/demo", ANYBODY, is_signed_in=False)
VIEWERS = 300


class Desk:
    """Renders by counting, and knows a version that the test moves."""

    def __init__(self) -> None:
        self.made = 0
        self.version = 0
        self.pages = KeptPages(self.call, self.find_version)

    async def call(self, make: Callable[[], str]) -> str:
        await asyncio.sleep(0.01)
        return make()

    async def find_version(self, run: str | None) -> int:
        await asyncio.sleep(0)
        return self.version

    def make(self) -> str:
        self.made += 1
        return f'<main data-now="{self.made}"> version {self.version}</main>'

    async def get(self, key: PageKey = HERE, *, is_refetch: bool = False) -> str:
        return (await self.pages.get(key, "demo", self.make, is_refetch=is_refetch)).html.decode()


def test_one_rendering_a_change_for_all_who_look() -> None:
    async def play() -> tuple[list[int], set[str]]:
        desk, counts = Desk(), []
        await asyncio.gather(*(desk.get() for _ in range(VIEWERS)))
        counts.append(desk.made)
        desk.version = 1
        seen = await asyncio.gather(*(desk.get(is_refetch=True) for _ in range(VIEWERS)))
        counts.append(desk.made)
        await desk.get(PageKey("/runs/demo", Person("user:maria", UserRole.VIEWER), is_signed_in=True))
        counts.append(desk.made)
        return counts, set(seen)

    counts, seen = asyncio.run(play())
    assert counts == [1, 2, 3]
    assert seen == {'<main data-now="2"> version 1</main>'}


def test_while_many_look_scripts_wait_longer_and_who_comes_by_hand_does_not() -> None:
    async def play() -> list[int]:
        desk, counts = Desk(), []
        desk.pages = KeptPages(desk.call, desk.find_version, lambda: 60.0)
        await desk.get()
        waiting = [asyncio.ensure_future(desk.get(is_refetch=True)) for _ in range(VIEWERS)]
        await asyncio.sleep(0.6)
        counts.append(desk.made)
        desk.version = 1
        assert "version 1" in await desk.get()
        counts.append(desk.made)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return counts

    assert asyncio.run(play()) == [1, 2]


def test_a_script_sees_a_heartbeat_which_changes_no_version() -> None:
    async def play() -> int:
        desk = Desk()
        await desk.get()
        await desk.get(is_refetch=True)
        return desk.made

    assert asyncio.run(play()) == 2


def test_who_comes_by_hand_sees_what_has_just_happened() -> None:
    async def play() -> list[str]:
        desk, seen = Desk(), []
        for version in range(3):
            desk.version = version
            seen.append(await desk.get())
        return seen

    assert [re.sub(r"\D", "", page)[-1] for page in asyncio.run(play())] == ["0", "1", "2"]


def test_a_rendering_that_began_before_the_request_is_not_enough() -> None:
    """What a viewer was told of may have happened since."""

    async def play() -> tuple[str, str]:
        desk = Desk()
        first = asyncio.ensure_future(desk.get())
        await asyncio.sleep(0.005)  # it is being made
        desk.version = 1
        return await desk.get(is_refetch=True), await first

    second, _ = asyncio.run(play())
    assert "version 1" in second


def test_what_cannot_be_made_is_not_kept() -> None:
    async def play() -> str:
        desk = Desk()

        def fail() -> str:
            raise NotFound("there is no run 'demo'")

        with pytest.raises(NotFound):
            await desk.pages.get(HERE, "demo", fail, is_refetch=False)
        return await desk.get()

    assert "version 0" in asyncio.run(play())


# ------------------------------------------------------------ the application


@pytest.fixture
def here(tmp_path: Path, migrated_sqlite: Path) -> Iterator[tuple[TestClient, Store]]:
    shutil.copyfile(migrated_sqlite, tmp_path / "test.sqlite")
    client, store = client_on(f"sqlite:///{tmp_path / 'test.sqlite'}", tmp_path)
    yield client, store
    store.engine.dispose()


@pytest.mark.parametrize("path", ["/", "/runs/demo", "/runs/demo/rounds/1"])
def test_an_open_page_that_has_not_changed_costs_a_304(here: tuple[TestClient, Store], path: str) -> None:
    client, store = here
    course = seed.running_run(store, "demo", rounds_done=1)
    assert "etag" not in client.get(path).headers, "a browser without script would keep its clocks"
    page = client.get(path, headers={REFETCH: "1"})
    has_it = {REFETCH: "1", "If-None-Match": page.headers["etag"]}
    again = client.get(path, headers=has_it)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", page.headers["etag"])
    course.apply(PauseRequested("lunch"), "admin")
    if path != "/runs/demo/rounds/1":
        changed = client.get(path, headers=has_it)
        assert changed.status_code == 200
        assert "lunch" in changed.text


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as opened:
        opened.create()
        yield opened


def test_two_sessions_share_a_page_and_not_a_seal(at: Live) -> None:
    one, other, reader = Browser(at, ADMIN), Browser(at, ADMIN), Browser(at, VIEWER)
    seals = {
        re.findall(r'name="seal" type="hidden" value="([^"]+)"', browser.get("/runs/demo").text)[0]
        for browser in (one, other, reader)
    }
    assert len(seals) == 3
    assert all(re.fullmatch("[0-9a-f]{64}", seal) for seal in seals)
    assert "/runs/demo/do/stop" in other.get("/runs/demo").text
    assert 'class="button"' not in reader.get("/runs/demo").text
    stopped = other.send("/runs/demo/do/stop", reason="enough", sure="yes")
    assert (stopped.status_code, stopped.headers["location"]) == (303, "/runs/demo")
    for browser in (one, other, reader):
        assert "Enough." in browser.get("/runs/demo").text


def test_a_page_fetched_again_is_for_the_same_people_and_noted_the_same(at: Live) -> None:
    def person(name: str, **more: Any) -> str:
        token: str = at.admin.post("/users", json={"name": name, "role": "viewer", **more}).json()["token"]
        return token

    olga, lisa = person("olga"), person("lisa", runs=["other"])
    site = at.site("anna").http.headers["Authorization"].removeprefix("Bearer ")
    tokens = (VIEWER, olga, lisa, site, "of-nobody-whom-we-know", None)

    def ask(token: str | None, path: str) -> tuple[int, str]:
        answer = at.http(token).get(f"{at.url}{path}", headers={REFETCH: "1"})
        title = re.search("<title>.*</title>", answer.text)
        return answer.status_code, title[0] if title else answer.json()["detail"]

    def look(query: str) -> list[tuple[int, str]]:
        """``query``: with one, FastAPI answers."""
        return [ask(token, path + query) for token in tokens for path in ("/", "/runs/demo", "/runs/nowhere")]

    direct, noted = look(""), len(at.admin.get("/audit").text.splitlines())
    statuses = [status for status, _ in direct]
    assert statuses == [200, 200, 404] * 2 + [200, 403, 403] + [403] * 3 + [401] * 6
    text = at.admin.get("/audit").text
    assert all(f'"actor":"{who}"' in text for who in ("viewer", "user:olga", "user:lisa", "anna"))
    assert look("?zero=") == direct
    assert len(at.admin.get("/audit").text.splitlines()) == noted, "what was noted already"
    assert at.admin.delete("/users/olga").status_code == 204
    assert ask(olga, "/runs/demo")[0] == 401

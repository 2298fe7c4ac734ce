"""Tokens: who is let in, what is told, where secrets never appear."""

from __future__ import annotations

import asyncio
import datetime as dt
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.database.session import make_engine
from server.settings import Settings, unknown_variables
from server.web.errors import describe_invalid
from server.web.security import (
    Guard,
    KnownClient,
    Person,
    check_right,
    hash_token,
    load_admin_token,
    load_viewer_token,
    make_token,
    read_bearer,
    read_viewer_password,
)
from shared.problems import (
    Forbidden,
    InvalidConfiguration,
    MissingToken,
    RevokedToken,
    StorageUnavailable,
    WrongToken,
)
from shared.schemas import UserRole
from tests.helpers.live_coordinator import ADMIN, JOIN, Live, live

VIEWER = "viewer-token-of-the-tests"


class Clients:
    """A table of clients, and how often it was asked."""

    def __init__(self, **clients: bool) -> None:
        self.rows = {hash_token(name): KnownClient(name, revoked) for name, revoked in clients.items()}
        self.asked = 0

    async def find(self, hashed: str) -> KnownClient | None:
        self.asked += 1
        return self.rows.get(hashed)

    async def find_session(self, hashed: str) -> tuple[str, dt.datetime] | None:
        return None

    async def is_join_code(self, hashed: str) -> bool:
        self.asked += 1
        return hashed == hash_token(JOIN)


def guard(
    clients: Clients,
    now: list[float] | None = None,
    *,
    is_sole: bool = False,
    is_watched: Callable[[], bool] = lambda: False,
) -> Guard:
    ticks = now if now is not None else [0.0]
    return Guard(
        admin=ADMIN,
        viewer=VIEWER,
        reading="closed",
        find=clients.find,
        find_session=clients.find_session,
        is_join_code=clients.is_join_code,
        is_sole=is_sole,
        is_watched=is_watched,
        monotonic=lambda: ticks[0],
    )


def test_missing_wrong_and_revoked_are_told_apart() -> None:
    found = guard(Clients(anna=False, otto=True))
    assert asyncio.run(found.require_client("anna")) == "anna"
    with pytest.raises(RevokedToken, match="otto"):
        asyncio.run(found.require_client("otto"))
    with pytest.raises(WrongToken):
        asyncio.run(found.require_client("nobody"))
    for header in (None, "", "Bearer", "Bearer  ", "Basic abc", ADMIN):
        with pytest.raises(MissingToken):
            read_bearer(header)
    assert read_bearer("bearer  abc ") == "abc"


def test_a_client_is_not_the_admin() -> None:
    found = guard(Clients(anna=False))
    for role in UserRole:
        assert check_right(asyncio.run(found.identify(ADMIN)), role, None).actor == "admin"
        with pytest.raises(Forbidden, match="anna"):
            check_right(asyncio.run(found.identify("anna")), role, None)
        with pytest.raises(WrongToken):
            check_right(asyncio.run(found.identify("nobody")), role, "demo")
    with pytest.raises(WrongToken):
        asyncio.run(found.require_client(ADMIN))


@given(st.sampled_from(UserRole), st.none() | st.frozensets(st.sampled_from("ab")), st.sampled_from(UserRole))
def test_a_role_includes_those_below_it_and_reaches_its_runs_only(
    role: UserRole, runs: frozenset[str] | None, needed: UserRole
) -> None:
    order = [UserRole.VIEWER, UserRole.OPERATOR, UserRole.ADMIN]
    person = Person("user:maria", role, runs)
    for run in ("a", "b", None):
        is_within = runs is None or run in runs
        assert person.may(needed, run) == (is_within and order.index(role) >= order.index(needed))
    assert runs is None or not person.may(needed, None), "what is for some runs is not for all"


def test_answers_are_remembered_for_a_moment_and_forgotten_at_once() -> None:
    now, clients = [0.0], Clients(anna=False)
    found = guard(clients, now)
    for _ in range(5):
        asyncio.run(found.require_client("anna"))
    assert clients.asked == 1
    now[0] = 2.5
    asyncio.run(found.require_client("anna"))
    assert clients.asked == 2
    clients.rows[hash_token("anna")] = KnownClient("anna", True)
    found.forget("client:anna")
    with pytest.raises(RevokedToken):
        asyncio.run(found.require_client("anna"))


def test_a_process_of_its_own_remembers_for_longer_and_forgets_at_once() -> None:
    now, clients = [0.0], Clients(anna=False)
    found = guard(clients, now, is_sole=True)
    asyncio.run(found.require_client("anna"))
    now[0] = 3599.0
    asyncio.run(found.require_client("anna"))
    assert clients.asked == 1
    clients.rows[hash_token("anna")] = KnownClient("anna", True)
    found.forget("client:anna")
    with pytest.raises(RevokedToken):
        asyncio.run(found.require_client("anna"))


def test_clients_are_remembered_for_as_long_as_it_is_known_what_others_revoke() -> None:
    now, clients, watched = [0.0], Clients(anna=False), [True]
    found = guard(clients, now, is_watched=lambda: watched[0])
    asyncio.run(found.require_client("anna"))
    now[0] = 3599.0
    asyncio.run(found.require_client("anna"))
    assert clients.asked == 1
    watched[0] = False  # the database did not answer for a while
    asyncio.run(found.require_client("anna"))
    assert clients.asked == 2
    watched[0] = True
    clients.rows[hash_token("anna")] = KnownClient("nobody", True)  # another name, as after an erasure
    found.forget_clients()
    with pytest.raises(RevokedToken):
        asyncio.run(found.require_client("anna"))


def test_people_are_looked_up_as_before() -> None:
    class People(Clients):
        async def find(self, hashed: str) -> Person:  # type: ignore[override]
            self.asked += 1
            return Person("user:maria", UserRole.VIEWER)

    now, people = [0.0], People()
    found = guard(people, now, is_watched=lambda: True)
    asyncio.run(found.identify("maria"))
    now[0] = 2.5
    asyncio.run(found.identify("maria"))
    assert people.asked == 2


def test_what_was_read_before_a_revocation_is_read_again_after_it() -> None:
    class Slow(Clients):
        async def find(self, hashed: str) -> KnownClient | None:
            row = await super().find(hashed)
            if self.asked == 1:  # revoked after the row was read
                self.rows[hashed] = KnownClient("anna", True)
                found.forget("client:anna")
            return row

    found = guard(Slow(anna=False), is_sole=True)
    with pytest.raises(RevokedToken):
        asyncio.run(found.require_client("anna"))


class Browsers(Clients):
    """One session, of the viewer token, that ends at 12 o'clock. Its clock shows the guard's seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = [0.0]
        self.ends_at = self.read_clock() + dt.timedelta(hours=12)
        self.is_signed_out = False
        self.meanwhile: Callable[[], None] = lambda: None
        self.guard = Guard(
            admin=ADMIN,
            viewer=VIEWER,
            reading="closed",
            find=self.find,
            find_session=self.find_session,
            is_join_code=self.is_join_code,
            clock=self.read_clock,
            monotonic=lambda: self.now[0],
        )

    def read_clock(self) -> dt.datetime:
        return dt.datetime(2026, 11, 28, tzinfo=dt.UTC) + dt.timedelta(seconds=self.now[0])

    async def find_session(self, hashed: str) -> tuple[str, dt.datetime] | None:
        self.asked += 1
        found = None if self.is_signed_out else (hash_token(VIEWER), self.ends_at)
        self.meanwhile()
        return found

    def sign_out(self) -> None:
        self.meanwhile = lambda: None
        self.is_signed_out = True
        self.guard.forget("session:cookie")

    def ask(self) -> Person | None:
        return asyncio.run(self.guard.find_session_owner("cookie"))


def test_a_session_that_is_asked_for_all_the_time_is_looked_up_again() -> None:
    """It was remembered anew at each request, so that another coordinator's sign-out was never found."""
    browsers = Browsers()
    for second in range(10):
        browsers.now[0] = float(second)
        assert browsers.ask() == Person("viewer", UserRole.VIEWER)
    assert browsers.asked == 5, "every two seconds"
    browsers.is_signed_out = True
    browsers.now[0] += 1.0
    assert browsers.ask() is None


def test_a_session_ends_to_the_moment() -> None:
    browsers = Browsers()
    browsers.now[0] = 12 * 3600 - 1.0
    found = browsers.ask()
    assert found is not None
    assert found.until == browsers.ends_at
    browsers.now[0] += 1.0
    assert browsers.ask() is None
    assert browsers.asked == 1, "though it was remembered"


def test_a_session_that_ends_while_it_is_looked_up_is_over() -> None:
    browsers = Browsers()
    browsers.meanwhile = browsers.sign_out  # after the row was read
    assert browsers.ask() is None
    assert browsers.ask() is None


def test_a_refusal_is_not_remembered() -> None:
    clients = Clients()
    found = guard(clients)
    with pytest.raises(WrongToken):
        asyncio.run(found.require_client("late"))
    clients.rows[hash_token("late")] = KnownClient("late", False)
    assert asyncio.run(found.require_client("late")) == "late"


def test_a_viewers_password() -> None:
    assert read_viewer_password("Basic YW55Ym9keTpzZWNyZXQ=") == "secret"  # anybody:secret
    assert read_viewer_password("Bearer secret") == "secret"
    for broken in ("Basic ???", "Basic /w==", None):
        with pytest.raises(MissingToken):
            read_viewer_password(broken)


def test_the_admin_token_is_made_once_and_kept_to_its_owner(tmp_path: Path) -> None:
    settings = Settings(data_folder=tmp_path / "data")
    token = load_admin_token(settings)
    path = tmp_path / "data" / "admin-token"
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_admin_token(settings) == token, "the same at the next start"
    assert list(path.parent.iterdir()) == [path]
    assert load_admin_token(Settings(data_folder=tmp_path, admin_token=ADMIN)) == ADMIN


def test_an_admin_token_that_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageUnavailable, match="admin-token"):
        load_admin_token(Settings(data_folder=tmp_path / "file"))


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"two words, long enough", b"\x80\xff" * 20])
def test_a_token_file_that_anybody_could_guess_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty one would let in whoever gives an empty password."""
    for load, name in ((load_admin_token, "admin-token"), (load_viewer_token, "viewer-token")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidConfiguration, match="16 or more ASCII") as caught:
            load(Settings(data_folder=tmp_path))
        assert str(tmp_path / name) in str(caught.value)
        assert "delete the file" in caught.value.hint
        assert (tmp_path / name).read_bytes() == content, "it is left as it is"


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        yield opened


def test_no_token_is_stored(at: Live, database_url: str, tmp_path: Path) -> None:
    site = at.site("anna")
    token = site.http.headers["Authorization"].removeprefix("Bearer ")
    engine = make_engine(database_url)
    with engine.connect() as connection:
        hashes = connection.exec_driver_sql("SELECT token_hash FROM clients").scalars().all()
        joins = connection.exec_driver_sql("SELECT token_hash FROM join_tokens").scalars().all()
    engine.dispose()
    assert hashes == [hash_token(token)]
    assert joins == [hash_token(JOIN)]
    for secret in (token, JOIN, ADMIN):
        assert secret not in repr(at.coordinator.settings)
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_join_tokens_count_expire_and_are_revoked(at: Live) -> None:
    made = at.admin.post("/join-tokens", json={"uses": 1}).json()
    assert at.http(made["token"]).post("/clients", json={}).json()["client"] == "client-1"
    assert at.http(made["token"]).post("/clients", json={}).json()["code"] == "wrong-token"
    other = at.admin.post("/join-tokens", json={"valid_seconds": 3600}).json()
    assert other["expires_at"] is not None
    assert at.admin.delete(f"/join-tokens/{other['id']}").status_code == 204
    assert at.http(other["token"]).post("/clients", json={}).json()["code"] == "wrong-token"
    listed = at.admin.get("/join-tokens").json()
    assert {made["id"], other["id"]} <= {row["id"] for row in listed}
    assert not any("token" in row for row in listed)


def test_names_that_are_made_are_free_whatever_names_others_have_chosen(at: Live) -> None:
    """Of a taken number of 15 digits the next one was made again and again, for ever."""

    def join(**body: str) -> str:
        answer = at.http(JOIN).post("/clients", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["client"])

    for longest in ("client-" + "9" * 15, "client-" + "9" * 9, "client-" + "9" * 50, "client-0009"):
        assert join(name=longest) == longest
    assert [join(), join(), join()] == [f"client-{10**9 + more}" for more in range(3)]


def test_a_registration_whose_answer_was_lost_is_repeated(at: Live) -> None:
    join = at.admin.post("/join-tokens", json={"uses": 1}).json()["token"]
    mine = {"token": make_token()}
    first, again = (at.http(join).post("/clients", json=mine) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json() == {**first.json(), "client": "client-1", **mine}
    assert at.http(mine["token"]).get("/work?wait=0").json()["kind"] == "wait"
    assert [row["client"] for row in at.admin.get("/clients").json()] == ["client-1"]
    other = at.http(join).post("/clients", json=mine | {"name": "anna"})
    assert (other.status_code, other.json()["code"]) == (409, "name-taken")
    assert "'client-1' registered with this token" in other.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [{"token": "easily-guessed"}, {"token": "easily-guessed" * 20}, {"token": "easily-guessed", "n": 1}],
)
def test_a_token_that_is_not_random_bits_is_refused_and_not_repeated(at: Live, body: dict[str, str]) -> None:
    answer = at.http(JOIN).post("/clients", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.token")
    assert "easily-guessed" not in answer.text
    fault = {"type": "missing", "loc": ("body", "name"), "msg": "Field required", "input": body}
    missing = describe_invalid([fault])
    assert "easily-guessed" not in str(missing.as_json())


def test_versions_are_compared_at_registration(at: Live) -> None:
    answer = at.http(JOIN).post("/clients", json={"name": "old", "protocol": 99, "version": "9.9"})
    assert (answer.status_code, answer.json()["code"]) == (409, "incompatible-version")
    assert "9.9" in answer.json()["detail"]
    assert at.http(JOIN).post("/clients", json={"name": "old"}).status_code == 201, "the name is still free"
    assert at.http(JOIN).post("/clients", json={"name": "old"}).json()["code"] == "name-taken"


def test_what_only_the_admin_may(at: Live) -> None:
    site = at.site("anna")
    calls = [
        ("GET", "/clients"),
        ("DELETE", "/clients/anna"),
        ("GET", "/join-tokens"),
        ("DELETE", "/join-tokens/1"),
        ("POST", "/runs/demo/start"),
        ("POST", "/runs/demo/pause"),
        ("POST", "/runs/demo/resume"),
        ("POST", "/runs/demo/stop"),
    ]
    for method, address in calls:
        assert site.http.request(method, address).status_code == 403, address
        assert at.http().request(method, address).status_code == 401, address


def test_a_viewer_token_closes_everything_that_is_read(database_url: str, tmp_path: Path) -> None:
    with live(database_url, tmp_path / "data", viewer_token=VIEWER) as at:
        at.create()
        site, anybody = at.site("anna"), at.http()
        for address in (
            "/runs",
            "/runs/demo",
            "/runs/demo/rounds",
            "/runs/demo/evaluations",
            "/runs/demo/events",
        ):
            assert anybody.get(address).status_code == 401, address
        for page in ("/", "/runs/demo", "/docs", "/metrics"):
            answer = anybody.get(f"{at.url}{page}")
            assert answer.status_code == 401, page
            assert answer.headers["www-authenticate"] == "Bearer"
            assert anybody.get(f"{at.url}{page}", auth=("me", VIEWER)).status_code == 200, page
        assert anybody.get(f"{at.url}/healthz").status_code == 200
        for token in (VIEWER, ADMIN):
            assert at.http(token).get("/runs").status_code == 200
        assert site.http.get("/runs/demo").status_code == 200, "clients read the run that they enrol in"
        assert site.http.get(f"{at.url}/runs/demo").status_code == 403, "but not its page"
        assert anybody.get("/runs", auth=("me", "wrong-password-here")).status_code == 401


def test_pages_may_load_nothing_foreign(at: Live) -> None:
    headers = at.http().get(f"{at.url}/").headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert "server" not in headers


def test_misspelt_variables_are_named() -> None:
    environment = {
        "FEDDISCO_PROT": "1",
        "FEDDISCO_PORT": "1",
        "FEDDISCO_URL": "x",
        "OTHER": "y",
        "FEDDISCO_DATA": "/",
    }
    assert unknown_variables(["FEDDISCO_URL"], environment) == ("FEDDISCO_PROT",)


def test_who_reads_without_a_token() -> None:
    reading = {
        ("127.0.0.1", None, None): "local",
        ("localhost", None, None): "local",
        ("127.0.0.1", VIEWER, None): "closed",
        ("127.0.0.1", None, False): "closed",
        ("127.0.0.1", None, True): "open",
        ("0.0.0.0", None, None): "closed",
        ("::", None, None): "closed",
        ("coordinator.example", None, None): "closed",
        ("0.0.0.0", VIEWER, None): "closed",
        ("0.0.0.0", None, True): "open",
    }
    for (host, viewer, opened), expected in reading.items():
        settings = Settings(host=host, viewer_token=viewer, open_pages=opened)
        assert settings.reading == expected, (host, viewer, opened)
    with pytest.raises(ValueError, match="contradict"):
        Settings(viewer_token=VIEWER, open_pages=True)


@pytest.mark.parametrize(
    "secret", ["short", "with a space in it", "ümlautümlautümlaut", "with-a\ttabulator-in"]
)
@pytest.mark.parametrize("name", ["admin_token", "viewer_token", "join_token"])
def test_weak_tokens_are_refused_without_being_shown(name: str, secret: str) -> None:
    with pytest.raises(ValueError, match="16 or more ASCII") as caught:
        Settings.model_validate({name: secret})
    assert secret not in str(caught.value)


def test_a_token_of_a_setting_is_taken_without_the_end_of_its_line() -> None:
    settings = Settings(admin_token=f"{ADMIN},{ADMIN}\n", viewer_token=f" {VIEWER}")
    assert load_admin_token(settings) == f"{ADMIN},{ADMIN}"
    assert load_viewer_token(settings) == VIEWER


@pytest.mark.parametrize(
    "same", [("admin_token", "viewer_token"), ("admin_token", "join_token"), ("viewer_token", "join_token")]
)
def test_a_token_is_for_one_kind_of_people(same: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="two of them are the same") as caught:
        Settings.model_validate(dict.fromkeys(same, ADMIN))
    assert ADMIN not in str(caught.value)

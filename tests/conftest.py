"""Fixtures for every folder: databases and the real data sets."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch

from server.database.session import make_engine
from tests.helpers.databases import NoPostgres, Postgres, own_cluster, sqlite_template
from tests.helpers.s3_service import S3Service, s3_service

ROOT = Path(__file__).resolve().parent.parent
LONGEST_NAME = 150


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--schedule", type=int, help="the only seed to play (tests/faults/test_schedules.py)")
    parser.addoption(
        "--faults", type=int, default=8, help="random faults on each database (make test-faults)"
    )
    parser.addoption("--fault-seed", type=int, default=0, help="which random faults (make test-faults)")
    parser.addoption("--faults-out", help="where a line is added for each random fault (make test-faults)")


def pytest_configure() -> None:
    """All that is spoken to is on this machine: the certificates of the public's authorities, which each
    client of HTTP would read anew for 30 to 130 ms, are not needed, whatever the shell says.
    """
    os.environ["SSL_CERT_FILE"] = str(ROOT / "tests" / "fixtures" / "nobodys-authority.pem")
    os.environ.pop("SSL_CERT_DIR", None)


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay to the end: looked through again and again, they took
    an eighth of the processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long value would be the test's name, which each process of pytest-xdist sends to the others."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_NAME:
        return f"{argname}-of-{len(val)}"
    return None


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the published data sets, or the test is skipped."""
    folder = Path(os.environ.get("FEDDISCO_DATA") or ROOT.parent / "shared" / "data").resolve()
    if not folder.is_dir():
        pytest.skip(f"no data sets: {folder} is not a folder (set FEDDISCO_DATA)")
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The number of threads that workers and the simulation's processes have: sums are split alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """DATABASE_URL's server, or one started for this session (with xdist: one a worker)."""
    if given := os.environ.get("DATABASE_URL"):
        server = Postgres(sa.make_url(given).set(drivername="postgresql"))
        yield server
        server.close()
        return
    cluster = own_cluster()
    try:
        server = cluster.__enter__()
    except NoPostgres as why:
        if os.environ.get("FEDDISCO_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"PostgreSQL is required here (FEDDISCO_REQUIRE_POSTGRES=1): {why}")
        pytest.skip(f"no PostgreSQL: {why}")
    try:
        yield server
    finally:
        cluster.__exit__(None, None, None)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """A service that speaks the protocol of S3, on loopback."""
    with s3_service(tmp_path_factory.mktemp("s3")) as service:
        yield service


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sqlite_template(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database with the present schema: the test runs once on each kind."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("migrated_sqlite")
        shutil.copyfile(template, tmp_path / "test.sqlite")
        yield f"sqlite:///{tmp_path / 'test.sqlite'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.fresh()
    yield url
    server.recycle(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.empty()
    yield url
    server.drop(url)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()

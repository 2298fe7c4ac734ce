"""What a bucket has and a folder has not: copies, several users of one bucket, outages, refusals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from server.blobs import open_blobs, open_lines
from server.blobs.bucket import Bucket
from server.blobs.integrity import DAMAGED, MISSING, BlobIntegrity
from server.blobs.owner import check_owner
from server.blobs.s3 import S3Blobs
from server.database.session import make_engine
from server.database.store import Store
from server.settings import Settings
from shared.problems import InvalidConfiguration, StorageUnavailable
from tests.helpers.http_servers import closed_port
from tests.helpers.s3_service import KEY, SECRET, S3Service
from tests.server.blobs.test_blobs import FAR_AHEAD, put, sha


@contextmanager
def unlocked(_exclusive: bool) -> Iterator[None]:
    yield


def store_in(bucket: Bucket, folder: Path, copied_bytes: int = 1000) -> S3Blobs:
    return S3Blobs(bucket, folder, unlocked, copied_bytes=copied_bytes)


@pytest.fixture
def bucket(s3: S3Service) -> Bucket:
    return s3.open(s3.make_bucket())


def copies_in(store: S3Blobs) -> set[str]:
    return {path.name for path in store.folder.glob("??/*")}


def test_what_one_stores_the_other_reads_and_copies(bucket: Bucket, tmp_path: Path) -> None:
    one, other = store_in(bucket, tmp_path / "one"), store_in(bucket, tmp_path / "other")
    digest = put(one, b"model")
    with other.local(digest) as path:
        assert path.read_bytes() == b"model"
    assert copies_in(other) == {digest}
    bucket.delete([f"{digest[:2]}/{digest}"])
    with other.open(digest) as file:
        assert file.read() == b"model", "from the copy"
    assert list((other.folder / "incoming").iterdir()) == []


def test_copies_stay_below_their_bound_and_the_least_used_go(bucket: Bucket, tmp_path: Path) -> None:
    store = store_in(bucket, tmp_path, 25)
    first, second = put(store, b"1" * 10), put(store, b"2" * 10)
    store.open(first).close()  # used last now
    third, large = put(store, b"3" * 10), put(store, b"4" * 26)
    assert copies_in(store) == {first, third}
    assert copies_in(store_in(bucket, tmp_path, 10)) == {third}, "also after a restart"
    for digest, size in ((second, 10), (large, 26)):
        with store.local(digest) as path:
            assert path.stat().st_size == size


def test_copies_of_what_another_one_deleted_go(bucket: Bucket, tmp_path: Path) -> None:
    one, other = store_in(bucket, tmp_path / "one"), store_in(bucket, tmp_path / "other")
    gone, stays = put(one, b"an erased update"), put(one, b"a model")
    for digest in (gone, stays):
        other.open(digest).close()
    assert one.remove([gone], FAR_AHEAD, lambda _gone: None) == [gone]
    assert other.collect([stays], FAR_AHEAD) == []
    assert copies_in(other) == {stays}
    shared = store_in(bucket, tmp_path / "other")  # of another process that has the folder, too
    assert one.remove([stays], FAR_AHEAD, lambda _gone: None) == [stays]
    assert shared.collect([], FAR_AHEAD) == []
    assert copies_in(other) == set()


def test_a_copy_may_go_while_it_is_used(bucket: Bucket, tmp_path: Path) -> None:
    store = store_in(bucket, tmp_path, 10)
    digest = put(store, b"1" * 10)
    with store.local(digest) as path:
        put(store, b"2" * 10)
        assert digest not in copies_in(store)
        assert store.collect([digest], dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)) == []
        assert path.read_bytes() == b"1" * 10


@pytest.mark.parametrize("restarted", [False, True])
def test_a_damaged_copy_is_fetched_again(bucket: Bucket, tmp_path: Path, restarted: bool) -> None:
    store = store_in(bucket, tmp_path)
    digest = put(store, b"model")
    store.path(digest).write_bytes(b"mudel")
    if restarted:
        store = store_in(bucket, tmp_path)
    with store.local(digest) as path:
        assert path.read_bytes() == b"model"


def test_what_is_damaged_in_the_bucket_is_never_given(bucket: Bucket, tmp_path: Path) -> None:
    digest = put(store_in(bucket, tmp_path / "one"), b"model")
    bucket.write(f"{digest[:2]}/{digest}", b"mudel")
    store = store_in(bucket, tmp_path / "other")
    with pytest.raises(StorageUnavailable, match="is damaged"), store.local(digest):
        pass
    assert copies_in(store) == set()


def test_faults_are_those_of_the_bucket_whatever_is_copied(bucket: Bucket, tmp_path: Path) -> None:
    store = store_in(bucket, tmp_path)
    integrity, digest = BlobIntegrity(store), put(store, b"model")
    assert integrity.find_fault(digest) is None
    assert integrity.is_remembered(digest)
    bucket.write(f"{digest[:2]}/{digest}", b"mudel")
    assert integrity.find_fault(digest) == DAMAGED
    bucket.delete([f"{digest[:2]}/{digest}"])
    assert integrity.find_fault(digest) == MISSING


def test_an_outage_is_no_fault_of_a_file(tmp_path: Path) -> None:
    gone = {
        "blob_store": "s3://bucket/feddisco",
        "s3_endpoint": f"http://127.0.0.1:{closed_port()}",
        "s3_access_key_id": KEY,
        "s3_secret_access_key": SECRET,
    }
    store = store_in(Bucket("s3://bucket/feddisco", Settings.model_validate(gone)), tmp_path)
    with pytest.raises(StorageUnavailable, match="s3://bucket/feddisco does not answer"):
        BlobIntegrity(store).find_fault(sha(b"model"))


def test_a_bucket_that_is_not_there_is_told(s3: S3Service, tmp_path: Path) -> None:
    store = store_in(s3.open("s3://no-such-bucket/feddisco"), tmp_path)
    for act in (store.check, lambda: put(store, b"x"), lambda: store.has_blobs()):
        with pytest.raises(StorageUnavailable, match="there is no such bucket") as caught:
            act()
        assert caught.value.__cause__ is None, "the service's words may hold key ids"


def test_what_is_deleted_before_its_commit_is_written_again(bucket: Bucket, tmp_path: Path) -> None:
    """Another coordinator collects between the writing and the look that follows it under the lock."""
    digest = sha(b"model")

    @contextmanager
    def lock(exclusive: bool) -> Iterator[None]:
        if not exclusive:
            bucket.delete([f"{digest[:2]}/{digest}"])
        yield

    store = S3Blobs(bucket, tmp_path, lock, copied_bytes=0)
    assert put(store, b"model") == digest
    assert store.exists(digest)


def test_another_databases_bucket_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    store = store_in(bucket, tmp_path)
    with pytest.raises(InvalidConfiguration, match=r"s3://.* is empty, but the database has recorded 3"):
        check_owner(store, "ours", recorded_blobs=3)
    check_owner(store, "ours", recorded_blobs=0)
    check_owner(store, "ours", recorded_blobs=3)
    with pytest.raises(InvalidConfiguration, match="belongs to database ours, not to this one"):
        check_owner(store, "theirs", recorded_blobs=0)
    store.write_owner("theirs", overwrite=True)
    check_owner(store, "theirs", recorded_blobs=0)


def test_lists_beside_the_blobs_are_in_the_bucket(s3: S3Service, tmp_path: Path) -> None:
    settings = s3.settings(s3.make_bucket())
    one, other = (
        open_lines(Settings.model_validate({**settings, "data_folder": tmp_path / name}), "revocations.jsonl")
        for name in ("one", "other")
    )
    assert one.read() == []
    one.append({"token_hash": "a"})
    other.append({"token_hash": "b"})
    assert one.read() == other.read() == [{"token_hash": "a"}, {"token_hash": "b"}]
    one.replace([{"token_hash": "c"}])
    assert other.read() == [{"token_hash": "c"}]


def test_the_database_lends_the_lock(s3: S3Service, database_url: str, tmp_path: Path) -> None:
    """Of two coordinators one deletes, the other stores; on SQLite they would be threads of one."""
    settings = Settings.model_validate(
        {**s3.settings(s3.make_bucket()), "data_folder": tmp_path, "database_url": database_url}
    )
    engine = make_engine(database_url)
    try:
        store = open_blobs(settings, Store(engine))
        digest = put(store, b"model")
        told: list[str] = []
        assert store.remove([digest], FAR_AHEAD, told.extend) == [digest] == told
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    "given",
    [
        {"blob_store": "s3://bucket/../etc"},
        {"blob_store": "s3://key:secret@bucket"},
        {"blob_store": "https://bucket.example"},
        {"s3_access_key_id": "a"},
        {"s3_endpoint": "http://minio.example:9000"},
        {"s3_endpoint": "https://user:secret@minio.example"},
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(given)
    assert "secret" not in str(caught.value).replace("s3_secret_access_key", "")

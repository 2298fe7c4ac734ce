"""Downloads: who may have what, ranges, caching; uploads of initial weights."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.web.ranges import parse_range
from shared.problems import RangeNotSatisfiable
from tests.helpers.live_coordinator import (
    CLASSES,
    JOIN,
    MANIFEST,
    TASK,
    Live,
    content_digest,
    enrolled,
    file_of,
    live,
    sha256,
    upload_headers,
)

MODEL = file_of(0.0)
ADDRESS = f"/blobs/{sha256(MODEL)}"


@pytest.fixture
def at(database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(database_url, tmp_path / "data") as opened:
        opened.create(min_clients=1, weighting={"kind": "sizes"})
        yield opened


def test_only_members_read_models_and_nobody_reads_updates(at: Live) -> None:
    (member,) = enrolled(at, (10,))
    stranger = at.site("stranger")
    assert member.http.get(ADDRESS).content == MODEL
    assert stranger.http.get(ADDRESS).json()["code"] == "forbidden"
    assert at.http().get(ADDRESS).json()["code"] == "missing-token"
    assert at.http(JOIN).get(ADDRESS).json()["code"] == "wrong-token"
    secret = file_of(0.25)
    assert member.upload("demo", 1, secret).status_code == 200
    at.wait_for(lambda: at.run()["completed_rounds"] == 1)
    # alone in the round, its update is the new model: so look at one that is not
    assert member.upload("demo", 2, file_of(0.5)).status_code == 200
    assert stranger.http.get(f"/blobs/{sha256(file_of(0.5))}").status_code == 403
    assert at.admin.get(f"/blobs/{sha256(secret)}").status_code == 200
    assert at.admin.get(f"/blobs/{'0' * 64}").json()["code"] == "not-found"
    assert at.admin.get("/blobs/..%2F..%2Fadmin-token").status_code in (404, 422)


def test_caching_and_integrity(at: Live) -> None:
    whole = at.admin.get(ADDRESS)
    assert whole.headers["content-digest"] == content_digest(MODEL)
    assert "immutable" in whole.headers["cache-control"]
    tag = whole.headers["etag"]
    assert at.admin.get(ADDRESS, headers={"If-None-Match": tag}).status_code == 304
    assert at.admin.get(ADDRESS, headers={"If-None-Match": '"other"'}).status_code == 200
    head = at.admin.head(ADDRESS)
    assert (head.status_code, head.content, int(head.headers["content-length"])) == (200, b"", len(MODEL))


def test_ranges(at: Live) -> None:
    part = at.admin.get(ADDRESS, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, MODEL[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(MODEL)}"
    tail = at.admin.get(ADDRESS, headers={"Range": "bytes=100-", "If-Range": f'"{sha256(MODEL)}"'})
    assert tail.content == MODEL[100:]
    other = at.admin.get(ADDRESS, headers={"Range": "bytes=100-", "If-Range": '"another file"'})
    assert (other.status_code, other.content) == (200, MODEL)
    beyond = at.admin.get(ADDRESS, headers={"Range": f"bytes={len(MODEL)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(MODEL)}")
    assert beyond.json()["code"] == "range-not-satisfiable"


def test_a_large_blob_comes_in_pieces(at: Live) -> None:
    body = bytes(range(256)) * 20_000  # 5 MB
    put = at.admin.put(f"/blobs/{sha256(body)}", content=body, headers=upload_headers(body))
    assert put.status_code == 204
    assert at.admin.get(f"/blobs/{sha256(body)}").content == body
    start = 3_000_001
    rest = at.admin.get(f"/blobs/{sha256(body)}", headers={"Range": f"bytes={start}-"})
    assert rest.content == body[start:]


def test_only_the_admin_uploads_initial_weights(at: Live) -> None:
    site = at.site("site-0")
    address = f"/blobs/{sha256(MODEL)}"
    assert site.http.put(address, content=MODEL, headers=upload_headers(MODEL)).status_code == 403
    other = at.admin.put(f"/blobs/{'1' * 64}", content=MODEL, headers=upload_headers(MODEL))
    assert other.json()["code"] == "digest-mismatch"


def test_old_initial_weights_are_not_collected_while_a_run_is_made_of_them(at: Live) -> None:
    body = file_of(1.0)
    digest = sha256(body)
    assert at.admin.put(f"/blobs/{digest}", content=body, headers=upload_headers(body)).is_success
    path = at.coordinator.blobs.path(digest)
    os.utime(path, (0, 0))
    request = {
        "config": {"name": "second", "task": TASK, "classes": CLASSES},
        "initial": {"digest": digest, "manifest": MANIFEST},
    }
    assert at.admin.post("/runs", json=request).status_code == 201
    assert path.stat().st_mtime > time.time() - 60


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=0-99", (0, 10)),
        ("bytes=-4", (6, 10)),
        ("bytes=-99", (0, 10)),
        ("Bytes=3-", (3, 10)),
        ("bytes=5-4", None),  # not a valid range: ignored (RFC 9110, 14.1.1)
        ("bytes=1-2,4-5", None),
        ("lines=1-2", None),
        ("bytes=-", None),
    ],
)
def test_range_headers(header: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_ranges_outside_the_file(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable, match="10 bytes"):
        parse_range(header, 10)

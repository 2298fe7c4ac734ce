"""What spares downloads their work: it forgets in time, keeps little, and grants nothing to others."""

from __future__ import annotations

from pathlib import Path

from server.blobs.cache import BLOBS, BlobCache
from server.web.grants import GRANT_SECONDS, DownloadGrants
from tests.helpers.live_coordinator import enrolled, file_of, live, sha256


def test_a_grant_is_for_the_newest_assignment_for_a_few_seconds() -> None:
    now = 100.0
    grants = DownloadGrants(lambda: now)
    assert not grants.covers("a", "old")
    grants.grant("a", ("old", None))
    grants.grant("a", ("model", "broadcast"))
    assert grants.covers("a", "model")
    assert grants.covers("a", "broadcast")
    assert not grants.covers("a", "old")
    assert not grants.covers("b", "model")
    now += GRANT_SECONDS
    assert not grants.covers("a", "model")


def test_few_blobs_are_kept_those_used_last() -> None:
    recent = BlobCache()
    for number in range(BLOBS):
        recent[str(number)] = b"%d" % number
    assert recent.get("0") == b"0"
    recent["one more"] = b""
    assert recent.get("1") is None
    assert recent.get("0") == b"0"


def test_a_round_s_model_is_read_once_and_still_not_by_a_stranger(database_url: str, tmp_path: Path) -> None:
    model = file_of(0.0)
    address = f"/blobs/{sha256(model)}"
    with live(database_url, tmp_path / "data") as at:
        at.create(min_clients=2, weighting={"kind": "sizes"})
        first, second = enrolled(at, (10, 10))
        stranger = at.site("stranger")
        for site in (first, second):
            assert site.until("train")["model"] == sha256(model)
        assert first.http.get(address).content == model
        at.coordinator.blobs.path(sha256(model)).unlink()
        assert second.http.get(address).content == model, "from memory"
        assert second.http.get(address, headers={"Range": "bytes=8-15"}).content == model[8:16]
        assert stranger.http.get(address).status_code == 403

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.problems import InvalidRequest
from shared.wire import digests

# SHA-256 of '{"hello": "world"}\n', from RFC 9530, appendix B
RFC_HEX = hashlib.sha256(b'{"hello": "world"}\n').hexdigest()
RFC_BASE64 = "RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg="


def test_the_example_of_the_rfc() -> None:
    assert digests.format_content_digest(RFC_HEX) == f"sha-256=:{RFC_BASE64}:"
    assert digests.parse_content_digest(f"sha-256=:{RFC_BASE64}:") == RFC_HEX


@given(st.binary(min_size=32, max_size=32))
def test_hex_and_base64_are_inverse(raw: bytes) -> None:
    assert digests.base64_to_hex(digests.hex_to_base64(raw.hex())) == raw.hex()


def test_a_file_is_digested(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert digests.digest_of(tmp_path / "file") == hashlib.sha256(b"x" * 100_000).hexdigest()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("sha-512=:AAAA:", None),
        ("unixsum=:AAA=:, id-sha-256=:AAAA:", None),
        (f"sha-512=:AAAA:,\tsha-256=:{RFC_BASE64}:", RFC_HEX),
        (f"sha-256=:{RFC_BASE64}:;note=1 , sha-512=:AAAA:", RFC_HEX),
        (f"sha-256=:{digests.hex_to_base64('00' * 32)}:, sha-256=:{RFC_BASE64}:", RFC_HEX),
    ],
)
def test_only_sha_256_counts(header: str | None, expected: str | None) -> None:
    assert digests.parse_content_digest(header) == expected


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("", "received ''"),
        ("sha-256", "received 'sha-256'"),
        (f"sha-256={RFC_BASE64}", "received 'sha-256=RK"),
        (f"sha-256 = :{RFC_BASE64}:", "received 'sha-256 = "),
        (f"SHA-256=:{RFC_BASE64}:", "received 'SHA-256="),
        (f"sha-256=:{RFC_BASE64}:,", "received ''"),
        ("sha-256=:AAAA:", "32 bytes, received are 3"),
        ("sha-256=:A:", "'A' is not base64"),
        ("sha-256=::", "received are 0"),
        (f"sha-256=:{RFC_BASE64}:\n", "received"),
        ("sha-256=:ä:", "received"),
        ("a" * 5000, "has 5000 characters"),
    ],
)
def test_a_malformed_header_is_refused(header: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match="Content-Digest is malformed") as caught:
        digests.parse_content_digest(header)
    assert reason in caught.value.detail


@given(st.text(max_size=200))
def test_no_header_raises_anything_else(header: str) -> None:
    try:
        digest = digests.parse_content_digest(header)
    except InvalidRequest:
        return
    assert digest is None or len(digest) == 64

"""Join codes: what goes in comes out, and what was mistyped is noticed and never shown."""

from __future__ import annotations

import base64
import json

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.join_codes import JoinCode, _check, _encode, read_join_code, write_join_code
from shared.problems import InvalidConfiguration

CODE = JoinCode("T0ken-" * 7, "https://coordinator.hospital.example:8443", "0a1b" * 16)
TEXT = write_join_code(CODE)

tokens = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=100)
hosts = st.sampled_from(("a.example", "[::1]", "192.0.2.7"))
addresses = st.builds("{}://{}:{}".format, st.sampled_from(("http", "https")), hosts, st.integers(1, 65535))
fingerprints = st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex)


@given(tokens, addresses, fingerprints)
def test_what_goes_in_comes_out(token: str, address: str, fingerprint: str | None) -> None:
    code = JoinCode(token, address, fingerprint)
    text = write_join_code(code)
    assert text.isascii()
    assert len(text.split()) == 1
    assert read_join_code(text) == code
    assert read_join_code(f" {text[:40]}\n   {text[40:]}\r\n") == code, "as a mail breaks it"


@given(st.integers(0, len(TEXT) - 2), st.characters(min_codepoint=0x21, max_codepoint=0xFF))
def test_a_wrong_character_is_noticed(place: int, character: str) -> None:
    """But for the last one, which has bits that count for nothing."""
    wrong = TEXT[:place] + character + TEXT[place + 1 :]
    hypothesis.assume(wrong != TEXT and wrong.strip() == wrong)
    with pytest.raises(InvalidConfiguration, match="the join code is") as caught:
        read_join_code(wrong)
    assert CODE.token not in str(caught.value)


@given(st.integers(129, len(TEXT) - 1), st.booleans())
def test_a_part_is_noticed(length: int, beginning: bool) -> None:
    with pytest.raises(InvalidConfiguration, match="damaged"):
        read_join_code(TEXT[:length] if beginning else TEXT[-length:])


def test_two_characters_that_have_changed_places_are_noticed() -> None:
    for place in range(5, len(TEXT) - 1):
        if TEXT[place] != TEXT[place + 1]:
            with pytest.raises(InvalidConfiguration):
                read_join_code(TEXT[:place] + TEXT[place + 1] + TEXT[place] + TEXT[place + 2 :])


def test_another_version_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match=r"of version 2, this program reads version 1"):
        read_join_code(TEXT.replace("fdj1.", "fdj2."))


def test_a_join_token_alone_is_a_join_code() -> None:
    assert read_join_code(" a-plain-token\n") == JoinCode("a-plain-token")
    assert write_join_code(JoinCode("a-plain-token")) == "a-plain-token"


@pytest.mark.parametrize(
    "parts",
    [
        [],
        {},
        None,
        {"t": "a"},
        {"a": "https://a.example"},
        {"a": "https://a.example", "t": 5},
        {"a": "https://a.example", "t": "a\r\nHost: b"},
        {"a": "https://me:secret@a.example", "t": "a"},
        {"a": "file:///etc", "t": "a"},
        {"a": 5, "t": "a"},
        {"a": "https://a.example", "t": "a", "f": "short"},
        {"a": "https://a.example", "t": "a", "f": 7},
    ],
)
def test_a_code_that_was_made_wrong_is_refused(parts: object) -> None:
    content = json.dumps(parts).encode()
    with pytest.raises(InvalidConfiguration, match="damaged"):
        read_join_code("fdj1." + _encode(_check(content) + content))


def test_a_code_is_not_shown() -> None:
    assert CODE.token not in repr(CODE)
    assert base64.b64decode(TEXT[5:] + "=" * (-len(TEXT[5:]) % 4), altchars=b"-_")[6:].startswith(b"{")

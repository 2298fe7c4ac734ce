"""Addresses of coordinators: one spelling of each, and a sentence for what would fail later."""

from __future__ import annotations

import pytest

from shared.addresses import check_address
from shared.join_codes import JoinCode, read_join_code, write_join_code
from shared.problems import InvalidConfiguration

UNUSABLE = (
    "https://c.example:abc",
    "https://[::1]:x",
    "http://127.0.0.1:80000",
    "http://127.0.0.1:0",
    "https://c.example\n",
    "https://c.example\x00",
    " https://c.example",
    "https://c.exa mple",
    "https://c.example/?",
    "https://@c.example",
)


@pytest.mark.parametrize("url", UNUSABLE)
def test_an_address_that_would_fail_later_is_refused_by_itself_and_in_a_join_code(url: str) -> None:
    with pytest.raises(ValueError, match=r"port|blank|more than scheme"):
        check_address(url)
    with pytest.raises(InvalidConfiguration, match="damaged"):
        read_join_code(write_join_code(JoinCode("a-token", url)))


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("HTTPS://C.Example", "https://c.example"),
        ("https://C.example:8443/Site/A/", "https://c.example:8443/Site/A"),
        ("http://[::1]:65535/", "http://[::1]:65535"),
        ("https://Klinik-B\u00fcren.example", "https://klinik-b\u00fcren.example"),
    ],
)
def test_scheme_and_host_are_spelled_in_lower_case(typed: str, spelled: str) -> None:
    assert check_address(typed) == spelled
    code = JoinCode("a-token", typed, "0a" * 32)
    assert read_join_code(write_join_code(code)) == JoinCode("a-token", spelled, "0a" * 32)

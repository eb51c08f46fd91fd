"""From whom a node is to pull: what a router writes is what an agent reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.shared.pull import PullFrom, is_address, parse


@pytest.mark.parametrize("address", ["127.0.0.1:4000", "[::1]:1", "node-7.cluster.example:65535", "a_b:0"])
def test_it_comes_back(address: str) -> None:
    pull = PullFrom(address, 7000)
    assert str(pull) == f"{address}; tokens=7000"
    assert parse(str(pull)) == pull
    assert is_address(address)


@given(st.text(max_size=40))
def test_what_is_read_can_be_written_into_a_head(text: str) -> None:
    for junk in (text, f"{text}:1; tokens=2", f"a:{text}; tokens=2", f"a:1; tokens={text}"):
        pull = parse(junk)
        assert pull is None or (str(pull).isascii() and str(pull).isprintable())


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:1 ", "a:1\r\nb:2", "a b:1", "::1:4", "a:123456", "a:\u0664"])
def test_what_is_no_address(text: str) -> None:
    assert not is_address(text)
    assert parse(f"{text}; tokens=1") is None

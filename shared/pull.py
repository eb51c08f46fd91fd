"""How a router tells a node from whom to pull what it lacks of a prefix: the value of HEADER_PULL_FROM. And what the
node says of it, where no request waits for the prefix."""

import re
from typing import NamedTuple

import msgspec

_ADDRESS = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
_address = re.compile(_ADDRESS)
_value = re.compile(rf"({_ADDRESS}); tokens=([0-9]{{1,10}})")


class PullFrom(NamedTuple):
    """`address`: host:port where the holder is asked for pages. `tokens`: of the prefix that it holds."""

    address: str
    tokens: int

    def __str__(self) -> str:
        return f"{self.address}; tokens={self.tokens}"


class Brought(msgspec.Struct, frozen=True):
    """What became of an order to pull a prefix. Tokens of whole pages."""

    tokens: int
    """Of the prefix."""
    held: int
    """That are there now."""
    pulled: int
    """Of these, those that came with this order."""
    seconds: float


def parse(value: str) -> PullFrom | None:
    """None for what no router says."""
    found = _value.fullmatch(value)
    return PullFrom(found[1], int(found[2])) if found else None


def is_address(text: str) -> bool:
    """Whether it is host:port."""
    return _address.fullmatch(text) is not None

"""Which primary is taken of what sentinels say; real ones are tried in tests/router/replicas."""

import asyncio

import pytest
from redis.exceptions import RedisError

from trunkline.shared.sentinel import primary


class FakeSentinel:
    """Says what it is told to."""

    def __init__(self, **said: object) -> None:
        up = {"is_master": True, "is_sdown": False, "is_odown": False, "config-epoch": "3", "ip": "10.0.0.1"}
        self.said = {name: value for name, value in ({"port": 6379} | up | said).items() if value is not None}

    async def __aenter__(self) -> "FakeSentinel":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def sentinel_master(self, _: str) -> object:
        return self.said


@pytest.mark.parametrize(
    "said",
    [
        {"ip": None},
        {"ip": "10.0.0.9/0?x="},
        {"ip": "me@elsewhere"},
        {"ip": ""},
        {"port": 0},
        {"port": "many"},
        {"port": 1 << 16},
        {"config-epoch": "x"},
        {"is_master": None},
    ],
)
def test_a_sentinel_that_says_no_address_is_passed_over(said: dict[str, object]) -> None:
    odd, good = FakeSentinel(**({"config-epoch": "9"} | said)), FakeSentinel()
    assert asyncio.run(primary([odd, good], "main", 5.0)) == ("10.0.0.1", 6379)  # type: ignore[list-item]
    with pytest.raises(RedisError, match="0 of 1 sentinels know 'main'"):
        asyncio.run(primary([odd], "main", 5.0))  # type: ignore[list-item]

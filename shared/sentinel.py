"""Redis behind Sentinel: which of its servers is the primary now."""

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from redis.asyncio import Redis

_HOST = re.compile(r"[\w.:%-]+", re.ASCII)
"""A name or an address, without what would end it in a URL."""


async def primary(sentinels: "Sequence[Redis]", service: str, seconds: float) -> tuple[str, int]:
    """Host and port of the primary that the newest of the sentinels' configurations names.

    All are asked at once, and who has not answered within `seconds` is not waited for: the machine that took the
    primary with it often took a sentinel as well. Raises MasterNotFoundError, a RedisError, where none knows a primary
    that is up.
    """
    from redis.exceptions import RedisError
    from redis.sentinel import MasterNotFoundError

    tasks = [asyncio.create_task(_state(sentinel, service)) for sentinel in sentinels]
    try:
        await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    states = [answer for answer in answers if isinstance(answer, _State)]
    up = [state for state in states if state.up]
    if not up:
        said = [str(answer) for answer in answers if isinstance(answer, RedisError | OSError) and str(answer)]
        raise MasterNotFoundError(
            f"{len(states)} of {len(tasks)} sentinels know {service!r}, and none a primary of it that is up"
            + "".join(f"; {text}" for text in dict.fromkeys(said))
        )
    newest = max(up, key=lambda state: state.epoch)
    return newest.host, newest.port


class _State(NamedTuple):
    """What a sentinel says of the primary."""

    up: bool
    epoch: int
    host: str
    port: int


async def _state(sentinel: "Redis", service: str) -> _State:
    """Raises RedisError, also for an answer that says nothing of the kind."""
    from redis.exceptions import InvalidResponse

    async with sentinel:
        said = cast(dict[str, Any], await sentinel.sentinel_master(service))
    try:
        up = said["is_master"] and not said["is_sdown"] and not said["is_odown"]
        state = _State(up, int(said["config-epoch"]), str(said["ip"]), int(said["port"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidResponse(f"a sentinel's answer is of no primary: {error!r}") from None
    if not _HOST.fullmatch(state.host) or not 0 < state.port < 1 << 16:
        raise InvalidResponse(f"a sentinel names {state.host[:80]!r} port {state.port}, which is no address")
    return state

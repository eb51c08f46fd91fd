"""Redis behind Sentinel: which of its servers is the primary now."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from redis.asyncio import Redis


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
    states = [answer for answer in answers if isinstance(answer, dict)]
    up = [state for state in states if state["is_master"] and not state["is_sdown"] and not state["is_odown"]]
    if not up:
        said = [str(answer) for answer in answers if isinstance(answer, RedisError | OSError) and str(answer)]
        raise MasterNotFoundError(
            f"{len(states)} of {len(tasks)} sentinels know {service!r}, and none a primary of it that is up"
            + "".join(f"; {text}" for text in dict.fromkeys(said))
        )
    newest = max(up, key=lambda state: int(state["config-epoch"]))
    return str(newest["ip"]), int(newest["port"])


async def _state(sentinel: "Redis", service: str) -> dict[str, Any]:
    async with sentinel:
        return cast(dict[str, Any], await sentinel.sentinel_master(service))

"""Two calls that are compared: in turns, so that what disturbs one disturbs the other as well."""

import time
from collections.abc import Callable
from statistics import median


def in_turns(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of CPU time of each: neither waits for anything but memory, and other processes do not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, seconds in zip((one, other), times, strict=True):
            began = time.thread_time()
            call()
            seconds.append(time.thread_time() - began)
    return median(times[0]), median(times[1])

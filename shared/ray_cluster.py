"""A Ray cluster whose nodes have Trunkline: that of RAY_ADDRESS, or one on this machine that ends with us."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from trunkline.shared.errors import ConfigError

CONNECT_S = 10.0
STARTS = 3
_T = TypeVar("_T")


def check() -> None:
    """Raises ConfigError if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'trunkline[ray]'") from None


def patiently(start: Callable[[], _T], undo: Callable[[], object]) -> _T:
    """Starts nodes of Ray, and again if that fails, STARTS times at most. `undo` clears up after one that failed.

    Ray gives up a node that is not there within 30 s, as on a busy machine; no setting changes that.
    """
    for _ in range(STARTS - 1):
        try:
            return start()
        except Exception:  # noqa: BLE001  # Ray raises it as such.
            undo()
    return start()


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """`address`: as `ray.init` takes it. Raises ConfigError where there is no cluster."""
    check()
    import ray

    place = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = place.partition("?")[0].removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself tries for two minutes.
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"--ray: no cluster at {place}: {error}") from None
    try:
        if place:
            ray.init(address, log_to_driver=False)
        else:
            patiently(lambda: ray.init(log_to_driver=False, include_dashboard=False), ray.shutdown)
    except Exception as error:  # noqa: BLE001  # Ray raises it as such.
        raise ConfigError(f"--ray: no cluster: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()

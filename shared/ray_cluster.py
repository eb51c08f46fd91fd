"""A Ray cluster whose nodes have Trunkline: that of RAY_ADDRESS, or one on this machine that ends with us."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from trunkline.shared.errors import ConfigError

CONNECT_S = 10.0


def check() -> None:
    """Raises ConfigError if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'trunkline[ray]'") from None


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
        ray.init(address, log_to_driver=False, include_dashboard=False if address is None else None)
    except Exception as error:  # noqa: BLE001  # Raised as such if Ray has not started within 30 s.
        raise ConfigError(f"--ray: no cluster: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()

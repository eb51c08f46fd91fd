"""The agent's listening socket."""

import socket

from trunkline.shared.errors import ConfigError

BACKLOG = 1024


def listen(host: str, port: int, of: str = "") -> socket.socket:
    """Bound before anything is loaded, so that a taken port shows at once. `of`: whose flags they are, `--{of}port`.
    Raises ConfigError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # The latter: a name that no resolver takes.
        raise ConfigError(f"--{of}host: {host!r} is no address: {error}") from None
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --{of}port"
        ) from None
    return listener

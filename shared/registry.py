"""Where the members of a cluster find each other: the address of a Redis server, checked once, its password kept out of
every message."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from trunkline.shared.errors import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

PASSWORD_VARIABLE = "TRUNKLINE_REGISTRY_PASSWORD"  # noqa: S105  # The name of the variable.
ANSWER_S = 1.0
"""For a connection, and for each group of commands. A server that hangs is given up after this."""
_SCHEMES = ("redis", "rediss", "unix")
_OPTIONS = {"redis": (), "rediss": ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"), "unix": ("db",)}
_FORM = "redis://host:port/db, rediss://host:port/db or unix:///path?db=0"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A Redis server and a database number in it. One database belongs to one cluster. `str` shows no secret."""

    shown: str
    database: int
    url: str = field(repr=False)
    password: str | None = field(repr=False)

    def __str__(self) -> str:
        return self.shown

    @property
    def prefix(self) -> str:
        """Of every key and channel. Channels are not of a database, so its number is in the name."""
        return f"trunkline:{self.database}"

    def connect(self) -> "Redis":
        """A client, not connected yet. It does not retry, and an answer has no deadline: that is for `answering`."""
        # Imported here: it takes a tenth of a second, and most processes have no registry.
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return Redis.from_url(
            self.url,
            password=self.password,
            # Given one it sends through asyncio.wait_for, which in Python 3.11 may swallow a cancellation.
            socket_timeout=None,
            socket_connect_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
            max_connections=8,
        )


def registry_address(url: str, password_file: Path | None) -> RegistryAddress:
    """Checks a `--registry`. The password is that of the file, else of the environment, else of the URL.

    Raises ConfigError, which never shows the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # It quotes the URL.
        raise ConfigError(f"--registry is not of the form {_FORM}") from None
    if parts.scheme not in _SCHEMES or (not parts.hostname if parts.scheme != "unix" else not parts.path):
        raise ConfigError(f"--registry {parts.scheme}://... is not of the form {_FORM}")
    options = parse_qs(parts.query, keep_blank_values=True)
    for name in options:
        if name not in _OPTIONS[parts.scheme]:
            raise ConfigError(f"--registry: option {name!r} is none that {parts.scheme}:// takes")
    database = _database(parts, options)
    shown = f"unix://{parts.path}" if parts.scheme == "unix" else f"{parts.scheme}://{parts.hostname}:{port or 6379}"
    query = f"?{parts.query}" if parts.query else ""
    user = f"{parts.username}@" if parts.username else ""
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    plain = f"{parts.scheme}://{user}{host}{f':{port}' if port else ''}{parts.path}{query}"
    return RegistryAddress(f"{shown}/{database}", database, plain, _password(parts, password_file))


def answering() -> asyncio.Timeout:
    """What is asked of the registry in this context has ANSWER_S. Raises TimeoutError."""
    return asyncio.timeout(ANSWER_S)


def explained(error: BaseException) -> str:
    """A failure of the registry, for people."""
    text = str(error) or (f"no answer within {ANSWER_S:g} s" if isinstance(error, TimeoutError) else repr(error))
    if "HELLO" in text or "password" in text:
        return f"it wants a password, or another one (--registry-password-file or {PASSWORD_VARIABLE}): {text}"
    return text.rstrip(".")


def _database(parts: SplitResult, options: dict[str, list[str]]) -> int:
    text = options.get("db", ["0"])[0] if parts.scheme == "unix" else parts.path.strip("/") or "0"
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise ConfigError(f"--registry: database {text[:40]!r} is not a number")
    return int(text)


def _password(parts: SplitResult, path: Path | None) -> str | None:
    if path is not None:
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"registry password file {path} cannot be read: {error}") from None
    return os.environ.get(PASSWORD_VARIABLE) or (unquote(parts.password) if parts.password else None)

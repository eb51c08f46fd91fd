"""Where the members of a cluster find each other: the address of a Redis server, checked once, its password kept out of
every message."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from trunkline.shared.errors import ConfigError
from trunkline.shared.sentinel import primary

if TYPE_CHECKING:
    from redis.asyncio import Redis

PASSWORD_VARIABLE = "TRUNKLINE_REGISTRY_PASSWORD"  # noqa: S105  # The name of the variable.
SENTINEL_PASSWORD_VARIABLE = "TRUNKLINE_SENTINEL_PASSWORD"  # noqa: S105  # Likewise.
ANSWER_S = 1.0
"""For a connection, and for each group of commands. A server that hangs is given up after this."""
LONGEST_PAUSE_S = 1.0
"""Between two attempts to connect. Registry and load are right again soon after there is a server again."""
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = {
    "redis": (),
    "rediss": _TLS_OPTIONS,
    "unix": ("db",),
    "redis+sentinel": (),
    "rediss+sentinel": _TLS_OPTIONS,
}
_PORTS = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26379, "rediss+sentinel": 26379}
_FORM = (
    "redis://host:port/db, rediss://host:port/db, unix:///path?db=0 or redis+sentinel://host:port,host:port/service/db"
)


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A Redis server, or its sentinels, and a database number. One database belongs to one cluster. `str` shows no
    secret."""

    shown: str
    database: int
    head: str = field(repr=False)
    """Of a server's URL: what comes before host and port."""
    hosts: tuple[str, ...]
    """With ports. One, or none where the path is all, or the sentinels'."""
    tail: str = field(repr=False)
    """Of a server's URL: what comes after host and port."""
    password: str | None = field(repr=False)
    service: str = ""
    """That sentinels are asked for; empty: the one host is the server itself."""
    sentinel_password: str | None = field(repr=False, default=None)

    def __str__(self) -> str:
        return self.shown

    @property
    def prefix(self) -> str:
        """Of every key and channel. Channels are not of a database, so its number is in the name."""
        return f"trunkline:{self.database}"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["Redis"]:
        """A client of the server that is the primary now, not connected yet. It does not retry, and an answer has no
        deadline: that is for `answering`. Raises RedisError where sentinels know no primary."""
        host = "".join(self.hosts)
        if self.service:
            scheme, options = self.head.partition("://")[0], self.tail.partition("?")[2]
            sentinels = [_client(f"{scheme}://{host}?{options}", self.sentinel_password) for host in self.hosts]
            name, port = await primary(sentinels, self.service, ANSWER_S / 2)
            host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        async with _client(f"{self.head}{host}{self.tail}", self.password) as redis:
            yield redis


def registry_address(url: str, password_file: Path | None) -> RegistryAddress:
    """Checks a `--registry`. The password is that of the file, else of the environment, else of the URL; that of
    sentinels is of the environment alone.

    Raises ConfigError, which never shows a password.
    """
    scheme = url.partition("://")[0]
    if scheme not in _OPTIONS:
        raise ConfigError(f"--registry is not of the form {_FORM}")
    try:
        parts = urlsplit(url)
        hosts = _hosts(parts)
    except ValueError:  # It quotes the URL.
        raise ConfigError(f"--registry is not of the form {_FORM}") from None
    sentinel = scheme.endswith("+sentinel")
    service, _, path = parts.path.strip("/").partition("/") if sentinel else ("", "", parts.path)
    named = parts.path if scheme == "unix" else service if sentinel else len(hosts) == 1
    if not named or not (hosts or scheme == "unix"):
        raise ConfigError(f"--registry {scheme}://... is not of the form {_FORM}")
    options = parse_qs(parts.query, keep_blank_values=True)
    for name in options:
        if name not in _OPTIONS[scheme]:
            raise ConfigError(f"--registry: option {name!r} is none that {scheme}:// takes")
    database = _database(options.get("db", ["0"])[0] if scheme == "unix" else path.strip("/") or "0")
    where = ",".join(hosts) + (f"/{service}" if sentinel else parts.path if scheme == "unix" else "")
    user = f"{parts.username}@" if parts.username else ""
    query = f"?{parts.query}" if parts.query else ""
    return RegistryAddress(
        shown=f"{scheme}://{where}/{database}",
        database=database,
        head=f"{scheme.removesuffix('+sentinel')}://{user}",
        hosts=hosts,
        tail=f"{parts.path if scheme == 'unix' else f'/{database}'}{query}",
        password=_password(parts, password_file),
        service=service,
        sentinel_password=os.environ.get(SENTINEL_PASSWORD_VARIABLE) if sentinel else None,
    )


def answering() -> asyncio.Timeout:
    """What is asked of the registry in this context has ANSWER_S. Raises TimeoutError."""
    return asyncio.timeout(ANSWER_S)


def explained(error: BaseException) -> str:
    """A failure of the registry, for people."""
    text = str(error) or (f"no answer within {ANSWER_S:g} s" if isinstance(error, TimeoutError) else repr(error))
    if "HELLO" in text or "password" in text:
        where = (
            SENTINEL_PASSWORD_VARIABLE if "sentinels" in text else f"--registry-password-file or {PASSWORD_VARIABLE}"
        )
        return f"it wants a password, or another one ({where}): {text}".rstrip(".")
    return text.rstrip(".")


def _client(url: str, password: str | None) -> "Redis":
    # Imported here: it takes a tenth of a second, and most processes have no registry.
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        password=password,
        # Given one it sends through asyncio.wait_for, which in Python 3.11 may swallow a cancellation.
        socket_timeout=None,
        socket_connect_timeout=ANSWER_S,
        retry=Retry(NoBackoff(), 0),
        max_connections=8,
    )


def _hosts(parts: SplitResult) -> tuple[str, ...]:
    """With ports. Raises ValueError where one is none."""
    names = parts.netloc.rpartition("@")[2]
    found = []
    for name in names.split(",") if names else ():
        one = urlsplit(f"//{name}")
        if not one.hostname:
            raise ValueError(name)
        host = f"[{one.hostname}]" if ":" in one.hostname else one.hostname
        found.append(f"{host}:{one.port or _PORTS[parts.scheme]}")
    return tuple(found)


def _database(text: str) -> int:
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

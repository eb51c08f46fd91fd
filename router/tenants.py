"""Who is asking: API keys, and the salt that keeps tenants' KV apart.

Without a file everybody is one tenant with an empty salt, and credentials pass through to the nodes. With one, keys
are checked here and stop here. The file is TOML::

    [tenants.acme]
    keys = ["sha256:9f86d0818...", "env:ACME_KEY", "file:/run/secrets/acme"]
    share = "partners"   # optional: tenants of one group share KV
    weight = 2.0         # optional, like what follows: see Limits
    tokens_per_second = 20_000
    burst_tokens = 1_000_000
    priority = -1
"""

import hashlib
import hmac
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from trunkline.shared.errors import ConfigError, RequestError
from trunkline.shared.names import HEADER_CLUSTER, HEADER_SALT

_MAX_REMEMBERED = 4096
"""Keys whose digest is remembered; a client's key is hashed once, not once per request."""


_BURST_S = 60.0
MAX_TENANTS = 4096
"""Each has its own accounts and metrics."""


class Limits(NamedTuple):
    """What a tenant may ask for, and its share where others want more than there is."""

    weight: float = 1.0
    """Against the weights of the others."""
    tokens_per_second: float = 0.0
    """Of prompts and replies, cached ones included; 0: as many as it likes."""
    burst_tokens: float = 0.0
    """That it may use at once after a while without any."""
    priority: int = 0
    """The most urgent one that its requests may have; lower is more urgent."""


class Tenant(NamedTuple):
    """`salt` is hex, `headers` go to the nodes as they are, `forwards_credentials`: the client's own too."""

    name: str
    salt: str
    headers: bytes
    forwards_credentials: bool
    limits: Limits = Limits()


_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[str]
    share: str | None = None
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] = 1.0
    tokens_per_second: _Positive | None = None
    burst_tokens: _Positive | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 0


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tenants: dict[str, _Entry]


class Tenants:
    """Finds the tenant of a request by its Authorization header."""

    def __init__(self, secret: str | None = None, by_digest: Mapping[str, Tenant] | None = None) -> None:
        """`by_digest`: tenants by the SHA-256 (hex) of their keys. None: everybody is one tenant."""
        self._by_digest = by_digest
        self.secret = secret
        self.cluster_header = _cluster_header(secret)
        """A whole line, empty without a secret."""
        self._everybody = Tenant("default", "", self.cluster_header, forwards_credentials=True)
        self._remembered: dict[bytes, Tenant] = {}
        self.configured = tuple({tenant.name: tenant for tenant in (by_digest or {}).values()}.values())
        """Those of the file; none if everybody is one."""

    def named(self, name: str | None) -> Tenant:
        """For who need not show a key. Raises RequestError: 400 without a name though tenants are configured, 404 for
        one that is not."""
        if self._by_digest is None and name is None:
            return self._everybody
        known = {tenant.name: tenant for tenant in self.configured}
        if name is None:
            raise RequestError(f"tenant: name one of {', '.join(sorted(known))}: they share no pages", param="tenant")
        if name not in known:
            raise RequestError(f"tenant: {name!r} is not configured here", status=404, param="tenant")
        return known[name]

    def authenticate(self, authorization: bytes | None) -> Tenant:
        """Raises RequestError (401) for a missing or unknown key if tenants are configured."""
        if self._by_digest is None:
            return self._everybody
        if authorization is None:
            raise _unauthorized("no API key: send `Authorization: Bearer KEY`")
        tenant = self._remembered.get(authorization)
        if tenant is None:
            scheme, _, key = authorization.partition(b" ")
            tenant = self._by_digest.get(hashlib.sha256(key.strip()).hexdigest())
            if tenant is None or scheme.lower() != b"bearer":
                raise _unauthorized("this API key is not known here")
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[authorization] = tenant
        return tenant


def load_tenants(path: Path, secret: str | None) -> Tenants:
    """Tenants of a TOML file. Raises ConfigError naming file, tenant and what is wrong."""
    if secret is None:
        raise ConfigError(
            f"tenants of {path} need a cluster secret (--cluster-secret-file): nodes believe a salt only beside one"
        )
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text()), _File).tenants
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"tenants file {path} cannot be used: {error}") from None
    if len(entries) > MAX_TENANTS:
        raise ConfigError(f"tenants file {path} has {len(entries)} tenants; a router takes {MAX_TENANTS}")
    by_digest: dict[str, Tenant] = {}
    for name, entry in entries.items():
        owner = f"group:{entry.share}" if entry.share is not None else f"tenant:{name}"
        salt = hmac.new(secret.encode(), owner.encode(), hashlib.sha256).hexdigest()[:16]
        headers = f"{HEADER_SALT}: {salt}\r\n".encode() + _cluster_header(secret)
        limits = _limits(entry, f"tenants.{name} in {path}")
        tenant = Tenant(name, salt, headers, forwards_credentials=False, limits=limits)
        for reference in entry.keys:
            digest = _digest(reference, f"tenants.{name} in {path}")
            if by_digest.setdefault(digest, tenant) is not tenant:
                raise ConfigError(f"tenants.{name} in {path} has a key of tenants.{by_digest[digest].name}")
    return Tenants(secret, by_digest)


def _unauthorized(message: str) -> RequestError:
    return RequestError(message, status=401, code="invalid_api_key")


def _limits(entry: _Entry, where: str) -> Limits:
    rate, burst = entry.tokens_per_second, entry.burst_tokens
    if rate is None:
        if burst is not None:
            raise ConfigError(f"{where}: burst_tokens = {burst:g} says nothing without tokens_per_second")
        return Limits(entry.weight, priority=entry.priority)
    return Limits(entry.weight, rate, burst if burst is not None else rate * _BURST_S, entry.priority)


def _cluster_header(secret: str | None) -> bytes:
    return b"" if secret is None else f"{HEADER_CLUSTER}: {secret}\r\n".encode()


def _digest(reference: str, where: str) -> str:
    kind, _, value = reference.partition(":")
    if kind == "sha256" and len(value) == 64 and set(value.lower()) <= set("0123456789abcdef"):
        return value.lower()
    if kind == "env":
        key = os.environ.get(value, "")
    elif kind == "file":
        try:
            key = Path(value).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: key file {value} cannot be read: {error}") from None
    else:
        # The value is not shown: it may be a key that somebody pasted by mistake.
        raise ConfigError(f"{where}: a key must be sha256:HEX, env:NAME or file:PATH")
    if not key.strip():
        raise ConfigError(f"{where}: {kind}:{value} is empty or not set")
    return hashlib.sha256(key.strip().encode()).hexdigest()

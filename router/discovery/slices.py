"""The Kubernetes API as far as a router needs it: the EndpointSlices of one Service, listed and watched.

It takes no rights but `list` and `watch` of `endpointslices` in the Service's namespace. Own code in place of a client
library: this is two GETs.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx
import msgspec

from trunkline.router.discovery.service import ServiceAddress
from trunkline.shared.errors import UNDECODABLE, TrunklineError
from trunkline.shared.lease import Kind, Member

PORT_NAME = "http"
"""Of an agent's API, in the Service."""
ANSWER_S = 5.0
"""For an answer, and for the beginning of a watch."""
WATCH_S = 30
"""A watch ends after so long and is begun again where it was: a connection that died unnoticed costs no more."""
MAX_EVENT_BYTES = 4 << 20
"""More than the API stores in one object."""
MAX_LIST_BYTES = 64 << 20
LIST_S = 30.0
"""For a whole list, or a refusal."""
_GONE = 410
_SHOWN = 200

_T = TypeVar("_T")


class ApiError(TrunklineError):
    """The Kubernetes API did not answer, or not as it should."""


class Expired(ApiError):
    """The version to watch from is too old: list again."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Target(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = []
    target_ref: _Target | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class Slice(msgspec.Struct):
    """Endpoints with the same ports. The API leaves empty lists out, or sends null."""

    metadata: _Metadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None

    def members(self, secret: str | None) -> list[Member]:
        """A node for each endpoint, ready or not: routers look at readiness themselves."""
        return [member.signed(secret) for member in self._members()]

    def _members(self) -> Iterator[Member]:
        port = next((port.port for port in self.ports or () if port.name == PORT_NAME and port.port), None)
        for endpoint in self.endpoints or () if port is not None else ():
            for address in endpoint.addresses[:1]:  # Kubernetes puts one into each.
                host = f"[{address}]" if ":" in address else address
                url, target = f"http://{host}:{port}", endpoint.target_ref or _Target()
                yield Member(Kind.NODE, url, url, target.name or f"{address}:{port}", target.uid)


class _Listing(msgspec.Struct):
    metadata: _Metadata
    items: list[Slice] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A slice that is there (`deleted` false, also a bookmark's: `slice` None) or is not any more."""

    version: str
    slice: Slice | None
    deleted: bool = False


class SliceApi:
    """`list`, then `watch` from its version. Every method raises ApiError. Made by `connected`."""

    def __init__(self, address: ServiceAddress, client: httpx.AsyncClient) -> None:
        self._address = address
        self._client = client

    async def list(self) -> tuple[list[Slice], str]:
        """All slices, and the version to watch from."""
        async with self._get({}, ANSWER_S) as response:
            body = await _read(response)
        listing = _decoded(body, _Listing)
        return listing.items or [], listing.metadata.resource_version

    async def watch(self, version: str) -> AsyncIterator[Change]:
        """What changes after a version, for WATCH_S. Raises Expired as well."""
        parameters = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        parameters["timeoutSeconds"] = str(WATCH_S)
        async with self._get(parameters, WATCH_S + ANSWER_S) as response:
            rest = b""
            async for block in response.aiter_bytes():
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield _change(line)
                if len(rest) > MAX_EVENT_BYTES:
                    raise ApiError(f"an event is larger than {MAX_EVENT_BYTES} bytes")

    @asynccontextmanager
    async def _get(self, parameters: dict[str, str], silence_s: float) -> AsyncIterator[httpx.Response]:
        address = self._address
        path = f"{address.api}/apis/discovery.k8s.io/v1/namespaces/{address.namespace}/endpointslices"
        selector = {"labelSelector": f"kubernetes.io/service-name={address.name}"}
        # Kubernetes replaces the token every hour.
        try:
            token = (
                await asyncio.to_thread((address.account / "token").read_text) if address.account is not None else None
            )
        except (OSError, UnicodeDecodeError) as error:
            raise ApiError(f"the pod's account cannot be read: {error}") from None
        headers = {"authorization": f"Bearer {token.strip()}"} if token is not None else {}
        timeout = httpx.Timeout(ANSWER_S, read=silence_s)
        try:
            async with self._client.stream(
                "GET", path, params=selector | parameters, headers=headers, timeout=timeout
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response.status_code, await _read(response))
                yield response
        except httpx.LocalProtocolError:  # It quotes the token.
            raise ApiError("the token of the pod's account is of no form that can be sent") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ApiError(f"{address.api} does not answer: {str(error) or type(error).__name__}") from None


@asynccontextmanager
async def connected(address: ServiceAddress) -> AsyncIterator[SliceApi]:
    """Raises ApiError for an account that cannot be read."""
    try:
        context = await asyncio.to_thread(_trust, address)
    except (OSError, ssl.SSLError) as error:
        raise ApiError(f"the pod's account cannot be read: {error}") from None
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        yield SliceApi(address, client)


async def _read(response: httpx.Response) -> bytes:
    """The whole body. Raises ApiError for one that has no end."""
    body = bytearray()
    try:
        async with asyncio.timeout(LIST_S):
            async for block in response.aiter_bytes():
                body += block
                if len(body) > MAX_LIST_BYTES:
                    raise ApiError(f"the Kubernetes API answers with more than {MAX_LIST_BYTES} bytes")
    except TimeoutError:
        raise ApiError(f"the Kubernetes API does not end its answer within {LIST_S:g} s") from None
    return bytes(body)


def _trust(address: ServiceAddress) -> ssl.SSLContext | bool:
    return address.account is None or ssl.create_default_context(cafile=str(address.account / "ca.crt"))


def _change(line: bytes) -> Change:
    event = _decoded(line, _Event)
    if event.type == "ERROR":
        raise _refusal(_decoded(event.object, _Status).code, bytes(event.object))
    found = _decoded(event.object, Slice)
    version = found.metadata.resource_version
    return Change(version, None if event.type == "BOOKMARK" else found, deleted=event.type == "DELETED")


def _refusal(code: int, body: bytes) -> ApiError:
    try:
        message = msgspec.json.decode(body, type=_Status).message[:_SHOWN]
    except UNDECODABLE:
        message = body[:_SHOWN].decode(errors="replace")
    return (Expired if code == _GONE else ApiError)(f"the Kubernetes API answers {code}: {message}")


def _decoded(body: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNDECODABLE as error:
        raise ApiError(f"what the Kubernetes API sent does not decode: {error}") from None

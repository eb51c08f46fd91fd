"""Asks a node over HTTP what it is and whether it is ready."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from trunkline.router.fetch import fetch
from trunkline.router.follower import Stream
from trunkline.router.receiver import NodeFailure, OutOfFiles
from trunkline.shared.errors import UNDECODABLE, TrunklineError, WireError
from trunkline.shared.names import HEADER_CLUSTER, INFO_PATH
from trunkline.shared.pull import is_address
from trunkline.shared.wire import AgentInfo, ServedModel, decode_info

MAX_ANSWER_BYTES = 1 << 20
_UNSPECIFIED_HOSTS = {"0.0.0.0", "::", "*"}  # noqa: S104 - what an endpoint may say, not what we bind


class ProbeError(TrunklineError):
    """A node that does not answer, or not in a way that can be used. `slow`: it might only be busy. `unasked`: the
    router had no file descriptor left to ask it."""

    def __init__(self, message: str, *, slow: bool = False, unasked: bool = False) -> None:
        super().__init__(message)
        self.slow = slow
        self.unasked = unasked


@dataclass(frozen=True, slots=True)
class Probed:
    """What a node says. `models` and `transfer` as in `Node`; `reason`: why it is not ready."""

    ready: bool
    reason: str = ""
    info: AgentInfo | None = None
    stream: Stream | None = None
    models: Mapping[str, ServedModel | None] | None = field(default_factory=dict)
    transfer: str = ""


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_ModelList).decode


class Prober:
    """Probes with one deadline each, whatever the node does."""

    def __init__(self, timeout_s: float, headers: bytes = b"") -> None:
        """`headers`: whole lines that prove to agents that this router belongs to their cluster."""
        self._timeout_s = timeout_s
        self._headers = headers

    async def identify(self, url: str) -> Probed:
        """What the node at `url` is and whether it is ready. Raises ProbeError."""
        async with _deadline(self._timeout_s):
            status, body = await self._get(url + INFO_PATH)
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                return Probed(ready=False, reason=_reason(status, body))
            if status == HTTPStatus.UNAUTHORIZED and HEADER_CLUSTER.encode() in body:
                raise ProbeError("wants another cluster secret: give routers and agents the same --cluster-secret-file")
            try:
                info = decode_info(body) if status == HTTPStatus.OK else None
            except WireError as error:
                raise ProbeError(str(error)) from None
            if info is None:
                return await self._plain(url)
            ready = await self._readiness(url)
            models = {model.name: model for model in info.models}
            return Probed(ready.ready, ready.reason, info, _stream(info, url), models, _transfer(info, url))

    async def refresh(self, url: str, *, agent: bool) -> Probed:
        """As `identify`, with one request, for a node that is known: an agent says only whether it is ready."""
        async with _deadline(self._timeout_s):
            return await (self._readiness(url) if agent else self._plain(url))

    async def _readiness(self, url: str) -> Probed:
        status, body = await self._get(url + "/readyz")
        return Probed(status == HTTPStatus.OK, "" if status == HTTPStatus.OK else _reason(status, body))

    async def _plain(self, url: str) -> Probed:
        """An OpenAI server of another make: /v1/models if it has it, else any sign of health."""
        status, body = await self._get(url + "/v1/models")
        if status == HTTPStatus.OK:
            try:
                return Probed(ready=True, models={model.id: None for model in _decode_models(body).data})
            except UNDECODABLE:
                pass
        status, body = await self._get(url + "/health")
        if status == HTTPStatus.OK:
            return Probed(ready=True, models=None)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return Probed(ready=False, reason=_reason(status, body), models=None)
        raise ProbeError(f"none of {INFO_PATH}, /v1/models and /health answers 200: is this an inference server?")

    async def _get(self, url: str) -> tuple[int, bytes]:
        try:
            return await fetch(url, MAX_ANSWER_BYTES, self._timeout_s, self._headers)
        except NodeFailure as failure:
            unasked = isinstance(failure, OutOfFiles)
            raise ProbeError(f"GET {url}: {failure}", slow=failure.timeout, unasked=unasked) from None


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ProbeError(f"no whole answer within {seconds:g} s", slow=True) from None


def _reason(status: int, body: bytes) -> str:
    return f"answers {status}: {body[:200].decode(errors='replace').strip()}"


def _stream(info: AgentInfo, url: str) -> Stream:
    return Stream(info.node, _endpoint(info.events, url), _endpoint(info.replay, url))


def _transfer(info: AgentInfo, url: str) -> str:
    if not info.transfer:
        return ""
    if not is_address(info.transfer):
        raise ProbeError(f"transfer address {info.transfer[:200]!r} is not of the form host:port")
    return _endpoint(f"tcp://{info.transfer}", url).removeprefix("tcp://")


def _endpoint(endpoint: str, url: str) -> str:
    """An endpoint to connect to; an agent that binds every address is where its HTTP side is."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "tcp":
        raise ProbeError(f"event endpoint {endpoint[:200]!r} is not of the form tcp://host:port")
    if host in _UNSPECIFIED_HOSTS:
        host = urlsplit(url).hostname or host
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"

"""Has a node keep a prefix, or forget all it holds: by order of an operator."""

import asyncio
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import msgspec

from trunkline.router.fetch import CONNECT_S, fetch, message_of
from trunkline.router.nodes import Node, Registry
from trunkline.router.receiver import NodeFailure
from trunkline.shared.errors import UNDECODABLE, RequestError
from trunkline.shared.pins import CACHE_PATH, PINS_PATH, PinList, PinStatus

ANSWER_S = 10.0
MAX_ANSWER_BYTES = 1 << 20
_DONE = (HTTPStatus.OK, HTTPStatus.NO_CONTENT)
_T = TypeVar("_T")


class Upkeep:
    """Used on the event loop. Methods raise RequestError: 404 for a name that no node has, 502 and 504 for a node that
    does not answer, or not as it should, else what the node says."""

    def __init__(self, registry: Registry, cluster_header: bytes) -> None:
        self._registry = registry
        self._cluster_header = cluster_header

    async def pin(self, name: str, key: str, ttl_s: float) -> PinStatus:
        """The node keeps the pages up to the one that ends with this key, while others can go."""
        node = self._registry.named(name)
        body = msgspec.json.encode({"key": key, "ttl": ttl_s})
        return _decoded(node, await self._tell(node, b"POST", PINS_PATH, body), PinStatus)

    async def pins(self, name: str) -> PinList:
        """What is pinned there."""
        node = self._registry.named(name)
        return _decoded(node, await self._tell(node, b"GET", PINS_PATH), PinList)

    async def unpin(self, name: str, pin: str) -> None:
        """The node lets these pages go as others, and knows no such pin after it."""
        await self._tell(self._registry.named(name), b"DELETE", f"{PINS_PATH}/{quote(pin, safe='')}")

    async def clear(self, name: str) -> None:
        """The node's cache is empty after it, in every tier."""
        await self._tell(self._registry.named(name), b"DELETE", CACHE_PATH)

    async def _tell(self, node: Node, method: bytes, path: str, body: bytes = b"") -> bytes:
        try:
            async with asyncio.timeout(ANSWER_S):
                status, answer = await fetch(
                    node.url + path, MAX_ANSWER_BYTES, CONNECT_S, self._cluster_header, method=method, body=body
                )
        except TimeoutError:
            raise _upstream(node, f"no answer within {ANSWER_S:g} s", HTTPStatus.GATEWAY_TIMEOUT) from None
        except NodeFailure as failure:
            raise _upstream(node, str(failure), HTTPStatus.BAD_GATEWAY) from None
        if status not in _DONE:
            # No 401: it is the router whom the node does not know.
            said = 400 <= status < 600 and status != HTTPStatus.UNAUTHORIZED
            raise _upstream(node, f"answers {status}: {message_of(answer)}", status if said else HTTPStatus.BAD_GATEWAY)
        return answer


def _decoded(node: Node, answer: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNDECODABLE as error:
        raise _upstream(node, f"its answer does not decode: {error}", HTTPStatus.BAD_GATEWAY) from None


def _upstream(node: Node, reason: str, status: int) -> RequestError:
    return RequestError(f"node {node.name}: {reason}", status=status, kind="upstream_error")

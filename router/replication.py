"""Has nodes pull prefixes that other nodes hold, though no request has come for them."""

import asyncio
import time
from array import array

from trunkline.kernels.core import PrefixIndex, page_chain
from trunkline.router.body import Prompt
from trunkline.router.fetch import OrderFailed, order
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.router.node import Node
from trunkline.router.nodes import Registry
from trunkline.router.scheduler.scheduler import Scheduler
from trunkline.router.tenants import Tenant
from trunkline.shared.errors import RequestError
from trunkline.shared.handover import MAX_OFFER_BYTES, PREFIXES_PATH, WarmPrefix
from trunkline.shared.names import HEADER_PULL_FROM, PULLS_PATH
from trunkline.shared.namespace import Namespace
from trunkline.shared.pull import Brought, PullFrom
from trunkline.shared.replicate import Copy, Replicated
from trunkline.shared.wire import KEY_BYTES

SLACK_S = 5.0
"""For a node to answer after an order's own deadline."""
LEAST_S = 0.1
"""That is left for what remains to be done, however late it is: as little as can be asked for at all."""
MAX_ANSWER_BYTES = 1 << 16


class Replication:
    """Used on the event loop."""

    def __init__(
        self, registry: Registry, index: PrefixIndex, scheduler: Scheduler, cluster_header: bytes = b""
    ) -> None:
        """`cluster_header`: a whole line that says to nodes who asks."""
        self._registry = registry
        self._index = index
        self._scheduler = scheduler
        self._cluster_header = cluster_header
        self._seeds = Seeds()

    async def replicate(self, prompt: Prompt, body: bytes, tenant: Tenant, count: int, timeout_s: float) -> Replicated:
        """The `count` least busy nodes that lack some of the prompt pull it from the one that has most of it.

        `body`: how nodes are told of the prompt. Raises RequestError 404 if nobody has any of it, or the model.
        """
        candidates = self._registry.candidates(prompt.model)
        if not candidates:
            raise self._registry.missing(prompt.model)
        keys = PromptKeys(prompt, tenant.salt, self._seeds, bytes_per_token=1.0)
        held: dict[Node, int] = {}
        spaces = {node: namespace for node in candidates if (namespace := namespace_of(node, prompt.model))}
        for namespace in set(spaces.values()):
            found = self.held(keys.chain(namespace))
            held |= {node: tokens for node, tokens in found.items() if spaces.get(node) == namespace}
        return await self._spread(prompt.model, held, spaces, body, tenant.headers, count, timeout_s)

    async def replicate_known(self, key: int, model: str, count: int, timeout_s: float) -> Replicated:
        """The same for what ends with a page key or text key, be it whose it may: the nodes that hold it are asked what
        it is. Raises RequestError 404 if nobody has it, 502 if none of them says."""
        ends = time.monotonic() + timeout_s
        candidates = self._registry.candidates(model)
        spaces = {node: namespace for node in candidates if (namespace := namespace_of(node, model))}
        having = [node for node in self.held(key.to_bytes(KEY_BYTES, "little")) if node in spaces and node.transfer]
        if not having:
            raise RequestError(f"no node that lends pages of {model} holds key {key:016x}", status=404, param="key")
        source, prefix = await self._known(having, key, ends)
        chain = page_chain(self._seeds.get(spaces[source], prefix.salt, text=False), array("i", prefix.prompt))
        alike = {node: namespace for node, namespace in spaces.items() if namespace == spaces[source]}
        held = {node: tokens for node, tokens in self.held(chain).items() if node in alike}
        headers, left_s = self._cluster_header + prefix.headers(), max(LEAST_S, ends - time.monotonic())
        return await self._spread(model, held, alike, prefix.order(left_s), headers, count, left_s)

    async def _known(self, having: list[Node], key: int, ends: float) -> tuple[Node, WarmPrefix]:
        """The first that says what ends with the key; each has an equal share of the time that is left."""
        failed = []
        for position, node in enumerate(having):
            share_s = max(LEAST_S, ends - time.monotonic()) / (len(having) - position)
            url = f"{node.url}{PREFIXES_PATH}/{key:016x}"
            try:
                prefix = await order(url, WarmPrefix, MAX_OFFER_BYTES, share_s, self._cluster_header, method=b"GET")
            except OrderFailed as error:
                failed.append(f"{node.name} {error}")
            else:
                return node, prefix
        why = "; ".join(failed)
        raise RequestError(f"nobody who holds key {key:016x} says what it is: {why}", status=502)

    async def _spread(
        self,
        model: str,
        held: dict[Node, int],
        spaces: dict[Node, Namespace],
        body: bytes,
        headers: bytes,
        count: int,
        timeout_s: float,
    ) -> Replicated:
        """`held`: tokens of the prefix; `spaces`: all nodes that could have it."""
        if not any(node.transfer for node in spaces):
            raise RequestError("no node lends pages: agents with --host-memory do", status=404)
        source = max((node for node in held if node.transfer), key=held.__getitem__, default=None)
        if source is None:
            raise RequestError("no node that lends pages holds a page of this prefix", status=404)
        tokens = held[source]
        alike = [node for node, namespace in spaces.items() if namespace == spaces[source]]
        lacking = [node for node in alike if node.transfer and held.get(node, 0) < tokens]
        takers = sorted(lacking, key=lambda node: self.burden_s(node, tokens - held.get(node, 0)))[:count]
        jobs = [self._copy(taker, PullFrom(source.transfer, tokens), body, headers, timeout_s) for taker in takers]
        copies = await asyncio.gather(*jobs)
        having = sorted(node.name for node in alike if held.get(node, 0) >= tokens)
        return Replicated(model, tokens, source.name, having, copies)

    def held(self, chain: bytes) -> dict[Node, int]:
        """Tokens of the chain that nodes hold, as their summaries say."""
        flat = iter(memoryview(self._index.match(chain)).cast("I"))
        sums = {node: device + host + disk for node, device, host, disk in zip(flat, flat, flat, flat, strict=True)}
        return {node: sums[node.index] for node in self._registry.nodes if node.index in sums}

    def burden_s(self, node: Node, tokens: int) -> float:
        """Seconds until the node would have computed so many tokens more: for what it waits, and how busy it is."""
        load = self._scheduler.load_of(node)
        load.settle()
        return load.wait_s + load.utilisation(time.monotonic()) + tokens * self._scheduler.prices.per_token

    async def order(self, taker: Node, source: PullFrom, body: bytes, headers: bytes, timeout_s: float) -> Brought:
        """`headers`: whole lines, that say who asks and for which tenant. Raises OrderFailed."""
        lines = f"{HEADER_PULL_FROM}: {source}\r\n".encode() + headers
        return await order(taker.url + PULLS_PATH, Brought, MAX_ANSWER_BYTES, timeout_s + SLACK_S, lines, body=body)

    async def _copy(self, taker: Node, source: PullFrom, body: bytes, headers: bytes, timeout_s: float) -> Copy:
        try:
            brought = await self.order(taker, source, body, headers, timeout_s)
        except OrderFailed as error:
            return Copy(taker.name, error=str(error))
        return Copy(taker.name, brought.held, brought.pulled, brought.seconds)


def namespace_of(node: Node, model: str) -> Namespace | None:
    """Of the model there. None: not known."""
    served = (node.models or {}).get(model)
    return served.namespace if served is not None else None

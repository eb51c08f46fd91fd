"""Pages that a request needs and its node's device lacks: promoted from the host tier, pulled from another node.

    prompt  |  on the device  |  host tier: promoted  |  held by job.pull_from: pulled  |  computed  |

A fetch begins when the request reaches the node, so it overlaps with the wait for its turn, and with the computation of
the prompt's first chunk, layer by layer. What has come is committed to the device tier, a second copy if it was pulled.
The node has the last word: what it could compute sooner is not fetched.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.links import Flow, Links
from trunkline.loadtest.sim.node import EngineModel
from trunkline.loadtest.sim.policies.base import Setup
from trunkline.shared.names import PAGE_TOKENS

HANDSHAKE_S = 1e-3
"""Between asking another node for pages and the first byte."""
PATIENCE, PATIENCE_S = 1.2, 0.05
"""A pull is given up after so many times what computing would have taken, and so many seconds."""
_IN, _OUT, _HOST = range(3)


@dataclass(slots=True, eq=False)
class _Fetch:
    """Under way to one node. Pages are counted from the start of the prompt."""

    node: int
    job: Job
    begun_at: float
    held: list[int]
    """Of the node's own device, from the first page on."""
    below: int = 0
    """Of its host tier, after these."""
    promoted: int = 0
    pulled: int = 0
    lent: list[int] = field(default_factory=list)
    """Leased from the other node's device, from its first page on, so that they stay."""
    keys: list[int] = field(default_factory=list)
    """Of the pages that come."""
    flows: int = 0
    """Not ready yet."""
    worth_s: float = 0.0
    """Seconds in which what waits at the node and the pulled pages would have been computed."""
    pull: Flow | None = None
    vain: bool = False
    """Whether the pull was given up."""
    followers: list[Job] = field(default_factory=list)
    """Requests that need the same pages at the same node."""

    @property
    def stop(self) -> int:
        return len(self.held) + self.promoted + self.pulled


@dataclass(slots=True)
class Fetched:
    """Of a whole run."""

    promoted_tokens: int = 0
    pulls: int = 0
    pulled_tokens: int = 0
    vain_pulls: int = 0
    """Pulls that took longer than computing would have, or found no room."""


class Fetcher:
    """Between arrival and queue: `submit` hands each job to its engine, at once or when its pages have come."""

    def __init__(
        self,
        setup: Setup,
        caches: Sequence[PageCache],
        engines: Sequence[EngineModel],
        later: Callable[[float, Callable[[float], None]], None],
        changed: Callable[[int], None],
        *,
        shared: bool,
    ) -> None:
        """`shared`: one cache is all nodes'. `later`: calls at a time. `changed`: a node's engine has other plans."""
        profile = setup.profile
        self.totals = Fetched()
        link = setup.link_bytes_s or profile.network_bytes_s
        self.links = Links([link, link, profile.host_bytes_s] * setup.nodes)
        self._setup = setup
        self._caches, self._engines = caches, engines
        self._later, self._changed = later, changed
        self._shared = shared
        self._page_bytes = profile.kv_bytes * setup.block_tokens
        self._under_way: dict[Flow, _Fetch] = {}
        self._coming: list[dict[int, _Fetch]] = [{} for _ in caches]
        """By node and key: the pages that are on their way."""

    def submit(self, node: int, job: Job, now: float) -> None:
        """The request has reached the node."""
        cache = self._caches[node]
        fetch = _Fetch(node, job, now, cache.match(job.chain), len(job.chain.below))
        cache.begin(job.chain)
        if self._shared:
            self._pull_shared(fetch, now)
        elif (other := self._coming_to(fetch)) is not None:
            other.followers.append(job)
            cache.release(fetch.held, used=False)
            job.expected = other.stop * self._setup.block_tokens
            self._engines[node].submit(job, now, ready=False)
            return
        else:
            self._promote(fetch, now)
            self._pull(fetch, now)
        job.expected = fetch.stop * self._setup.block_tokens
        self._engines[node].submit(job, now, ready=not fetch.flows)
        self._changed(node)
        if not fetch.flows:
            cache.release(fetch.held, used=False)
        else:
            fetch.keys = job.chain.keys[len(fetch.held) : fetch.stop]
            self._coming[node].update(dict.fromkeys(fetch.keys, fetch))

    def advance(self, now: float) -> None:
        """Something is `links.due`."""
        for flow in self.links.advance(now):
            self._landed(self._under_way.pop(flow), now)

    def left(self, node: int, now: float) -> tuple[float, float]:
        """Tokens still to come to the node from others, and to go out from it to them."""
        token = self._setup.profile.kv_bytes
        return self.links.left(3 * node + _IN, now) / token, self.links.left(3 * node + _OUT, now) / token

    def _coming_to(self, fetch: _Fetch) -> _Fetch | None:
        """What brings the first page that the node lacks."""
        following = next(iter(_missing(fetch.job.chain, len(fetch.held))), None)
        return None if following is None else self._coming[fetch.node].get(following)

    def _promote(self, fetch: _Fetch, now: float) -> None:
        start, count = len(fetch.held), fetch.below
        links = (3 * fetch.node + _HOST,)
        if count and self._pays(fetch, links, start, count):
            fetch.promoted = count
            fetch.flows += 1
            self._flow(fetch, links, count, now)

    def _pull(self, fetch: _Fetch, now: float) -> None:
        source, chain = fetch.job.pull_from, fetch.job.chain
        if source is None or source == fetch.node or self._setup.link_bytes_s is None:
            return
        lent = self._caches[source].match(chain)
        held = len(lent) + len(chain.below)
        start = fetch.stop
        links = (3 * source + _OUT, 3 * fetch.node + _IN)
        if held <= start or not self._pays(fetch, links, start, held - start, HANDSHAKE_S):
            self._caches[source].release(lent, used=False)
            return
        fetch.lent, fetch.pulled = lent, held - start
        fetch.flows += 1
        self._later(now + HANDSHAKE_S, partial(self._flow_pull, fetch, links))

    def _flow_pull(self, fetch: _Fetch, links: Sequence[int], now: float) -> None:
        """The holder has answered. Others may have begun meanwhile, so the reader looks again."""
        count = fetch.pulled
        if self._takes_s(fetch, links, fetch.stop - count, count) >= fetch.begun_at + fetch.worth_s - now:
            fetch.pulled = 0
            fetch.job.expected = fetch.stop * self._setup.block_tokens
            self._landed(fetch, now)
            return
        self.totals.pulls += 1
        fetch.pull = self._flow(fetch, links, count, now)
        self._later(now + PATIENCE * fetch.worth_s + PATIENCE_S, partial(self._give_up, fetch))

    def _give_up(self, fetch: _Fetch, now: float) -> None:
        """If the pull is still not there. Its first pages have come, and are used."""
        flow = fetch.pull
        if flow is None or flow.ready:
            return
        self.links.cancel(flow, now)
        del self._under_way[flow]
        fetch.vain = True
        fetch.pulled -= math.ceil(flow.left / self._page_bytes)
        self._landed(fetch, now)

    def _pull_shared(self, fetch: _Fetch, now: float) -> None:
        """From a pool whose pages lie on all nodes alike."""
        pages = len(fetch.held) * (self._setup.nodes - 1) / self._setup.nodes
        if pages:
            self.totals.pulls += 1
            self.totals.pulled_tokens += len(fetch.held) * self._setup.block_tokens
            fetch.flows += 1
            self._flow(fetch, (3 * fetch.node + _IN,), pages, now)

    def _pays(self, fetch: _Fetch, links: Sequence[int], start: int, count: int, latency: float = 0.0) -> bool:
        """Whether the pages come sooner than the node could have computed them after what waits before them."""
        block, profile = self._setup.block_tokens, self._setup.profile
        ahead = self._engines[fetch.node].ahead(fetch.job, fetch.job.prompt_tokens - start * block)
        fetch.worth_s = ahead * profile.linear_s + profile.prefill_s(start * block, (start + count) * block)
        return latency + self._takes_s(fetch, links, start, count) < fetch.worth_s

    def _takes_s(self, fetch: _Fetch, links: Sequence[int], start: int, count: int) -> float:
        """If it began now: until the rest comes no later than it is needed."""
        return self.links.seconds(links, count * self._page_bytes) - self._ahead_s(fetch.job, start + count)

    def _flow(self, fetch: _Fetch, links: Sequence[int], pages: float, now: float) -> Flow:
        flow = Flow(links, pages * self._page_bytes, self._ahead_s(fetch.job, fetch.stop))
        self._under_way[flow] = fetch
        self.links.start(flow, now)
        return flow

    def _ahead_s(self, job: Job, stop: int) -> float:
        """Of computing the first chunk after so many pages: layers come in the order in which they are needed."""
        profile, begin = self._setup.profile, stop * self._setup.block_tokens
        return profile.fixed_s + profile.prefill_s(begin, min(job.prompt_tokens, begin + profile.step_tokens))

    def _landed(self, fetch: _Fetch, now: float) -> None:
        """One of its flows has ended."""
        fetch.flows -= 1
        if not fetch.flows:
            self._arrive(fetch, now)

    def _arrive(self, fetch: _Fetch, now: float) -> None:
        node, job, cache = fetch.node, fetch.job, self._caches[fetch.node]
        for key in fetch.keys:
            self._coming[node].pop(key, None)
        if fetch.lent and job.pull_from is not None:
            self._caches[job.pull_from].release(fetch.lent, used=False)
            self._engines[job.pull_from].freed(now)
            self._changed(job.pull_from)
        came = self._shared or self._commit(fetch)
        if came:
            block_tokens = self._setup.block_tokens
            job.promoted, job.pulled = fetch.promoted * block_tokens, fetch.pulled * block_tokens
            job.fetch_s = now - fetch.begun_at
            self.totals.promoted_tokens += job.promoted
            self.totals.pulled_tokens += job.pulled
        if fetch.pull is not None and (fetch.vain or not came or now - fetch.begun_at > fetch.worth_s):
            self.totals.vain_pulls += 1
        cache.release(fetch.held, used=False)
        for one in (job, *fetch.followers):
            self._engines[node].arrived(one, now)
        self._changed(node)

    def _commit(self, fetch: _Fetch) -> bool:
        """What came is in the device tier from now on. False: there is no room for it."""
        cache, chain = self._caches[fetch.node], fetch.job.chain
        pages = cache.match(chain)
        fresh = cache.allocate(max(0, fetch.stop - len(pages)))
        if fresh is not None:
            pages += [cache.commit(chain, index, page) for index, page in enumerate(fresh, start=len(pages))]
        cache.release(pages, used=False)
        return fresh is not None


def _missing(chain: Chain, held: int) -> Iterable[int]:
    """Keys of the pages after those that are held. One token at least is computed, so the last page may not count."""
    return chain.keys[held : max(0, len(chain.tokens) - 1) // PAGE_TOKENS]

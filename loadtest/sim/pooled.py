"""The ideal that runs are compared with: one cache of the fleet's total size, and every prompt served at once."""

from typing import NamedTuple

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.engine.emulated.profile import Profile
from trunkline.loadtest.sim.events import EventLog
from trunkline.loadtest.sim.policies.trunkline import NAMESPACE
from trunkline.loadtest.sim.trace import Record, Trace


class Pooled(NamedTuple):
    """Tokens found in the pooled cache, of how many, and the seconds of one node's work that are left to do."""

    cached_tokens: int
    prompt_tokens: int
    prefill_s: float
    """Prefill of what is not found, and the fixed part of one step for each step budget of it."""
    decode_s: float

    @property
    def ratio(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def work_s(self) -> float:
        return self.prefill_s + self.decode_s


def pooled(trace: Trace, profile: Profile, pages: int) -> Pooled:
    """Every request of the trace, one after the other."""
    cache = PageCache(pages, EventLog())
    cached_tokens = prompt_tokens = 0
    prefill_s = decode_s = 0.0
    for record in trace.records:
        cached = serve(cache, record, trace.block_tokens) * trace.block_tokens
        cached_tokens += cached
        prompt_tokens += record.prompt_tokens
        prefill_s += profile.prefill_s(cached, record.prompt_tokens)
        prefill_s += profile.fixed_s * -(-(record.prompt_tokens - cached) // profile.step_tokens)
        if profile.replies:
            decode_s += profile.decode_s(record.prompt_tokens, record.output_tokens)
    return Pooled(cached_tokens, prompt_tokens, prefill_s, decode_s)


def serve(cache: PageCache, record: Record, block_tokens: int) -> int:
    """The request has begun and ended in the cache. Returns how many pages it found there."""
    chain = Chain(NAMESPACE, record.page_tokens(block_tokens))
    held = cache.match(chain)
    cache.begin(chain)
    fresh = cache.allocate(len(chain.keys) - len(held)) or []
    found = len(held)
    held += [cache.commit(chain, index, page) for index, page in enumerate(fresh, start=found)]
    cache.end(chain, held, record.output_tokens)
    return found

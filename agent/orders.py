"""Prefixes that this node brings here by order of a router, though no request for them has come yet."""

import asyncio
import time
from functools import partial

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.pull import Pull
from trunkline.agent.engine.base import Engine
from trunkline.agent.prepare import Prompt
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.pull import Brought, PullFrom

AT_ONCE = 4
"""Half of the pulls that a node has under way at most: requests need theirs."""
MOST_WAITING = 64
LOOK_S = 0.01
"""Between looks at whether a pull has ended, or pages have come from the disk."""


class Orders:
    """Used on the event loop."""

    def __init__(self, engine: Engine) -> None:
        """`engine` has started."""
        self.pulled_tokens = 0
        """Ever."""
        self._engine = engine
        self._room = asyncio.Semaphore(AT_ONCE)
        self._orders = 0

    async def bring(self, prompt: Prompt, salt: str, source: PullFrom, timeout_s: float) -> Brought:
        """The whole pages of the prompt, from there to the host tier, as far as the time allows. They count as used
        now, and have the prompt's text keys.

        Raises RequestError: 409 if this node pulls nothing, 422 for a prompt of no whole page, 429 when too many wait
        already, and EngineError.
        """
        if self._engine.memory is None:
            raise RequestError("this node pulls no pages: it has no host tier, or not of the native format", status=409)
        if self._orders >= AT_ONCE + MOST_WAITING:
            raise Overloaded(f"{self._orders} prefixes are being brought here already", retry_after=timeout_s)
        salted = self._engine.model.namespace.salted(salt)
        chain = Chain(salted, prompt.tokens, source.address, source.tokens // PAGE_TOKENS)
        if not chain.keys:
            reason = (
                f"a prefix of {len(chain.tokens)} tokens has no whole page of {PAGE_TOKENS}: there is nothing to bring"
            )
            raise RequestError(reason, status=422)
        began = time.monotonic()
        self._orders += 1
        try:
            await self._engine.on_cache(lambda cache: cache.attach_text(chain, prompt.text_keys, prompt.text_depths))
            before = await self._settle(chain)
            try:
                async with asyncio.timeout(timeout_s), self._room:
                    await self._bring(chain, before)
            except TimeoutError:
                pass  # What has come by then is here.
            held = await self._settle(chain)
        finally:
            self._orders -= 1
        pulled = (held - before) * PAGE_TOKENS
        self.pulled_tokens += pulled
        return Brought(len(chain.keys) * PAGE_TOKENS, held * PAGE_TOKENS, pulled, round(time.monotonic() - began, 3))

    async def _bring(self, chain: Chain, held: int) -> None:
        """Pull after pull: a holder may lend a part at a time, and one takes no more than half of the host."""
        while held < len(chain.keys):
            while not await self._engine.on_cache(lambda cache: cache.ordered.lift(chain)):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            pull = await self._engine.on_cache(lambda cache: cache.ordered.pull(chain))
            if pull is None:
                return
            try:
                while pull.pending:  # noqa: ASYNC110  # Another thread says so.
                    await asyncio.sleep(LOOK_S)
            finally:
                await self._engine.on_cache(partial(_leave, pull))
            before, held = held, await self._settle(chain)
            if held == before:
                return

    async def _settle(self, chain: Chain) -> int:
        """Pages of it that are here."""
        return await self._engine.on_cache(lambda cache: cache.ordered.settle(chain))


def _leave(pull: Pull, cache: PageCache) -> None:
    cache.ordered.leave(pull)

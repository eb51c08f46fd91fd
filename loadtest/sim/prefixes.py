"""Makes up prefixes for a trace that has none: shared system prompts, and conversations that grow.

A request either goes on with an open conversation, whose prompt and reply so far then are the start of its own prompt,
or begins a new one with a system prompt. System prompts are drawn from a Zipf distribution, their lengths from a
log-normal one. Conversations are told by length alone: of those still open, the longest that fits into the prompt.
"""

import random
from bisect import bisect_right, insort
from itertools import accumulate

SYSTEM_PROMPTS = 64
ZIPF_EXPONENT = 1.1
SYSTEM_TOKENS_MEDIAN, SYSTEM_TOKENS_SIGMA = 300.0, 1.0
CONTINUES = 0.6
"""Share of the requests that go on with a conversation, if one fits."""
OPEN_CONVERSATIONS = 256


class PrefixGenerator:
    """Block ids and session numbers, the same ones for the same seed and lengths."""

    def __init__(self, block_tokens: int, seed: int) -> None:
        self._block_tokens = block_tokens
        self._chance = random.Random(seed)
        self._system_tokens = [
            int(self._chance.lognormvariate(0.0, SYSTEM_TOKENS_SIGMA) * SYSTEM_TOKENS_MEDIAN)
            for _ in range(SYSTEM_PROMPTS)
        ]
        self._popularity = list(accumulate(1 / rank**ZIPF_EXPONENT for rank in range(1, SYSTEM_PROMPTS + 1)))
        self._ids: dict[tuple[int, int], int] = {}
        """By (system prompt or conversation, block); conversations are numbered after the system prompts."""
        self._open: list[tuple[int, int, int]] = []
        """(tokens so far, conversation, system prompt), in ascending order."""
        self._conversations = 0

    def next(self, prompt_tokens: int, output_tokens: int) -> tuple[list[int], int]:
        """Ids of the blocks of the next request's prompt, and its conversation."""
        _, conversation, system = self._choose(prompt_tokens)
        insort(self._open, (prompt_tokens + output_tokens, conversation, system))
        if len(self._open) > OPEN_CONVERSATIONS:
            del self._open[self._chance.randrange(len(self._open))]
        shared = self._system_tokens[system] // self._block_tokens
        ids = []
        for block in range(-(-prompt_tokens // self._block_tokens)):
            owner = system if block < shared else SYSTEM_PROMPTS + conversation
            ids.append(self._ids.setdefault((owner, block), len(self._ids)))
        return ids, conversation

    def _choose(self, prompt_tokens: int) -> tuple[int, int, int]:
        fitting = bisect_right(self._open, (prompt_tokens - 1,))
        if fitting and self._chance.random() < CONTINUES:
            return self._open.pop(fitting - 1)
        system = self._chance.choices(range(SYSTEM_PROMPTS), cum_weights=self._popularity)[0]
        self._conversations += 1
        return 0, self._conversations - 1, system

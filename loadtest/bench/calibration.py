"""Fits a profile for the simulator from a server's own answers: a small grid of prompts and batches, over HTTP.

Prefill: prompts of several lengths, and short ones after a cached prefix. Decode: batches of several sizes, after a
short and after a long cached prefix. All prompts are new. Several equal servers are measured at the same time, so that
they disturb each other as they will at work.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from trunkline.agent.engine.emulated.profile import Profile, Step, fit, pairs
from trunkline.loadtest.bench.completion import Reply, Target, complete, random_tokens

PROMPTS = (48, 160, 400, 800, 1600)
PREFIX, SUFFIXES = 1008, (32, 160)
"""Whole pages, so that all of the prefix is found again."""
BATCHES = (1, 2, 4, 8)
CONTEXTS = (48, 1008)
DECODE_TOKENS = 16

Sample = tuple[Step, float]
"""A step, or the mean of several, and its seconds."""


def measure(targets: Sequence[Target], step_tokens: int) -> list[Sample]:
    """One round of the grid on every target. `step_tokens` is the servers' token budget of a step."""
    barrier = threading.Barrier(len(targets))

    def one(target: Target) -> list[Sample]:
        try:
            return list(_grid(target, step_tokens, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(targets)) as pool:
        return [sample for samples in pool.map(one, targets) for sample in samples]


def fitted(base: Profile, samples: Sequence[Sample]) -> Profile:
    """`base` with the times that the samples suggest. Raises ConfigError if they are too few."""
    return fit(base, [step for step, _ in samples], [seconds for _, seconds in samples])


def _grid(target: Target, step_tokens: int, barrier: threading.Barrier) -> Iterator[Sample]:
    for count in PROMPTS:
        barrier.wait()
        yield _prefill(0, count, step_tokens, complete(target, random_tokens(count), 1))
    prefix = random_tokens(PREFIX)
    complete(target, prefix, 1)
    for count in SUFFIXES:
        barrier.wait()
        reply = complete(target, prefix + random_tokens(count), 1)
        yield _prefill(reply.cached_tokens, PREFIX + count, step_tokens, reply)
    for context in CONTEXTS:
        prompt = random_tokens(context)
        complete(target, prompt, 1)
        for batch in BATCHES:
            barrier.wait()
            yield _decode(target, prompt, batch)


def _prefill(start: int, stop: int, step_tokens: int, reply: Reply) -> Sample:
    steps = -(-(stop - start) // step_tokens)
    return Step((stop - start) / steps, pairs(start, stop) / steps), reply.ttft / steps


def _decode(target: Target, prompt: list[int], batch: int) -> Sample:
    """From the first token to the last: what is left of the prompt's prefill is a few tokens."""
    with ThreadPoolExecutor(batch) as pool:
        replies = list(pool.map(lambda _: complete(target, prompt + random_tokens(4), DECODE_TOKENS), range(batch)))
    seconds = max(reply.last for reply in replies) - max(reply.first for reply in replies)
    steps = DECODE_TOKENS - 1
    return Step(decodes=batch, decode_context=batch * (len(prompt) + DECODE_TOKENS // 2)), seconds / steps

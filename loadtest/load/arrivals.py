"""Requests of an open loop, each with its time: made up at a rate, or those of a trace."""

import random
from collections.abc import Iterator
from functools import lru_cache

from trunkline.loadtest.load.conversation import Request
from trunkline.loadtest.load.server import Server
from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.text import Writer
from trunkline.loadtest.sim.trace import Record, Trace, load_trace
from trunkline.shared.errors import ConfigError

Arrival = tuple[float, Request | None]
"""Seconds from the start, and what comes then; None: the next request of some conversation."""

_KEPT_BLOCKS = 4096


def at_rate(settings: Settings) -> Iterator[Arrival]:
    """Without end; in bursts of `settings.burst`, whose starts are a Poisson process."""
    chance = random.Random(f"{settings.seed} arrivals")
    at = 0.0
    while True:
        at += chance.expovariate(settings.rate / settings.burst)
        yield from [(at, None)] * settings.burst


def load(settings: Settings, server: Server) -> Trace:
    """The trace of the settings. Raises ConfigError as `load_trace`, and for a request over the server's context."""
    if settings.trace is None:
        raise ValueError("no trace is set")
    trace = load_trace(settings.trace, settings.block_tokens, seed=settings.seed, skip_bad=settings.skip_bad)
    longest = max(record.prompt_tokens + record.output_tokens for record in trace.records) + server.template_tokens
    if server.context is not None and longest > server.context:
        raise ConfigError(
            f"--trace {settings.trace}: prompt and answer of up to {longest} tokens do not fit into the context of "
            f"{server.model}, which is {server.context}"
        )
    return trace


def of_trace(trace: Trace, settings: Settings, writer: Writer) -> Iterator[Arrival]:
    """Equal blocks are equal text; what is beyond the last full block is new in each request."""

    @lru_cache(_KEPT_BLOCKS)
    def block(number: int) -> str:
        return writer.write(trace.block_tokens, random.Random(f"{settings.seed} {settings.salt} block {number}"))

    def request(number: int, record: Record) -> Request:
        full, rest = divmod(record.prompt_tokens, trace.block_tokens)
        parts = [block(each) for each in record.blocks[:full]]
        if rest or not full:
            parts.append(writer.write(rest, random.Random(f"{settings.seed} {settings.salt} tail {number}")))
        if not settings.reuse:
            parts.insert(0, f"{settings.salt} {number}")
        return Request("trace", 0, ({"role": "user", "content": " ".join(parts)},), record.output_tokens, None)

    for number, record in enumerate(trace.records):
        yield record.arrival * settings.stretch, request(number, record)

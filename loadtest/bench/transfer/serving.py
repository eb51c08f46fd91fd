"""What an engine still computes while another node reads its pages as fast as it can: real engine, default model."""

import asyncio
import os
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import msgspec
import numpy as np

from trunkline.agent.cache import slab
from trunkline.agent.cache.chain import Chain
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.connection import Located, Question
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.loadtest.bench.cluster import cluster
from trunkline.loadtest.bench.completion import Target, complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import INFO_PATH
from trunkline.shared.wire import AgentInfo

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 64
IDLE_S = 2.0
"""That the pages are read while nothing is computed."""
REACH = 0.9
_MEMORY = ("--kv-memory", "256MiB", "--host-memory", "256MiB")
_NICENESS = 19
"""Of the reader, which would be on another machine: the holder's cores are not its own."""


def serving(rounds: int) -> Iterator[Row]:
    """Tokens a second of one stream, in turns with and without a reader."""
    prompt = random_tokens(PROMPT_TOKENS, random.Random(1))
    undisturbed, reading, read, idle = [], [], [], []
    with cluster(1, *_MEMORY) as (_, [url]):
        target = find_target("agent-0", url)
        complete(target, prompt, OUTPUT_TOKENS)
        reader = _Reader(url, prompt)
        for _ in range(rounds):
            undisturbed.append(_rate(target, prompt))
            with reader.reads() as speeds:
                reading.append(_rate(target, prompt))
            read += speeds
            with reader.reads() as speeds:
                time.sleep(IDLE_S)
            idle += speeds
    ratio = median(with_it / without for with_it, without in zip(reading, undisturbed, strict=True))
    title = "tokens/s of the holder while its pages are read over tcp as fast as they come"
    yield row(title, median(reading), median(undisturbed), ratio, f">= {REACH}x unread", ratio >= REACH)
    title = "GB/s read from a holder that computes, beside one that does not"
    yield row(title, median(read), median(idle), median(read) / median(idle), "-", None)


def _rate(target: Target, prompt: list[int]) -> float:
    reply = complete(target, prompt, OUTPUT_TOKENS)
    return (OUTPUT_TOKENS - 1) / (reply.last - reply.first)


class _Reader:
    """Reads the pages of a prompt again and again."""

    def __init__(self, url: str, prompt: list[int]) -> None:
        with urllib.request.urlopen(url + INFO_PATH, timeout=10) as response:
            info = msgspec.json.decode(response.read(), type=AgentInfo)
        located = asyncio.run(_locate(info, prompt))
        offer, count = located.holder.offer, len(located.descriptors)
        self._sources, self._targets = located.descriptors, np.arange(count, dtype=np.uint32)
        self._bytes = count * offer.page_bytes
        self._way = TcpBackend(offer, slab.make(count, offer.page_bytes, offer.page_bytes).slots, None)

    @contextmanager
    def reads(self) -> Iterator[list[float]]:
        """Meanwhile; the speeds, in GB/s, are there at the end."""
        ended, speeds = threading.Event(), list[float]()
        thread = threading.Thread(target=self._read, args=(ended, speeds))
        thread.start()
        try:
            yield speeds
        finally:
            ended.set()
            thread.join()

    def _read(self, ended: threading.Event, speeds: list[float]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not ended.is_set():
            began = time.perf_counter()
            result = self._way.read(self._sources, self._targets, 60.0)
            if any(result.statuses):
                raise RuntimeError(f"pages did not come: {result.error or 'they were let go'}")
            speeds.append(self._bytes / 1e9 / (time.perf_counter() - began))


async def _locate(info: AgentInfo, prompt: list[int]) -> Located:
    namespace = info.models[0].namespace
    client = TransferClient(Identity("bench", namespace, Offer(0, 0)), None)
    chain = Chain(namespace, prompt)
    question = Question(namespace, chain.keys, chain.tokens.tobytes(), 0, len(chain.keys))
    try:
        return await client.locate(info.transfer, question, 5.0, 30.0)
    finally:
        await client.close()

"""Locating a chain: the messages in the core, and the whole of it between two sides over loopback."""

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from threading import Event, Thread

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.connection import Question
from trunkline.agent.transfer.leases import LeaseLimits
from trunkline.agent.transfer.lender import Lender
from trunkline.agent.transfer.messages import Locate, digest, rungs
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity, TransferServer
from trunkline.kernels.core import PAGE_TOKENS, decode_located, encode_located
from trunkline.loadtest.bench.cache.known import NAMESPACE, Known
from trunkline.loadtest.bench.row import Row, row

PAGES, SLOTS = 80_000, 1 << 20
"""Of a chain, and of the tier in which they lie scattered."""
SECRET = "only of this bench"  # noqa: S105


def codec(rounds: int) -> list[Row]:
    """Neighbours of one generation, and strangers of 16; CPU time of both ends."""
    tokens = random.randbytes(PAGES * PAGE_TOKENS * 4)
    found = []
    for kind, slots, generations, most in (
        ("contiguous", range(PAGES), 1, 16),
        ("scattered", random.sample(range(SLOTS), PAGES), 16, 256),
    ):
        places = b"".join(struct.pack("<BII", 1, slot, random.randrange(generations)) for slot in slots)
        times = []
        for _ in range(10 * rounds):
            begin = time.process_time()
            answer = encode_located(1, 0, PAGES, 1000, places)
            encoded = time.process_time()
            message = answer + tokens  # what the network does, which is not the codec's time
            received = time.process_time()
            decode_located(message, tokens)
            times.append((time.process_time() - received + encoded - begin) * 1e3)
        title, size, spent = f"locate {PAGES:,} pages, {kind}", len(answer) / 1024, median(times)
        found += [
            row(f"{title}: KiB of answer beside token ids", size, None, None, f"<= {most}", size <= most),
            row(f"{title}: encode + decode, ms", spent, None, None, "<= 2", spent <= 2),
        ]
    return found


def loopback(rounds: int, pages: int) -> list[Row]:
    """Question to answer over a socket, both sides in one process; and how long the holder's engine is kept."""
    chain = Chain(NAMESPACE, random.choices(range(50_000), k=pages * PAGE_TOKENS))
    cache = PageCache(pages, Known())
    taken = cache.allocate(pages) or []
    cache.release([cache.commit(chain, index, page) for index, page in enumerate(taken)])
    question = Question(NAMESPACE, chain.keys, chain.tokens.tobytes(), 0, pages)
    size = len(Locate(digest(NAMESPACE), 0, pages, 0.0, 1.0, rungs(chain.keys, pages)).encode())
    with _engine(cache) as (lender, turns):
        times, questions = asyncio.run(_ask(lender, question, 4 * rounds))
    each, longest = questions / len(times), max(turns) * 1e3
    title = f"locate {pages:,} pages over loopback"
    return [
        row(f"{title}: questions", each, None, None, "1", each == 1),
        row(f"{title}: bytes of question", float(size), None, None, "-", None),
        row(f"{title}: ms, median", median(times) * 1e3, None, None, "-", None),
        row(f"{title}: longest turn of the engine, ms of CPU", longest, None, None, "-", None),
    ]


async def _ask(lender: Lender, question: Question, times: int) -> tuple[list[float], int]:
    offer = Offer(1, 4096)
    server = TransferServer(Identity("holder", NAMESPACE, offer), lender, SECRET)
    client = TransferClient(Identity("reader", NAMESPACE, offer), SECRET)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    await server.start(listener)
    try:
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            located = await client.locate(address, question, 0.0, 30.0)
            taken.append(time.perf_counter() - begin)
            if len(located.descriptors) != question.count:
                raise RuntimeError(f"{len(located.descriptors)} pages were located, not {question.count}")
            located.release()
        return taken, server.counters.questions
    finally:
        await client.close()
        await server.close()


@contextmanager
def _engine(cache: PageCache) -> Iterator[tuple[Lender, list[float]]]:
    """An engine with nothing to compute, and the CPU seconds of each of its turns."""
    wake, ended, turns = Event(), Event(), list[float]()
    lender = Lender(cache, LeaseLimits(PAGES, PAGES), wake.set)

    def run() -> None:
        while not ended.is_set():
            wake.wait()
            wake.clear()
            begin = time.thread_time()
            lender.turn()
            turns.append(time.thread_time() - begin)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield lender, turns
    finally:
        ended.set()
        wake.set()
        thread.join()

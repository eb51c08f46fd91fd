"""Mooncake's engine over TCP, run by a Python that has it: `PYTHON peer_mooncake.py PAGES PAGE_BYTES`. Lines as of
`copy.c`."""

import multiprocessing
import os
import random
import resource
import sys
import time
from multiprocessing.connection import Connection

BATCH = 256
"""Pages; with thousands at once its queue is full, and the batch fails."""


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _hold(reader: Connection, size: int) -> None:
    import numpy as np
    from mooncake.engine import TransferEngine

    os.nice(10)  # as who lends pages does
    engine = TransferEngine()
    engine.initialize("127.0.0.1:0", "P2PHANDSHAKE", "tcp", "")
    memory = np.ones(size, np.uint8)
    engine.register_memory(memory.ctypes.data, size)
    reader.send((f"127.0.0.1:{engine.get_rpc_port()}", memory.ctypes.data))
    while reader.recv():
        reader.send(_cpu())


def _shuffled(count: int, page: int, base: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return [base + number * page for number in order]


def main(count: int, page: int) -> None:
    """Until the input ends."""
    import numpy as np
    from mooncake.engine import TransferEngine

    here, there = multiprocessing.Pipe()
    holder = multiprocessing.Process(target=_hold, args=(there, count * page), daemon=True)
    holder.start()
    address, base = here.recv()
    engine = TransferEngine()
    engine.initialize("127.0.0.1:0", "P2PHANDSHAKE", "tcp", "")
    memory = np.zeros(count * page, np.uint8)
    engine.register_memory(memory.ctypes.data, count * page)
    to, of = _shuffled(count, page, memory.ctypes.data, 2), _shuffled(count, page, base, 1)
    for _ in sys.stdin:
        here.send(True)
        sender, receiver, began = here.recv(), _cpu(), time.perf_counter()
        for at in range(0, count, BATCH):
            sizes = [page] * len(to[at : at + BATCH])
            if engine.batch_transfer_sync_read(address, to[at : at + BATCH], of[at : at + BATCH], sizes):
                sys.exit("a batch failed")
        seconds, receiver = time.perf_counter() - began, _cpu() - receiver
        if not memory.all():
            sys.exit("not all pages came")
        here.send(True)
        sender = here.recv() - sender
        print("peer:", seconds, sender, receiver, flush=True)
    here.send(False)
    holder.join(5)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main(int(sys.argv[1]), int(sys.argv[2]))

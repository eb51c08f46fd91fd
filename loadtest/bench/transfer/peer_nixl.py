"""NIXL over TCP, run by a Python that has it: `PYTHON peer_nixl.py PAGES PAGE_BYTES`. Lines as of `copy.c`."""

import multiprocessing
import os
import random
import resource
import sys
import time
from multiprocessing.connection import Connection


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _hold(reader: Connection, size: int) -> None:
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config

    os.nice(10)  # as who lends pages does
    agent = nixl_agent("holder", nixl_agent_config(backends=["UCX"]))
    memory = np.ones(size, np.uint8)
    agent.register_memory([(memory.ctypes.data, size, 0, "")], "DRAM")
    reader.send((agent.get_agent_metadata(), memory.ctypes.data))
    while reader.recv():
        reader.send(_cpu())


def _shuffled(count: int, page: int, base: int, seed: int) -> list[tuple[int, int, int]]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return [(base + number * page, page, 0) for number in order]


def main(count: int, page: int) -> None:
    """Until the input ends."""
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config

    here, there = multiprocessing.Pipe()
    holder = multiprocessing.Process(target=_hold, args=(there, count * page), daemon=True)
    holder.start()
    agent = nixl_agent("reader", nixl_agent_config(backends=["UCX"]))
    memory = np.zeros(count * page, np.uint8)
    agent.register_memory([(memory.ctypes.data, count * page, 0, "")], "DRAM")
    metadata, base = here.recv()
    agent.add_remote_agent(metadata)
    to = agent.get_xfer_descs(_shuffled(count, page, memory.ctypes.data, 2), "DRAM")
    of = agent.get_xfer_descs(_shuffled(count, page, base, 1), "DRAM")
    for _ in sys.stdin:
        here.send(True)
        sender, receiver, began = here.recv(), _cpu(), time.perf_counter()
        transfer = agent.initialize_xfer("READ", to, of, "holder")
        state = agent.transfer(transfer)
        while state not in ("DONE", "ERR"):
            time.sleep(0.0002)
            state = agent.check_xfer_state(transfer)
        seconds, receiver = time.perf_counter() - began, _cpu() - receiver
        agent.release_xfer_handle(transfer)
        if state == "ERR" or not memory.all():
            sys.exit("not all pages came")
        here.send(True)
        sender = here.recv() - sender
        print("peer:", seconds, sender, receiver, flush=True)
    here.send(False)
    holder.join(5)


if __name__ == "__main__":
    os.environ.setdefault("UCX_TLS", "tcp")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    multiprocessing.set_start_method("spawn")
    main(int(sys.argv[1]), int(sys.argv[2]))

"""A process that lends pages to a bench: `python -m ... PAGES PAGE_BYTES`. Says its offer, then for each line of input
the CPU seconds that it has used."""

import resource
import sys

import msgspec
import numpy as np

from trunkline.agent.cache import slab
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.shm import ShmLending
from trunkline.agent.transfer.tcp import TcpLending
from trunkline.shared.names import Tier

EPOCH = 1


def main(pages: int, page_bytes: int) -> None:
    """Until the input ends."""
    made = slab.make(pages, page_bytes, page_bytes)
    np.frombuffer(made.pages, np.uint8).reshape(pages, page_bytes)[:] = np.arange(pages, dtype=np.uint8)[:, None]
    tcp = TcpLending("127.0.0.1", 0, [(Tier.HOST, made.slots)], None, EPOCH)
    shm = ShmLending(made, None, EPOCH)
    print(msgspec.json.encode(Offer(EPOCH, page_bytes, f"127.0.0.1:{tcp.port}", shm.name)).decode(), flush=True)
    for _ in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, flush=True)
    tcp.close()
    shm.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

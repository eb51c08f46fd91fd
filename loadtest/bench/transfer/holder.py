"""A process that lends pages to a bench: `python -m ... PAGES PAGE_BYTES [CERTIFICATE KEY AUTHORITY]`. Says its offer,
then for each line of input the CPU seconds that it has used."""

import resource
import sys
from pathlib import Path

import msgspec
import numpy as np

from trunkline.agent.cache import slab
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.settings import TlsFiles
from trunkline.agent.transfer.shm import ShmLending
from trunkline.agent.transfer.tcp import TcpLending
from trunkline.shared.names import Tier

EPOCH = 1


def main(pages: int, page_bytes: int, *files: str) -> None:
    """Until the input ends."""
    tls = TlsFiles(*map(Path, files)).for_pages() if files else None
    made = slab.make(pages, page_bytes, page_bytes)
    np.frombuffer(made.pages, np.uint8).reshape(pages, page_bytes)[:] = np.arange(pages, dtype=np.uint8)[:, None]
    tcp = TcpLending("127.0.0.1", 0, [(Tier.HOST, made.slots)], None, EPOCH, tls)
    shm = ShmLending(made, None, EPOCH)
    offer = Offer(EPOCH, page_bytes, f"127.0.0.1:{tcp.port}", shm.name, encrypted=tls is not None)
    print(msgspec.json.encode(offer).decode(), flush=True)
    for _ in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, flush=True)
    tcp.close()
    shm.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

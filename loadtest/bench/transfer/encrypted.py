"""Reading pages in TLS, beside reading them as they are; the two take turns."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from statistics import median

from trunkline.agent.cache import slab
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.bench.transfer.certificates import certificates
from trunkline.loadtest.bench.transfer.read import GB, PAGE_BYTES, PAGES, lend, shuffled, timed


def encrypted(rounds: int) -> Iterator[Row]:
    """One stream each. Nothing without openssl, which makes the certificates."""
    if shutil.which("openssl") is None:
        return
    with ExitStack() as stack:
        files = certificates(Path(stack.enter_context(tempfile.TemporaryDirectory())), "bench")
        own = slab.make(PAGES, PAGE_BYTES, PAGE_BYTES)
        ways = []
        for paths, tls in ((), None), (astuple(files), files.for_pages()):
            holder, offer = lend(stack, *map(str, paths))
            ways.append((TcpBackend(offer, own.slots, None, tls=tls), holder))
            stack.callback(ways[-1][0].close)
        taken = [[timed(*way, *shuffled()) for way in ways] for _ in range(rounds + 1)]
    plain, hidden = zip(*taken[1:], strict=True)  # the first warms up
    ours, peer = (GB / median(one.seconds for one in some) for some in (hidden, plain))
    slower = median(one.seconds / other.seconds for one, other in zip(plain, hidden, strict=True))
    yield row("tcp in TLS: GB/s", ours, peer, slower, "beside tcp as it is", None)
    ours, peer = (median(one.cpu for one in some) / GB for some in (hidden, plain))
    dearer = median(one.cpu / other.cpu for one, other in zip(hidden, plain, strict=True))
    yield row("tcp in TLS: CPU s/GB, both sides", ours, peer, dearer, "beside tcp as it is", None)

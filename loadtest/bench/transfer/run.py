"""Pages from other nodes: finding them, and reading them."""

from pathlib import Path

from trunkline.loadtest.bench.row import Row
from trunkline.loadtest.bench.transfer.encrypted import encrypted
from trunkline.loadtest.bench.transfer.locate import PAGES, codec, loopback
from trunkline.loadtest.bench.transfer.pull import pull
from trunkline.loadtest.bench.transfer.read import read
from trunkline.loadtest.bench.transfer.serving import serving

PREFIX_PAGES = 437
"""Of a prompt of 7,000 tokens."""


def run(rounds: int = 3, peer_python: Path | None = None) -> list[Row]:
    """One row per figure. `peer_python`: see `read`."""
    return [
        *codec(rounds),
        *loopback(rounds, PREFIX_PAGES),
        *loopback(rounds, PAGES),
        *read(rounds, peer_python),
        *encrypted(rounds),
        *serving(rounds),
        *pull(rounds),
    ]

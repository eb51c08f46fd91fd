"""The token ids of one sequence and the page keys over them: hashed once, extended as the sequence grows."""

import struct
from array import array
from collections.abc import Iterator, Sequence

from trunkline.agent.cache.entry import PAGE_BYTES, Entry
from trunkline.agent.cache.visits import Visit
from trunkline.kernels.core import hash64, page_chain
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace


class Chain:
    """Tokens of one sequence, with a key for every full page of them. Used by one thread at a time.

    `tokens` is an `array('i')`; ``keys[i]`` covers ``tokens[16 * i : 16 * i + 16]`` and everything before.
    `entries`, `below`, `skipped`, `texts`, `visit` and `used` are the cache's notes about this chain and are written by
    `PageCache` only: the verified pages on the device from the first on, those that followed in lower tiers at the last
    match, those of them that are computed instead, the text keys with their depths by the index of the page that they
    hang on, what is known of the request, and the visit as of which pages come for it. `holder` too, when asking it
    again is of no use.
    """

    __slots__ = (
        *("_seed", "below", "entries", "holder", "keys", "namespace", "offered", "skipped", "texts", "tokens"),
        *("used", "visit"),
    )

    def __init__(self, namespace: Namespace, tokens: Sequence[int], holder: str = "", offered: int = 0) -> None:
        """`holder`: the node to ask for pages that are not here, by the address of its control channel; "": none.
        `offered`: how many of the chain's pages it is said to have.

        Raises OverflowError for a token id that is not an int32.
        """
        self.namespace = namespace
        self.tokens = array("i", tokens)
        self._seed = hash64(namespace.page_seed_bytes())
        self.keys: list[int] = memoryview(page_chain(self._seed, self.tokens)).cast("Q").tolist()
        self.entries: list[Entry] = []
        self.below: list[Entry] = []
        self.skipped: list[Entry] = []
        self.texts: dict[int, list[tuple[int, int]]] = {}
        self.visit: Visit | None = None
        self.used = 0
        self.holder, self.offered = holder, offered

    def append(self, token: int) -> None:
        """Adds a token, and a key if it fills a page."""
        self.tokens.append(token)
        if len(self.tokens) % PAGE_TOKENS == 0:
            seed = self.keys[-1] if self.keys else self._seed
            self.keys.append(int.from_bytes(page_chain(seed, self.tokens[-PAGE_TOKENS:]), "little"))

    def pages(self) -> Iterator[bytes]:
        """The packed token ids of each full page."""
        # A copy: an array whose buffer is in use cannot grow.
        packed = self.tokens[: len(self.keys) * PAGE_TOKENS].tobytes()
        return (tokens for (tokens,) in struct.iter_unpack(f"{PAGE_BYTES}s", packed))

    def packed(self, pages: int) -> bytes:
        """The packed token ids of the first full pages."""
        return self.tokens[: pages * PAGE_TOKENS].tobytes()

    def page(self, index: int) -> bytes:
        """The packed token ids of one full page."""
        return self.tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS].tobytes()

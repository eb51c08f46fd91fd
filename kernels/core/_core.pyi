"""Types of the compiled module.

Buffers are C-contiguous: `bytes`, or integers of the right size in `bytearray`, `memoryview`, `array`, numpy.
Anything else that has a buffer raises ValueError, anything that has none raises TypeError. Numbers out of range
raise ValueError, seeds out of range OverflowError.
"""

from collections.abc import Callable, Sequence
from typing import Literal, final

from typing_extensions import Buffer

MAX_CHAIN_PAGES: int
"""Of a chain that can be located."""
MAX_RUNGS: int
NOT_LENT: int
"""The tier in a descriptor of a page that is not lent."""
MAX_BATCH: int
"""Pages of one request to a lender."""
PAGE_TOKENS: int
SEGMENT_END: int

def hash64(data: Buffer, seed: int = 0) -> int:
    """xxh3_64 of the bytes of any contiguous buffer."""

def page_chain(seed: int, tokens: Buffer) -> bytes:
    """Packed keys (u64), one for each whole page of 16 tokens (i32)."""

def sample(keys: Buffer, dense: int, stride: int) -> bytes:
    """Of packed keys the first `dense`, then every `stride`-th, and the last."""

def spanned(count: int, dense: int, stride: int) -> int:
    """How many keys of a chain that is long enough so many leading ones of its sample stand for."""

def encode_locate(
    namespace: bytes, first: int, count: int, wait_ms: int, lease_ms: int, rungs: Sequence[tuple[int, int]]
) -> bytes:
    """Asks for the pages `first` to `count` of a chain; `docs/develop/locator.md` says what each number means.

    `namespace`: its SHA-256. `rungs`: (pages, key), deepest first. ValueError for numbers that cannot be.
    """

def decode_locate(message: Buffer) -> tuple[bytes, int, int, int, int, list[tuple[int, int]]]:
    """What `encode_locate` was given. ValueError for anything else."""

def encode_located(epoch: int, first: int, held: int, lease_ms: int, descriptors: bytes) -> bytes:
    """The answer up to the token ids (i32) of the chain's pages up to the last one described, which are to follow.

    `descriptors`: (tier u8, slot u32, generation u32) of each page from `first` on, tier NOT_LENT for those that are
    not lent. ValueError for numbers that cannot be.
    """

def decode_located(message: bytes, tokens: bytes) -> tuple[int, int, int, int, int, bytes]:
    """(epoch, first, held, lease_ms, pages described, descriptors). Descriptors end at the first page whose token ids
    are not those of `tokens`, the reader's own (i32). ValueError for what no holder would have made, and for an answer
    about more pages than `tokens` has."""

def text_chain(seed: int, frames: Sequence[bytes], texts: Sequence[bytes | str], chunk: int, closed: bool) -> bytes:
    """Packed keys (u64), one for each chunk of `chunk` bytes; chunks do not cross a segment's end.

    A segment is a frame and a text, as if they were one; a text in Unicode is hashed as UTF-8. In closed segments the
    last chunk, whole or not, is hashed with `previous key ^ SEGMENT_END` as the seed; in open ones a partial last chunk
    has no key. An empty segment has none.
    """

@final
class PrefixIndex:
    """Which node (0 to 4095) holds which keys (u64), at which depths (u32, tokens), in which tier (0 to 2).

    Any thread may call anything; readers never wait for writers. A call sees all calls that have returned. A node's
    keys are prefix-closed: with a key it holds the keys before it in the chain.
    """

    def __new__(cls, partitions: int = 16, max_keys: int = 1 << 22) -> PrefixIndex:
        """`partitions` is a power of two up to 1024. `max_keys` bounds the distinct keys, and with them the memory."""

    def store(self, node: int, keys: Buffer, depths: Buffer, tier: int) -> int:
        """The node holds the keys, in this tier and no other. Returns how many were dropped: no room for them."""

    def store_mixed(self, node: int, keys: Buffer, depths: Buffer, tiers: Buffer) -> int:
        """As `store`, with a tier (u8) for each key."""

    def move(self, node: int, keys: Buffer, tier: int) -> None:
        """Those of the keys that the node holds are in this tier now."""

    def remove(self, node: int, keys: Buffer) -> None:
        """The node holds none of the keys."""

    def clear(self, node: int) -> None:
        """The node holds nothing."""

    def match(self, keys: Buffer) -> bytes:
        """For every node that holds the first key, in no order: packed u32 x 4 = node, then tokens of the prefix that
        it holds in device, host and disk.

        Where a node's tier changes back and forth between two keys of the chain that have the same holders in the
        same tiers, what lies between counts as theirs.
        """

    def digest(self, node: int) -> tuple[int, int]:
        """(number of the node's keys, XOR of splitmix64's mix of each key ^ tier << 62). Exact unless the node is being
        changed."""

    def digests(self, node: int) -> bytes:
        """The digest of the node's keys in each partition: packed u64 x 2. Key k is in partition
        (k * 0x9E3779B97F4A7C15 mod 2^64) * partitions / 2^64: indexes of as many partitions can be compared."""

    def dump(self, node: int, partition: int | None = None) -> tuple[bytes, bytes, bytes]:
        """Keys (u64), depths (u32) and tiers (u8) of what the node holds, there or everywhere, by depth. Exact unless
        the node is being changed: take it from the thread that changes it."""

    def traffic(self) -> list[tuple[int, int]]:
        """(lookups of matches, keys changed) by partition, ever. Approximate when many threads are at it."""

    def stats(self) -> dict[str, int]:
        """`keys` (distinct), `holdings` (keys summed over nodes), `sets` (distinct sets of nodes), `bytes`, `dropped`
        (changes that found no room, ever)."""

@final
class Generations:
    """Prefixes that nodes were given lately: a young index, and an old one that is dropped as a whole."""

    def __new__(cls, max_keys: int, memory_s: float) -> Generations:
        """Each of the two has room for `max_keys`. Uses of prefixes that were `memory_s` ago count 1/e."""

    def given(self, keys: Buffer, now: float) -> tuple[bytes, list[int], list[float]]:
        """For every node that was given the first key of the chain: (node, place in the lists) u32s, by node. The lists
        say how many leading keys that is, ascending, and how many chains are given in `memory_s` that have as many in
        common with one before, if it goes on as lately: those that were, over the share of that time that has gone by
        since the first one; of a burst, which may be all, those that were."""

    def give(self, node: int, keys: Buffer, limit: int, now: float) -> int:
        """What the young index lacks of the chain for this node is added, up to `limit` keys. Returns how many."""

    def turn(self, forget: bool) -> None:
        """The young index becomes the old one, and a new one begins. `forget`: nothing is old."""

    def clear(self, node: int) -> None:
        """The node was given nothing."""

    def keys(self) -> int:
        """Distinct keys, those in both indices counted twice."""

@final
class Candidates:
    """Nodes that share a chain."""

    def __new__(cls, nodes: Sequence[int], index: PrefixIndex | None, claims: Generations) -> Candidates:
        """By their numbers. What they hold is in the index; None: what they were given is all that is known."""

@final
class Ranker:
    """Weighs and ranks nodes by what their accounts say. The formulas are in `router/scheduler/cost.py`."""

    def __new__(
        cls,
        accounts: bytearray,
        passing: bytearray,
        links: bytearray,
        *,
        sizes: int,
        smallest: int,
        chunk: int,
        dense: int,
        stride: int,
        memory_s: float,
        limit: float,
        full_s: float,
        tie: float,
        negligible_s: float,
        most: int,
        latency_s: float,
        readers: int,
    ) -> Ranker:
        """Rows of f64s by node, which are read at every call. Of `accounts`: load, time of the last report, wait, drag,
        seconds per token from the host tier and from disk, and whether the rows of `passing` and of `links` count. Of
        `passing`: what a prompt need not wait, for each of the `sizes`, and for each how much more it drags; sizes are
        by bits of the tokens to compute, fewer than `smallest` are size 0. Of `links`: tokens per second, when they are
        free of what comes in and of what goes out, tokens that the node takes without pushing out what is in use, and
        without pushing anything out, and tokens of a step.

        `chunk`: bytes of a text key. `dense`, `stride`: of samples. `memory_s`: of uses. A load above `limit` adds
        `full_s` to a cost; costs within the share `tie`, and `negligible_s`, of the least are equal; so many at `most`
        are ranked. A pull begins `latency_s` after it is asked for; so many `readers` are considered."""

    def rank(
        self,
        candidates: tuple[Candidates, ...],
        chains: list[bytes],
        text: tuple[list[bytes], list[bytes | str], bool] | None,
        tokens: int,
        bytes_per_token: float,
        per_token: float,
        per_pair: float,
        found: float,
        weight: float,
        draw: float,
        now: float,
        relief: dict[int, Callable[[float], float]] | None,
    ) -> tuple[Ranking, list[bytes]]:
        """Of a prompt of about so many tokens, whose chain is given for each group; with the sample of each.

        `text`: frames, texts and whether they are closed, as for `text_chain`; None for token ids. Prefill costs
        `per_token` and `per_pair`; a token that is pushed out would have been `found` so often. `weight` is of a wait;
        `draw` (0 to 1) chooses among equals, but never one that is worse in work and wait and better in neither.
        `relief`: of a node's wait, by its work, what does not count. Raises ValueError for a node without accounts."""

@final
class Ranking:
    """Offers of all candidates, one group after the other, and the best of them in order."""

    tokens: int
    """Of the prompt: as estimated, or what some node is known to hold of it if that is more."""
    ranked: int
    """How many are in order."""

    def __len__(self) -> int:
        """How many were weighed."""

    def choice(self, rank: int) -> tuple[int, int, int, int | None, int]:
        """Group, position in it, tokens held, position of the node to pull from, tokens to pull. Rank 0 is the best.
        Raises IndexError beyond `ranked`."""

    def prefer(self, rank: int) -> None:
        """That one is the best now, the others keep their order."""

    def offers(self) -> list[tuple[float, float, float, float, float, float]]:
        """Work, wait, drag, load, tokens held, time of the last report."""

    def known(self, group: int) -> list[tuple[int, int, int, int]]:
        """(node, device, host, disk): tokens that it holds there."""

    def claimed(self, group: int) -> list[tuple[int, int]]:
        """(node, tokens): what it will hold because of what it was given."""

    def pulls(self, group: int) -> list[tuple[int, int, int]]:
        """(position, position of the node to pull from, tokens)."""

@final
class Heat:
    """Rates at which visits return, learned, and by them the pages of each tier that are worth least.

    A visit is one use of a run of pages, with levels that say what it was like; it returns when its last page is used
    again. Visits are numbered from `now` at the start on; their number is the clock. Pages of a visit that was
    forgotten, or was before the start, are as of one without levels. ValueError for a visit that has not begun, and for
    levels and tiers out of range.
    """

    def __new__(
        cls, ages: Sequence[int], kinds: int, levels: int, prior: float, decay: float, visits: int, tiers: int
    ) -> Heat:
        """`ages`: in visits, where a new class of age begins, from 0 on. `kinds` of visits have their own rates by age.
        `prior`: returns that a level or a kind is taken to have had before it was seen. `decay`: the share of what was
        learned that is forgotten every 64 visits. `visits`: how many are remembered."""

    def visit(self, levels: Sequence[int], kind: int = 0) -> int:
        """One begins, with at most 6 levels; its number. One without levels is never said to return."""

    def returned(self, visit: int) -> None:
        """Its last page is used again. The first time counts."""

    def offer(self, tier: int, page: int, visit: int) -> None:
        """The page could go; it was last used by that visit. In place of what was offered of it before."""

    def take(self, tier: int) -> int | None:
        """Of the pages offered the one worth least, which is no longer offered. None: there is none."""

    def take_oldest(self, tier: int) -> int | None:
        """Likewise the one whose visit is longest ago."""

    def offered(self, tier: int, page: int) -> int | None:
        """The visit that the page is offered with; None: it is not."""

    def worth(self, visit: int) -> float:
        """What `take` compares: how often somebody is expected to come back for pages last used by that visit, for each
        visit that passes."""

    def clear(self, tier: int) -> None:
        """No page of the tier is offered."""

    def rates(self) -> tuple[list[float], list[float]]:
        """For each class of age of each kind: returns per visit that passes, and what a page of that age is worth."""

    def factors(self) -> list[float]:
        """For each level: by how much more, or less, often its visits return."""

    @property
    def now(self) -> int:
        """The number of the next visit."""

@final
class PagePool:
    """Reference counts of pages 0 to `pages - 1`, and which of them are free."""

    def __new__(cls, pages: int) -> PagePool: ...
    def allocate(self, count: int, groups: Sequence[int] = ()) -> list[int] | None:
        """Takes `count` pages with one reference each. None: fewer than that are free, and none is taken.

        `groups`: of 64 neighbours each; their free pages are taken first, one group after the other, and then those of
        the lowest numbers."""

    def free_in_groups(self) -> bytes:
        """For each group of 64 neighbours, how many of them are free."""

    def share(self, pages: Sequence[int]) -> None:
        """One more reference to each. ValueError if one of them is free; then nothing has changed."""

    def release(self, pages: Sequence[int]) -> list[int]:
        """One reference less to each. Returns the pages that nobody holds any more."""

    def references(self, page: int) -> int: ...
    def step_begin(self) -> int:
        """A ticket: pages freed from now on are not handed out before it ends."""

    def step_end(self, ticket: int) -> None:
        """ValueError if the ticket has ended already."""

    @property
    def free(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """Freed, but a step that may see them has not ended."""

    @property
    def longest_free(self) -> int:
        """Free pages in the longest run of neighbours. Reads the whole bitmap: a microsecond for some 50,000 pages."""

    @property
    def total(self) -> int: ...
    def check(self) -> None:
        """RuntimeError naming what does not add up."""

@final
class PageSlots:
    """The pages of one tier where other nodes read them: slots in memory, with a generation for each that its owner
    changes before the slot is written again. Any thread may use it."""

    def __new__(cls, generations: Buffer, pages: Buffer, stride: int, page_bytes: int) -> PageSlots:
        """`generations`: one u32 per slot; `pages`: as many blocks of `page_bytes`, `stride` bytes apart. The memory is
        the caller's, and kept while this lives. ValueError for what does not fit together."""

    def copy_from(self, source: PageSlots, descriptors: Buffer, targets: Buffer) -> bytes:
        """Copies pages of `source`, where `descriptors` (packed, 9 bytes each) say, to slots `targets` (u32) of this,
        which are the caller's. Returns a status (u8) for each: 0 copied, 1 let go since, 3 no such slot."""

    @property
    def count(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def generations_at(self) -> int:
        """Address of the first slot's generation."""

    @property
    def pages_at(self) -> int:
        """Address of the first slot's page."""

@final
class Lender:
    """Sends pages to readers over sockets."""

    def __new__(cls, regions: Sequence[tuple[int, PageSlots]]) -> Lender:
        """`regions`: slots by tier."""

    rate: int
    """Bytes per second to all readers together; 0: as fast as it goes."""

    share: float
    """Of a processor's time that serving all readers together may take, up to 1; 0: as much as there is, at once also
    for who waits. Beyond it threads wait, for 50 ms at most before each megabyte."""

    @property
    def waited_s(self) -> float:
        """Seconds that threads have waited for the share, ever."""

    def serve(self, stream: PageStream, idle_s: float, stall_s: float) -> None:
        """Answers the requests of one reader, in the caller's thread, until the reader closes the socket. Raises
        OSError if the reader asks for nothing for `idle_s`, takes nothing for `stall_s`, sends what is
        no request, or fails."""

    def stats(self) -> dict[str, int]:
        """`pages` and `bytes` sent, and pages `refused` because they were let go or never there; ever."""

def fetch_pages(
    stream: PageStream,
    descriptors: Buffer,
    slots: PageSlots,
    targets: Buffer,
    stall_s: float,
    timeout_s: float,
) -> tuple[bytes, str | None]:
    """Asks a lender for pages (`descriptors`, packed) and takes them into `targets` (u32) of `slots`, which are the
    caller's, in the caller's thread.

    Returns a status (u8) for each: 0 here, 1 let go since, 2 not what was sent, 3 no such slot, 4 not arrived; and the
    error, if there was one: then the socket is of no use any more. Nothing for `stall_s`, or not all within
    `timeout_s`, is one.
    """

@final
class Tls:
    """Who this node is on encrypted connections, and whose certificates it takes: TLS 1.3, both sides show one."""

    def __new__(cls, certificate: bytes, key: bytes, authority: bytes) -> Tls:
        """PEM. ValueError says which of them cannot be used, and why."""

@final
class PageStream:
    """What pages come and go over: a socket, encrypted or not. Used by one thread at a time."""

    def __new__(cls, fd: int, timeout_s: float, tls: Tls | None = None, *, asked: bool = False) -> PageStream:
        """The socket blocks, and is not closed as long as this is used. `asked`: who connected was the other side.

        With TLS the other has shown a certificate that is good; what a side that was asked thinks of this one's shows
        with the first `recv`. All that is done before pages are served or fetched must end within `timeout_s`. Raises
        OSError.
        """

    def sendall(self, data: bytes, /) -> None:
        """Raises OSError."""

    def recv(self, size: int, /) -> bytes:
        """At most so many bytes; none: the other side has closed. Raises OSError."""

@final
class Splicer:
    """Passes chunked bodies on from one socket to another, on a thread of its own that never needs the interpreter.

    ValueError once it is closed, KeyError for a stream that does not exist or was stopped.
    """

    def __new__(cls, bounds: Sequence[float]) -> Splicer:
        """`bounds`: of the gaps that are counted, in seconds, ascending. ValueError for others."""

    def gaps(self) -> tuple[list[int], float]:
        """Times between two reads of a stream, counted up to each bound and beyond the last; their sum in seconds."""

    def fileno(self) -> int:
        """A descriptor that is readable when `ended` has something to say."""

    def start(self, source: int, target: int, first: bytes) -> int:
        """A new stream between two sockets that do not block; its number. What the source sends goes to the target
        behind `first`. The source is between two chunks. Until the stream is stopped, nobody else reads from the source
        or writes to the target. OSError if there are no descriptors left."""

    def progress(self, stream: int) -> tuple[int, bool]:
        """Bytes passed on, and whether the target takes none at the moment."""

    def stop(self, stream: int) -> StreamEnd:
        """Takes back the sockets, also of a stream that has ended: each is stopped once."""

    def ended(self) -> list[int]:
        """Streams that ended since the last call."""

    def close(self) -> None:
        """Streams that are open end in the middle."""

    @property
    def streams(self) -> int:
        """That are not stopped."""

@final
class StreamEnd:
    """How a stream stood when it was stopped."""

    @property
    def state(self) -> Literal["open", "ended", "surplus", "lost", "gone"]:
        """ "ended": its body is complete; "surplus": and the source sent more. "lost": the source broke off, or sent
        what is no chunked body. "gone": the target takes no more. "open": none of these."""

    @property
    def reason(self) -> str:
        """Why it was lost."""

    @property
    def between(self) -> bool:
        """Whether a chunk may follow."""

    @property
    def tail(self) -> bytes:
        """The last 4 bytes read."""

    @property
    def unsent(self) -> bytes:
        """Read and not written."""

"""Slots that others read, and pages over a socket, each against a short model."""

import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.kernels.core import MAX_BATCH, Lender, PageSlots, PageStream, fetch_pages, hash64

PAGE, STRIDE = 48, 64
OK, CHANGED, DAMAGED, ABSENT, LOST = range(5)
HOST = 1


class Memory:
    """Slots over plain memory; page i is all `first` + i."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.blocks = np.zeros((count, STRIDE), np.uint8)
        self.blocks[:] = np.arange(first, first + count, dtype=np.uint8)[:, None]
        self.generations = np.zeros(count, np.uint32)
        self.slots = PageSlots(self.generations, self.blocks.reshape(-1), STRIDE, PAGE)


def pack(descriptors: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack("<BII", *one) for one in descriptors)


def u32(numbers: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    return np.array(numbers, np.uint32)


def over(connection: socket.socket) -> PageStream:
    return PageStream(connection.fileno(), 5.0)


_numbers = st.integers(0, 5)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("renew"), st.lists(_numbers, max_size=3)),
        st.tuples(st.just("read"), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=6)),
    ),
    max_size=12,
)


@given(_steps, st.booleans())
@settings(max_examples=60, deadline=None)
def test_reads_what_lies_there_and_nothing_that_was_let_go(steps: list[tuple[str, list]], over_socket: bool) -> None:
    holder, own = Memory(6), Memory(8, first=100)
    generations = [0] * 6
    with Serving(Lender([(HOST, holder.slots)])) as stream:
        for what, numbers in steps:
            if what == "renew":
                for number in numbers:
                    holder.generations[number] += 1
                    generations[number] += 1
                    holder.blocks[number] += 10
                continue
            own.blocks[:] = 255
            to = u32(list(range(len(numbers))))
            wanted = pack([(HOST, slot, generation) for slot, generation in numbers])
            if over_socket:
                statuses, error = fetch_pages(over(stream), wanted, own.slots, to, 5.0, 5.0)
                assert error is None
            else:
                statuses = own.slots.copy_from(holder.slots, wanted, to)
            for position, (slot, generation) in enumerate(numbers):
                expected = ABSENT if slot > 5 else OK if generations[slot] == generation else CHANGED
                assert statuses[position] == expected
                if expected == OK:
                    assert (own.blocks[position, :PAGE] == holder.blocks[slot, 0]).all()
                    assert (own.blocks[position, PAGE:] == 255).all()


class Serving:
    """A lender behind a socket, in a thread; the other end is what one enters."""

    def __init__(self, lender: Lender, idle_s: float = 5.0) -> None:
        self._lender, self._idle_s = lender, idle_s
        self._ours, self._theirs = socket.socketpair()
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._lender.serve(over(self._theirs), self._idle_s, 5.0)
        except OSError as error:
            self.error = error
        self._theirs.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> socket.socket:
        self._thread.start()
        return self._ours

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._thread.join()
        self._theirs.close()


def test_a_tier_that_is_not_lent_has_no_slots() -> None:
    holder, own = Memory(2), Memory(2)
    with Serving(lender := Lender([(HOST, holder.slots)])) as stream:
        wanted = pack([(0, 1, 0), (HOST, 1, 0)])
        assert fetch_pages(over(stream), wanted, own.slots, u32([0, 1]), 5.0, 5.0) == (bytes([ABSENT, OK]), None)
    assert lender.stats() == {"pages": 1, "bytes": PAGE, "refused": 1}


def test_who_sends_gives_way_but_never_so_long_that_nothing_comes() -> None:
    holder, own = Memory(200), Memory(200)
    lender = Lender([(HOST, holder.slots)])
    wanted, to = pack([(HOST, slot, 0) for slot in range(200)]), u32(list(range(200)))
    with Serving(lender) as stream:
        assert fetch_pages(over(stream), wanted, own.slots, to, 5.0, 5.0) == (bytes(200), None)
        assert lender.waited_s == 0
        lender.share = 1e-9  # each call is followed by the longest wait that there is
        assert fetch_pages(over(stream), wanted, own.slots, to, 5.0, 5.0) == (bytes(200), None)
        assert (waited_s := lender.waited_s) > 0
        lender.share = 0.0
        assert fetch_pages(over(stream), wanted, own.slots, to, 5.0, 5.0) == (bytes(200), None)
        assert lender.waited_s == waited_s
    with pytest.raises(ValueError, match=r"share is 1\.5: from 0 to 1"):
        lender.share = 1.5


@pytest.mark.parametrize("over_socket", [False, True])
def test_a_page_that_is_written_while_it_is_read_is_never_taken_for_the_one_located(over_socket: bool) -> None:
    size = 1 << 20
    blocks, own = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    shown = np.zeros(1, np.uint32)
    slots = PageSlots(shown, blocks, size, size)
    target = PageSlots(np.zeros(1, np.uint32), own, size, size)
    located = (0, 0)
    ended = threading.Event()

    def write() -> None:
        nonlocal located
        content = 0
        while not ended.is_set():
            shown[0] += 1
            content = (content + 1) % 256
            blocks.fill(content)
            located = (int(shown[0]), content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Serving(Lender([(HOST, slots)])) as stream:
            for _ in range(300):
                generation, content = located
                wanted, to = pack([(HOST, 0, generation)]), u32([0])
                if over_socket:
                    statuses, _ = fetch_pages(over(stream), wanted, target, to, 5.0, 5.0)
                else:
                    statuses = target.copy_from(slots, wanted, to)
                assert statuses[0] in (CHANGED, DAMAGED) or (own == content).all()
    finally:
        ended.set()
        writer.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00" * 8,
        struct.pack("<B3xIQ", OK, 1, 0),  # of another position
        struct.pack("<B3xIQ", 9, 0, 0),  # an unknown status
        struct.pack("<B3xIQ", OK, 0, 0) + b"\x00" * 10,  # a page that ends early
    ],
)
def test_an_answer_that_is_none_loses_the_batch_and_says_so(answer: bytes) -> None:
    own = Memory(2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        statuses, error = fetch_pages(over(ours), pack([(HOST, 0, 0)] * 2), own.slots, u32([0, 1]), 5.0, 5.0)
    assert statuses == bytes([LOST, LOST])
    assert error


def test_one_flipped_bit_costs_that_page_alone() -> None:
    own = Memory(3)
    content = [bytes([n]) * PAGE for n in (1, 2, 3)]
    answer = b"".join(struct.pack("<B3xIQ", OK, n, hash64(page)) + page for n, page in enumerate(content))
    flipped = bytearray(answer)
    flipped[16 + PAGE + 16 + 20] ^= 4
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(flipped)
        statuses, error = fetch_pages(over(ours), pack([(HOST, 0, 0)] * 3), own.slots, u32([0, 1, 2]), 5.0, 5.0)
    assert (statuses, error) == (bytes([OK, DAMAGED, OK]), None)


def test_what_came_before_a_holder_fell_silent_counts() -> None:
    own = Memory(2)
    page = bytes(PAGE)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        head = struct.pack("<B3xIQ", OK, 0, hash64(page))
        theirs.sendall(head + page + struct.pack("<B3xIQ", OK, 1, 0) + page[1:])
        statuses, error = fetch_pages(over(ours), pack([(HOST, 0, 0)] * 2), own.slots, u32([0, 1]), 0.05, 5.0)
    assert statuses == bytes([OK, LOST])
    assert error == "nothing came for 0.05 s"


@pytest.mark.parametrize("request_", [b"\x00" * 8, b"TKPQ" + struct.pack("<I", MAX_BATCH + 1), b"TKPQ\x02"])
def test_a_request_that_is_none_ends_the_connection(request_: bytes) -> None:
    serving = Serving(Lender([(HOST, Memory(2).slots)]))
    with serving as stream:
        stream.sendall(request_)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
    assert serving.error is not None


def test_a_reader_that_asks_for_nothing_is_let_go() -> None:
    serving = Serving(Lender([(HOST, Memory(2).slots)]), idle_s=0.01)
    with serving as stream:
        assert stream.recv(1) == b""
    assert isinstance(serving.error, TimeoutError)
    assert str(serving.error) == "nothing came for 0.01 s"


def test_what_does_not_fit_together_is_refused() -> None:
    memory = Memory(2)
    with pytest.raises(ValueError, match="not those of slots"):
        PageSlots(np.zeros(3, np.uint32), memory.blocks.reshape(-1), STRIDE, PAGE)
    with pytest.raises(ValueError, match="not those of slots"):
        PageSlots(np.zeros(2, np.uint32), memory.blocks.reshape(-1), PAGE, STRIDE)
    with pytest.raises(ValueError, match="slot 2 is not one of 2"):
        memory.slots.copy_from(memory.slots, pack([(HOST, 0, 0)]), u32([2]))
    with pytest.raises(ValueError, match="9 bytes of descriptors for 2 targets"):
        memory.slots.copy_from(memory.slots, pack([(HOST, 0, 0)]), u32([0, 1]))
    with pytest.raises(ValueError, match="timeout_s is 0"):
        PageStream(0, 0.0)
    with pytest.raises(OSError, match="the socket is closed"):
        PageStream(-1, 1.0)
    bound = PageSlots(memory.generations, bytes(2 * STRIDE), STRIDE, PAGE)
    with pytest.raises(ValueError, match="only be read"):
        bound.copy_from(memory.slots, pack([(HOST, 0, 0)]), u32([0]))

"""The directory of a disk tier: what was acknowledged is there, what is not as it was written is not used."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk import index as index_module
from trunkline.agent.cache.disk import segments
from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.frames import HEAD, frame, name_frame, read_frames, version_of
from trunkline.agent.cache.disk.index import IndexLog, read_log
from trunkline.agent.cache.disk.live import OLD_PUT, PUT, REMOVE, TEXT, Index, Kind
from trunkline.agent.cache.disk.record import HEAD_BYTES, NO_PARENT, VERSION, Record, pack_head, unpack_head
from trunkline.agent.cache.disk.store import DiskStore
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import Move
from trunkline.kernels.core import hash64
from trunkline.shared.errors import ConfigError
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("aabbccdd", "float32", "layout")
PAGE = 5000
"""Bytes; not whole blocks."""
SLOT = HEAD_BYTES + 8192
PAGES = 16


class Rig:
    """A store over a host of PAGES pages, each full of its number, and their entries: a chain, or all first pages."""

    def __init__(
        self, folder: Path, namespace: Namespace = NAMESPACE, slots: int = PAGES, page: int = PAGE, chained: bool = True
    ) -> None:
        self.host = HostMemory(np.zeros((1, page), np.uint8), PAGES * (-(-page // 4096) * 4096))
        for number in range(PAGES):
            self.host.blocks[number] = number + 1
        self.store = DiskStore(folder, namespace, self.host, slots * (HEAD_BYTES + -(-page // 4096) * 4096), 1e12)
        chain = Chain(namespace.salted("aa"), [token for block in range(PAGES) for token in [block] * 16])
        self.entries: list[Entry] = []
        for index, key in enumerate(chain.keys):
            parent = self.entries[-1] if index and chained else None
            first = chain.namespace if parent is None else None
            self.entries.append(Entry(key, parent, first, chain.page(index), -1, 16 * (index + 1)))

    def save(self, numbers: Sequence[int], slots: Sequence[int] | None = None, removed: Sequence[int] = ()) -> Move:
        """Pages of the chain; by default number n goes to slot n."""
        slots = numbers if slots is None else slots
        parents = [number - 1 if self.entries[number].parent else NO_PARENT for number in numbers]
        move = Move(
            [self.entries[number] for number in numbers],
            list(numbers),
            list(slots),
            parents=parents,
            texts=[((number, 16 * number),) for number in numbers],
            hot=[number % 2 == 0 for number in numbers],
            removed=list(removed),
        )
        self.store.save(move)
        return move

    def load(self, numbers: Sequence[int], slots: Sequence[int] | None = None) -> tuple[list[int], set[int]]:
        """First bytes of what was read, and which positions are bad."""
        self.host.blocks[:] = 0
        move = Move([self.entries[number] for number in numbers], list(slots or numbers), list(numbers))
        self.store.load(move)
        for number in numbers:
            content = self.host.blocks[number]
            if numbers.index(number) not in move.bad:
                assert (content == content[0]).all()
        return [int(self.host.blocks[number][0]) for number in numbers], move.bad


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "cache")
    yield made
    made.store.close()


def reopened(rig: Rig) -> Rig:
    rig.store.close()
    again = Rig(rig.store.folder)
    rig.store = again.store
    return again


def slots_of(rig: Rig) -> list[int]:
    """In which pages were found."""
    slots: list[int] = rig.store.take_found().puts["slot"].tolist()
    return slots


def test_what_was_saved_is_loaded(rig: Rig) -> None:
    rig.save(range(5))
    rig.save([5, 6])
    assert rig.load([6, 2, 0, 5]) == ([7, 3, 1, 6], set())


def test_and_after_a_restart(rig: Rig) -> None:
    rig.save(range(8))
    again = reopened(rig)
    records = again.store.take_found().records()
    assert [record.key for record in records] == [entry.key for entry in rig.entries[:8]]
    assert [record.parent for record in records] == [NO_PARENT, *range(7)]
    assert records[0].namespace == NAMESPACE.salted("aa")
    assert records[3].texts == ((3, 48),)
    assert [record.hot for record in records] == [True, False] * 4
    assert again.load(range(8)) == (list(range(1, 9)), set())


def test_slots_are_used_again(rig: Rig) -> None:
    rig.save(range(8))
    rig.save([7], [7], removed=[7])
    assert rig.load([7]) == ([8], set())
    again = reopened(rig)
    assert len(slots_of(again)) == 8


def test_what_was_removed_stays_removed(rig: Rig) -> None:
    rig.save(range(8))
    rig.save([], removed=[6, 7])
    assert slots_of(reopened(rig)) == list(range(6))


def test_a_slot_written_again_before_a_crash_is_not_what_the_index_says(rig: Rig, tmp_path: Path) -> None:
    rig.save(range(3))
    index = (rig.store.folder / "index.log").read_bytes()
    rig.save([2], [2], removed=[2])
    (rig.store.folder / "index.log").write_bytes(index)
    again = reopened(rig)
    assert again.load([0, 1, 2])[1] == {2}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3 * SLOT - 1), st.integers(1, 255))
def test_a_flipped_byte_is_never_served(tmp_path_factory: pytest.TempPathFactory, offset: int, flip: int) -> None:
    rig = Rig(tmp_path_factory.mktemp("flip"))
    rig.save(range(3))
    with open(rig.store.folder / "segment-00000.kv", "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ flip]))
        file.flush()
        os.fsync(file.fileno())
    content, bad = rig.load([0, 1, 2])
    slot, within = divmod(offset, SLOT)
    assert bad == (set() if within >= HEAD_BYTES + PAGE else {slot})  # the padding is nobody's
    assert all(value == number + 1 for number, value in enumerate(content) if number not in bad)
    rig.store.close()


def test_a_record_of_another_page_is_bad(rig: Rig) -> None:
    rig.save(range(4))
    assert rig.load([3], [2])[1] == {0}


def test_an_index_cut_anywhere_gives_what_was_acknowledged_before(tmp_path: Path) -> None:
    log, _ = IndexLog.open(tmp_path, PAGES)
    ends = [log.size]
    for slot in range(3):
        parent = slot - 1 if slot else NO_PARENT
        namespace = None if slot else NAMESPACE
        log.append([], [Record(slot, slot + 1, parent, slot, slot, 16 * (slot + 1), bytes(64), namespace, ((9, 16),))])
        ends.append(log.size)
    log.close()
    whole = (tmp_path / "index.log").read_bytes()
    for cut in range(ends[0], len(whole)):
        (tmp_path / "index.log").write_bytes(whole[:cut])
        log, index = IndexLog.open(tmp_path, PAGES)
        acknowledged = sum(end <= cut for end in ends[1:])
        assert len(index.live(PAGES).records()) in (acknowledged, acknowledged + 1)
        log.close()
        assert (tmp_path / "index.log").stat().st_size == log.size


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    log, _ = IndexLog.open(folder, PAGES)
    log.append([], [Record(0, 1, NO_PARENT, 0, 7, 16, bytes(64), NAMESPACE, ())])
    log.close()
    path = folder / "index.log"
    path.write_bytes(path.read_bytes() + tail)
    assert [record.key for record in read_log(path)[0].live(PAGES).records()] == [7]
    with pytest.raises(DamagedRecord):
        unpack_head(tail.ljust(HEAD_BYTES, b"\x00"))


def test_frames_that_no_writer_makes_are_an_error(tmp_path: Path) -> None:
    log, _ = IndexLog.open(tmp_path, PAGES)
    log.close()
    path = tmp_path / "index.log"
    head = path.read_bytes()
    for kind, body in [(1, b"short"), (9, b""), (4, b"\x00\x00\x00\x00notmsgpack"), (4, b"")]:
        path.write_bytes(head + frame(kind, body))
        with pytest.raises(DamagedRecord):
            read_log(path)


def test_an_index_of_more_than_one_frame_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.agent.cache.disk.frames.MOST_FRAME", 250)
    records = [Record(0, 1, NO_PARENT, 0, 0, 16, bytes(64), NAMESPACE, ((9, 16),))]
    for slot in range(1, 40):
        records.append(Record(slot, slot + 1, slot - 1, slot, slot, 16 * slot + 16, bytes(64), None, ((slot, 16),)))
    log, _ = IndexLog.open(tmp_path, PAGES)
    log.append(range(100), records)
    assert read_log(tmp_path / "index.log")[0].live(100).records() == records
    log.compact(100)
    log.close()
    index, size = read_log(tmp_path / "index.log")
    assert index.live(100).records() == records
    assert size == (tmp_path / "index.log").stat().st_size


@st.composite
def frames(draw: st.DrawFn) -> list[tuple[Kind, list[tuple[int, ...]]]]:
    """Whatever a log could say about six slots, much of it stale."""
    slot, generation = st.integers(0, 5), st.integers(1, 4)
    put = st.tuples(slot, st.sampled_from([NO_PARENT, 0, 1, 2, 3, 4, 5]), generation, generation, st.integers(1, 3))
    bodies = {Kind.PUT: put, Kind.TEXTS: st.tuples(slot, st.integers(0, 9)), Kind.REMOVE: st.tuples(slot)}
    kinds = draw(st.lists(st.sampled_from(list(bodies)), max_size=12))
    return [(kind, draw(st.lists(bodies[kind], max_size=5))) for kind in kinds]


def packed(kind: Kind, rows: list[tuple[int, ...]]) -> bytes:
    match kind:
        case Kind.PUT:
            return np.array([(s, p, g, above, s, d, 0, g % 2, bytes(64)) for s, p, g, above, d in rows], PUT).tobytes()
        case Kind.TEXTS:
            return np.array([(slot, 0, key) for slot, key in rows], TEXT).tobytes()
        case _:
            return np.array(rows, REMOVE).tobytes()


@settings(max_examples=400, deadline=None)
@given(frames(), st.integers(3, 6))
def test_what_counts_of_a_log(said: list[tuple[Kind, list[tuple[int, ...]]]], slots: int) -> None:
    """Columns, compared with a model that takes one row after the other."""
    index = Index()
    index.add(Kind.NAMESPACE, bytes(4) + msgspec.msgpack.encode(NAMESPACE))
    puts: dict[int, tuple[int, ...]] = {}
    texts: dict[int, list[int]] = {}
    for kind, rows in said:
        for row in rows:
            match kind, row:
                case Kind.PUT, (slot, *_):
                    puts[slot] = row
                    texts[slot] = []
                case Kind.TEXTS, (slot, key) if slot in puts:
                    texts[slot].append(key)
                case Kind.REMOVE, (slot,):
                    puts.pop(slot, None)
        index.add(kind, packed(kind, rows))

    def counts(slot: int, depth: int = 99, generation: int | None = None) -> bool:
        if slot not in puts or slot >= slots:
            return False
        _, parent, own, above, at = puts[slot]
        return at < depth and generation in (None, own) and (parent == NO_PARENT or counts(parent, at, above))

    found = index.live(slots).records()
    assert {record.slot: list(record.texts) for record in found} == {
        slot: [(key, 0) for key in texts[slot]] for slot in puts if counts(slot)
    }
    for record, row in ((record, puts[record.slot]) for record in found):
        assert record.hot == record.generation % 2
        assert (record.parent, record.generation, record.parent_generation, record.depth) == row[1:]
    assert [record.depth for record in found] == sorted(record.depth for record in found)


@settings(max_examples=200, deadline=None)
@given(frames(), st.integers(3, 6), st.sampled_from([1, 4, 1000]))
def test_a_compacted_log_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[Kind, list[tuple[int, ...]]]], slots: int, gathered: int
) -> None:
    folder = tmp_path_factory.mktemp("index")
    parts = [HEAD, name_frame(0, NAMESPACE), *(frame(kind, packed(kind, rows)) for kind, rows in said)]
    (folder / "index.log").write_bytes(b"".join(parts))
    log, index = IndexLog.open(folder, PAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trunkline.agent.cache.disk.compaction.GATHERED_ROWS", gathered)
        log.compact(slots)
    log.close()
    fresh, size = read_log(log.path)
    assert fresh.live(6).records() == index.live(slots).records()
    assert size == log.size == log.path.stat().st_size
    assert fresh.newest <= index.newest


def test_a_generation_is_not_given_twice(rig: Rig) -> None:
    """Not even one that is known only from a record that hung on it."""
    rig.save(range(3))
    rig.save([], removed=[1])
    assert slots_of(reopened(rig)) == [0]
    rig.save([1])
    assert slots_of(reopened(rig)) == [0, 1], "2 hung on another page in the slot of 1"


def test_compaction_keeps_what_lives(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.agent.cache.disk.store.COMPACT_BYTES", 4096)
    rig.save(range(4))
    for _ in range(100):
        rig.save([3], [3], removed=[3])
    assert rig.store._log.size < 8192
    again = reopened(rig)
    assert slots_of(again) == [0, 1, 2, 3]
    assert again.load(range(4)) == ([1, 2, 3, 4], set())


def test_a_head_says_everything() -> None:
    record = Record(3, 9, 2, 8, 2**64 - 1, 64, bytes(range(64)), None, ((1, 16), (2**64 - 1, 64)))
    assert unpack_head(pack_head(record, 100, 2**64 - 2)) == (record, 100, 2**64 - 2)
    first = record._replace(parent=NO_PARENT, parent_generation=0, namespace=NAMESPACE.salted("ff" * 32))
    assert unpack_head(pack_head(first, 1, 1))[0] == first


@pytest.mark.parametrize("size", [1 << 20, 3 * (1 << 20)])
def test_pages_larger_than_a_request(tmp_path: Path, size: int) -> None:
    rig = Rig(tmp_path / "cache", page=size)
    rig.save(range(6))
    assert rig.load([4, 5, 1]) == ([5, 6, 2], set())
    rig.store.close()


def test_what_its_threads_take_is_known(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.save(range(8))
    real = os.preadv

    def costly(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return real(file, buffers, offset)

    monkeypatch.setattr(segments.os, "preadv", costly)
    move = Move([rig.entries[number] for number in (0, 2, 4)], [0, 2, 4], [0, 2, 4])
    rig.store.load(move)
    assert not move.bad
    assert move.cpu_s >= 0.015


def test_neighbours_go_in_one_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.pwritev

    def count(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return write(file, buffers, offset)

    monkeypatch.setattr(segments.os, "pwritev", count)
    rig.save(range(12))
    assert sizes == [12 * SLOT]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync", "pwrite"])
def test_a_write_that_fails_counts_for_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int, call: str) -> None:
    rig.save(range(2))

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(segments.os, call, fail)
        with pytest.raises(OSError, match=os.strerror(code)):
            rig.save([2, 3])
    assert rig.load([0, 1]) == ([1, 2], set())
    for number in range(PAGES):
        rig.host.blocks[number] = number + 1
    rig.save([2])
    assert slots_of(reopened(rig)) == [0, 1, 2]


def test_a_short_write_is_a_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments.os, "pwritev", lambda *_: 4096)
    with pytest.raises(OSError, match="4096 of"):
        rig.save([0])


def test_a_read_that_fails_is_bad_and_the_others_are_not(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.save([0, 1, 2, 3, 4])
    read = os.preadv

    def fail(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        if offset == 2 * SLOT:
            raise OSError(errno.EIO, "injected")
        return read(file, buffers, offset) if offset else 4096

    monkeypatch.setattr(segments.os, "preadv", fail)
    assert rig.load([4, 2, 0])[1] == {1, 2}
    with pytest.raises(OSError, match="injected"):
        rig.load([2])


def test_no_faster_than_it_may_be_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Averaged over each move; what it took itself counts."""
    now, slept = 100.0, list[float]()

    def write(transfers: Sequence[segments.Transfer]) -> float:
        nonlocal now
        now += 0.25
        return 0.0

    monkeypatch.setattr(rig.store, "_write_rate", 4.0 * SLOT)
    monkeypatch.setattr(rig.store._segments, "write", write)
    clock = Mock(monotonic=lambda: now, sleep=slept.append)
    monkeypatch.setattr("trunkline.agent.cache.disk.store.time", clock)
    rig.save(range(8))
    rig.save([8])
    assert slept == pytest.approx([8 / 4 - 0.25, 0.0])


def as_of_version_1(folder: Path) -> None:
    """The same directory as the first version wrote it."""
    path = folder / "cache.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))
    for path in folder.glob("segment-*.kv"):
        content = bytearray(path.read_bytes())
        for start in range(0, len(content), SLOT):
            if content[start : start + 8] == b"TKVPAGE\x00":
                content[start + 8 : start + 10] = (1).to_bytes(2, "little")
                content[start + 28 : start + 32] = bytes(4)
                end = start + HEAD_BYTES - 8
                content[end : end + 8] = hash64(bytes(content[start:end])).to_bytes(8, "little")
        path.write_bytes(content)
    path = folder / "index.log"
    frames = [b"TKVINDEX" + (1).to_bytes(4, "little") + bytes(4)]
    for kind, body, _ in read_frames(path):
        rows = np.frombuffer(body, PUT) if kind == Kind.PUT else None
        frames.append(frame(kind, body if rows is None else rows[list(OLD_PUT.names or ())].astype(OLD_PUT).tobytes()))
    path.write_bytes(b"".join(frames))


def test_a_directory_of_the_first_version_is_taken_over(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.save(range(5))
    rig.save([5, 6], removed=[2])
    rig.store.close()
    as_of_version_1(rig.store.folder)
    before = (rig.store.folder / "index.log").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("trunkline.agent.cache.disk.index.write_compacted", Mock(side_effect=OSError(28, "No space")))
        with pytest.raises(ConfigError, match="No space"):
            Rig(rig.store.folder)
    assert (rig.store.folder / "index.log").read_bytes() == before
    assert len(read_log(rig.store.folder / "index.log")[0].live(PAGES).puts) == 2
    again = Rig(rig.store.folder)
    rig.store = again.store
    assert slots_of(again) == [0, 1]
    assert version_of(rig.store.folder / "index.log") == VERSION
    assert json.loads((rig.store.folder / "cache.json").read_text())["version"] == VERSION
    again.save([2, 3])
    again = reopened(rig)
    assert slots_of(again) == [0, 1, 2, 3]
    assert again.load([3, 1, 0]) == ([4, 2, 1], set())


def test_two_processes_on_one_directory(rig: Rig) -> None:
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        Rig(rig.store.folder)


def test_directories_that_cannot_be_used(rig: Rig, tmp_path: Path) -> None:
    rig.save(range(3))
    rig.store.close()
    before = {path.name: path.read_bytes() for path in rig.store.folder.iterdir()}
    with pytest.raises(ConfigError, match=r"is of model aabbccdd .* this is 11223344"):
        Rig(rig.store.folder, Namespace("11223344", "float32", "layout"))
    with pytest.raises(ConfigError, match=r"has 16 slots, this would be 4: .*`trunkline cache prune"):
        Rig(rig.store.folder, slots=4)
    with pytest.raises(ConfigError, match="MiB are free at"):
        Rig(rig.store.folder, slots=1 << 30)
    with pytest.raises(ConfigError, match="hold no page"):
        Rig(rig.store.folder, slots=0)
    assert {path.name: path.read_bytes() for path in rig.store.folder.iterdir()} == before
    path = rig.store.folder / "cache.json"
    found = json.loads(before["cache.json"])
    for version in (0, 3):
        path.write_text(json.dumps(found | {"version": version}))
        with pytest.raises(ConfigError, match=f"has format {version}, this program reads 1 to 2"):
            Rig(rig.store.folder)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        Rig(rig.store.folder)
    path.write_bytes(before["cache.json"])
    (rig.store.folder / "index.log").write_bytes(b"something else altogether")
    with pytest.raises(ConfigError, match="trunkline cache rebuild"):
        Rig(rig.store.folder)
    (rig.store.folder / "index.log").write_bytes(before["index.log"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="no cache directory, and not empty"):
        Rig(tmp_path / "mine")
    with pytest.raises(ConfigError, match="cannot be used"):
        Rig(tmp_path / "mine" / "thesis.tex")
    rig.store = Rig(rig.store.folder).store
    assert len(slots_of(rig)) == 3


def test_a_directory_that_cannot_be_opened_now_can_be_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays open after a failure, at whatever call: each is tried every few seconds while a disk is ill."""
    rig.save(range(3))
    rig.store.close()
    path = rig.store.folder / "index.log"
    content = path.read_bytes()

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def files() -> int:
        gc.collect()  # a rig's host memory has a descriptor too
        return len(os.listdir("/proc/self/fd"))

    before = files()
    for call in ("ftruncate", "pwrite", "posix_fallocate", "fsync"):
        path.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(segments.os, call, fail)
            with pytest.raises(ConfigError, match="cannot be used"):
                Rig(rig.store.folder)
    path.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="trunkline cache rebuild"):
        Rig(rig.store.folder)
    assert files() == before
    path.write_bytes(content)
    rig.store = Rig(rig.store.folder).store
    assert len(slots_of(rig)) == 3


def test_a_directory_can_grow(rig: Rig) -> None:
    rig.save(range(3))
    rig.store.close()
    larger = Rig(rig.store.folder, slots=40)
    assert larger.store.pages == 40
    assert larger.load(range(3)) == ([1, 2, 3], set())
    rig.store = larger.store


WRITER = """
import sys
from pathlib import Path
from tests.agent.test_disk_store import PAGES, Rig
rig = Rig(Path(sys.argv[1]), chained=False)
print("ready", flush=True)
turn = 0
while True:
    for number in range(PAGES):
        rig.host.blocks[number] = (number + turn) % 251 + 1
    for first in range(0, PAGES, 4):
        numbers = list(range(first, first + 4))
        rig.save(numbers, removed=numbers if turn else [])
        print(turn, first, flush=True)
    turn += 1
"""


@pytest.mark.parametrize("after", [1, 6, 23])
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path, after: int) -> None:
    """The content of page n in turn t is n + t: what is loaded is that of the last acknowledged turn, or the next."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    acknowledged = dict.fromkeys(range(0, PAGES, 4), -1)
    for _ in range(after):
        turn, first = map(int, process.stdout.readline().split())
        acknowledged[first] = turn
    process.send_signal(signal.SIGKILL)
    for line in process.stdout.read().splitlines():
        turn, first = map(int, line.split())
        acknowledged[first] = turn
    process.wait()
    process.stdout.close()
    rig = Rig(tmp_path / "cache", chained=False)
    live = slots_of(rig)
    content, bad = rig.load(live, live)
    for slot, value in zip(live, content, strict=True):
        turn = acknowledged[slot // 4 * 4]
        if live.index(slot) not in bad:
            assert value in [(slot + turn + later) % 251 + 1 for later in (0, 1)]
    # Only the slots of the write that was under way may be torn.
    torn = {slot // 4 for slot in range(PAGES) if slot not in live or live.index(slot) in bad}
    assert len(torn - {first // 4 for first, turn in acknowledged.items() if turn < 0}) <= 1
    rig.store.close()


def test_a_namespace_whose_frame_was_not_written_is_written_with_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(segments.os, "pwrite", fails)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            rig.save([0])
    rig.save(range(3))
    again = reopened(rig)
    assert slots_of(again) == [0, 1, 2]
    assert again.load(range(3)) == ([1, 2, 3], set())


@pytest.mark.parametrize("call", ["fsync", "replace", "sync_folder"])
def test_a_compaction_that_fails_costs_no_page(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trunkline.agent.cache.disk.store.COMPACT_BYTES", 4096)
    rig.save(range(4))
    with monkeypatch.context() as patch:
        patch.setattr(index_module if call == "sync_folder" else index_module.os, call, fails)
        for _ in range(60):
            rig.save([3], [3], removed=[3])
    assert "cannot be compacted" in caplog.text
    assert not list(rig.store.folder.glob("*.new"))
    rig.save([4])
    again = reopened(rig)
    assert slots_of(again) == [0, 1, 2, 3, 4]
    assert again.load(range(5)) == ([1, 2, 3, 4, 5], set())


def fails(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

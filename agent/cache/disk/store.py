"""The disk tier: pages in segment files under an index, found again after a restart. See `docs/develop/disk.md`."""

import logging
import mmap
import os
import time
from pathlib import Path

from trunkline.agent.cache.disk.directory import Format, Lock, read_format, slot_bytes, write_format
from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.index import IndexLog
from trunkline.agent.cache.disk.live import NOTHING, Live
from trunkline.agent.cache.disk.record import HEAD_BYTES, VERSION, Record, pack_head, unpack_head
from trunkline.agent.cache.disk.segments import Segments, Transfer, segment_name
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import NO_PARENT, Move
from trunkline.kernels.core import hash64
from trunkline.shared.errors import ConfigError
from trunkline.shared.namespace import Namespace

COMPACT_BYTES = 4 << 20
"""An index log is not worth compacting before; then when it has grown to twice what it was."""
log = logging.getLogger(__name__)


class DiskStore:
    """A `Store`: `load` is called from one thread, `save` from another. Data is on the disk before the index says so,
    and `save` returns when both are."""

    def __init__(self, folder: Path, namespace: Namespace, host: HostMemory, size: int, write_rate: float) -> None:
        """`size` in bytes, `write_rate` in bytes per second.

        Raises ConfigError for a directory that cannot be used: of another model, newer, in use, too big for the disk.
        """
        self.folder = folder
        self.namespace = namespace
        self.pages = 0
        self._host = host
        self._write_rate = write_rate
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = Lock(folder)
        except OSError as error:
            raise ConfigError(f"--disk-cache: {folder} cannot be used: {error.strerror}") from None
        try:
            self._open(size)
        except OSError as error:
            self._lock.release()
            raise ConfigError(f"--disk-cache: {folder} cannot be used: {error}") from None
        except DamagedRecord as error:
            self._lock.release()
            raise ConfigError(f"--disk-cache: {error}; `trunkline cache rebuild` makes a new index") from None
        except ConfigError:
            self._lock.release()
            raise

    def _open(self, size: int) -> None:
        page_bytes = self._host.page_bytes
        each = slot_bytes(page_bytes)
        self.pages = size // each
        if self.pages < 1:
            raise ConfigError(f"--disk-size: {size} bytes hold no page of {each} bytes")
        found = read_format(self.folder)
        if found is not None:
            self._same(found, page_bytes)
        made = Format(VERSION, page_bytes, self.namespace, self.pages)
        _check_room(self.folder, each, self.pages)
        if made != found:
            write_format(self.folder, made)
        self._segments = Segments(self.folder, each, self.pages)
        try:
            self._log, index = IndexLog.open(self.folder, self.pages)
        except (OSError, DamagedRecord):
            self._segments.close()
            raise
        self._found = index.live(self.pages)
        puts = self._found.puts
        self._generations: dict[int, int] = dict(zip(puts["slot"].tolist(), puts["generation"].tolist(), strict=True))
        self._generation = index.newest
        self._compacted = self._log.size

    def _same(self, found: Format, page_bytes: int) -> None:
        if found.namespace != self.namespace or found.page_bytes != page_bytes:
            raise ConfigError(
                f"--disk-cache: {self.folder} is of model {found.namespace.fingerprint[:12]} ({found.namespace.dtype}, "
                f"{found.namespace.layout}), this is {self.namespace.fingerprint[:12]} ({self.namespace.dtype}, "
                f"{self.namespace.layout}): give each model a directory of its own"
            )
        if found.slots > self.pages:
            raise ConfigError(
                f"--disk-size: {self.folder} has {found.slots} slots, this would be {self.pages}: give at least "
                f"{found.slots * slot_bytes(page_bytes)} bytes, or make it smaller with `trunkline cache prune`"
            )

    def load(self, move: Move) -> None:
        """Disk to host. What is damaged or cannot be read is bad; if nothing can be read, raises OSError."""
        heads = _Heads(len(move.source))
        failed, cpu_s = self._segments.read(
            [
                Transfer(slot, (heads[position], self._host.slot(page)))
                for position, (slot, page) in enumerate(zip(move.source, move.target, strict=True))
            ]
        )
        move.cpu_s += cpu_s
        for position, (entry, slot, page) in enumerate(zip(move.entries, move.source, move.target, strict=True)):
            error = failed.get(slot) or self._compare(entry, slot, bytes(heads[position]), page)
            if error is not None:
                log.error(
                    "disk cache: slot %d in %s: %s", slot, segment_name(slot // self._segments.per_segment), error
                )
                move.bad.add(position)
        if failed and len(failed) == len(move.source):
            raise next(iter(failed.values()))

    def save(self, move: Move) -> None:
        """Host to disk. Raises OSError; then nothing of it counts."""
        began = time.monotonic()
        for slot in move.removed:
            self._generations.pop(slot, None)
        records = self._records(move)
        heads = _Heads(len(records))
        transfers = []
        for number, (position, record) in enumerate(records):
            page = move.source[position]
            content = self._host.page(page)
            heads[number][:] = pack_head(record, len(content), hash64(content))
            transfers.append(Transfer(record.slot, (heads[number], self._host.slot(page))))
        if transfers:
            move.cpu_s += self._segments.write(transfers)
        self._log.append(move.removed, [record for _, record in records])
        self._generations.update((record.slot, record.generation) for _, record in records)
        self._compact()
        # Not faster than the bound, averaged over each move.
        lasts = len(transfers) * self._segments.slot_bytes / self._write_rate
        time.sleep(max(0.0, lasts - (time.monotonic() - began)))

    def take_found(self) -> Live:
        """What lay there when the store was opened. Once: it is large, and out of date with the first move."""
        found, self._found = self._found, NOTHING
        return found

    def probe(self) -> None:
        """Whether the disk takes and keeps what is written. Raises OSError."""
        path = self.folder / "probe"
        with open(path, "wb") as file:
            file.write(bytes(HEAD_BYTES))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def close(self) -> None:
        """After the last move. The directory is another process's to use."""
        self._segments.close()
        self._log.close()
        self._lock.release()

    def _records(self, move: Move) -> list[tuple[int, Record]]:
        """With their positions. A page whose parent did not get here is bad."""
        fresh: dict[int, int] = {}
        records = []
        for position, (entry, slot, parent) in enumerate(zip(move.entries, move.target, move.parents, strict=True)):
            parent_generation = 0
            if parent != NO_PARENT:
                known = fresh.get(parent) or self._generations.get(parent)
                if known is None:
                    move.bad.add(position)
                    continue
                parent_generation = known
            self._generation += 1
            fresh[slot] = self._generation
            texts = move.texts[position]
            record = Record(
                slot,
                self._generation,
                parent,
                parent_generation,
                entry.key,
                entry.depth,
                entry.tokens,
                entry.namespace,
                texts,
                move.hot[position],
            )
            records.append((position, record))
        return records

    def _compare(self, entry: Entry, slot: int, head: bytes, page: int) -> DamagedRecord | None:
        """Whether what was read is this entry's page, whole: the same tokens after the same parent, as written."""
        content = self._host.page(page)
        try:
            record, size, payload_hash = unpack_head(head)
        except DamagedRecord as error:
            return error
        said = (record.slot, record.generation, record.key, record.depth, record.tokens, record.namespace, size)
        meant = (slot, self._generations.get(slot), entry.key, entry.depth, entry.tokens, entry.namespace, len(content))
        if said != meant:
            return DamagedRecord("the record is of another page")
        return None if hash64(content) == payload_hash else DamagedRecord("the page's checksum is wrong")

    def _compact(self) -> None:
        if self._log.size > max(COMPACT_BYTES, 2 * self._compacted):
            try:
                self._log.compact(self.pages)
            except (OSError, DamagedRecord) as error:  # What was saved is: the log is only longer than it had to be.
                log.error("disk cache: the index cannot be compacted, it has %d bytes: %s", self._log.size, error)
            self._compacted = self._log.size


class _Heads:
    """Aligned memory for the heads of a move."""

    def __init__(self, count: int) -> None:
        self._view = memoryview(mmap.mmap(-1, max(1, count) * HEAD_BYTES))

    def __getitem__(self, position: int) -> memoryview:
        return self._view[position * HEAD_BYTES : (position + 1) * HEAD_BYTES]


def _check_room(folder: Path, each: int, pages: int) -> None:
    """Raises ConfigError unless the file system has room for what is not there yet."""
    there = sum(os.stat(path).st_blocks * 512 for path in folder.glob("segment-*.kv"))
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if pages * each - there > free:
        raise ConfigError(
            f"--disk-size: {pages * each / 2**20:.0f} MiB, {(free + there) / 2**20:.0f} MiB are free at {folder}"
        )

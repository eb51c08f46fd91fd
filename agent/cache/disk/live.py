"""What an index says: its frames in columns, and which of their records count.

There may be a hundred thousand records, so none becomes an object here. `docs/develop/disk.md` specifies the rows.
"""

from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trunkline.agent.cache.disk.errors import DamagedRecord
from trunkline.agent.cache.disk.record import Record
from trunkline.agent.cache.lane import NO_PARENT
from trunkline.shared.namespace import Namespace

PUT = np.dtype(
    [
        ("slot", "<u4"),
        ("parent", "<u4"),
        ("generation", "<u8"),
        ("parent_generation", "<u8"),
        ("key", "<u8"),
        ("depth", "<u4"),
        ("namespace", "<u4"),
        ("hot", "<u4"),
        ("tokens", "V64"),
    ]
)
OLD_PUT = np.dtype([(name, PUT[name]) for name in PUT.names or () if name != "hot"])
"""Of version 1."""
TEXT = np.dtype([("slot", "<u4"), ("depth", "<u4"), ("key", "<u8")])
REMOVE = np.dtype([("slot", "<u4")])
NO_NAMESPACE = 0xFFFF_FFFF
NUMBER_BYTES = 4
"""Of a namespace, before the namespace itself."""

Rows = npt.NDArray[np.void]
Positions = npt.NDArray[np.intp]


class Kind(IntEnum):
    """Of a frame."""

    PUT = 1
    REMOVE = 2
    TEXTS = 3
    NAMESPACE = 4


def renewed(body: bytes) -> bytes:
    """Rows of OLD_PUT as rows of PUT. Raises DamagedRecord."""
    if len(body) % OLD_PUT.itemsize:
        raise DamagedRecord(f"{len(body)} bytes are no rows of {OLD_PUT.itemsize}")
    old = np.frombuffer(body, OLD_PUT)
    rows = np.zeros(len(old), PUT)
    for name in OLD_PUT.names or ():
        rows[name] = old[name]
    return rows.tobytes()


class Live(NamedTuple):
    """The records that can be matched, parents first. One row of each column is of one record, or of one text key."""

    puts: Rows
    """Of PUT."""
    parents: Positions
    """Where in `puts` the parent is; -1: a first page."""
    texts: Rows
    """Of TEXT, in the order of their records."""
    owners: Positions
    """Where in `puts` the record of each text key is."""
    namespaces: dict[int, Namespace]
    """By number."""

    def records(self) -> list[Record]:
        """The same, one by one."""
        texts = list(zip(self.texts["key"].tolist(), self.texts["depth"].tolist(), strict=True))
        ends = np.searchsorted(self.owners, np.arange(len(self.puts) + 1)).tolist()
        return [
            Record(
                slot,
                generation,
                parent,
                parent_generation,
                key,
                depth,
                tokens,
                self.namespaces[number] if parent == NO_PARENT else None,
                tuple(texts[ends[position] : ends[position + 1]]),
                bool(hot),
            )
            for position, (slot, parent, generation, parent_generation, key, depth, number, hot, tokens) in enumerate(
                self.puts.tolist()
            )
        ]


NOTHING = Live(np.empty(0, PUT), np.empty(0, np.intp), np.empty(0, TEXT), np.empty(0, np.intp), {})


class Index:
    """Frames in the order in which they were written."""

    def __init__(self) -> None:
        self.namespaces: dict[int, Namespace] = {}
        """By number."""
        self._frames = 0
        self._puts, self._texts, self._removed = _Column(PUT), _Column(TEXT), _Column(REMOVE)

    def add(self, kind: int, body: bytes) -> None:
        """The next frame. Raises DamagedRecord for one that no writer makes."""
        self._frames += 1
        match kind:
            case Kind.PUT:
                self._puts.add(self._frames, body)
            case Kind.REMOVE:
                self._removed.add(self._frames, body)
            case Kind.TEXTS:
                self._texts.add(self._frames, body)
            case Kind.NAMESPACE:
                try:
                    namespace = msgspec.msgpack.decode(body[NUMBER_BYTES:], type=Namespace)
                except msgspec.MsgspecError as error:
                    raise DamagedRecord(f"frame of kind {kind} does not decode: {error}") from None
                self.namespaces[int.from_bytes(body[:NUMBER_BYTES], "little")] = namespace
            case _:
                raise DamagedRecord(f"frame of unknown kind {kind}")

    @property
    def newest(self) -> int:
        """The highest generation of all records, whether or not they count; 0: there is none."""
        return int(self._puts.rows()[0]["generation"].max(initial=0))

    def live(self, slots: int) -> Live:
        """What counts: each slot's last record, if it was not removed and its parent counts. `slots`: those of a higher
        number are not there."""
        puts, written = self._standing(slots)
        up = _find(puts["slot"], puts["parent"])
        first = puts["parent"] == NO_PARENT
        follows = (puts["generation"][up] == puts["parent_generation"]) & (puts["depth"][up] < puts["depth"])
        named = np.isin(puts["namespace"], np.fromiter(self.namespaces, np.uint32))
        counts = _as_all_above(np.where(first, -1, up), np.where(first, named, (up >= 0) & follows))
        order = np.flatnonzero(counts)
        order = order[np.argsort(puts["depth"][order], kind="stable")]
        place = np.full(len(puts) + 1, -1)  # the last one: of what was not found
        place[order] = np.arange(len(order))
        texts, said = self._texts.rows()
        of = _find(puts["slot"], texts["slot"])
        owners = np.where(np.append(written, self._frames)[of] < said, place[of], -1)
        by_owner = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
        parents = np.where(first, -1, place[up])[order]
        return Live(puts[order], parents, texts[by_owner], owners[by_owner], self.namespaces)

    def _standing(self, slots: int) -> tuple[Rows, Positions]:
        """The last record of each slot that was not removed afterwards, by slot, and the frame it came in."""
        puts, written = self._puts.last()
        gone, removed = self._removed.last()
        stands = np.append(removed, -1)[_find(gone["slot"], puts["slot"])] < written
        stands &= puts["slot"] < slots
        return puts[stands], written[stands]


class _Column:
    """Rows of one kind, each with the number of its frame."""

    def __init__(self, kind: np.dtype[np.void]) -> None:
        self._kind = kind
        self._bodies: list[bytes] = []
        self._frames: list[int] = []

    def add(self, frame: int, body: bytes) -> None:
        if len(body) % self._kind.itemsize:
            raise DamagedRecord(f"{len(body)} bytes are no rows of {self._kind.itemsize}")
        self._bodies.append(body)
        self._frames.append(frame)

    def rows(self) -> tuple[Rows, Positions]:
        counts = [len(body) // self._kind.itemsize for body in self._bodies]
        return np.frombuffer(b"".join(self._bodies), self._kind), np.repeat(np.array(self._frames, np.intp), counts)

    def last(self) -> tuple[Rows, Positions]:
        """The last row of each slot, by slot."""
        rows, frames = self.rows()
        order = np.argsort(rows["slot"], kind="stable")
        slots = rows["slot"][order]
        order = order[np.append(slots[1:] != slots[:-1], True)] if len(order) else order
        return rows[order], frames[order]


def _find(slots: npt.NDArray[np.uint32], wanted: npt.NDArray[np.uint32]) -> Positions:
    """Where in `slots`, ascending, each wanted one is; -1: nowhere."""
    at = np.searchsorted(slots, wanted)
    return np.where(np.append(slots, 0)[at] == wanted, at, -1) if len(slots) else np.full(len(wanted), -1)


def _as_all_above(up: Positions, good: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which rows are good with all above them. `up`: the row above each, -1 for none; a good row has no cycle above it.

    Each round looks twice as far as the one before.
    """
    own = np.arange(len(up))
    up = np.where(good & (up >= 0), up, own)
    while True:
        good = good & good[up]
        further = up[up]
        if np.array_equal(further, up):
            return good
        up = further

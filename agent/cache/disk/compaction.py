"""An index log without what was removed or written over since."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from trunkline.agent.cache.disk.frames import HEAD, frame, read_frames, row_frames
from trunkline.agent.cache.disk.live import NUMBER_BYTES, PUT, REMOVE, TEXT, Kind, Rows

GATHERED_ROWS = 1 << 13
"""Of records, in one frame of the new log: about a megabyte."""


def write_compacted(path: Path, slots: int, file: BinaryIO) -> set[int]:
    """Writes a log that says of the slots below this number what the log at `path` does: of each the last record, if
    it was not removed since, with its text keys. The numbers of the namespaces in it.

    Reads that log twice, a frame at a time, for it may be of many times what should be in memory at once. Raises
    OSError, DamagedRecord.
    """
    stands, names = _standing(path, slots)
    used: set[int] = set()
    puts: list[Rows] = []
    texts: list[Rows] = []
    gathered = 0
    file.write(HEAD)
    for number, (kind, body, _) in enumerate(read_frames(path), 1):
        if kind == Kind.PUT:
            rows = _rows(body, PUT, slots)
            rows = rows[stands[rows["slot"]] == number]
            for name in (set(rows["namespace"].tolist()) & names.keys()) - used:
                file.write(names[name])
                used.add(name)
            puts.append(rows)
            gathered += len(rows)
        elif kind == Kind.TEXTS:
            rows = _rows(body, TEXT, slots)
            since = stands[rows["slot"]]
            texts.append(rows[(since > 0) & (since < number)])
        if gathered >= GATHERED_ROWS:
            _write(file, puts, texts)
            gathered = 0
    _write(file, puts, texts)
    return used


def _standing(path: Path, slots: int) -> tuple[npt.NDArray[np.int64], dict[int, bytes]]:
    """For each slot the number of the frame with the record that stands, from 1 on; 0: none does. And the frames that
    name namespaces, by the number that they give."""
    stands = np.zeros(slots, np.int64)
    names: dict[int, bytes] = {}
    for number, (kind, body, _) in enumerate(read_frames(path), 1):
        if kind == Kind.PUT:
            stands[_rows(body, PUT, slots)["slot"]] = number
        elif kind == Kind.REMOVE:
            stands[_rows(body, REMOVE, slots)["slot"]] = 0
        elif kind == Kind.NAMESPACE:
            names[int.from_bytes(body[:NUMBER_BYTES], "little")] = frame(kind, body)
    return stands, names


def _rows(body: bytes, kind: np.dtype[np.void], slots: int) -> Rows:
    rows = np.frombuffer(body, kind)
    return rows[rows["slot"] < slots]


def _write(file: BinaryIO, puts: list[Rows], texts: list[Rows]) -> None:
    """What was gathered, in few frames: text keys after the records that they hang on."""
    for kind, rows in ((Kind.PUT, puts), (Kind.TEXTS, texts)):
        if rows:
            file.writelines(row_frames(kind, np.concatenate(rows)))
            rows.clear()

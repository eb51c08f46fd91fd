"""A cache directory: whose it is, of what, and what may be done with it.

cache.json          format, page size and namespace; written once, before anything else
lock                held by the process that uses it
index.log           which page lies in which slot
segment-00000.kv    pages
"""

import fcntl
import os
from pathlib import Path

import msgspec

from trunkline.agent.cache.disk.index import sync_folder
from trunkline.agent.cache.disk.record import HEAD_BYTES, OLDEST, VERSION
from trunkline.agent.cache.host import SLOT_ALIGNMENT
from trunkline.shared.errors import ConfigError
from trunkline.shared.namespace import Namespace

NAME = "cache.json"


class Format(msgspec.Struct, frozen=True):
    """What the pages of a directory are. `namespace` has no salt; pages of all tenants lie together."""

    version: int
    page_bytes: int
    namespace: Namespace
    slots: int

    @property
    def slot_bytes(self) -> int:
        """A head and a page, padded."""
        return slot_bytes(self.page_bytes)


class Lock:
    """One process at a time. The system gives it back when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if another process has it, OSError if it cannot be made."""
        self._file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(folder)
        except (ConfigError, OSError):
            self.release()  # Else nobody could have it, this process included.
            raise

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"{folder} is in use by process {holder}: stop it, or give another directory; each agent needs its own"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._file)


def slot_bytes(page_bytes: int) -> int:
    return HEAD_BYTES + -(-page_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def read_format(folder: Path) -> Format | None:
    """None: an empty directory. Raises ConfigError for what is no cache of a version that can be read, OSError."""
    path = folder / NAME
    if not path.exists():
        strangers = [entry.name for entry in folder.iterdir() if entry.name != "lock"]
        if strangers:
            raise ConfigError(f"{folder} is no cache directory, and not empty ({strangers[0]}): choose another")
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Format)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is damaged: {error}; choose another directory or remove this one") from None
    if not OLDEST <= found.version <= VERSION:
        raise ConfigError(
            f"{folder} has format {found.version}, this program reads {OLDEST} to {VERSION}: choose another directory, "
            "or remove this one"
        )
    return found


def write_format(folder: Path, made: Format) -> None:
    """Whole or not at all. Raises OSError."""
    fresh = folder / f"{NAME}.new"
    with open(fresh, "wb") as file:
        file.write(msgspec.json.encode(made) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, folder / NAME)
    sync_folder(folder)

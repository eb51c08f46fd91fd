"""Streamed responses that the core passes on from a node's socket to a client's, without the event loop."""

import asyncio
from typing import Protocol

from trunkline.kernels.core import Splicer, StreamEnd
from trunkline.shared.metrics.distribution import Distribution
from trunkline.shared.metrics.router import ITL


class Spliced(Protocol):
    """Whose stream it is."""

    def on_splice_end(self, end: StreamEnd) -> None:
        """It ended by itself. Not called for one that was stopped."""


class Splices:
    """Streams under way. Used on the event loop only."""

    def __init__(self) -> None:
        self._splicer = Splicer(ITL.bounds)
        self._owners: dict[int, Spliced] = {}

    def can_pass(self, source: asyncio.Transport, target: asyncio.Transport) -> bool:
        """Whether what is read and written is what goes over the wire."""
        return all(transport.get_extra_info("sslcontext") is None for transport in (source, target))

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._splicer.fileno(), self._collect)

    def begin(self, owner: Spliced, source: asyncio.Transport, target: asyncio.Transport, first: bytes) -> int | None:
        """The number of a new stream; None if these two cannot have one now: then nothing was taken.

        The source is between two chunks. It is not read, and the target not written to, until the stream ends or is
        stopped.
        """
        if target.get_write_buffer_size() or target.is_closing():
            return None
        descriptor, onto = (transport.get_extra_info("socket").fileno() for transport in (source, target))
        try:
            stream = self._splicer.start(descriptor, onto, first)
        except OSError:  # Out of descriptors: the stream goes on as it is.
            return None
        source.pause_reading()
        self._owners[stream] = owner
        return stream

    def progress(self, stream: int) -> tuple[int, bool]:
        """Bytes passed on, and whether the target takes none at the moment."""
        return self._splicer.progress(stream)

    def stop(self, stream: int) -> StreamEnd:
        """From now on both sockets are the caller's again."""
        del self._owners[stream]
        return self._splicer.stop(stream)

    def gaps(self) -> Distribution:
        """Seconds between two reads of a stream, of all of them ever."""
        gaps = ITL.distribution()
        gaps.extend(*self._splicer.gaps())
        return gaps

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._splicer.fileno())
        self._splicer.close()

    @property
    def open(self) -> int:
        return len(self._owners)

    def _collect(self) -> None:
        for stream in self._splicer.ended():
            owner = self._owners.pop(stream, None)
            if owner is not None:  # Else it was stopped when it had just ended.
                owner.on_splice_end(self._splicer.stop(stream))

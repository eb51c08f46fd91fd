"""Threads that serve connections, one each."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from trunkline.agent.transfer.errors import TransferError

MOST_CONNECTIONS = 256
BACKLOG = 16
CLOSE_S = 5.0
PAUSE_S = 0.2
"""After there was no room for one more connection or thread: others may end meanwhile."""
log = logging.getLogger(__name__)


class Listener:
    """Accepts until it is closed. `serve` may wait; shutting the connection down ends it."""

    def __init__(self, name: str, listening: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        """`listening` is this one's from now on. `serve` is called with each connection, in a thread of its own; it may
        raise OSError and TransferError. Beyond MOST_CONNECTIONS, they are closed at once."""
        self.refused = 0
        """Connections that were one too many."""
        self._name = name
        self._listening = listening
        self._serve = serve
        self._lock = threading.Lock()
        """Of `_peers` and `_closed`: no section waits, but for a thread to start."""
        self._peers: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._failed = 0
        """Times that one could not be taken for want of something."""
        listening.listen(BACKLOG)
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._peers)

    def close(self) -> None:
        """Ends all connections, and waits for their threads. Idempotent."""
        with self._lock:
            self._closed = True
            peers = dict(self._peers)
        for peer in (self._listening, *peers):
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *peers.values()):
            thread.join(CLOSE_S)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                peer, _ = self._listening.accept()
            except OSError as error:
                self._complain(error)
            else:
                self._take(peer)

    def _take(self, peer: socket.socket) -> None:
        with self._lock:
            if not self._closed and len(self._peers) < MOST_CONNECTIONS:
                thread = threading.Thread(target=self._run, args=(peer,), name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # too many threads
                    failure: RuntimeError | None = error
                else:
                    self._peers[peer] = thread  # started, for `close` joins it; it ends by this lock
                    return
            else:
                failure = None
        self.refused += 1
        peer.close()
        if failure is not None:
            self._complain(failure)

    def _complain(self, error: Exception) -> None:
        if not self._closed:
            self._failed += 1
            if self._failed.bit_count() == 1:  # 1, 2, 4, ...
                log.error("%s: %d connections could not be taken so far: %s", self._name, self._failed, error)
            time.sleep(PAUSE_S)

    def _run(self, peer: socket.socket) -> None:
        try:
            self._serve(peer)
        except TransferError as error:
            log.warning("%s: %s", self._name, error)
        except OSError as error:
            log.info("%s: a connection ends: %s", self._name, error)
        finally:
            with self._lock:
                self._peers.pop(peer, None)
            peer.close()

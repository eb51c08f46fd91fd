"""Threads that serve connections, one each."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from trunkline.agent.transfer.errors import TransferError

MOST_CONNECTIONS = 256
BACKLOG = 16
CLOSE_S = 5.0
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
        """Of `_peers` and `_closed`: no section waits."""
        self._peers: dict[socket.socket, threading.Thread] = {}
        self._closed = False
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
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError as error:
                if not self._closed:
                    log.critical("%s: no connection is taken any more: %s", self._name, error)
                return
            with self._lock:
                if self._closed or len(self._peers) >= MOST_CONNECTIONS:
                    self.refused += 1
                    peer.close()
                    continue
                thread = threading.Thread(target=self._run, args=(peer,), name=self._name, daemon=True)
                self._peers[peer] = thread
            thread.start()

    def _run(self, peer: socket.socket) -> None:
        try:
            self._serve(peer)
        except TransferError as error:
            log.warning("%s: %s", self._name, error)
        except OSError as error:
            log.info("%s: a reader is gone: %s", self._name, error)
        finally:
            with self._lock:
                self._peers.pop(peer, None)
            peer.close()

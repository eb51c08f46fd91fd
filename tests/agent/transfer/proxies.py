"""What happens to a connection on its way: it is cut, falls silent, or has a bit flipped."""

import contextlib
import socket
import threading
from collections.abc import Callable

Damage = Callable[[int, bytearray], "bytearray | None"]
"""What goes on of the bytes from the holder, at this offset in all of them; None: it is cut."""


class Proxy:
    """Stands before a holder; entered, it is an address."""

    def __init__(self, port: int, damage: Damage) -> None:
        self._port, self._damage = port, damage
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> str:
        self._threads[0].start()
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for one in self._sockets:
            _cut(one)
        for thread in self._threads:
            thread.join()
        for one in (self._listening, *self._sockets):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                reader, _ = self._listening.accept()
            except OSError:
                return
            holder = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [reader, holder]
            for source, target, damage in ((reader, holder, None), (holder, reader, self._damage)):
                thread = threading.Thread(target=self._carry, args=(source, target, damage))
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, target: socket.socket, damage: Damage | None) -> None:
        offset = 0
        try:
            while data := bytearray(source.recv(4096)):
                passed = damage(offset, data) if damage else data
                offset += len(data)
                if passed is None:
                    break
                target.sendall(passed)
        except OSError:
            pass
        _cut(source)
        _cut(target)


def _cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)

"""Something that is done again and again while a context lasts."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Periodic:
    """A context: calls `look` every `period_s` seconds, on a thread of its own, the first time after that long."""

    def __init__(self, look: Callable[[], None], period_s: float, name: str) -> None:
        self._call, self._period_s = look, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._call()

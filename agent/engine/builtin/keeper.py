"""Who looks after an engine's pages while its model computes.

A step of prefill takes seconds on a slow machine. Meanwhile other nodes ask for pages, pages land, requests come; and
none of that touches what the step reads: its batch is decided, its pages are held, and what is let go under it waits
for its end (`PagePool`).

    engine thread   ──┤ lock: keep, schedule ├── compute ──────────┤ lock: take results ...
    keeper                                      ├ lock: keep ┤
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType


class Keeper:
    """One lock over all that an engine owns but its model. Entered by the engine thread, which has the lock from then
    on, except while it waits or computes; while it computes, the keeper's own thread does what comes up."""

    def __init__(self, keep: Callable[[], None]) -> None:
        """`keep` is called with the lock held, and must not wait."""
        self._keep = keep
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        self._computing = self._ended = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._lock.release()
        self._stirred.set()
        self._thread.join()

    def stir(self) -> None:
        """Something has come up. From any thread; does not wait."""
        self._stirred.set()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The engine thread waits for what comes, and does it itself."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The engine thread computes."""
        self._computing = True
        self._lock.release()
        try:
            yield
        finally:
            self._computing = False  # first: the keeper must not take the lock again before the engine thread has it
            self._lock.acquire()

    def check(self) -> None:
        """Raises what `keep` has raised."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while self._failure is None:
            self._stirred.wait()
            self._stirred.clear()
            with self._lock:
                if self._ended:
                    return
                try:
                    if self._computing:
                        self._keep()
                except Exception as error:  # noqa: BLE001  # The engine thread raises it.
                    self._failure = error

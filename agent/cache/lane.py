"""A thread that carries pages one way between two tiers, one batch after the other."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trunkline.agent.cache.entry import Entry

NO_PARENT = 0xFFFF_FFFF
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Move:
    """A batch of pages on its way. The engine thread makes it and takes it back; in between it is the lane's alone."""

    entries: list[Entry]
    source: list[int]
    """Pages of the tier it comes from, held until it has landed."""
    target: list[int]
    """Pages taken in the tier it goes to."""
    anchors: list[int] = field(default_factory=list)
    """Pages of parents in the tier it goes to, held so that what lands has its parent there."""
    parents: list[int] = field(default_factory=list)
    """Pages of the entries' parents in the tier it goes to; NO_PARENT for a first page."""
    texts: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    """Text keys of the entries, with their depths."""
    hot: list[bool] = field(default_factory=list)
    """Of the entries, which are expected to stay long in the tier that they go to."""
    removed: list[int] = field(default_factory=list)
    """Pages of the tier it goes to that were let go since the last move."""
    bad: set[int] = field(default_factory=set)
    """Positions whose content did not arrive, or is not what it should be."""
    error: OSError | None = None
    """The tier has failed: nothing arrived."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of all threads that carried it."""


class Lane:
    """Used from one thread, the engine's; what is submitted is carried in the lane's own."""

    def __init__(self, name: str, carry: Callable[[Move], None], depth: int = 2) -> None:
        """`carry` copies a move's content and notes what did not arrive; OSError means that nothing did. It may be
        called from two threads at once.
        `depth`: moves that wait beside the one under way."""
        self.on_landed: Callable[[], None] = lambda: None
        """Called from the lane's thread after each move; must not wait."""
        self.moves = 0
        """Under way: submitted, and not taken back."""
        self._carry = carry
        self._depth = depth
        self._queue: queue.SimpleQueue[Move | None] = queue.SimpleQueue()
        self._landed: deque[Move] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        return self.moves > self._depth

    def submit(self, move: Move) -> None:
        """The lane is not full."""
        self.moves += 1
        self._queue.put(move)

    def carry(self, move: Move) -> None:
        """Right now, in the caller's thread."""
        began, began_cpu = time.monotonic(), time.thread_time()
        try:
            self._carry(move)
        except OSError as error:
            move.error = error
        except Exception as error:
            log.exception("a move of %d pages failed", len(move.entries))
            move.error = OSError(f"{type(error).__name__}: {error}")
        move.seconds = time.monotonic() - began
        move.cpu_s += time.thread_time() - began_cpu

    def landed(self) -> Move | None:
        """The next move that is done, in the order in which they were submitted."""
        if not self._landed:
            return None
        self.moves -= 1
        return self._landed.popleft()

    def end(self) -> None:
        """Ends after what was submitted. Does not wait."""
        self._queue.put(None)

    def close(self, timeout: float) -> bool:
        """Ends after what was submitted. False: it is still at it."""
        self.end()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (move := self._queue.get()) is not None:
            self.carry(move)
            self._landed.append(move)
            self.on_landed()

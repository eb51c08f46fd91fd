"""A node's account as it was within the time that a report may be late."""

WINDOW_S = 2.0
"""How late reports may be. What is said to be recent happened within the last one to two windows."""


class Least:
    """The least of what was told within the last one to two windows of so many seconds; 0 before anything was."""

    __slots__ = ("_before", "_now", "_seconds", "_window")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._window = -1
        self._now = self._before = 0

    def tell(self, value: int, now: float) -> None:
        window = int(now / self._seconds)
        if window != self._window:
            self._before = self._now if window == self._window + 1 else value
            self._now = value
            self._window = window
        self._now = min(self._now, value)

    @property
    def value(self) -> int:
        return min(self._now, self._before)


class Recent:
    """Of the tokens that are pending (placed and not begun): how many are recent, and the most there recently were.
    Of the requests under way: the most there recently were."""

    __slots__ = (
        "_before",
        "_earlier",
        "_last_pending",
        "_last_running",
        "_now",
        "_pending",
        "_pending_before",
        "_running",
        "_running_before",
        "_window",
    )

    def __init__(self) -> None:
        self._window = 0
        self._now = self._before = self._earlier = 0
        self._pending = self._pending_before = self._last_pending = 0
        self._running = self._running_before = self._last_running = 0

    def place(self, tokens: int, pending: int, running: int, now: float) -> int:
        """So many tokens were placed, and with them there are so many. Returns when, which `begin` wants back."""
        window = int(now / WINDOW_S)
        if window != self._window:
            self.turn(pending, running, now)
        self._now += tokens
        self._last_pending, self._last_running = pending, running
        if pending > self._pending:
            self._pending = pending
        if running > self._running:
            self._running = running
        return window

    def begin(self, tokens: int, window: int) -> None:
        """They are not pending any more."""
        if window == self._window:
            self._now -= tokens
        elif window == self._window - 1:
            self._before -= tokens
        elif window == self._window - 2:
            self._earlier -= tokens

    def turn(self, pending: int, running: int, now: float) -> None:
        """There are so many now; since the last call of `place` or `turn` they have only become fewer."""
        window = int(now / WINDOW_S)
        if window != self._window:
            gone = window - self._window
            self._earlier = self._before if gone == 1 else self._now if gone == 2 else 0
            self._before = self._now if gone == 1 else 0
            self._now = 0
            # Until now, within this window, there were at most as many as at the last call.
            self._pending_before, self._pending = self._pending, self._last_pending
            self._running_before, self._running = self._running, self._last_running
            self._window = window
        self._last_pending, self._last_running = pending, running

    def placed(self) -> int:
        """Recent tokens that are pending."""
        return self._now + self._before

    def unknown_to(self, window: int) -> int:
        """Pending tokens that were recent when a report came in `window`, this one or the one before, or came since."""
        recent = self._now + self._before
        return recent if window == self._window else recent + self._earlier

    def most_pending(self) -> int:
        return max(self._pending, self._pending_before)

    def most_running(self) -> int:
        return max(self._running, self._running_before)

"""Numbers as they were within the time that a report may be late."""

WINDOW_S = 2.0
"""How late reports may be. What is said to be within the window may be as old as two of them."""


class Peak:
    """The most that a number was within the window."""

    __slots__ = ("_before", "_now", "_until")

    def __init__(self) -> None:
        self._now = self._before = 0
        self._until = float("-inf")

    def see(self, value: int, now: float) -> int:
        """The number is `value` now, and only falls until the next call. Returns the most."""
        if now >= self._until:
            self._before, self._now = self._now, value
            self._until = now + WINDOW_S
        elif value > self._now:
            self._now = value
        return max(self._now, self._before)


class Recent:
    """The sum of what was added within the window and not taken out again."""

    __slots__ = ("_before", "_now", "_window")

    def __init__(self) -> None:
        self._window = 0
        self._now = self._before = 0

    def add(self, amount: int, now: float) -> int:
        """Returns the number of the window, which `remove` wants back."""
        self.turn(now)
        self._now += amount
        return self._window

    def remove(self, amount: int, window: int) -> None:
        """Takes out what was added then."""
        if window == self._window:
            self._now -= amount
        elif window == self._window - 1:
            self._before -= amount

    def turn(self, now: float) -> None:
        """What is too old is left out from now on."""
        window = int(now / WINDOW_S)
        if window != self._window:
            self._before = self._now if window == self._window + 1 else 0
            self._window, self._now = window, 0

    def total(self) -> int:
        return self._now + self._before

"""What a model with a sliding window still attends to, in pages."""

from collections.abc import Callable, Sequence

from trunkline.agent.cache.entry import GONE, Entry
from trunkline.shared.names import PAGE_TOKENS


class Window:
    """Of a model all of whose layers have one; the widest counts, for a page holds all layers."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: positions that a query sees, itself included."""
        # The last page that was computed is kept in any case: what comes next hangs on it.
        self._tokens = max(2, tokens)
        self.tail = -(-(self._tokens - 1) // PAGE_TOKENS)
        """Pages at the end of a prefix of whole pages that are needed to go on after it."""

    def first(self, computed: int) -> int:
        """The first page that is still attended to once so many tokens are computed."""
        return max(0, computed - self._tokens + 1) // PAGE_TOKENS

    def most(self, step_tokens: int) -> int:
        """Pages that a sequence holds at most, with steps of so many tokens."""
        return self.tail + -(-step_tokens // PAGE_TOKENS) + 1

    def reach(self, entries: Sequence[Entry], there: Callable[[Entry], bool]) -> int:
        """How many of the entries, a verified prefix, can be gone on after: those of its tail are there."""
        reach = run = 0
        for count, entry in enumerate(entries, 1):
            run = run + 1 if there(entry) else 0
            if run >= min(count, self.tail):
                reach = count
        return reach

    def usable(self, entries: Sequence[Entry]) -> tuple[int, int, list[Entry]]:
        """Of a verified prefix, the longest part that can be gone on after with what is on the device: how many entries
        the window has passed at its end, and its length; and what the device lacks of the longest that any tier has."""
        reach = self.reach(entries, lambda entry: entry.page != GONE)
        below = self.reach(entries, lambda entry: entry.page != GONE or bool(entry.host or entry.disk))
        missing = [entry for entry in entries[max(0, below - self.tail) : below] if entry.page == GONE]
        return max(0, reach - self.tail), reach, missing

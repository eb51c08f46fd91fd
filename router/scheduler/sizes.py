"""Prompts that are pending on a node, by size. Where shorter ones go first, a request waits for those alone, and holds
up the longer ones.

A size is an octave of tokens to compute. Of one size the earlier prompt goes first. That a prompt which has waited
for long is passed no more is left out: it is so on all nodes alike when queues are long.
"""

from collections.abc import Sequence
from operator import add

SIZES = 12
SMALLEST = 7
"""Below 128 tokens there is one size, and above 131,072."""


def size_of(tokens: int) -> int:
    """Of a prompt with so many tokens to compute, fewer than 2^64."""
    return _SIZE_OF_BITS[tokens.bit_length()]


_SIZE_OF_BITS = [min(max(bits - SMALLEST, 0), SIZES - 1) for bits in range(65)]


Told = tuple[int, ...]
"""Tokens of each size, then pairs of each, then numbers: what routers tell each other."""
NOTHING: Told = (0,) * (3 * SIZES)
Passing = tuple[Sequence[float], Sequence[int]]
"""By size: seconds of prefill that one of it need not wait for, and how many prompts are above it."""
NOBODY: Passing = ((0.0,) * SIZES, (0,) * SIZES)


class Sizes:
    """Tokens, pairs and number of the pending prompts of each size."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = list(NOTHING)

    def add(self, tokens: int, pairs: int) -> None:
        rows, size = self._rows, size_of(tokens)
        rows[size] += tokens
        rows[size + SIZES] += pairs
        rows[size + 2 * SIZES] += 1

    def remove(self, tokens: int, pairs: int) -> None:
        """What was added."""
        rows, size = self._rows, size_of(tokens)
        rows[size] -= tokens
        rows[size + SIZES] -= pairs
        rows[size + 2 * SIZES] -= 1

    def told(self) -> Told:
        return tuple(self._rows)

    def passed(self, others: Told, per_token: float, per_pair: float, step_tokens: int) -> Passing:
        """What one does not wait for is the prefill of those above, but for half a step of them: a step that has begun
        is not left. `others`: what other routers told of theirs.
        """
        rows = self._rows if others is NOTHING else list(map(add, self._rows, others))
        seconds, counts = [0.0] * SIZES, [0] * SIZES
        work, tokens, number = 0.0, 0, 0
        for size in range(SIZES - 1, -1, -1):
            if number:
                seconds[size] = work * (1.0 - min(1.0, step_tokens / tokens) / 2)
                counts[size] = number
            if rows[size + 2 * SIZES]:
                work += rows[size] * per_token + rows[size + SIZES] * per_pair
                tokens += rows[size]
                number += rows[size + 2 * SIZES]
        return seconds, counts

"""Prompts that are pending on a node, by size. Where shorter ones go first, a request waits for those alone, and holds
up the longer ones.

A size is an octave of tokens to compute. Of one size the earlier prompt goes first. That a prompt which has waited
for long is passed no more is left out: it is so on all nodes alike when queues are long.
"""

SIZES = 12
_SMALLEST = 7
"""Below 128 tokens there is one size, and above 131,072."""


def size_of(tokens: int) -> int:
    """Of a prompt with so many tokens to compute."""
    return min(max(tokens.bit_length() - _SMALLEST, 0), SIZES - 1)


class Sizes:
    """Tokens, pairs and number of the pending prompts of each size."""

    __slots__ = ("_counts", "_pairs", "_tokens")

    def __init__(self) -> None:
        self._tokens = [0] * SIZES
        self._pairs = [0] * SIZES
        self._counts = [0] * SIZES

    def add(self, tokens: int, pairs: int) -> None:
        size = size_of(tokens)
        self._tokens[size] += tokens
        self._pairs[size] += pairs
        self._counts[size] += 1

    def remove(self, tokens: int, pairs: int) -> None:
        """What was added."""
        size = size_of(tokens)
        self._tokens[size] -= tokens
        self._pairs[size] -= pairs
        self._counts[size] -= 1

    def passed(self, per_token: float, per_pair: float, step_tokens: int) -> tuple[list[float], list[int]]:
        """For each size: seconds of prefill that one of it need not wait for, and how many prompts are above it.

        That is the prefill of those above, but for half a step of them: a step that has begun is not left.
        """
        seconds, counts = [0.0] * SIZES, [0] * SIZES
        work, tokens, number = 0.0, 0, 0
        for size in range(SIZES - 1, -1, -1):
            if number:
                seconds[size] = work * (1.0 - min(1.0, step_tokens / tokens) / 2)
                counts[size] = number
            if self._counts[size]:
                work += self._tokens[size] * per_token + self._pairs[size] * per_pair
                tokens += self._tokens[size]
                number += self._counts[size]
        return seconds, counts

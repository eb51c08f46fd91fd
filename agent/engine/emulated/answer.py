"""What an emulated model answers: a function of all tokens before, which goes through the bytes of their pages.

The seed of a page is the hash of its tokens, with the seed of the page before as the hash's seed; a page that is not
full has one as well. The history of a sequence is the sum of its pages' seeds, each times an odd number that says its
place, modulo 2^64. The next token follows from the history.

`expected` computes that from tokens alone. An engine writes each page from its seed (`memory.py`), and reads what it
attends to back from the pages; so whatever a wrong page does to an answer shows in comparison.
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trunkline.agent.engine.emulated.text import END_ID, token_of
from trunkline.kernels.core import hash64, page_chain
from trunkline.shared.names import PAGE_TOKENS

FIRST_SEED = hash64(b"trunkline emulated model 1")
"""Stands for the page before the first one."""
_MEAN_TOKENS = 256
"""Of an answer that may end by itself."""
_CONSONANTS, _VOWELS = b"bcdfghjklmnprstvwxyz", b"aeiou"
_WORDS = [token_of(bytes([a, b, c]) + b" ") for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS]
"""Tokens of answers."""
_MASK = (1 << 64) - 1


def page_seeds(before: int, tokens: "array[int]") -> list[int]:
    """Seeds of the pages that `tokens` fill, the last one perhaps in part, after a page with the seed `before`."""
    seeds: list[int] = memoryview(page_chain(before, tokens)).cast("Q").tolist()
    if rest := len(tokens) % PAGE_TOKENS:
        seeds.append(hash64(tokens[-rest:].tobytes(), seeds[-1] if seeds else before))
    return seeds


def place_factors(count: int) -> npt.NDArray[np.uint64]:
    """What the seeds of the first pages of a sequence are multiplied with."""
    return 2 * np.arange(count, dtype=np.uint64) + 1


def next_token(history: int, may_end: bool) -> int:
    """Follows from the history of a sequence; the end of the answer only if it `may_end`."""
    chance = hash64(history.to_bytes(8, "little"))
    if may_end and chance % _MEAN_TOKENS == 0:
        return END_ID
    return _WORDS[(chance >> 32) % len(_WORDS)]


def expected(prompt: Sequence[int], count: int, *, ignore_eos: bool = False, min_tokens: int = 0) -> Iterator[int]:
    """The right answer to a prompt's token ids: `count` tokens, or fewer if it ends by itself."""
    tokens = array("i", prompt)
    full = len(tokens) // PAGE_TOKENS
    seeds = page_seeds(FIRST_SEED, tokens[: full * PAGE_TOKENS])
    settled = int((np.asarray(seeds, np.uint64) * place_factors(full)).sum())
    before = seeds[-1] if seeds else FIRST_SEED
    tail = tokens[full * PAGE_TOKENS :]
    for index in range(count):
        history = settled
        if tail:
            (seed,) = page_seeds(before, tail)
            history = (settled + seed * (2 * full + 1)) & _MASK
        token = next_token(history, not ignore_eos and index >= min_tokens)
        yield token
        if token == END_ID:
            return
        if len(tail) == PAGE_TOKENS:
            settled, before, full, tail = history, seed, full + 1, array("i")
        tail.append(token)

"""What a model's files say about its text side, whichever format they have."""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
"""Special tokens that end a turn or a text in every model that has them; files often name only one of them."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """`context` in tokens. `template` is None when the model has no chat template."""

    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    bos_token: str
    eos_token: str
    context: int
    template: str | None


def end_ids(tokenizer: Tokenizer, named: Iterable[int]) -> frozenset[int]:
    """The tokens that the files name as ends, and those of the well-known ones that are special here."""
    known = {entry.content: token for token, entry in tokenizer.get_added_tokens_decoder().items() if entry.special}
    return frozenset(named) | {known[text] for text in _END_TOKENS if text in known}

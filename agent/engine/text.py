"""The text side of a model, whichever engine computes it."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from trunkline.shared.canonical import Message


class Encoded(NamedTuple):
    """A text's tokens.

    `ends[i]` is the byte offset in the UTF-8 text at which token `i` ends, 0 for a leading BOS. `words[i]` is the
    number of the word to which token `i` belongs: what the pre-tokenizer cuts off, or a special token. No token
    reaches over a word's end. Neither ever decreases.
    """

    ids: list[int]
    ends: "array[int]"
    words: "array[int]"


class TextModel(Protocol):
    """Tokenizer and chat template. Immutable; any thread may use it."""

    eos_ids: frozenset[int]
    """Tokens that end an answer."""
    context: int
    """Tokens of prompt and output together."""
    special_ids: frozenset[int]
    """Tokens that are no part of an answer's text."""
    added_texts: tuple[bytes, ...]
    """What is recognised in a text before it is cut into words: special tokens, and others that were added."""
    vocab_size: int
    """Token ids are below it."""
    longest_token: int
    """In bytes: a text of more characters than `n` times as many is more than `n` tokens."""

    def encode(self, text: str, *, add_special: bool) -> Encoded:
        """`add_special`: with what the model's tokenizer puts around a text, such as a BOS. For raw prompts; a chat's
        template writes its own. Raises RequestError for lone surrogates.
        """

    def render_chat(
        self, messages: Sequence[Message], tools: bytes = b"", arguments: bytes = b"", *, reply: bool = True
    ) -> str:
        """See `ChatTemplate.render`. Raises RequestError also when the model has no template."""

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes for which a token stands, perhaps part of a character; b"" for an id without a token."""

    @property
    def fingerprint(self) -> bytes:
        """Equal for models that turn every request into the same tokens."""

"""Text to token ids and back: the vocabulary, special tokens and chat template of one model, from its own files.

Special tokens are recognised wherever they stand in a text, also inside a user's message. Engines agree on that
(prompts written for one model rely on it), so whoever puts strangers' text into a message has to escape it.
"""

import hashlib
import re
from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from tokenizers import pre_tokenizers

from trunkline.agent.engine.builtin import tokenizer_folder, tokenizer_gguf
from trunkline.agent.engine.builtin.template import ChatTemplate
from trunkline.agent.engine.builtin.tokenizer_parts import TokenizerParts
from trunkline.agent.engine.text import Encoded, TextModel
from trunkline.shared.canonical import Message
from trunkline.shared.errors import RequestError


class TokenizerModel(TextModel):
    """The text side of a model from its tokenizer and its template."""

    def __init__(self, parts: TokenizerParts) -> None:
        """Raises ConfigError if the chat template does not compile."""
        tokenizer = parts.tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._template = (
            ChatTemplate(parts.template, bos_token=parts.bos_token, eos_token=parts.eos_token)
            if parts.template
            else None
        )
        self.eos_ids = parts.eos_ids
        self.context = parts.context
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.added_texts = tuple(entry.content.encode() for entry in added.values())
        vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocab.values(), default=-1)
        own = {token: index for token, index in vocab.items() if index not in added}
        self._bytes = _token_bytes(own, self.vocab_size)
        for index, entry in added.items():
            self._bytes[index] = entry.content.encode()
        # SentencePiece cuts no words off, but usually has no token that reaches over the start of one.
        self._cut_at_spaces = "\u2581" in "".join(own) and not any(_SPACE_INSIDE.search(token) for token in own)
        self._sizes = [len(raw) for raw in self._bytes]
        self.longest_token = max(self._sizes, default=0)

    def encode(self, text: str, *, add_special: bool) -> Encoded:
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid Unicode: {error}") from None
        # A batch of one: unlike `encode` it lets other threads run, for seconds if the text is long.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special)
        ids: list[int] = encoding.ids
        word_ids: list[int | None] = encoding.word_ids
        leading = 0
        while leading < len(ids) and word_ids[leading] is None:
            leading += 1
        sizes = map(self._sizes.__getitem__, ids[leading:])
        # A byte-level vocabulary loses nothing: then the tokens' own sizes add up to the text's.
        ends = array("i", bytes(4 * leading))
        ends.extend(accumulate(sizes))
        if (ends[-1] if ends else 0) != len(raw):
            ends = _ends(encoding.offsets, text, len(raw))
        return Encoded(ids, ends, self._cut(ids, _words(word_ids)) if self._cut_at_spaces else _words(word_ids))

    def render_chat(
        self, messages: Sequence[Message], tools: bytes = b"", arguments: bytes = b"", *, reply: bool = True
    ) -> str:
        if self._template is None:
            raise RequestError("this model has no chat template: use /v1/completions", param="messages")
        return self._template.render(messages, tools, arguments, reply=reply)

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token] if 0 <= token < self.vocab_size else b""

    def _cut(self, ids: list[int], words: "array[int]") -> "array[int]":
        """The same words, cut again where a space follows something else."""
        cut = array("i")
        word, last, after_space = -1, None, True
        for token, own in zip(ids, words, strict=True):
            raw = self._bytes[token]
            if own != last or (raw.startswith(b" ") and not after_space):
                word += 1
            last, after_space = own, raw.endswith(b" ")
            cut.append(word)
        return cut

    @cached_property
    def fingerprint(self) -> bytes:
        digest = hashlib.sha256(self._tokenizer.to_str().encode())
        digest.update(self._template.source.encode() if self._template else b"")
        return digest.digest()


def load_tokenizer(path: Path) -> TokenizerModel:
    """From a .gguf file or a folder with tokenizer.json. Raises ConfigError that names the file and what is wrong."""
    return TokenizerModel((tokenizer_folder if path.is_dir() else tokenizer_gguf).load(path))


def _words(word_ids: list[int | None]) -> "array[int]":
    if None not in word_ids:
        return array("i", word_ids)  # type: ignore[arg-type]
    words = array("i")
    last = -1
    for word in word_ids:  # what was put around the text counts to the word before it
        last = last if word is None else word
        words.append(last)
    return words


def _ends(offsets: list[tuple[int, int]], text: str, size: int) -> "array[int]":
    """Character offsets as byte offsets. A token that ends inside a character ends after it here.

    When the tokenizer changes or leaves out a character, tokens behind it may end too early, but not behind the word.
    """
    if len(text) == size:
        return array("i", accumulate((end for _, end in offsets), max))
    at = array("i", [0])
    at.extend(accumulate(len(character.encode()) for character in text))
    return array("i", accumulate((at[end] for _, end in offsets), max))


def _token_bytes(vocab: dict[str, int], size: int) -> list[bytes]:
    """The bytes of every token id, whichever of the two ways the vocabulary has of writing bytes as text."""
    as_bytes = _of_byte_level if _BYTE_OF.keys() >= set(map(ord, set().union(*vocab))) else _of_sentencepiece
    raw = [b""] * size
    for token, index in vocab.items():
        raw[index] = as_bytes(token)
    return raw


def _byte_alphabet() -> dict[int, int]:
    """Code points of the byte-level alphabet: printable bytes are themselves, the others follow from 256 on."""
    points = sorted(map(ord, pre_tokenizers.ByteLevel.alphabet()))
    printable = [point for point in points if point < 256]
    return dict(zip(points, [*printable, *sorted(set(range(256)) - set(printable))], strict=True))


_BYTE_OF = _byte_alphabet()
_SPACE_INSIDE = re.compile("[^\u2581]\u2581")
_SENTENCEPIECE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _of_byte_level(token: str) -> bytes:
    return token.translate(_BYTE_OF).encode("latin-1")


def _of_sentencepiece(token: str) -> bytes:
    if byte := _SENTENCEPIECE_BYTE.fullmatch(token):
        return bytes.fromhex(byte.group(1))
    return token.replace("\u2581", " ").encode()

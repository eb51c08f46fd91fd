"""Tokenizer and chat template of an emulated model: four ASCII characters are a token, in any text.

A text is cut into special tokens, single bytes that are not ASCII, and pieces of at most four ASCII characters; a
piece ends after a newline. A token's id is computed from its bytes, so there is no vocabulary:

    0 .. 255          one byte
    256, 257          <|im_start|>, <|im_end|>
    258 ..            pieces of two ASCII characters, of three, of four; each in the order of its bytes
"""

import hashlib
import re
from array import array
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trunkline.agent.engine.builtin.template import ChatTemplate
from trunkline.agent.engine.text import Encoded, TextModel
from trunkline.shared.canonical import Message
from trunkline.shared.errors import RequestError

PIECE = 4
"""ASCII characters of a token, at most."""
CONTEXT = 131_072
"""Tokens, as Llama 3.1 has them; less where a node's pages hold less."""
_SPECIAL = (b"<|im_start|>", b"<|im_end|>")
_FIRST_SPECIAL = 256
END_ID = _FIRST_SPECIAL + _SPECIAL.index(b"<|im_end|>")
_FIRST = [0, 0, 258]
"""By the length of a piece: the id of its first token."""
for _length in range(2, PIECE + 1):
    _FIRST.append(_FIRST[_length] + 128**_length)
_VOCAB = _FIRST.pop()
_SPLIT = re.compile(b"(" + b"|".join(map(re.escape, _SPECIAL)) + b")")
_TEMPLATE = """
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{ call | tojson }}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class EmulatedText(TextModel):
    """Fast: a megabyte of text takes a few milliseconds."""

    def __init__(self) -> None:
        self._template = ChatTemplate(_TEMPLATE)
        self.special_ids = frozenset(range(_FIRST_SPECIAL, _FIRST_SPECIAL + len(_SPECIAL)))
        self.eos_ids = frozenset({END_ID})
        self.context = CONTEXT
        self.added_texts = _SPECIAL
        self.vocab_size = _VOCAB
        self.longest_token = max(map(len, _SPECIAL))

    def encode(self, text: str, *, add_special: bool) -> Encoded:
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid Unicode: {error}") from None
        ids, ends, at = array("i"), array("i"), 0
        for part in _SPLIT.split(raw):
            if part in _SPECIAL:
                ids.append(_FIRST_SPECIAL + _SPECIAL.index(part))
                ends.append(at + len(part))
            elif part:
                own, ending = _pieces(np.frombuffer(part, np.uint8))
                ids.frombytes(own.astype(np.int32).tobytes())
                ends.frombytes((ending + at).astype(np.int32).tobytes())
            at += len(part)
        return Encoded(ids.tolist(), ends, array("i", range(len(ids))))

    def render_chat(
        self, messages: Sequence[Message], tools: bytes = b"", arguments: bytes = b"", *, reply: bool = True
    ) -> str:
        return self._template.render(messages, tools, arguments, reply=reply)

    def token_bytes(self, token: int) -> bytes:
        if token in self.special_ids:
            return _SPECIAL[token - _FIRST_SPECIAL]
        if not 0 <= token < _VOCAB:
            return b""
        length = max(size for size in range(1, PIECE + 1) if token >= _FIRST[size])
        if length == 1:
            return bytes([token])
        number = token - _FIRST[length]
        return bytes(number >> 7 * place & 127 for place in reversed(range(length)))

    @cached_property
    def fingerprint(self) -> bytes:
        return hashlib.sha256(f"{_FIRST} {_SPECIAL} {_TEMPLATE}".encode()).digest()


def token_of(piece: bytes) -> int:
    """The id of a piece: one byte, or two to four ASCII characters with no newline before the last."""
    (token,), _ = _pieces(np.frombuffer(piece, np.uint8))
    return int(token)


def _pieces(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ids of the tokens of a text without special tokens, of at least a byte; and where they end, in bytes."""
    places = np.arange(len(raw))
    single = raw >= 128
    begins = np.ones(len(raw), bool)  # where a run of ASCII begins, and at every other byte
    begins[1:] = single[1:] | single[:-1] | (raw[:-1] == ord("\n"))
    runs = np.maximum.accumulate(np.where(begins, places, 0))
    starts = np.flatnonzero((places - runs) % PIECE == 0)
    ends = np.append(starts[1:], len(raw))
    lengths = ends - starts
    ids = raw[starts].astype(np.int64)
    for place in range(1, PIECE):
        longer = lengths > place
        ids[longer] = ids[longer] * 128 + raw[starts[longer] + place]
    return ids + np.asarray(_FIRST)[lengths], ends

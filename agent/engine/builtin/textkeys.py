"""Text keys of a prompt: for each chunk of its canonical bytes, how many of its tokens are settled by then.

Tokens are *settled* at a place in a text when they stay the same whatever stands behind it. A node publishes a text
key with the settled tokens as its depth. Another request with that key has the same canonical bytes so far, so its
first `depth` tokens are the same. That is a promise, to be checked by comparing token ids; a chat template whose
output depends on the clock or on later messages can break it.

    canonical   (header)The text of a part, and m|ore of it
                                                 ^ a chunk ends
    rendered    <|im_start|>user\\nThe text of a part, and m|ore of it<|im_end|>\\n
                                ^ its place                  ^ nothing from here on is known
    words       ...|The| text| of| a| part|,| and| m
                                          ^ settled: without the last two words, which a rest may change
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from trunkline.agent.engine.text import Encoded, TextModel
from trunkline.kernels.core import hash64, text_chain
from trunkline.shared.canonical import Canonical, Message, of_chat
from trunkline.shared.names import PAGE_TOKENS, TEXT_CHUNK
from trunkline.shared.namespace import Namespace

_WINDOW = 512
"""Bytes before a place that are looked at. A longer run of white space settles nothing until it ends."""

_OPEN_WORDS = 2
"""Words before a place that what follows may cut differently.

The last word may grow. Where the one before it ends may depend on the last one: "don" "'" "l" becomes "don" "'ll".
No pre-tokenizer looks further ahead, except over white space, which is left out first.
"""


class TextKeys:
    """Text keys of one model's prompts. Immutable; any thread may use it."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        # A place may lie inside a special token, which the text up to it does not show.
        self._beginnings = {text[:size] for text in model.added_texts for size in range(1, len(text))}
        self._longest_beginning = max(map(len, self._beginnings), default=0)
        firsts = b"|".join(sorted({re.escape(text[:1]) for text in self._beginnings}))
        self._may_begin = re.compile(firsts or rb"(?!)")

    def of_prompt(
        self, namespace: Namespace, canonical: Canonical, text: str, encoded: Encoded, *, shared: int | None = None
    ) -> tuple[bytes, bytes]:
        """Keys (packed u64) and their depths in tokens (packed u32) of a prompt or a rendered chat.

        Depths are whole pages and do not decrease. The first keys may have depth 0: they promise nothing, but a
        lookup goes through them. Keys after the first one of the greatest depth add nothing and are left out.
        `shared`: promise no more than so many tokens.
        """
        raw = text.encode()
        limit = len(encoded.ids) if shared is None else shared
        depths = array("I")
        depth = 0
        for place in _places(canonical, raw):
            settled = min(self._settled(raw, encoded, place), limit)
            depth = max(depth, settled // PAGE_TOKENS * PAGE_TOKENS)
            depths.append(depth)
        if not depth:
            return b"", b""
        count = bisect_left(depths, depth) + 1
        seed = hash64(namespace.text_seed_bytes())
        keys = text_chain(seed, canonical.frames, canonical.texts, TEXT_CHUNK, canonical.closed)
        return keys[: 8 * count], depths[:count].tobytes()

    def of_reply(
        self,
        namespace: Namespace,
        messages: Sequence[Message],
        tools: bytes,
        arguments: bytes,
        reply: str,
        tokens: Sequence[int],
    ) -> tuple[bytes, bytes]:
        """Keys of the chat's next turn: `messages` and the assistant's `reply` to them, as `of_prompt`.

        `tokens` are the prompt's and the reply's ids as they were computed. A model may write its text in other
        tokens than the tokenizer would, and a template may render the reply otherwise: what differs is not promised.
        """
        turn = [*messages, Message(role="assistant", content=reply)]
        text = self._model.render_chat(turn, tools, arguments, reply=False)
        encoded = self._model.encode(text, add_special=False)
        pairs = enumerate(zip(encoded.ids, tokens, strict=False))
        shared = next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(encoded.ids), len(tokens)))
        return self.of_prompt(namespace, of_chat(turn, tools, arguments), text, encoded, shared=shared)

    def _settled(self, raw: bytes, encoded: Encoded, place: int) -> int:
        """Tokens that stay the same whatever follows ``raw[:place]``. May be too few, never too many."""
        known = self._known(raw, place)
        settled = min(bisect_left(encoded.ends, known) + 1, len(encoded.ids)) if known else 0
        for _ in range(_OPEN_WORDS):
            if settled:
                settled = bisect_left(encoded.words, encoded.words[settled - 1])
        return settled

    def _known(self, raw: bytes, place: int) -> int:
        """Where the last character before `place` ends that is known to be no white space; 0 if there is none.

        Known are whole characters that do not begin a special token.
        """
        end = _character(raw, place)
        tail = raw[max(0, end - self._longest_beginning) : end]
        for begin in self._may_begin.finditer(tail):
            if tail[begin.start() :] in self._beginnings:
                end -= len(tail) - begin.start()
                break
        window = raw[_character(raw, max(0, end - _WINDOW)) : end].decode()
        solid = window.rstrip()
        return end - len(window[len(solid) :].encode()) if solid else 0


def _places(canonical: Canonical, raw: bytes) -> Iterator[int]:
    """For each boundary, a byte offset in the rendered text before which only what is known by then stands.

    Each segment's text is looked for behind the one before, without the white space around it, which templates may
    trim. The first find may be too early, in the template's own words; never too late, so nothing is promised that
    is not known. Ends at the first segment that the template changed.
    """
    current, header, start, size, leading, before = -1, 0, 0, 0, 0, 0
    for index, end in canonical.boundaries():
        if index != current:
            current, header = index, len(canonical.frames[index])
            text = canonical.texts[index]
            text = text if isinstance(text, str) else text.decode()
            body = text.strip().encode()
            leading = header + len(text[: len(text) - len(text.lstrip())].encode())
            before = start + size
            start = raw.find(body, before)
            if start < 0:
                return
            size = len(body)
        yield before if end <= header else start + min(max(end - leading, 0), size)


def _character(raw: bytes, at: int) -> int:
    """The start of the character that holds byte `at`."""
    while 0 < at < len(raw) and raw[at] & 0xC0 == 0x80:
        at -= 1
    return at

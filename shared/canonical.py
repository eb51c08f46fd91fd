"""Canonical bytes: an unambiguous framing of what the chat template will see, in order.

Router and agent decode the same body with the same types and get the same segments, so that the text keys that
an agent publishes are the text keys that a router looks up.

A *segment* is one indivisible author's text: a content part of a message, or the raw prompt. Text keys chain over
chunks of TEXT_CHUNK bytes that never cross a segment's end. Inside a segment there is no length in front of the
text, so that two long messages that start alike share keys; the end of a closed segment is marked in the hash
(see `kernels.core.text_chain`), so that "ab" + "c" and "a" + "bc" differ. A raw prompt is an open segment: it may go
on, so its last, partial chunk has no key.
"""

from collections.abc import Sequence

import msgspec

from trunkline.shared.body import decode
from trunkline.shared.errors import RequestError
from trunkline.shared.names import TEXT_CHUNK

_PREAMBLE, _MESSAGE, _PART, _PROMPT = b"\x01", b"\x02", b"\x03", b"\x04"

_NO_CALLS = msgspec.Raw(b"")


class Message(msgspec.Struct):
    """The fields of a chat message that a template can see. Unknown ones are ignored."""

    role: str
    content: str | list[msgspec.Raw] | None = None
    name: str | None = None
    tool_calls: msgspec.Raw = _NO_CALLS
    tool_call_id: str | None = None


class TextPart(msgspec.Struct):
    """A content part; `text` is there when `type` is "text"."""

    type: str
    text: str = ""


class Canonical(msgspec.Struct, frozen=True, gc=False):
    """The canonical bytes of one request.

    A segment is `frames[i]`, which is framing, and the author's text `texts[i]`: UTF-8, or ASCII as it was decoded, for
    which a copy would cost as much as hashing it.
    `closed`: whether segment ends are chunk ends with keys of their own (messages) or not (a raw prompt).
    """

    frames: list[bytes]
    texts: list[bytes | str]
    closed: bool

    def sizes(self) -> list[int]:
        """Bytes of each segment."""
        return [len(frame) + len(text) for frame, text in zip(self.frames, self.texts, strict=True)]

    def boundaries(self) -> list[tuple[int, int]]:
        """(segment, byte offset in it) of the end of each chunk, in key order; one per text key."""
        ends: list[tuple[int, int]] = []
        for index, size in enumerate(self.sizes()):
            ends += [(index, end) for end in range(TEXT_CHUNK, size if self.closed else size + 1, TEXT_CHUNK)]
            if self.closed and size:
                ends.append((index, size))
        return ends


def of_prompt(prompt: str, field: str = "prompt") -> Canonical:
    """Canonical bytes of a raw prompt. Raises RequestError, naming `field`, for half a surrogate pair."""
    try:
        return Canonical([_PROMPT], [_utf8(prompt)], closed=False)
    except UnicodeEncodeError as error:
        raise _not_unicode(field, error) from None


def of_chat(messages: Sequence[Message], tools: bytes = b"", template_kwargs: bytes = b"") -> Canonical:
    """Canonical bytes of a chat: tools and template arguments as sent, then every message's parts.

    Raises RequestError, naming the field, for half a surrogate pair and for a malformed content part.
    """
    frames: list[bytes] = []
    texts: list[bytes | str] = []
    if tools or template_kwargs:
        frames.append(_PREAMBLE + _sized(tools) + template_kwargs)
        texts.append("")
    for index, message in enumerate(messages):
        content = message.content
        try:
            frames.append(_header(message))
            if isinstance(content, str):
                texts.append(_utf8(content))
            else:
                part_texts = _part_texts(index, content)
                frames += [_PART] * (len(part_texts) - 1)
                texts += part_texts
        except UnicodeEncodeError as error:
            raise _not_unicode(f"messages.{index}", error) from None
    return Canonical(frames, texts, closed=True)


def parts(index: int, content: list[msgspec.Raw]) -> list[TextPart]:
    """The content parts of message `index`. Raises RequestError for a malformed one, naming it."""
    return [decode(_part_decoder, raw, f"messages.{index}.content.{at}") for at, raw in enumerate(content)]


def _utf8(text: str) -> bytes | str:
    return text if text.isascii() else text.encode()


def _part_texts(index: int, content: list[msgspec.Raw] | None) -> list[bytes | str]:
    """A text part's text, another kind of part as its raw JSON; a message without content has one empty part."""
    decoded = zip(parts(index, content or []), content or [], strict=True)
    return [_utf8(part.text) if part.type == "text" else bytes(raw) for part, raw in decoded] or [""]


def _not_unicode(field: str, error: Exception) -> RequestError:
    return RequestError(f"{field}: not valid Unicode: {error}", param=field)


_part_decoder = msgspec.json.Decoder(TextPart)


def _sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "little") + raw


_ABSENT = b"\xff\xff\xff\xff"  # As a length: more than a body may have. A template tells "" from what is not there.
_NO_FIELDS = 2 * _ABSENT + _sized(b"")


def _optional(text: str | None) -> bytes:
    return _ABSENT if text is None else _sized(text.encode())


def _plain_header(role: str) -> bytes:
    return _MESSAGE + _sized(role.encode()) + _NO_FIELDS


_PLAIN_HEADERS = {role: _plain_header(role) for role in ("system", "developer", "user", "assistant", "tool")}


def _header(message: Message) -> bytes:
    """Role, name, tool call id and tool calls, each with its length in front."""
    if message.tool_calls is _NO_CALLS and message.name is None and message.tool_call_id is None:
        # Nearly every message, and every message of every request comes by here.
        return _PLAIN_HEADERS.get(message.role) or _plain_header(message.role)
    head = _MESSAGE + _sized(message.role.encode())
    return head + _optional(message.name) + _optional(message.tool_call_id) + _sized(bytes(message.tool_calls))

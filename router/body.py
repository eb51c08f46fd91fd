"""The few fields of a request's body that a router reads. The body itself travels on unchanged."""

from array import array
from typing import Any, NamedTuple, TypeVar

import msgspec

from trunkline.shared.canonical import Canonical, Message, of_chat, of_prompt
from trunkline.shared.errors import RequestError

_Raw = msgspec.Raw


class _Chat(msgspec.Struct):
    model: str
    messages: list[Message]
    tools: _Raw = _Raw(b"")
    chat_template_kwargs: _Raw = _Raw(b"")


class _Completion(msgspec.Struct):
    model: str
    prompt: str | list[str | int | list[int]]


class Prompt(NamedTuple):
    """What a request asks to continue: canonical bytes of text, or token ids as `array('i')`."""

    model: str
    content: "Canonical | array[int]"


def read_chat(body: bytes) -> Prompt:
    """Raises RequestError: 400 for what is malformed or empty, 422 for a wrong type, naming the field."""
    chat = _decode(_decode_chat, body)
    if not chat.messages:
        raise RequestError("messages is empty: at least one message is needed", param="messages")
    return Prompt(chat.model, of_chat(chat.messages, bytes(chat.tools), bytes(chat.chat_template_kwargs)))


def read_completion(body: bytes) -> Prompt:
    """Raises RequestError like `read_chat`. Of a list of prompts, the first stands for all."""
    completion = _decode(_decode_completion, body)
    prompt: str | list[Any] = completion.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if not prompt:
        raise RequestError("prompt is empty: at least one character or token id is needed", param="prompt")
    if isinstance(prompt, str):
        return Prompt(completion.model, of_prompt(prompt))
    try:
        return Prompt(completion.model, array("i", prompt))
    except TypeError:
        raise RequestError("prompt mixes token ids with other things", param="prompt", status=422) from None
    except OverflowError:
        raise RequestError("prompt holds a token id of more than 31 bits", param="prompt") from None


_T = TypeVar("_T")
_decode_chat = msgspec.json.Decoder(_Chat)
_decode_completion = msgspec.json.Decoder(_Completion)


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("body is nested too deeply") from None


def _invalid(error: msgspec.ValidationError, root: str = "") -> RequestError:
    """msgspec says "... - at `$.messages[0].role`", and names a missing field in the text."""
    what, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").replace("[...]", "").replace("[", ".").replace("]", "").lstrip(".") or root
    missing = what.startswith("Object missing required field")
    if missing:
        path = f"{path}.{what.split('`')[1]}".lstrip(".")
    return RequestError(what if not path else f"{path}: {what}", param=path or None, status=400 if missing else 422)

"""The few fields of a request's body that a router reads. The body itself travels on unchanged."""

from array import array
from typing import Annotated, Any

import msgspec

from trunkline.shared.body import Body, decode, empty
from trunkline.shared.canonical import Canonical, Message, of_chat, of_prompt
from trunkline.shared.errors import RequestError

_Raw = msgspec.Raw
_NOTHING = _Raw(b"")
_Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _Chat(msgspec.Struct):
    model: str
    messages: list[Message]
    tools: _Raw = _NOTHING
    chat_template_kwargs: _Raw = _NOTHING
    priority: _Priority | None = None


class _Completion(msgspec.Struct):
    model: str
    prompt: str | list[str | int | list[int]]
    priority: _Priority | None = None


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What a request asks to continue: canonical bytes of text, or token ids as `array('i')`."""

    model: str
    content: "Canonical | array[int]"
    priority: int = 0
    """Lower is more urgent, as in vLLM."""


def read_chat(body: Body) -> Prompt:
    """Raises RequestError: 400 for what is malformed or empty, 422 for a wrong type, naming the field."""
    chat = decode(_chat_decoder, body)
    if not chat.messages:
        raise empty("messages")
    if chat.tools is _NOTHING and chat.chat_template_kwargs is _NOTHING:
        content = of_chat(chat.messages)
    else:
        content = of_chat(chat.messages, bytes(chat.tools), bytes(chat.chat_template_kwargs))
    return Prompt(chat.model, content, chat.priority or 0)


def read_completion(body: Body) -> Prompt:
    """Raises RequestError like `read_chat`. Of a list of prompts, the first stands for all."""
    completion = decode(_completion_decoder, body)
    prompt: str | list[Any] = completion.prompt
    field = "prompt"
    priority = completion.priority or 0
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        field = "prompt.0" if len(prompt) > 1 else "prompt"
        prompt = prompt[0]
    if not prompt:
        raise empty(field)
    if isinstance(prompt, str):
        return Prompt(completion.model, of_prompt(prompt), priority)
    try:
        return Prompt(completion.model, array("i", prompt), priority)
    except TypeError:
        raise RequestError("prompt.0: token ids and texts are mixed", param="prompt.0", status=422) from None
    except OverflowError:
        raise RequestError(f"{field}: a token id has more than 31 bits", param=field) from None


_chat_decoder = msgspec.json.Decoder(_Chat)
_completion_decoder = msgspec.json.Decoder(_Completion)

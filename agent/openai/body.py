"""Request bodies of `/v1/completions` and `/v1/chat/completions`, decoded and typed.

Errors are RequestErrors in OpenAI's shape: 400 for what is not JSON or UTF-8, for a missing field and for values that
make no sense (see `params.py`), 422 for well-formed JSON of the wrong types. `param` names the field as a
dotted path (``messages.0.role``). Unknown fields are ignored; null is the same as absent.
"""

import msgspec

from trunkline.shared.body import decode
from trunkline.shared.canonical import Message


class StreamOptions(msgspec.Struct):
    """`include_usage`: one more event, before the end, with the token counts."""

    include_usage: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What both endpoints have in common. Those named in `params.UNSUPPORTED` are there to be refused."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    priority: int | None = None


class CompletionBody(Body, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


class ResponseFormat(msgspec.Struct):
    """Only ``{"type": "text"}`` is served."""

    type: str


class ChatBody(Body, kw_only=True):
    """`POST /v1/chat/completions`. `tools` and `chat_template_kwargs` go to the chat template as they are."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: str | dict[str, msgspec.Raw] | None = None
    chat_template_kwargs: msgspec.Raw = msgspec.Raw(b"")


_completion = msgspec.json.Decoder(CompletionBody)
_chat = msgspec.json.Decoder(ChatBody)


def completion_body(raw: bytes) -> CompletionBody:
    """Raises RequestError with the field at fault."""
    return decode(_completion, raw)


def chat_body(raw: bytes) -> ChatBody:
    """Raises RequestError with the field at fault."""
    return decode(_chat, raw)

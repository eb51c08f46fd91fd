"""Answers and stream events in OpenAI's shapes; field order and nulls are theirs."""

import msgspec

from trunkline.agent.openai.logprobs import ChatLogprobs, CompletionLogprobs


class PromptDetails(msgspec.Struct):
    """`cached_tokens`: prompt tokens whose KV was reused."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Token counts of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """The counts with their sum."""
    total = prompt_tokens + completion_tokens
    return Usage(prompt_tokens, completion_tokens, total, PromptDetails(cached_tokens))


class CompletionChoice(msgspec.Struct):
    """Of an answer, and of a stream event."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, kw_only=True):
    """The answer, or one event of a stream: `usage` is null in all but the last."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatMessage(msgspec.Struct):
    """A whole reply."""

    role: str
    content: str


class ChatChoice(msgspec.Struct):
    """Of a whole answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class Chat(msgspec.Struct, kw_only=True):
    """`chat.completion`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """The first has the role, the last is empty."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct):
    """Of a stream event."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """`chat.completion.chunk`."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class Model(msgspec.Struct):
    """One entry of `/v1/models`."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "trunkline"


class ModelList(msgspec.Struct):
    """`GET /v1/models`."""

    data: list[Model]
    object: str = "list"


DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode


def event(message: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(message) + b"\n\n"

"""Log probabilities in the shapes of the two APIs."""

from collections.abc import Iterable, Sequence

import msgspec

from trunkline.agent.engine.base import TokenLogprob


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry per token. `text_offset` counts characters from the start of the generated text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatTopLogprob(msgspec.Struct):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """The token that was chosen at a position, and those that were likely."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry per token."""

    content: list[ChatTokenLogprob]


def of_completion(tokens: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    """`offset`: characters before the first token. A byte that is no whole character counts as one."""
    texts = [_text(token.raw) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        texts,
        [token.logprob for token in tokens],
        # The chosen token is always among them, as with OpenAI: up to one more than was asked for.
        [{_text(raw): logprob for _, raw, logprob in (*token.top, _chosen(token))} for token in tokens],
        offsets,
    )


def of_chat(tokens: Iterable[TokenLogprob]) -> ChatLogprobs:
    """As `choices[].logprobs` of a chat."""
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                _text(token.raw),
                token.logprob,
                list(token.raw),
                [ChatTopLogprob(_text(raw), logprob, list(raw)) for _, raw, logprob in token.top],
            )
            for token in tokens
        ]
    )


def _chosen(token: TokenLogprob) -> tuple[int, bytes, float]:
    return token.token, token.raw, token.logprob


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")

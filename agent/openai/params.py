"""From a body's fields to sampling parameters: ranges, defaults, and what is refused because it is not served.

Every error is a RequestError of status 400 with the field named and the numbers said.
"""

import math

from trunkline.agent.engine.base import SamplingParams
from trunkline.agent.engine.order import MAX_PRIORITY
from trunkline.agent.openai.body import ChatBody, CompletionBody
from trunkline.shared.body import empty
from trunkline.shared.errors import ContextExceeded, RequestError

MAX_CHOICES = 64
"""Sequences one request may ask for: prompts times `n`."""
MAX_STOP = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 64
MAX_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` for completions; a chat's is what is left of the context."""
_SEEDS = 1 << 64
"""Negative ones are wrapped into it: Python's generator takes -1 for 1, so two choices could be the same."""

_RANGES: dict[str, tuple[float, float]] = {
    "n": (1, MAX_CHOICES),
    "max_tokens": (1, math.inf),
    "max_completion_tokens": (1, math.inf),
    "min_tokens": (0, math.inf),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, 1 << 31),
    "min_p": (0, 1),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 10),
    "top_logprobs": (0, MAX_LOGPROBS),
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
}


def sampling(
    body: CompletionBody | ChatBody, prompt_tokens: int, context: int, vocab: int, choice: int = 0
) -> SamplingParams:
    """Parameters for one choice of a prompt, checked against the context (tokens) and the size of the vocabulary.

    With a seed every choice has its own, or all would be the same.
    """
    limit = _max_tokens(body, prompt_tokens, context)
    min_tokens = body.min_tokens or 0
    if min_tokens > limit:
        raise _error("min_tokens", f"{min_tokens} is more than the {limit} tokens that may be generated")
    return SamplingParams(
        max_tokens=limit,
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        seed=None if body.seed is None else (body.seed + choice) % _SEEDS,
        stop=_stop(body.stop),
        stop_ids=_stop_ids(body.stop_token_ids, vocab),
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logprobs=_logprobs(body),
    )


def check(body: CompletionBody | ChatBody) -> None:
    """What can be said before the prompt is tokenized: ranges, and options that are not served."""
    for name, (low, high) in _RANGES.items():
        value = getattr(body, name, None)
        if value is not None and not low <= value <= high:
            raise _error(name, f"{value} is not between {low} and {high}" if high < math.inf else f"{value} < {low}")
    if body.top_p == 0:
        raise _error("top_p", "0 leaves no token to choose from")
    if body.logit_bias:
        raise _error("logit_bias", "not supported")
    if body.stream_options and not body.stream:
        raise _error("stream_options", "only allowed with stream: true")
    if isinstance(body, CompletionBody):
        _check_completion(body)
    else:
        _check_chat(body)


def choices(body: CompletionBody | ChatBody) -> int:
    """Sequences per prompt. Raises when the whole request asks for too many."""
    n = body.n or 1
    prompts = _prompts(body)
    if prompts * n > MAX_CHOICES:
        raise _error("n", f"{prompts} prompts x n = {n} are more than {MAX_CHOICES} choices")
    return n


def _prompts(body: CompletionBody | ChatBody) -> int:
    """How many the body has, without a look at each. A list that begins with a token id is one."""
    prompt = body.prompt if isinstance(body, CompletionBody) else ""
    return 1 if not prompt or isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)


def _check_completion(body: CompletionBody) -> None:
    if body.echo:
        raise _error("echo", "not supported")
    if body.suffix:
        raise _error("suffix", "not supported")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _error("best_of", "only best_of = n is supported")
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise _error("logprobs", f"{body.logprobs} is not between 0 and {MAX_LOGPROBS}")


def _check_chat(body: ChatBody) -> None:
    if not body.messages:
        raise empty("messages")
    if body.response_format and body.response_format.type != "text":
        raise _error("response_format", f"type {body.response_format.type!r} is not supported, only 'text'")
    if body.tool_choice not in (None, "none", "auto"):
        raise _error("tool_choice", "only 'none' and 'auto' are supported")
    if body.top_logprobs and not body.logprobs:
        raise _error("top_logprobs", "needs logprobs: true")


def _max_tokens(body: CompletionBody | ChatBody, prompt_tokens: int, context: int) -> int:
    """Tokens to generate at most; prompt and output must fit into the context together."""
    field = "prompt" if isinstance(body, CompletionBody) else "messages"
    room = context - prompt_tokens
    if room < 1:
        raise ContextExceeded(field, f"{prompt_tokens} tokens leave no room in a context of {context}")
    if isinstance(body, CompletionBody):
        name, asked = "max_tokens", COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        if body.max_tokens is None:
            asked = min(asked, room)
    elif body.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", body.max_completion_tokens
    else:
        name, asked = "max_tokens", room if body.max_tokens is None else body.max_tokens
    if asked > room:
        raise ContextExceeded(name, f"{prompt_tokens} prompt tokens + {asked} are more than the context of {context}")
    return asked


def _logprobs(body: CompletionBody | ChatBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    return (body.top_logprobs or 0) if body.logprobs else None


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(texts) > MAX_STOP:
        raise _error("stop", f"{len(texts)} strings are more than {MAX_STOP}")
    if any(not 1 <= len(text) <= MAX_STOP_CHARS for text in texts):
        raise _error("stop", f"each must be 1 to {MAX_STOP_CHARS} characters long")
    return texts


def _stop_ids(ids: list[int] | None, vocab: int) -> frozenset[int]:
    if len(ids or ()) > MAX_STOP_IDS:
        raise _error("stop_token_ids", f"{len(ids or ())} ids are more than {MAX_STOP_IDS}")
    for token in ids or ():
        if not 0 <= token < vocab:
            raise _error("stop_token_ids", f"{token} is not in the vocabulary of {vocab} tokens")
    return frozenset(ids or ())


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _error(param: str, reason: str) -> RequestError:
    return RequestError(f"{param}: {reason}", param=param)

"""A streamed answer as a client sees it: when each chunk came, and what it was."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

_decode = msgspec.json.decode
_DATA = b"data:"
_DONE = b"[DONE]"


class StreamBroken(Exception):
    """The answer is no whole one; the message is the kind of error that it counts as."""


@dataclass(slots=True)
class Answer:
    """What became of a request. Times are of one monotonic clock, in seconds."""

    due: float
    """When it was to be sent: waits count from here, also those of a client that was late."""
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between chunks that have text: as many tokens as the server puts into one."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    node: str = ""
    text: str = ""
    """What came of it, also of one that broke off."""
    error: str = ""
    """Kind of error; empty: a whole answer, or one that was given up."""
    given_up: bool = False

    @property
    def whole(self) -> bool:
        return not self.error and not self.given_up

    @property
    def ttft(self) -> float:
        return self.first - self.due

    @property
    def e2e(self) -> float:
        return self.last - self.due


def read(lines: Iterable[bytes], answer: Answer, clock: Callable[[], float], cancel_after: int | None) -> None:
    """Reads a response's lines into `answer`. Raises StreamBroken for one that breaks off or reports an error.

    With `cancel_after` it stops after so many chunks with text, and the answer is `given_up`.
    """
    texts: list[str] = []
    try:
        whole = _collect(lines, texts, answer, clock, cancel_after)
    finally:
        answer.text = "".join(texts)
    if not whole and not answer.given_up:
        raise StreamBroken("broken stream")
    if not texts and not answer.given_up:
        raise StreamBroken("empty answer")


def _collect(
    lines: Iterable[bytes], texts: list[str], answer: Answer, clock: Callable[[], float], cancel_after: int | None
) -> bool:
    """Whether the stream has come to its end."""
    for line in lines:
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            return True
        text = _text(_event(data), answer)
        if text:
            now = clock()
            if texts:
                answer.gaps.append(now - answer.last)
            else:
                answer.first = now
            answer.last = now
            texts.append(text)
        if cancel_after is not None and len(texts) >= cancel_after:
            answer.given_up = True
            break
    return False


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = _decode(data)
    except msgspec.DecodeError:
        raise StreamBroken("bad JSON in stream") from None
    if not isinstance(event, dict):
        raise StreamBroken("bad JSON in stream")
    if "error" in event:
        raise StreamBroken("error in stream")
    return event


def _text(event: dict[str, Any], answer: Answer) -> str:
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens") or 0
        answer.output_tokens = usage.get("completion_tokens") or 0
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    choices = event.get("choices")
    return (choices[0].get("delta") or {}).get("content") or "" if choices else ""

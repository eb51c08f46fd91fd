"""The reply to one request, built from deltas: as stream events while they come, or whole at the end."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline.agent.engine.base import Delta, TokenLogprob
from trunkline.agent.openai import answers, logprobs


@dataclass(slots=True)
class Choice:
    """What has arrived for one choice. `chars`: characters given out as events."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached_tokens: int = 0
    finish: str | None = None
    chars: int = 0


class Reply(ABC):
    """Choices are numbered prompt by prompt: choice `i` continues prompt ``i // n``."""

    prefix: str
    """Of the id."""

    def __init__(self, request_id: str, model: str, created: int, prompt_tokens: Sequence[int], n: int) -> None:
        self.request_id = request_id
        self.id = f"{self.prefix}-{request_id}"
        self.model = model
        self.created = created
        self._prompt_tokens = prompt_tokens
        self._n = n
        self._choices = [Choice() for _ in range(len(prompt_tokens) * n)]

    def usage(self) -> answers.Usage:
        """Counts so far. Cached are the tokens that every choice of a prompt reused: there before the request."""
        cached = sum(
            min(choice.cached_tokens for choice in self._choices[first : first + self._n])
            for first in range(0, len(self._choices), self._n)
        )
        return answers.usage(sum(self._prompt_tokens), sum(len(choice.tokens) for choice in self._choices), cached)

    @property
    def finish(self) -> str:
        """Why the choices ended, for the log."""
        return ",".join(choice.finish or "-" for choice in self._choices)

    def said(self, index: int) -> tuple[str, list[int]]:
        """Text and tokens of a choice so far."""
        choice = self._choices[index]
        return "".join(choice.text), choice.tokens

    def add(self, index: int, delta: Delta) -> None:
        """Keeps a delta for `whole`."""
        self._account(index, delta).logprobs.extend(delta.logprobs)

    def events(self, index: int, delta: Delta) -> bytes:
        """The stream events of a delta; may be none."""
        choice = self._account(index, delta)
        events = self._events(index, choice, delta)
        choice.chars += len(delta.text)
        return b"".join(map(answers.event, events))

    @abstractmethod
    def whole(self) -> bytes:
        """The answer of a request that does not stream."""

    @abstractmethod
    def usage_event(self) -> bytes:
        """The event that `stream_options.include_usage` asks for."""

    @abstractmethod
    def _events(self, index: int, choice: Choice, delta: Delta) -> list[object]: ...

    def _account(self, index: int, delta: Delta) -> Choice:
        choice = self._choices[index]
        choice.text.append(delta.text)
        choice.tokens += delta.tokens
        choice.cached_tokens = delta.cached_tokens
        choice.finish = delta.finish
        return choice


class CompletionReply(Reply):
    """Of `/v1/completions`."""

    prefix = "cmpl"

    def whole(self) -> bytes:
        choices = [
            answers.CompletionChoice(
                index,
                "".join(choice.text),
                logprobs.of_completion(choice.logprobs, 0) if choice.logprobs else None,
                choice.finish,
            )
            for index, choice in enumerate(self._choices)
        ]
        return answers.encode(self._message(choices, self.usage()))

    def usage_event(self) -> bytes:
        return answers.event(self._message([], self.usage()))

    def _events(self, index: int, choice: Choice, delta: Delta) -> list[object]:
        if not (delta.text or delta.logprobs or delta.finish):
            return []
        scores = logprobs.of_completion(delta.logprobs, choice.chars) if delta.logprobs else None
        return [self._message([answers.CompletionChoice(index, delta.text, scores, delta.finish)], None)]

    def _message(self, choices: list[answers.CompletionChoice], usage: answers.Usage | None) -> answers.Completion:
        return answers.Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)


class ChatReply(Reply):
    """Of `/v1/chat/completions`."""

    prefix = "chatcmpl"

    def whole(self) -> bytes:
        choices = [
            answers.ChatChoice(
                index,
                answers.ChatMessage("assistant", "".join(choice.text)),
                logprobs.of_chat(choice.logprobs) if choice.logprobs else None,
                choice.finish,
            )
            for index, choice in enumerate(self._choices)
        ]
        return answers.encode(
            answers.Chat(id=self.id, created=self.created, model=self.model, choices=choices, usage=self.usage())
        )

    def usage_event(self) -> bytes:
        return answers.event(self._chunk([], self.usage()))

    def _events(self, index: int, choice: Choice, delta: Delta) -> list[object]:
        chunks: list[answers.ChatChunkChoice] = []
        if len(choice.tokens) == len(delta.tokens):  # the first delta
            chunks.append(answers.ChatChunkChoice(index, answers.ChatDelta("assistant", "")))
        if delta.text or delta.logprobs:
            scores = logprobs.of_chat(delta.logprobs) if delta.logprobs else None
            chunks.append(answers.ChatChunkChoice(index, answers.ChatDelta(content=delta.text), scores))
        if delta.finish:
            chunks.append(answers.ChatChunkChoice(index, answers.ChatDelta(), None, delta.finish))
        return [self._chunk([chunk], None) for chunk in chunks]

    def _chunk(self, choices: list[answers.ChatChunkChoice], usage: answers.Usage | None) -> answers.ChatChunk:
        return answers.ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)

"""Conversations: what a user or an agent says in turn, and the requests that it makes."""

import random
from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.text import Writer

Message = dict[str, str]

_LEAST = 16
"""Tokens of a message at least."""


class Request(NamedTuple):
    """One request. `kind` is what it is reported as."""

    kind: str
    tenant: int
    messages: tuple[Message, ...]
    max_tokens: int
    cancel_after: int | None
    """Chunks of the answer after which the client goes away."""


@dataclass(slots=True)
class Conversation:
    """A system prompt, and turns that are yet to come: (tokens of the message, tokens of the answer)."""

    kind: str
    tenant: int
    messages: list[Message]
    turns: list[tuple[int, int]]
    writer: Writer
    chance: random.Random
    cancel_share: float
    reuse: bool = True
    """False: the system prompt of each request begins with something new."""
    _turn: int = field(default=0, init=False)

    @property
    def done(self) -> bool:
        return self._turn == len(self.turns)

    def next(self) -> Request:
        """The request of the next turn; `answered` goes before the one after it."""
        answer = self._say()
        given_up = self.chance.random() < self.cancel_share
        cancel_after = self.chance.randint(0, max(0, answer // 2)) if given_up else None
        system, *others = self.messages
        if not self.reuse:
            system = {**system, "content": f"{self.chance.getrandbits(64):016x} {system['content']}"}
        return Request(self.kind, self.tenant, (system, *others), answer, cancel_after)

    def age(self, turns: int) -> None:
        """So many turns are over, with answers that are made up."""
        for _ in range(turns):
            self.answered(self.writer.write(self._say(), self.chance))

    def _say(self) -> int:
        """Adds the message of the next turn; returns the tokens of its answer."""
        tokens, answer = self.turns[self._turn]
        text = self.writer.write(tokens, self.chance)
        if self.kind == "agent" and self._turn:
            self.messages.append({"role": "tool", "tool_call_id": f"call-{self._turn}", "content": text})
        else:
            self.messages.append({"role": "user", "content": text})
        self._turn += 1
        return answer

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def end(self) -> None:
        """Nothing follows: the last request failed, or was given up."""
        self._turn = len(self.turns)


class Mix:
    """Draws conversations of a profile. Number `n` is always the same one, whoever asks for it, and when."""

    def __init__(self, settings: Settings, writer: Writer) -> None:
        self._settings = settings
        self._writer = writer
        self._popularity = list(accumulate((tenant + 1) ** -settings.zipf for tenant in range(settings.tenants)))
        self._systems = [
            writer.write(settings.system, random.Random(f"{settings.seed} {settings.salt} system {tenant}"))
            for tenant in range(settings.tenants)
        ]

    def conversation(self, number: int) -> Conversation:
        settings = self._settings
        shape = random.Random(f"{settings.seed} {number}")
        words = random.Random(f"{settings.seed} {settings.salt} {number}")
        tenant = bisect(self._popularity, shape.random() * self._popularity[-1])
        shared = shape.random() < settings.shared_share
        kind = "agent" if shape.random() < settings.tool_share else "chat"
        is_long = shape.random() < settings.long_share
        length = settings.long if is_long else shape.randint(*settings.inputs)
        if shared:
            system, system_tokens = self._systems[tenant], settings.system
        else:
            system_tokens = min(settings.system, length // 2)
            system = self._writer.write(system_tokens, words)
        conversation = Conversation(
            kind,
            tenant,
            [{"role": "system", "content": system}],
            self._turns(length - system_tokens, shape),
            self._writer,
            words,
            settings.cancel_share,
            settings.reuse,
        )
        if number < settings.aged:
            conversation.age(shape.randrange(len(conversation.turns)))
        return conversation

    def _turns(self, tokens: int, shape: random.Random) -> list[tuple[int, int]]:
        """Messages and answers, so that the last prompt has so many tokens beside the system prompt."""
        settings = self._settings
        answers = [shape.randint(*settings.outputs) for _ in range(shape.randint(*settings.turns))]
        each = max(_LEAST, (tokens - sum(answers[:-1])) // len(answers))
        return [(each, answer) for answer in answers]

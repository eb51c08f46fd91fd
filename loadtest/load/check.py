"""Whether an answer is right, as far as it came: of an emulated model it is known from the prompt alone."""

import msgspec

from trunkline.agent.engine.emulated.answer import expected
from trunkline.agent.engine.emulated.text import EmulatedText
from trunkline.loadtest.load.conversation import Request
from trunkline.loadtest.load.run import Check
from trunkline.loadtest.load.server import Server
from trunkline.loadtest.load.stream import Answer
from trunkline.shared.canonical import Message

_EMULATED = "emulated-"
"""What names of emulated models begin with."""


def find_check(server: Server) -> Check | None:
    """None for a model of which it is not known what it must answer."""
    return _EmulatedCheck() if server.model.startswith(_EMULATED) else None


class _EmulatedCheck:
    """Compares with what the model answers without any cache."""

    def __init__(self) -> None:
        self._text = EmulatedText()

    def __call__(self, request: Request, answer: Answer) -> bool:
        chat = self._text.render_chat(msgspec.convert(request.messages, list[Message]))
        prompt = self._text.encode(chat, add_special=False).ids
        tokens = expected(prompt, request.max_tokens, ignore_eos=True)
        right = b"".join(map(self._text.token_bytes, tokens)).decode()
        return answer.text == right if answer.whole else right.startswith(answer.text)

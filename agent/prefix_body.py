"""How the body of a request names a prefix: as a request for it would."""

import msgspec

from trunkline.agent.openai.body import ChatBody, CompletionBody
from trunkline.shared.canonical import Message
from trunkline.shared.errors import RequestError


class PrefixBody(msgspec.Struct, kw_only=True):
    """A prompt, or the beginning of a chat."""

    prompt: str | list[int] | None = None
    messages: list[Message] | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    chat_template_kwargs: msgspec.Raw = msgspec.Raw(b"")

    def request(self) -> CompletionBody | ChatBody:
        """For the tokenizer. Raises RequestError unless there is just one of prompt and messages."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("either prompt or messages says which prefix is meant", param="prompt")
        if self.messages is not None:
            return ChatBody(
                model="", messages=self.messages, tools=self.tools, chat_template_kwargs=self.chat_template_kwargs
            )
        return CompletionBody(model="", prompt=self.prompt if isinstance(self.prompt, str) else list(self.prompt or ()))

"""From a body to prompts: template, tokenizer and text keys, off the event loop."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from trunkline.agent.engine.builtin.textkeys import TextKeys
from trunkline.agent.engine.text import TextModel
from trunkline.agent.openai.body import ChatBody, CompletionBody
from trunkline.shared import canonical
from trunkline.shared.body import empty
from trunkline.shared.canonical import Canonical
from trunkline.shared.errors import ContextExceeded, Overloaded, RequestError
from trunkline.shared.namespace import Namespace

WORKERS = 2
TIMEOUT_S = 60.0
_P = ParamSpec("_P")
_T = TypeVar("_T")
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Prompt(NamedTuple):
    """Token ids of one prompt, and its text keys (u64) with their depths (u32), packed."""

    tokens: "array[int]"
    text_keys: bytes = b""
    text_depths: bytes = b""


class Preparer:
    """Tokenizes in a few threads; more than `max_pending` bodies at once are refused."""

    def __init__(self, text: TextModel, namespace: Namespace, context: int, max_pending: int) -> None:
        self._text = text
        self._context = context
        self._text_keys = TextKeys(text)
        self._namespace = namespace
        self._max_pending = max_pending
        self._pending = 0
        self._closed = False
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="prepare")

    async def prompts(self, body: CompletionBody | ChatBody, salt: str) -> list[Prompt]:
        """One per prompt of a completion, one for a chat. Raises RequestError with the field at fault."""
        return await self._run(self._prepare, body, self._namespace.salted(salt))

    async def reply_keys(self, body: ChatBody, salt: str, reply: str, tokens: Sequence[int]) -> tuple[bytes, bytes]:
        """Text keys, with their depths, of the chat's next turn. `tokens` are those of prompt and reply."""
        tools, arguments = bytes(body.tools), bytes(body.chat_template_kwargs)
        namespace = self._namespace.salted(salt)
        return await self._run(self._text_keys.of_reply, namespace, body.messages, tools, arguments, reply, tokens)

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._closed:  # A reply that outlasted the node's time to drain ends just now.
            raise Overloaded("this node is closing", retry_after=5.0, status=503)
        if self._pending >= self._max_pending:
            raise Overloaded(f"{self._pending} requests are being tokenized already: no room for more", retry_after=1.0)
        self._pending += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))
        except TimeoutError:
            raise Overloaded("tokenizing took too long", retry_after=10.0, status=503) from None
        finally:
            self._pending -= 1

    def close(self) -> None:
        """Does not wait for what is being prepared, and refuses what comes after."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, body: CompletionBody | ChatBody, namespace: Namespace) -> list[Prompt]:
        if isinstance(body, ChatBody):
            return [self._chat(body, namespace)]
        prompts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        if not prompts:
            raise empty("prompt")
        ids = [token for token in prompts if isinstance(token, int)]
        if len(ids) == len(prompts):
            return [self._ids(ids, "prompt")]
        return [
            self._one(prompt, f"prompt.{i}" if len(prompts) > 1 else "prompt", namespace)
            for i, prompt in enumerate(prompts)
        ]

    def _one(self, prompt: str | int | list[int], field: str, namespace: Namespace) -> Prompt:
        if isinstance(prompt, int):
            raise RequestError(f"{field}: token ids and texts are mixed", status=422, param=field)
        if isinstance(prompt, list):
            return self._ids(prompt, field)
        if not prompt:
            raise empty(field)
        framed = canonical.of_prompt(prompt, field)
        return self._encoded(prompt, framed, namespace, field, special=True)

    def _chat(self, body: ChatBody, namespace: Namespace) -> Prompt:
        for index, message in enumerate(body.messages):
            if message.role not in ROLES:
                field = f"messages.{index}.role"
                raise RequestError(f"{field}: {message.role!r} is not one of {sorted(ROLES)}", param=field)
        tools, arguments = bytes(body.tools), bytes(body.chat_template_kwargs)
        framed = canonical.of_chat(body.messages, tools, arguments)
        rendered = self._text.render_chat(body.messages, tools, arguments)
        return self._encoded(rendered, framed, namespace, "messages", special=False)

    def _encoded(self, text: str, framed: Canonical, namespace: Namespace, field: str, *, special: bool) -> Prompt:
        # Eight megabytes can take half a minute to tokenize, only to be refused.
        if len(text) > self._context * self._text.longest_token:
            reason = f"{len(text)} characters are more than a context of {self._context} tokens can hold"
            raise ContextExceeded(field, reason)
        encoded = self._text.encode(text, add_special=special)
        keys, depths = self._text_keys.of_prompt(namespace, framed, text, encoded)
        return Prompt(array("i", encoded.ids), keys, depths)

    def _ids(self, ids: list[int], field: str) -> Prompt:
        if not ids:
            raise empty(field)
        vocab = self._text.vocab_size
        for token in ids:
            if not 0 <= token < vocab:
                raise RequestError(f"{field}: {token} is not in the vocabulary of {vocab} tokens", param=field)
        return Prompt(array("i", ids))

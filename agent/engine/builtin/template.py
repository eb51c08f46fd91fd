"""Chat templates: jinja2 in the immutable sandbox, with the extensions and globals that Hugging Face gives them.

A template comes with a model file, so it is a stranger's program. The sandbox keeps it from Python's internals, a
deadline holds in every loop, and what it may emit or multiply is capped. That stops accidents and plain hostility;
it is no bound on the memory of a template made to exhaust it.

What a template sees is what the canonical bytes of the request contain (`shared/canonical.py`) and nothing else: the
named fields of each message, the tools and the template arguments. Content parts are joined by newlines, as vLLM does.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.sandbox
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser

from trunkline.shared.canonical import Message, parts
from trunkline.shared.errors import UNDECODABLE, ConfigError, RequestError

RENDER_SECONDS = 5.0
MAX_RENDERED_CHARS = 32 * 1024 * 1024
_MAX_REPEAT = 1_000_000
_MAX_POWER_BITS = 4096
_DEADLINE = "trunkline_deadline"
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", _DEADLINE})


class ChatTemplate:
    """A compiled template. Rendering mutates nothing; any thread may do it."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises ConfigError if the source does not compile."""
        self.source = source
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        environment.filters[_bounded.__name__] = _bounded
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _dict,
            "namespace": _Namespace,
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ConfigError(f"the model's chat template does not compile: {error}") from None

    def render(
        self, messages: Sequence[Message], tools: bytes = b"", arguments: bytes = b"", *, reply: bool = True
    ) -> str:
        """The prompt's text. `tools` and `arguments` (chat_template_kwargs) are JSON, as sent, or empty.

        `reply`: end where the assistant's next message begins (`add_generation_prompt`).
        Raises RequestError for what cannot be rendered, with the field at fault if there is one.
        """
        variables = _arguments(arguments) | {
            "messages": [_message(index, message) for index, message in enumerate(messages)],
            "tools": _tools(tools),
            "add_generation_prompt": reply,
            _DEADLINE: time.monotonic() + RENDER_SECONDS,
        }
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED_CHARS:
                    raise RequestError(f"the chat template emits more than {MAX_RENDERED_CHARS} characters")
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is a program: it may raise anything
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from None
        return "".join(pieces)


def _message(index: int, message: Message) -> dict[str, Any]:
    """What the template sees of a message."""
    seen: dict[str, Any] = {"role": message.role, "content": _content(index, message)}
    if message.name is not None:
        seen["name"] = message.name
    if message.tool_call_id is not None:
        seen["tool_call_id"] = message.tool_call_id
    if calls := _decode(bytes(message.tool_calls), f"messages.{index}.tool_calls", list):
        seen["tool_calls"] = [_tool_call(call) for call in calls]
    return seen


def _content(index: int, message: Message) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for position, part in enumerate(parts(index, message.content)):
        if part.type != "text":
            field = f"messages.{index}.content.{position}"
            raise RequestError(f"{field}: parts of type {part.type!r} are not supported, only 'text'", param=field)
        texts.append(part.text)
    return "\n".join(texts)


def _tool_call(call: Any) -> Any:
    """Templates expect the arguments as an object; the API has them as JSON in a string."""
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                return call | {"function": function | {"arguments": json.loads(text)}}
            except (ValueError, RecursionError):
                return call
    return call


def _tools(raw: bytes) -> list[Any] | None:
    return _decode(raw, "tools", list) or None


def _arguments(raw: bytes) -> dict[str, Any]:
    arguments: dict[str, Any] = _decode(raw, "chat_template_kwargs", dict) or {}
    if taken := _RESERVED & arguments.keys():
        field = f"chat_template_kwargs.{min(taken)}"
        raise RequestError(f"{field}: set by the server", param=field)
    return arguments


def _decode(raw: bytes, field: str, kind: type) -> Any:
    """JSON of the given kind; None for nothing and for null."""
    try:
        value = msgspec.json.decode(raw) if raw else None
    except UNDECODABLE as error:
        raise RequestError(f"{field}: not valid JSON: {error}", param=field) from None
    if value is None or isinstance(value, kind):
        return value
    raise RequestError(f"{field}: expected `{'array' if kind is list else 'object'}`", status=422, param=field)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with bounded loops, repetitions and powers."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | bytes | list | tuple) and len(sequence) * times > _MAX_REPEAT:
                    raise jinja2.exceptions.SecurityError(f"a repetition is longer than {_MAX_REPEAT}")
        elif isinstance(left, int) and left.bit_length() * right > _MAX_POWER_BITS:
            raise jinja2.exceptions.SecurityError(f"a power has more than {_MAX_POWER_BITS} bits")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _bounded.__name__, [], [], None, None, lineno=loop.lineno)
            loop.set_environment(self)
        return tree


@jinja2.pass_context
def _bounded(context: jinja2.runtime.Context, items: Iterable[Any]) -> Iterator[Any]:
    """Every loop runs over its items through this."""
    deadline: float = context[_DEADLINE]
    for item in items:
        if time.monotonic() > deadline:
            raise jinja2.TemplateRuntimeError(f"it takes longer than {RENDER_SECONDS:.0f} s")
        yield item


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's tokens for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """jinja2's namespace without underscored names, which lead to Python's internals."""

    def __init__(*arguments: Any, **named: Any) -> None:
        namespace, positional = arguments[0], arguments[1:]
        values = dict(*positional, **named)
        for name in values:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(namespace, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have {name!r}")


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    """A function instead of the type: templates cannot reach the type's attributes."""
    return dict(*arguments, **named)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not jinja2's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)

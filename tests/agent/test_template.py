"""Chat templates: what they see, what they may do, and what becomes of those that misbehave."""

import json

import msgspec
import pytest

from trunkline.agent.engine.builtin import template
from trunkline.agent.engine.builtin.template import ChatTemplate
from trunkline.agent.engine.text import TextModel
from trunkline.shared.canonical import Message
from trunkline.shared.errors import ConfigError, RequestError

HELLO = [Message("user", "hello")]


def render(source: str, messages: list[Message] = HELLO, tools: bytes = b"", arguments: bytes = b"") -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, tools, arguments)


def refusal(source: str, messages: list[Message] = HELLO, tools: bytes = b"", arguments: bytes = b"") -> RequestError:
    with pytest.raises(RequestError) as caught:
        render(source, messages, tools, arguments)
    return caught.value


def test_the_default_model_speaks_chatml(text_model: TextModel) -> None:
    messages = [Message("system", "Be terse."), *HELLO]
    rendered = "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
    assert text_model.render_chat(messages) == rendered + "<|im_start|>assistant\n"
    assert text_model.render_chat(messages, reply=False) == rendered
    assert text_model.render_chat(HELLO).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hello</s>"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        (
            "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.index0 }}{% endfor %}",
            "TrueTrue10",
        ),
        ("{% for m in messages if m.role == 'system' %}x{% else %}none{% endfor %}", "none"),
        ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ dict(a=1)['a'] }}{{ 2 ** 10 }}{{ '-' * 3 }}", "11024---"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }}{{ add_generation_prompt }}", "TrueTrue"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].content) }}", "[hello]"),
        ("{{ messages[0].name is defined }}{{ messages[0].tool_calls is defined }}", "FalseFalse"),
    ],
)
def test_templates_have_what_hugging_face_gives_them(source: str, expected: str) -> None:
    assert render(source) == expected


def test_parts_are_joined_by_newlines() -> None:
    parts = [msgspec.Raw(b'{"type": "text", "text": "one"}'), msgspec.Raw(b'{"text": "two", "type": "text"}')]
    assert render("{{ messages[0].content }}", [Message("user", parts)]) == "one\ntwo"


def test_no_content_is_empty_content() -> None:
    assert render("[{{ messages[0].content }}]", [Message("assistant", None)]) == "[]"


def test_a_part_that_is_no_text_is_refused() -> None:
    parts = [msgspec.Raw(b'{"type": "text", "text": "see"}'), msgspec.Raw(b'{"type": "image_url", "image_url": {}}')]
    error = refusal("x", [*HELLO, Message("user", parts)])
    assert (error.status, error.param) == (400, "messages.1.content.1")
    assert "image_url" in error.message


def test_tools_and_tool_calls_arrive_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        Message("assistant", None, tool_calls=msgspec.Raw(json.dumps([call]).encode())),
        Message("tool", "2", name="f", tool_call_id="1"),
    ]
    source = (
        "{{ tools[0].name }} {{ messages[0].tool_calls[0].function.arguments.x }} "
        "{{ messages[1].tool_call_id }} {{ messages[1].name }} {{ deep }}"
    )
    assert render(source, messages, b'[{"name": "f"}]', b'{"deep": true}') == "f 1 1 f True"


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    calls = b'[{"function": {"arguments": "{oops"}}, 5]'
    messages = [Message("assistant", None, tool_calls=msgspec.Raw(calls))]
    assert render("{{ messages[0].tool_calls[0].function.arguments }}", messages) == "{oops"


@pytest.mark.parametrize("nothing", [b"", b"null"])
def test_nothing_is_no_tools(nothing: bytes) -> None:
    assert render("{{ tools is none }}", HELLO, nothing, nothing) == "True"


@pytest.mark.parametrize(
    ("tools", "arguments", "param", "status"),
    [
        (b'{"a": 1}', b"", "tools", 422),
        (b"", b"[1]", "chat_template_kwargs", 422),
        (b"", b'{"messages": []}', "chat_template_kwargs.messages", 400),
        (b"[", b"", "tools", 400),
    ],
)
def test_bad_tools_and_arguments_name_the_field(tools: bytes, arguments: bytes, param: str, status: int) -> None:
    error = refusal("x", HELLO, tools, arguments)
    assert (error.param, error.status) == (param, status)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content.x }}", "has no"),
        ("{{ 'a' + 1 }}", "str"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'a' * 10000000000 }}", "repetition"),
        ("{{ 2000000 * [1] }}", "repetition"),
        ("{{ 9 ** 99999999 }}", "power"),
        ("{{ range(10000000) }}", "Range too big"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ namespace(_x=1) }}", "_x"),
        ("{{ (''.__class__.__mro__)[0] }}", "unsafe"),
    ],
)
def test_failing_templates_give_one_clear_error(source: str, reason: str) -> None:
    error = refusal(source)
    assert (error.status, error.param) == (400, "messages")
    assert reason in error.message
    assert "\n" not in error.message


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [LOOPS, "{% macro f() %}" + LOOPS + "{% endmacro %}{{ f() }}"])
def test_endless_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "RENDER_SECONDS", 0.05)
    assert "longer than" in refusal(source).message


def test_output_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MAX_RENDERED_CHARS", 1000)
    assert "more than 1000 characters" in refusal("{% for i in range(9999) %}xx{% endfor %}").message


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% generation %}", "{% for m in messages %}"])
def test_what_does_not_compile_is_a_configuration_error(source: str) -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate(source)

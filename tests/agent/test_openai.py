"""OpenAI's bodies, parameters and answers, without a server."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.engine.base import Delta, TokenLogprob
from trunkline.agent.openai import params
from trunkline.agent.openai.body import ChatBody, CompletionBody, chat_body, completion_body
from trunkline.agent.openai.reply import ChatReply, CompletionReply
from trunkline.shared.errors import RequestError

CONTEXT, VOCAB = 1000, 500


def completion(**fields: object) -> CompletionBody:
    return completion_body(json.dumps({"model": "m", "prompt": "p"} | fields).encode())


def chat(**fields: object) -> ChatBody:
    return chat_body(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields).encode())


def refused(body: CompletionBody | ChatBody, prompt_tokens: int = 10) -> RequestError:
    def use() -> None:
        params.check(body)
        params.choices(body)
        params.sampling(body, prompt_tokens, CONTEXT, VOCAB)

    with pytest.raises(RequestError) as caught:
        use()
    return caught.value


@pytest.mark.parametrize(
    ("raw", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"not json", 400, None),
        (b'{"model": "m", "prompt": "\xff\xfe"}', 400, None),
        (b'{"model": "m", "prompt": "\\ud800"}', 400, None),
        (b'{"model": "m", "prompt": "\\udc00 x"}', 400, None),
        (b'{"model": "m", "prompt": "p", "temperature": NaN}', 400, None),
        (b'{"model": "m", "prompt": "p", "x": ' + b"[" * 100_000, 400, None),
        (b"[]", 422, None),
        (b"null", 422, None),
        (b'{"prompt": "p"}', 400, "model"),
        (b'{"model": "m"}', 400, "prompt"),
        (b'{"model": 5, "prompt": "p"}', 422, "model"),
        (b'{"model": "m", "prompt": {}}', 422, "prompt"),
        (b'{"model": "m", "prompt": [1, 2.5]}', 422, "prompt.1"),
        (b'{"model": "m", "prompt": [[1, "x"]]}', 422, "prompt.0.1"),
        (b'{"model": "m", "prompt": [true]}', 422, "prompt.0"),
        (b'{"model": "m", "prompt": "p", "max_tokens": "12"}', 422, "max_tokens"),
        (b'{"model": "m", "prompt": "p", "max_tokens": 1.5}', 422, "max_tokens"),
        (b'{"model": "m", "prompt": "p", "temperature": 1e999}', 422, "temperature"),
        (b'{"model": "m", "prompt": "p", "stop": [1]}', 422, "stop.0"),
        (b'{"model": "m", "prompt": "p", "stream": "yes"}', 422, "stream"),
    ],
)
def test_what_is_no_completion_body(raw: bytes, status: int, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        completion_body(raw)
    assert (caught.value.status, caught.value.param) == (status, param)


@pytest.mark.parametrize(
    ("messages", "status", "param"),
    [
        ("hi", 422, "messages"),
        ([{"content": "x"}], 400, "messages.0.role"),
        ([{"role": "user", "content": "x"}, {"role": 1, "content": "x"}], 422, "messages.1.role"),
        ([{"role": "user", "content": 5}], 422, "messages.0.content"),
        (["hi"], 422, "messages.0"),
    ],
)
def test_what_are_no_messages(messages: object, status: int, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(messages=messages)
    assert (caught.value.status, caught.value.param) == (status, param)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_body_or_a_request_error(raw: bytes) -> None:
    for decode in (completion_body, chat_body):
        status = 0
        try:
            decode(raw)
        except RequestError as error:
            status = error.status
        assert status in (0, 400, 422)


def test_unknown_fields_are_ignored_and_null_is_absent() -> None:
    body = completion(user="u", whatever={"a": [1]}, temperature=None, stop=None, n=None, stream_options=None)
    params.check(body)
    assert params.sampling(body, 1, CONTEXT, VOCAB).temperature == 1.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": params.MAX_CHOICES + 1}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 991}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**70}, "seed"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop": ["x"] * (params.MAX_STOP + 1)}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": "x" * (params.MAX_STOP_CHARS + 1)}, "stop"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * (params.MAX_STOP_IDS + 1)}, "stop_token_ids"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_refused_by_both(fields: dict[str, object], param: str) -> None:
    for body in (completion(**fields), chat(**fields)):
        error = refused(body)
        assert (error.status, error.param) == (400, param)
        assert param in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": params.MAX_LOGPROBS + 1}, "logprobs"),
    ],
)
def test_refused_completions(fields: dict[str, object], param: str) -> None:
    assert refused(completion(**fields)).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 991}, "max_completion_tokens"),
    ],
)
def test_refused_chats(fields: dict[str, object], param: str) -> None:
    assert refused(chat(**fields)).param == param


def test_a_prompt_over_the_context_is_refused_with_the_numbers() -> None:
    for body, field in ((completion(), "prompt"), (chat(), "messages")):
        error = refused(body, prompt_tokens=1200)
        assert error.param == field
        assert "1200" in error.message
        assert str(CONTEXT) in error.message


def test_defaults() -> None:
    assert params.sampling(completion(), 10, CONTEXT, VOCAB).max_tokens == params.COMPLETION_TOKENS
    assert params.sampling(completion(), 995, CONTEXT, VOCAB).max_tokens == 5
    assert params.sampling(chat(), 10, CONTEXT, VOCAB).max_tokens == 990
    assert params.sampling(chat(max_tokens=7), 10, CONTEXT, VOCAB).max_tokens == 7
    assert params.sampling(chat(max_completion_tokens=8, max_tokens=7), 10, CONTEXT, VOCAB).max_tokens == 8


def test_logprobs_and_seeds() -> None:
    assert params.sampling(completion(), 1, CONTEXT, VOCAB).logprobs is None
    assert params.sampling(completion(logprobs=0), 1, CONTEXT, VOCAB).logprobs == 0
    assert params.sampling(chat(logprobs=True), 1, CONTEXT, VOCAB).logprobs == 0
    assert params.sampling(chat(logprobs=True, top_logprobs=4), 1, CONTEXT, VOCAB).logprobs == 4
    seeds = [params.sampling(completion(seed=5), 1, CONTEXT, VOCAB, choice).seed for choice in range(3)]
    assert seeds == [5, 6, 7]
    lowest, highest = -(1 << 63), (1 << 63) - 1
    given = [lowest, -2, -1, 0, 1, 2, highest]
    seeds = [params.sampling(completion(seed=seed), 1, CONTEXT, VOCAB).seed for seed in given]
    assert len({random.Random(seed).random() for seed in seeds}) == len(given)


LOGPROB = TokenLogprob(4, "é".encode(), -0.5, ((4, "é".encode(), -0.5), (5, b"\xc3", -2.0)))
DELTAS = [Delta("Hé", (3, 4), (TokenLogprob(3, b"H", -0.1), LOGPROB), None, 16), Delta("!", (5,), (), "stop", 16)]


def events(raw: bytes) -> list[dict[str, object]]:
    return [json.loads(line.removeprefix("data: ")) for line in raw.decode().split("\n\n") if line]


def test_a_whole_completion() -> None:
    reply = CompletionReply("id1", "m", 123, [20], 1)
    for delta in DELTAS:
        reply.add(0, delta)
    assert json.loads(reply.whole()) == {
        "id": "cmpl-id1",
        "object": "text_completion",
        "created": 123,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "Hé!",
                "logprobs": {
                    "tokens": ["H", "é"],
                    "token_logprobs": [-0.1, -0.5],
                    "top_logprobs": [{"H": -0.1}, {"é": -0.5, "\N{REPLACEMENT CHARACTER}": -2.0}],
                    "text_offset": [0, 1],
                },
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 3,
            "total_tokens": 23,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }


def test_a_streamed_completion() -> None:
    reply = CompletionReply("id1", "m", 123, [20], 1)
    first, last = (events(reply.events(0, delta))[0] for delta in DELTAS)
    assert first["choices"][0]["text"] == "Hé"
    assert first["choices"][0]["finish_reason"] is None
    assert first["usage"] is None
    assert last["choices"] == [{"index": 0, "text": "!", "logprobs": None, "finish_reason": "stop"}]
    assert reply.events(0, Delta("", (9,))) == b""
    usage = events(reply.usage_event())[0]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4


def test_logprob_offsets_go_on_in_a_stream() -> None:
    reply = CompletionReply("id1", "m", 123, [20], 1)
    reply.events(0, Delta("abc", (1,)))
    event = events(reply.events(0, DELTAS[0]))[0]
    assert event["choices"][0]["logprobs"]["text_offset"] == [3, 4]


def test_a_whole_chat() -> None:
    reply = ChatReply("id1", "m", 123, [20], 1)
    for delta in DELTAS:
        reply.add(0, delta)
    answer = json.loads(reply.whole())
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hé!"}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["content"][1] == {
        "token": "é",
        "logprob": -0.5,
        "bytes": [0xC3, 0xA9],
        "top_logprobs": [
            {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
            {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -2.0, "bytes": [0xC3]},
        ],
    }


def test_a_streamed_chat() -> None:
    reply = ChatReply("id1", "m", 123, [20], 1)
    got = events(reply.events(0, DELTAS[0])) + events(reply.events(0, DELTAS[1]))
    deltas = [event["choices"][0]["delta"] for event in got]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hé"}, {"content": "!"}, {}]
    assert [event["choices"][0]["finish_reason"] for event in got] == [None, None, None, "stop"]
    assert {event["object"] for event in got} == {"chat.completion.chunk"}
    assert {event["id"] for event in got} == {"chatcmpl-id1"}


def test_usage_counts_a_prompt_once_and_only_what_every_choice_reused() -> None:
    reply = CompletionReply("id1", "m", 123, [20, 30], 2)
    for index, cached in enumerate((0, 16, 16, 16)):
        reply.add(index, Delta("x", (1, 2), (), "length", cached))
    usage = reply.usage()
    assert (usage.prompt_tokens, usage.completion_tokens) == (50, 8)
    assert usage.prompt_tokens_details.cached_tokens == 16
    assert reply.finish == "length,length,length,length"


@given(st.floats())
def test_any_temperature_is_in_range_or_refused(value: float) -> None:
    body = completion()
    body.temperature = value
    if 0 <= value <= 2:
        params.check(body)
    else:
        assert refused(body).param == "temperature"

"""A streamed answer, line by line, with a clock of our own."""

import itertools
import json

import pytest

from trunkline.loadtest.load.stream import Answer, StreamBroken, read

USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}


def chunk(text: str | None = None, **fields: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n"


def feed(lines: list[bytes], cancel_after: int | None = None) -> Answer:
    answer = Answer(due=8.0, sent=9.0)
    read(lines, answer, itertools.count(10.0, 0.5).__next__, cancel_after)
    return answer


def test_a_whole_answer() -> None:
    lines = [
        chunk(""),
        b"\n",
        chunk("a "),
        b": comment\n",
        chunk("b "),
        chunk("c"),
        chunk(usage=USAGE),
        b"data: [DONE]\n",
    ]
    answer = feed(lines)
    assert (answer.first, answer.last, answer.gaps) == (10.0, 11.0, [0.5, 0.5])
    assert (answer.ttft, answer.e2e) == (2.0, 3.0), "waits count from when the request was due"
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (40, 3, 32)
    assert (answer.text, answer.error, answer.given_up) == ("a b c", "", False)


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([chunk("a")], "broken stream"),
        ([], "broken stream"),
        ([chunk("a"), b'data: {"error": {"message": "no"}}\n', b"data: [DONE]\n"], "error in stream"),
        ([b"data: {\n"], "bad JSON in stream"),
        ([b"data: 7\n"], "bad JSON in stream"),
        ([b"data: [DONE]\n"], "empty answer"),
    ],
)
def test_what_is_no_whole_answer_is_named(lines: list[bytes], kind: str) -> None:
    with pytest.raises(StreamBroken, match=kind):
        feed(lines)


def test_a_client_that_gives_up_reads_no_further() -> None:
    lines = iter([chunk("a"), chunk("b"), chunk("c")])
    answer = Answer(due=0.0)
    read(lines, answer, lambda: 1.0, cancel_after=2)
    assert answer.given_up
    assert answer.text == "ab"
    assert len(list(lines)) == 1

"""Detokenization against decoding everything at once, and stop strings against searching the whole text."""

from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from trunkline.agent.engine.builtin.detokenize import Detokenizer
from trunkline.agent.engine.text import TextModel


def run(model: TextModel, tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[str, bool]:
    detokenizer = Detokenizer(model, stop)
    text = "".join([detokenizer.push(token) for token in tokens] + [detokenizer.finish()])
    return text, detokenizer.stopped


def encode(model: TextModel, text: str) -> list[int]:
    return model.encode(text, add_special=False).ids


@cache
def byte_vocabulary(model: TextModel) -> dict[bytes, int]:
    return {model.token_bytes(token): token for token in range(model.vocab_size)}


@cache
def special_texts(model: TextModel) -> list[str]:
    return [model.token_bytes(token).decode() for token in model.special_ids]


def byte_tokens(model: TextModel, text: str) -> list[int]:
    """One token per byte: the worst that can come."""
    return [byte_vocabulary(model)[bytes([byte])] for byte in text.encode()]


# The default model has no tokens for a few control characters and unassigned planes; its tokenizer leaves them out.
TEXTS = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=0x1FFFF, codec="utf-8"), max_size=60)


@given(tokens=st.lists(st.integers(0, 49151), max_size=60))
def test_pushes_add_up_to_decoding_at_once(text_model: TextModel, tokens: list[int]) -> None:
    tokenizer: Tokenizer = text_model._tokenizer
    assert run(text_model, tokens) == (tokenizer.decode(tokens, skip_special_tokens=True), False)


@given(text=TEXTS)
def test_texts_come_back(text_model: TextModel, text: str) -> None:
    assume(not any(special in text for special in special_texts(text_model)))
    assert run(text_model, encode(text_model, text)) == (text, False)
    assert run(text_model, byte_tokens(text_model, text)) == (text, False)


def test_never_half_a_character(text_model: TextModel) -> None:
    detokenizer = Detokenizer(text_model)
    tokens = byte_tokens(text_model, "é🤖")
    assert [detokenizer.push(token) for token in tokens] == ["", "é", "", "", "", "🤖"]


def test_half_a_character_at_the_end_is_replaced(text_model: TextModel) -> None:
    detokenizer = Detokenizer(text_model)
    first, second, *_ = byte_tokens(text_model, "🤖")
    assert [detokenizer.push(first), detokenizer.push(second), detokenizer.finish()] == ["", "", "\ufffd"]


def test_bytes_that_cannot_complete_are_replaced_at_once(text_model: TextModel) -> None:
    detokenizer = Detokenizer(text_model)
    first = byte_tokens(text_model, "🤖")[0]
    assert detokenizer.push(first) == ""
    assert detokenizer.push(encode(text_model, "a")[0]) == "\ufffda"


def test_special_tokens_have_no_text(text_model: TextModel) -> None:
    tokens = encode(text_model, "<|im_start|>hello<|im_end|> there<|endoftext|>")
    assert run(text_model, tokens) == ("hello there", False)


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """By definition: at the stop string that ends first, the longer one of two that end together."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(
    text=st.text(alphabet="ab é🤖", max_size=30),
    stops=st.lists(st.text(alphabet="ab é🤖", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_stop_strings(text_model: TextModel, text: str, stops: list[str]) -> None:
    expected = cut(text, tuple(stops))
    assert run(text_model, encode(text_model, text), tuple(stops)) == expected
    assert run(text_model, byte_tokens(text_model, text), tuple(stops)) == expected


@pytest.mark.parametrize("stop", ["\n\nUser:", "STOP", "🤖é", "aab"])
def test_stop_string_at_every_split(text_model: TextModel, stop: str) -> None:
    for split in range(len(stop) + 1):
        parts = ["Well, aa ", stop[:split], stop[split:], " and on"]
        tokens = [token for part in parts for token in encode(text_model, part)]
        assert run(text_model, tokens, (stop,)) == ("Well, aa ", True)


@given(text=st.text(alphabet="abc", max_size=20))
def test_no_more_is_held_back_than_may_be_a_stop_string(text_model: TextModel, text: str) -> None:
    stops = ("abab", "bc")
    detokenizer = Detokenizer(text_model, stops)
    released = ""
    for end, token in enumerate(byte_tokens(text_model, text), start=1):
        released += detokenizer.push(token)
        if detokenizer.stopped:
            break
        held = max(size for stop in stops for size in range(len(stop)) if text[:end].endswith(stop[:size]))
        assert released == text[: end - held]


def test_nothing_comes_after_a_stop(text_model: TextModel) -> None:
    detokenizer = Detokenizer(text_model, ("b",))
    assert "".join(detokenizer.push(token) for token in byte_tokens(text_model, "aabaa")) == "aa"
    assert detokenizer.stopped
    assert detokenizer.finish() == ""

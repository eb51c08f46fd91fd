import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.engine.emulated.text import END_ID, EmulatedText, token_of
from trunkline.shared.canonical import Message
from trunkline.shared.errors import RequestError

TEXT = EmulatedText()
PARTS = ["<|im_start|>", "<|im_end|>", "<|im", "\n", "é", "東京", "a", "lox bam "]
texts = st.lists(st.sampled_from(PARTS) | st.text()).map("".join)


@given(texts)
def test_texts_come_back(text: str) -> None:
    encoded = TEXT.encode(text, add_special=True)
    pieces = list(map(TEXT.token_bytes, encoded.ids))
    assert b"".join(pieces).decode() == text
    assert len(encoded.ends) == len(encoded.words) == len(pieces)
    at = 0
    for token, piece, end in zip(encoded.ids, pieces, encoded.ends, strict=True):
        at += len(piece)
        assert end == at
        assert 0 <= token < TEXT.vocab_size
        assert token in TEXT.special_ids or len(piece) == 1 or (piece.isascii() and len(piece) <= 4)
        assert len(piece) <= TEXT.longest_token


@given(st.text(st.characters(max_codepoint=127, exclude_characters="<\n")))
def test_four_characters_are_a_token(text: str) -> None:
    assert len(TEXT.encode(text, add_special=False).ids) == -(-len(text) // 4)


@given(st.integers(0, TEXT.vocab_size - 1))
def test_ids_are_of_one_piece_each(token: int) -> None:
    piece = TEXT.token_bytes(token)
    if token not in TEXT.special_ids and b"\n" not in piece[:-1]:
        assert token_of(piece) == token


@pytest.mark.parametrize("token", [-1, TEXT.vocab_size])
def test_ids_that_are_none(token: int) -> None:
    assert TEXT.token_bytes(token) == b""


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(RequestError, match="Unicode"):
        TEXT.encode("\ud800", add_special=False)


def test_an_answer_is_the_same_tokens_in_the_next_turn() -> None:
    question, reply = [Message("system", "Be kind."), Message("user", "Wie geht's?")], "lox bam tik "
    before = TEXT.encode(TEXT.render_chat(question), add_special=False).ids
    turn = [*question, Message("assistant", reply), Message("user", "And now?")]
    after = TEXT.encode(TEXT.render_chat(turn), add_special=False).ids
    answer = [token_of(piece) for piece in (b"lox ", b"bam ", b"tik ")]
    assert after[: len(before) + len(answer) + 1] == [*before, *answer, END_ID]


def test_tools_and_their_calls_are_in_the_prompt() -> None:
    call = b'[{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]'
    messages = [Message("user", "Look."), Message("assistant", tool_calls=call), Message("tool", "Nothing.")]
    prompt = TEXT.render_chat(messages, tools=b'[{"type": "function", "function": {"name": "look"}}]')
    assert prompt.startswith("<|im_start|>tools\n")
    assert prompt.count("look") == 2
    assert prompt.endswith("<|im_start|>tool\nNothing.<|im_end|>\n<|im_start|>assistant\n")

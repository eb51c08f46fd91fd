import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.engine.emulated.answer import FIRST_SEED, expected, next_token
from trunkline.agent.engine.emulated.text import END_ID, EmulatedText
from trunkline.kernels.core import hash64

TEXT = EmulatedText()
prompts = st.lists(st.integers(0, TEXT.vocab_size - 1), max_size=100)


def simple(tokens: list[int]) -> int:
    """The token after `tokens`, as the module's docstring says it."""
    seed, history = FIRST_SEED, 0
    for page, at in enumerate(range(0, len(tokens), 16)):
        seed = hash64(b"".join(token.to_bytes(4, "little") for token in tokens[at : at + 16]), seed)
        history += seed * (2 * page + 1)
    return next_token(history % 2**64, may_end=False)


@given(prompts)
def test_each_token_follows_from_all_before_it(prompt: list[int]) -> None:
    tokens = list(prompt)
    for token in expected(prompt, 40, ignore_eos=True):
        assert token == simple(tokens)
        tokens.append(token)
    assert len(tokens) == len(prompt) + 40


@given(prompts)
def test_an_answer_goes_on_as_it_would_have(prompt: list[int]) -> None:
    whole = list(expected(prompt, 50, ignore_eos=True))
    assert list(expected(prompt + whole[:17], 33, ignore_eos=True)) == whole[17:]


@given(prompts.filter(bool), st.data())
def test_another_token_anywhere_gives_another_answer(prompt: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(prompt) - 1))
    other = [*prompt[:place], (prompt[place] + 1) % TEXT.vocab_size, *prompt[place + 1 :]]
    assert list(expected(other, 10, ignore_eos=True)) != list(expected(prompt, 10, ignore_eos=True))


def test_answers_end_by_themselves() -> None:
    chance = random.Random(1)
    lengths = []
    for _ in range(50):
        prompt = chance.choices(range(TEXT.vocab_size), k=20)
        answer = list(expected(prompt, 10_000))
        assert answer[-1] == END_ID
        assert END_ID not in answer[:-1]
        assert list(expected(prompt, 10_000, ignore_eos=True))[: len(answer) - 1] == answer[:-1]
        longer = list(itertools.islice(expected(prompt, 10_000, min_tokens=len(answer)), len(answer)))
        assert longer[:-1] == answer[:-1]
        assert longer[-1] != END_ID
        lengths.append(len(answer))
    assert 150 < sum(lengths) / len(lengths) < 400


def test_answers_are_plain_words() -> None:
    text = b"".join(map(TEXT.token_bytes, expected([1, 2, 3], 100, ignore_eos=True))).decode()
    words = text.split(" ")
    assert words.pop() == ""
    assert {len(word) for word in words} == {3}
    assert text.isascii()
    assert TEXT.encode(text, add_special=False).ids == list(expected([1, 2, 3], 100, ignore_eos=True))

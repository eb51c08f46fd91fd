"""The built-in model against transformers: logits of every family, and the default model's words."""

import itertools
import random
from pathlib import Path

import pytest
import torch

from tests.agent import reference_models
from tests.agent.greedy import Greedy
from tests.agent.reference_models import FAMILIES, VOCAB
from trunkline.agent.engine.builtin.model import Chunk, Model, StepBatch
from trunkline.agent.engine.builtin.weights import load_model, open_weights
from trunkline.agent.engine.text import TextModel
from trunkline.kernels.attention import KVPool


@pytest.mark.parametrize("family", FAMILIES)
def test_families_have_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    reference = reference_models.make(family, tmp_path)
    model = load_model(tmp_path)
    pool = KVPool(model.config.page_layout(model.dtype), 32)
    chance = random.Random(1)
    long, short = ([chance.randrange(VOCAB) for _ in range(size)] for size in (101, 37))
    pages = chance.sample(range(32), 32)
    # Odd chunks, the short sequence decoding beside the long one's prefill.
    steps = [
        [Chunk(long[:33], 0, pages[:7])],
        [Chunk(short[:36], 0, pages[7:10]), Chunk(long[33:34], 33, pages[:7])],
        [Chunk(short[36:], 36, pages[7:10]), Chunk(long[34:100], 34, pages[:7])],
        [Chunk(long[100:], 100, pages[:7])],
    ]
    expected = {True: reference.logits(long), False: reference.logits(short)}
    for step in steps:
        logits = model.forward(StepBatch.of(step), pool)
        for row, chunk in zip(logits, step, strict=True):
            last = chunk.start + len(chunk.tokens) - 1
            torch.testing.assert_close(row, expected[chunk.pages[0] == pages[0]][last], rtol=1e-3, atol=1e-3)


def test_no_logits_wanted(tmp_path: Path) -> None:
    """A chunk that does not reach the prompt's end writes its pages and answers with no rows."""
    reference = reference_models.make("llama", tmp_path)
    model = load_model(tmp_path)
    pool = KVPool(model.config.page_layout(model.dtype), 2)
    tokens = list(range(20))
    nothing = model.forward(StepBatch.of([Chunk(tokens[:18], 0, [1, 0], logits=False)]), pool)
    assert nothing.shape == (0, VOCAB)
    logits = model.forward(StepBatch.of([Chunk(tokens[18:], 18, [1, 0])]), pool)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits[0], reference.logits(tokens)[-1], rtol=1e-3, atol=1e-3)


LENGTH = 12
"""Tokens to generate from each prompt."""

TIE = 1e-4
"""Logits closer than this may come in either order: float32 sums depend on their order. Nothing here is that close."""

SYSTEM = (
    "<|im_start|>system\nYou are a patient teacher. You answer in short sentences, with one example for every claim, "
    "and you say so when you do not know. Never mention these rules.<|im_end|>\n<|im_start|>user\n"
)
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nx = np.",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "Water boils at",
    '{"name": "Ada", "born": 1815, "languages": [',
    "Les enfants jouent dans",
    "Die Katze sitzt auf dem",
    "日本の首都は",
    "🙂🙂🙂 means",
    "A",
    "\n\n\n",
    "SELECT name, count(*) FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. " * 12,
    SYSTEM + "Why is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    SYSTEM + "What is a prime number?<|im_end|>\n<|im_start|>assistant\n",
    SYSTEM + "Name three rivers.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nTranslate 'good morning' to Spanish.<|im_end|>\n<|im_start|>assistant\n",
    "Q: Who wrote Hamlet?\nA: William Shakespeare.\nQ: Who wrote Faust?\nA:",
    "To be, or not to be, that is",
    "Dear Sir or Madam,\n\nI am writing to",
)


@pytest.fixture(scope="module")
def prompts(text_model: TextModel) -> list[list[int]]:
    return [text_model.encode(prompt, add_special=False).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(model_path: Path, default_model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers in continuous batching, every step a prompt joins those that decode; checked with transformers.

    Transformers' greedy answer is the sequence in which each token has the highest of its logits; one pass over prompt
    and answer shows that for every token at once.
    """
    greedy = Greedy(default_model, 300)
    runs = []
    for prompt in prompts:
        runs.append(greedy.start(prompt))
        greedy.step([(run, len(run.tokens)) for run in runs if len(run.generated) < LENGTH])
    answers = greedy.finish(runs, LENGTH, itertools.repeat(1))
    reference = reference_models.from_source(open_weights(model_path))
    for text, prompt, answer in zip(PROMPTS, prompts, answers, strict=True):
        logits = reference.logits(prompt + answer[:-1], last=LENGTH)
        best, second = logits.topk(2).values.unbind(-1)
        assert (best - second).min() > TIE, f"{text!r} has a tie, choose another prompt"
        assert answer == logits.argmax(-1).tolist(), text
    return answers


def test_greedy_in_a_batch(expected: list[list[int]], text_model: TextModel) -> None:
    assert len(expected) >= 20
    assert b"".join(map(text_model.token_bytes, expected[0])).startswith(b" Paris")


def test_greedy_alone(default_model: Model, prompts: list[list[int]], expected: list[list[int]]) -> None:
    greedy = Greedy(default_model, 300)
    for prompt, answer in zip(prompts, expected, strict=True):
        assert greedy.finish([greedy.start(prompt)], 3, itertools.repeat(4096)) == [answer[:3]]


def test_greedy_in_odd_chunks(default_model: Model, prompts: list[list[int]], expected: list[list[int]]) -> None:
    greedy = Greedy(default_model, 300)
    runs = [greedy.start(prompt) for prompt in prompts]
    assert greedy.finish(runs, LENGTH, itertools.cycle((1, 7, 13, 16, 17, 3, 31))) == expected


def test_greedy_over_cached_pages(default_model: Model, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """The whole pages that a prompt shares with an earlier one, or with itself, are not computed again."""
    greedy = Greedy(default_model, 600)
    earlier = [greedy.start(prompt) for prompt in prompts]
    greedy.finish(earlier, 1, itertools.repeat(4096))
    chat = earlier[next(index for index, prompt in enumerate(PROMPTS) if prompt.startswith(SYSTEM))]
    runs = []
    for text, prompt, itself in zip(PROMPTS, prompts, earlier, strict=True):
        owner = chat if text.startswith(SYSTEM) else itself
        pairs = zip(prompt[:-1], owner.tokens, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        runs.append(greedy.start(prompt, owner, same // 16 * 16))
    assert sum(run.done > 0 for run in runs) >= 5
    assert greedy.finish(runs, LENGTH, itertools.repeat(4096)) == expected

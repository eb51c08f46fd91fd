"""Quantized tiers: what they save, how fast they are copied, and what a context that went through one does to answers.

The default model reads texts of its interpreter's own manual (`pydoc_data`), which are the same wherever the Python is.
Every page goes down to a host tier and comes back as soon as it is full: each token sees a context that was rounded,
whose pages were computed over rounded pages themselves. That is the worst that a tier can do.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pydoc_data.topics import topics

import torch
from torch import Tensor

from trunkline.agent.cache.host import SLOT_ALIGNMENT, HostMemory
from trunkline.agent.cache.lane import Move
from trunkline.agent.engine.builtin.model import Chunk, Model, StepBatch
from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
from trunkline.agent.engine.builtin.weights import load_model
from trunkline.agent.models import DEFAULT, ensure
from trunkline.kernels.attention import FP8, KVPool, QuantizedPages
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.bench.turns import in_turns
from trunkline.shared.names import PAGE_TOKENS

TEXTS, TEXT_TOKENS = 8, 1024
PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 20, 256, 32
COPIED_PAGES = 32
FORMATS = {"int8": torch.int8, "fp8": FP8}


def run(rounds: int = 3) -> list[Row]:
    """Rows for each format, beside native pages."""
    path = ensure(DEFAULT)
    model, text = load_model(path), load_tokenizer(path)
    longest = sorted(topics, key=lambda name: (-len(topics[name]), name))
    tokens = [text.encode(topics[name], add_special=False).ids for name in longest[: max(TEXTS, PROMPTS)]]
    texts, prompts = [ids[:TEXT_TOKENS] for ids in tokens[:TEXTS]], [ids[:PROMPT_TOKENS] for ids in tokens[:PROMPTS]]
    perplexity = _perplexity(Reader(model, texts, None))
    answers = _answers(Reader(model, prompts, None))
    rows: list[Row] = []
    for name, dtype in FORMATS.items():
        rows += _copies(name, dtype, model, rounds)
        value = _perplexity(Reader(model, texts, dtype))
        rows.append(row(f"{name}, perplexity", value, perplexity, value / perplexity, "", None))
        same = [_same(*pair) for pair in zip(_answers(Reader(model, prompts, dtype)), answers, strict=True)]
        whole = sum(count == ANSWER_TOKENS for count in same)
        rows.append(row(f"{name}, greedy answers the same", whole, len(same), whole / len(same), "", None))
        share = sum(same) / len(same)
        title = f"{name}, tokens before the first other one"
        rows.append(row(title, share, ANSWER_TOKENS, share / ANSWER_TOKENS, "", None))
    return rows


class Reader:
    """Sequences read side by side, a page at a time; full pages go through a tier of `dtype` (None: native)."""

    def __init__(self, model: Model, texts: Sequence[Sequence[int]], dtype: torch.dtype | None) -> None:
        self._model = model
        self.tokens = [list(text) for text in texts]
        layout = model.config.page_layout(model.dtype)
        each = -(-(max(map(len, texts)) + ANSWER_TOKENS) // PAGE_TOKENS)
        self._pages = [range(start, start + each) for start in range(0, each * len(texts), each)]
        self._pool = KVPool(layout, each * len(texts))
        self._blocks = self._pool.blocks.numpy()
        codec = QuantizedPages(layout, dtype) if dtype else None
        size = len(texts) * -(-layout.page_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self._host = HostMemory(self._blocks, size, codec)

    def step(self, start: int, end: int) -> Tensor:
        """Logits after each of the tokens from `start` to `end`, within one page: [sequences, tokens, vocab]."""
        chunks = [Chunk(ids[start:end], start, pages) for ids, pages in zip(self.tokens, self._pages, strict=True)]
        batch = StepBatch.of(chunks)
        count = end - start
        logits = self._model.forward(replace(batch, rows=torch.arange(len(chunks) * count)), self._pool)
        if end % PAGE_TOKENS == 0:
            self._through_the_tier([pages[start // PAGE_TOKENS] for pages in self._pages])
        return logits.view(len(chunks), count, -1)

    def _through_the_tier(self, pages: list[int]) -> None:
        slots = list(range(len(pages)))
        self._host.save(Move([], pages, slots))
        self._blocks[pages] = 0
        self._host.load(Move([], slots, pages))


def _perplexity(reader: Reader) -> float:
    """Of every token after the first page."""
    total = count = 0.0
    length = min(map(len, reader.tokens))
    for start in range(0, length - 1, PAGE_TOKENS):
        end = min(start + PAGE_TOKENS, length - 1)
        logits = reader.step(start, end)
        if start:
            following = torch.tensor([ids[start + 1 : end + 1] for ids in reader.tokens])
            total -= logits.log_softmax(-1).gather(-1, following[..., None]).sum().item()
            count += following.numel()
    return math.exp(total / count)


def _answers(reader: Reader) -> list[list[int]]:
    """Greedy, ANSWER_TOKENS each. All prompts are of the same whole pages."""
    length = len(reader.tokens[0])
    for start in range(0, length, PAGE_TOKENS):
        logits = reader.step(start, start + PAGE_TOKENS)
    for position in range(length, length + ANSWER_TOKENS):
        for ids, token in zip(reader.tokens, logits[:, -1].argmax(-1).tolist(), strict=True):
            ids.append(token)
        logits = reader.step(position, position + 1)
    return [ids[length:] for ids in reader.tokens]


def _same(ours: list[int], theirs: list[int]) -> int:
    """Tokens before the first that differs."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=True)))


def _copies(name: str, dtype: torch.dtype, model: Model, rounds: int) -> Iterator[Row]:
    """Bytes of a page, and GB of native pages that are copied in a second, down and back, beside native copies."""
    layout = model.config.page_layout(model.dtype)
    codec = QuantizedPages(layout, dtype)
    stored, native = codec.page_bytes, layout.page_bytes
    yield row(f"{name}, bytes of a page", stored, native, stored / native, "", None)
    pool = KVPool(layout, COPIED_PAGES)
    pool.data.normal_()
    device, size = pool.blocks.numpy(), COPIED_PAGES * -(-native // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    quantized, plain = HostMemory(device, size, codec), HostMemory(device, size)
    move = Move([], list(range(COPIED_PAGES)), list(range(COPIED_PAGES))[::-1])
    gigabytes = COPIED_PAGES * native / 1e9
    for title, ours, theirs in (("down", quantized.save, plain.save), ("back", quantized.load, plain.load)):
        mine, other = in_turns(lambda: ours(move), lambda: theirs(move), 5 * rounds)  # noqa: B023
        yield row(f"{name}, copied {title}, GB/s", gigabytes / mine, gigabytes / other, other / mine, "", None)

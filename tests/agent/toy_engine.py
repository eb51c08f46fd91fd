"""The built-in engine over a model that counts: the token after t is t + 1. Its steps can be held and made to fail."""

import asyncio
import contextlib
import threading
from array import array
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import torch

from trunkline.agent.engine.base import Delta, EngineLimits, Generation, GenerationStream, SamplingParams
from trunkline.agent.engine.builtin.config import parse_config
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.model import StepBatch
from trunkline.agent.engine.builtin.torch_executor import load
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.kernels.attention import KVPool
from trunkline.shared.names import Tier
from trunkline.shared.wire import Finished

CONTEXT = 2048


class ToyModel:
    """`gate` holds steps while it is clear; each of `failures` is raised by one step."""

    def __init__(self, vocab: int) -> None:
        self.config = parse_config(
            {
                "model_type": "llama",
                "vocab_size": vocab,
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "max_position_embeddings": CONTEXT,
                "rms_norm_eps": 1e-5,
            },
            "toy",
        )
        self.gate = threading.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.steps = 0
        self.tokens = 0

    def forward(self, batch: StepBatch, pool: KVPool) -> torch.Tensor:
        self.steps += 1
        self.tokens += len(batch.tokens)
        assert self.gate.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        logits = torch.zeros(len(batch.rows), self.config.vocab_size)
        following = (batch.tokens[batch.rows] + 1) % self.config.vocab_size
        return logits.scatter_(1, following[:, None], 1.0)


class Sink:
    """Remembers what the engine says."""

    def __init__(self) -> None:
        self.requests: list[Finished] = []
        self.keys = b""

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        self.keys += keys

    def moved(self, keys: bytes, tier: Tier) -> None: ...
    def removed(self, keys: bytes) -> None: ...
    def cleared(self) -> None: ...

    def finished(self, finished: Finished) -> None:
        self.requests.append(finished)


class Toy:
    """A running engine with its parts."""

    def __init__(self, path: Path, text: TextModel, pages: int, limits: EngineLimits) -> None:
        self.model = ToyModel(text.vocab_size)
        self.sink = Sink()
        settings = AgentSettings(path, "toy", "node", pages=pages, limits=limits)
        self.load = partial(load, path, load=lambda *_: self.model)  # type: ignore[arg-type,return-value]
        self.engine = BuiltinEngine(settings, text, lambda _: self.sink, self.load)

    def submit(self, tokens: Sequence[int], max_tokens: int = 4, **params: object) -> GenerationStream:
        sampling = SamplingParams(max_tokens, temperature=0, **params)  # type: ignore[arg-type]
        return self.engine.submit(Generation("r", array("i", tokens), sampling))

    @property
    def keeper(self) -> threading.Thread:
        """The thread that looks after the pages during a step."""
        assert self.engine._loop is not None
        return self.engine._loop._keeper._thread

    async def idle(self) -> None:
        """Waits until nothing runs or waits, and sees that every page is accounted for."""
        async with asyncio.timeout(20):
            while (load := self.engine.load()).running or load.waiting or load.backlog_tokens:
                await asyncio.sleep(0.005)
        (tier,) = load.tiers
        assert tier.in_flight == 0
        assert tier.resident == tier.cached
        assert tier.free + tier.resident == tier.total
        assert not self.engine._streams


@contextlib.asynccontextmanager
async def toy(path: Path, text: TextModel, pages: int = 64, **limits: float) -> AsyncIterator[Toy]:
    """Started, and closed at the end with nothing left behind."""
    made = Toy(path, text, pages, EngineLimits(**limits))  # type: ignore[arg-type]
    await made.engine.start()
    made.model.steps = made.model.tokens = 0  # of the warm-up
    try:
        yield made
    finally:
        made.model.gate.set()
        await made.engine.close()


async def collect(stream: GenerationStream) -> list[Delta]:
    return [delta async for delta in stream]


def ids(deltas: Sequence[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]

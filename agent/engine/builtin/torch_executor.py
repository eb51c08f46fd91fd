"""The built-in engine's steps in torch: a forward pass over the paged KV pool, then sampling."""

from collections.abc import Callable
from pathlib import Path

import torch

from trunkline.agent.cache.codec import TierFormat
from trunkline.agent.engine.builtin.executor import Executor, Loaded, Sampled, device_pages
from trunkline.agent.engine.builtin.memory import pin
from trunkline.agent.engine.builtin.model import Chunk as ModelChunk
from trunkline.agent.engine.builtin.model import Model, StepBatch
from trunkline.agent.engine.builtin.sampling import SamplingState, sample
from trunkline.agent.engine.builtin.scheduler import Chunk
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.builtin.weights import fingerprint, load_model
from trunkline.agent.engine.text import TextModel
from trunkline.agent.settings import AgentSettings
from trunkline.kernels.attention import FP8, KVPool, QuantizedPages
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace

DTYPE = torch.float32
"""On a CPU bfloat16 is slower by multiples."""
_QUANTIZED = {TierFormat.INT8: torch.int8, TierFormat.FP8: FP8}


class TorchExecutor(Executor):
    """A model, its KV pool, and what sampling remembers of each sequence."""

    on_cpu = True
    late_s = 0.0

    def __init__(self, model: Model, kv: KVPool, text: TextModel) -> None:
        self._model = model
        self._kv = kv
        self._eos_ids = text.eos_ids
        self._states: dict[Sequence, SamplingState] = {}

    def open(self, sequence: Sequence) -> None:
        generation, vocab = sequence.generation, self._model.config.vocab_size
        self._states[sequence] = SamplingState(generation.params, generation.tokens, vocab, self._eos_ids)

    def close(self, sequence: Sequence) -> None:
        del self._states[sequence]

    def idle(self) -> None:
        pass

    def step(self, chunks: list[Chunk]) -> list[Sampled]:
        logits = self._model.forward(_batch(chunks), self._kv)
        states = [self._states[chunk.sequence] for chunk in chunks if chunk.samples]
        return sample(logits, states) if states else []

    def probe(self, page: int) -> None:
        self._model.forward(StepBatch.of([ModelChunk([0], 0, [page])]), self._kv)


def load(
    path: Path, settings: AgentSettings, text: TextModel, load: Callable[[Path, torch.dtype], Model] = load_model
) -> Loaded:
    """Loads the model's weights and makes the pool. Raises ConfigError."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = load(path, DTYPE)
    layout = model.config.page_layout(DTYPE)
    kv = KVPool(layout, device_pages(settings, layout.page_bytes))
    namespace = Namespace(
        fingerprint=fingerprint(path, text.fingerprint),
        dtype=str(DTYPE).removeprefix("torch."),
        layout=str(layout),
    )
    executor = TorchExecutor(model, kv, text)
    # The first step of a process is slow: threads start, kernels are chosen and weights repacked.
    model.forward(StepBatch.of([ModelChunk([0] * PAGE_TOKENS, 0, [0])]), kv)
    quantized = _QUANTIZED.get(settings.tier_format)
    return Loaded(
        executor,
        kv.blocks.numpy(),
        namespace,
        model.config.context,
        model.config.vocab_size,
        window=model.config.window,
        codec=None if quantized is None else QuantizedPages(layout, quantized),
        pin=pin,
    )


def _batch(chunks: list[Chunk]) -> StepBatch:
    return StepBatch.of(
        [
            ModelChunk(
                chunk.sequence.chain.tokens[chunk.start : chunk.start + chunk.count],
                chunk.start,
                chunk.sequence.pages,
                chunk.samples,
            )
            for chunk in chunks
        ]
    )

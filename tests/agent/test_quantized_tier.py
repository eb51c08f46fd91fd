"""Tiers whose pages are quantized: what comes back is what went down, rounded once; directories say how."""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.agent.test_engine_model import engine, generate
from tests.agent.tiers import NAMESPACE
from tests.agent.toy_engine import collect, ids
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.codec import TierFormat
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.disk.store import DiskStore
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import NO_PARENT, Move
from trunkline.agent.cache.lower import open_tiers
from trunkline.agent.engine.base import Delta, Generation, SamplingParams
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.model import Model
from trunkline.agent.engine.builtin.tokenizer import TextModel
from trunkline.agent.transfer.endpoint import TransferEndpoint
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity
from trunkline.agent.transfer.settings import TransferSettings
from trunkline.kernels.attention import FP8, KVPool, PageLayout, QuantizedPages
from trunkline.shared.errors import ConfigError
from trunkline.shared.pull import PullFrom

LAYOUT = PageLayout(layers=3, kv_heads=2, head_dim=24)
FORMATS = {TierFormat.INT8: torch.int8, TierFormat.FP8: FP8}


@pytest.mark.parametrize("tier_format", FORMATS)
def test_down_to_the_disk_and_back(tmp_path: Path, tier_format: TierFormat) -> None:
    """A page is rounded once, on its way to the host; from there on it is bytes with a checksum."""
    pool = KVPool(LAYOUT, 4)
    pool.data[:2] = torch.randn(2, *LAYOUT.shape)
    codec = QuantizedPages(LAYOUT, FORMATS[tier_format])
    assert codec.name == tier_format
    host = HostMemory(pool.blocks.numpy(), 4 * 4096 * 2, codec)
    assert host.page_bytes < 0.3 * LAYOUT.page_bytes
    store = DiskStore(tmp_path, NAMESPACE, host, 1 << 20, 1e12)
    chain = Chain(NAMESPACE, range(32))
    first = Entry(chain.keys[0], None, NAMESPACE, chain.page(0), GONE, 16)
    entries = [first, Entry(chain.keys[1], first, None, chain.page(1), GONE, 32)]
    host.save(Move(entries, [0, 1], [3, 2]))
    once = host.blocks[[3, 2]].copy()
    store.save(Move(entries, [3, 2], [0, 1], parents=[NO_PARENT, 0], texts=[(), ()], hot=[False, False]))
    host.blocks[:] = 0
    back = Move(entries, [0, 1], [1, 0])
    store.load(back)
    store.close()
    assert not back.bad
    assert np.array_equal(host.blocks[[1, 0]], once)
    host.load(Move(entries, [1, 0], [2, 3]))
    expected = torch.empty_like(pool.blocks[:2])
    for stored, page in zip(once, expected.numpy(), strict=True):
        codec.decode(stored, page)
    assert torch.equal(pool.blocks[2:], expected)


@pytest.mark.parametrize("written", [None, torch.int8, FP8])
@pytest.mark.parametrize("opened", [None, torch.int8, FP8])
def test_a_directory_of_another_format_is_refused(
    tmp_path: Path, written: torch.dtype | None, opened: torch.dtype | None
) -> None:
    device = KVPool(LAYOUT, 2).blocks.numpy()

    def use(dtype: torch.dtype | None) -> None:
        codec = QuantizedPages(LAYOUT, dtype) if dtype else None
        tiers = open_tiers(device, 1 << 20, DiskSettings(tmp_path, 1 << 20, 1e12), NAMESPACE, 1, codec)
        assert tiers is not None
        assert tiers.disk is not None
        tiers.disk.store.close()

    use(written)
    if written is opened:
        use(opened)
        return
    with pytest.raises(ConfigError) as caught:
        use(opened)
    message = str(caught.value)
    assert "give each model a directory of its own" in message
    assert all(f"float32/{QuantizedPages(LAYOUT, dtype).name}" in message for dtype in (written, opened) if dtype)
    assert "\n" not in message


def test_of_quantized_pages_only_those_of_the_host_can_be_read() -> None:
    """Those on the device are of another kind."""
    pool = KVPool(LAYOUT, 2)
    generations = np.zeros(2, np.uint32)
    quantized = HostMemory(pool.blocks.numpy(), 1 << 16, QuantizedPages(LAYOUT, torch.int8)).lendable(generations)
    native = HostMemory(pool.blocks.numpy(), 1 << 16).lendable(generations)
    assert (quantized.codec, quantized.device) == ("int8", None)
    assert native.codec == "native"
    assert native.device is not None


def test_quantized_tiers_need_a_tier() -> None:
    with pytest.raises(ConfigError, match="--tier-format int8 needs --host-memory"):
        open_tiers(KVPool(LAYOUT, 2).blocks.numpy(), 0, None, NAMESPACE, 1, QuantizedPages(LAYOUT, torch.int8))


SURE = 1.0
"""Two tokens whose log probabilities are so far apart do not change places for a rounded context."""


def test_answers_over_a_quantized_context(
    model_path: Path, text_model: TextModel, default_model: Model, tmp_path: Path
) -> None:
    """A device for two prompts; a tier of host and disk holds all of them, and the second time they come from there."""
    texts = [
        f"{subject}. " * 8 + "In short:" for subject in ("Rivers run to the sea", "Two and two are", "Bees fly home")
    ]
    prompts = [text_model.encode(text, add_special=False).ids for text in texts]

    async def main(tier_format: TierFormat) -> tuple[list[list[Delta]], list[list[Delta]], BuiltinEngine]:
        disk = DiskSettings(tmp_path / tier_format, 16 << 20, 1e12)
        async with engine(
            model_path, text_model, default_model, pages=8, host_bytes=4 << 20, disk=disk, tier_format=tier_format
        ) as running:
            first = [await generate(running, prompt) for prompt in prompts]
            return first, [await generate(running, prompt) for prompt in prompts], running

    for tier_format in FORMATS:
        cold, again, running = asyncio.run(main(tier_format))
        assert any(deltas[0].cached_tokens for deltas in again)
        routes = running.status().tiers.routes
        assert routes["host", "device"].pages > 0
        assert not any(route.bad for route in routes.values())
        for reply, other in zip(again, cold, strict=True):
            for ours, delta in zip(ids(reply), other, strict=True):
                (_, _, best), (_, _, second) = delta.logprobs[0].top
                if ours != delta.tokens[0]:
                    assert best - second < SURE
                    break


@contextlib.asynccontextmanager
async def lending(running: BuiltinEngine, number: int) -> AsyncIterator[str]:
    """The address at which the engine's pages can be pulled."""
    identity = Identity(f"node-{number}", running.model.namespace, Offer(number, running.page_bytes))
    endpoint = TransferEndpoint(identity, running.lender, running.memory, TransferSettings(), "secret")
    await endpoint.start()
    assert endpoint.puller is not None
    running.read_from(endpoint.puller)
    try:
        yield endpoint.address
    finally:
        await endpoint.close()


@pytest.mark.parametrize("other", [TierFormat.INT8, TierFormat.FP8, TierFormat.NATIVE])
def test_quantized_pages_are_pulled_by_nodes_of_the_same_format(
    model_path: Path, text_model: TextModel, default_model: Model, other: TierFormat
) -> None:
    """Byte for byte, also of pages that were on the holder's device alone; by no others, which compute."""
    prompt = text_model.encode("Bees fly home. " * 12, add_special=False).ids

    async def host(running: BuiltinEngine, keys: Sequence[int]) -> list[bytes | None]:
        """The host's copies of pages."""

        def look(cache: PageCache) -> list[bytes | None]:
            memory = cache._migration._memory  # type: ignore[union-attr]
            entries = [cache.find(key) for key in keys]
            return [bytes(memory.page(one.host.page)) if one and one.host else None for one in entries]

        return await running.on_cache(look)

    async def main() -> None:
        async with (
            engine(model_path, text_model, default_model, host_bytes=4 << 20, tier_format=TierFormat.INT8) as holder,
            engine(model_path, text_model, default_model, host_bytes=4 << 20, tier_format=other) as reader,
            lending(holder, 1) as address,
            lending(reader, 2),
        ):
            await generate(holder, prompt)
            keys = Chain(holder.model.namespace, prompt).keys
            assert await host(holder, keys) == [None] * len(keys)
            sampling = SamplingParams(4, temperature=0.0)
            pull = PullFrom(address, len(prompt))
            deltas = await collect(reader.submit(Generation("r", array("i", prompt), sampling, pull_from=pull)))
            if other is not TierFormat.INT8:
                assert deltas[0].cached_tokens == 0
                return
            assert deltas[0].cached_tokens >= 16
            pulled = [page for page in await host(reader, keys) if page is not None]
            assert len(pulled) * 16 >= deltas[0].cached_tokens
            assert (await host(holder, keys))[: len(pulled)] == pulled

    asyncio.run(main())

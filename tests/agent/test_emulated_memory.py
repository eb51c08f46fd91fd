import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.engine.emulated.memory import PageMemory

PAGES = np.arange(100, dtype=np.int32)
SEEDS = np.random.default_rng(1).integers(1 << 63, size=100, dtype=np.uint64)


def filled(page_bytes: int = 256) -> PageMemory:
    memory = PageMemory(100, page_bytes)
    memory.write(PAGES, SEEDS)
    return memory


@pytest.mark.parametrize("page_bytes", [256, 768, 4096, 1 << 16])
def test_seeds_are_read_back(page_bytes: int) -> None:
    memory = filled(page_bytes)
    assert memory.blocks.shape == (100, page_bytes)
    chosen = PAGES[::-3]
    assert (memory.read(chosen) == SEEDS[chosen]).all()
    for _ in range(page_bytes // 8):
        assert (memory.glance(chosen) == SEEDS[chosen]).all()


def test_a_page_is_not_like_another_nor_its_words_like_each_other() -> None:
    words = filled().blocks.view(np.uint64)
    assert len(np.unique(words)) == words.size


@given(st.integers(0, 99), st.integers(0, 255), st.integers(1, 255))
def test_a_changed_byte_shows(page: int, byte: int, flip: int) -> None:
    memory = filled()
    memory.blocks[page, byte] ^= flip
    wrong = memory.read(PAGES) != SEEDS
    assert np.flatnonzero(wrong).tolist() == [page]
    seen = [np.flatnonzero(memory.glance(PAGES) != SEEDS).tolist() for _ in range(256 // 8)]
    assert [found for found in seen if found] == [[page]]


@given(st.integers(1, 255), st.integers(0, 98))
def test_a_torn_page_shows(cut: int, page: int) -> None:
    memory = filled()
    memory.blocks[page, :cut] = memory.blocks[page + 1, :cut]
    assert np.flatnonzero(memory.read(PAGES) != SEEDS).tolist() == [page]

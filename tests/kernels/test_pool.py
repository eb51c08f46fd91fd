"""The page pool against a short model, and from several threads at once."""

import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trunkline.kernels.core import PagePool


class PoolModel:
    """A page is free, held so many times, or waiting for the steps that were running when it was freed."""

    def __init__(self, pages: int) -> None:
        self.held = dict.fromkeys(range(pages), 0)
        self.waits: dict[int, set[int]] = {}
        self.running: set[int] = set()

    def free(self) -> list[int]:
        return [page for page, held in self.held.items() if not held and page not in self.waits]

    def release(self, pages: list[int]) -> list[int]:
        freed = []
        for page in pages:
            self.held[page] -= 1
            if not self.held[page]:
                freed.append(page)
        if self.running:
            self.waits |= {page: set(self.running) for page in freed}
        return freed

    def step_end(self, ticket: int) -> None:
        self.running.remove(ticket)
        for steps in self.waits.values():
            steps.discard(ticket)
        self.waits = {page: steps for page, steps in self.waits.items() if steps}


def longest_run(pages: list[int]) -> int:
    """Of neighbours, among ascending pages."""
    longest = run = 0
    for page, before in zip(pages, [-2, *pages], strict=False):
        run = run + 1 if page == before + 1 else 1
        longest = max(longest, run)
    return longest


class PoolMachine(RuleBasedStateMachine):
    @initialize(pages=st.integers(1, 150))
    def start(self, pages: int) -> None:
        self.pool = PagePool(pages)
        self.model = PoolModel(pages)

    @rule(count=st.integers(0, 80))
    def allocate(self, count: int) -> None:
        free = self.model.free()
        expected = free[:count] if count <= len(free) else None
        assert self.pool.allocate(count) == expected
        for page in expected or ():
            self.model.held[page] = 1

    @rule(count=st.integers(0, 80), groups=st.lists(st.integers(0, 3), max_size=3))
    def allocate_in_groups(self, count: int, groups: list[int]) -> None:
        free = self.model.free()
        wanted = [page for group in groups for page in free if page // 64 == group]
        chosen = list(dict.fromkeys(wanted + free))[:count] if count <= len(free) else None
        assert self.pool.allocate(count, groups) == chosen
        for page in chosen or ():
            self.model.held[page] = 1

    @rule(data=st.data())
    def share_or_refuse(self, data: st.DataObject) -> None:
        pages = data.draw(self._some_pages())
        if all(self.model.held.get(page) for page in pages):
            self.pool.share(pages)
            for page in pages:
                self.model.held[page] += 1
        else:
            with pytest.raises(ValueError, match=r"page -?\d+"):
                self.pool.share(pages)

    @rule(data=st.data())
    def release_or_refuse(self, data: st.DataObject) -> None:
        pages = data.draw(self._some_pages())
        if all(pages.count(page) <= self.model.held.get(page, 0) for page in pages):
            assert self.pool.release(pages) == self.model.release(pages)
        else:
            with pytest.raises(ValueError, match=r"page -?\d+"):
                self.pool.release(pages)

    @rule()
    def step_begin(self) -> None:
        ticket = self.pool.step_begin()
        assert ticket not in self.model.running
        self.model.running.add(ticket)

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def step_end(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.model.running)))
        self.pool.step_end(ticket)
        self.model.step_end(ticket)
        with pytest.raises(ValueError, match=f"step {ticket} is not running"):
            self.pool.step_end(ticket)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        assert [self.pool.references(page) for page in self.model.held] == list(self.model.held.values())
        assert self.pool.free == len(self.model.free())
        assert self.pool.longest_free == longest_run(self.model.free())
        in_groups = Counter(page // 64 for page in self.model.free())
        assert list(self.pool.free_in_groups()) == [in_groups[at] for at in range(-(-self.pool.total // 64))]
        assert self.pool.in_flight == len(self.model.waits)
        assert self.pool.free + self.pool.resident + self.pool.in_flight == self.pool.total == len(self.model.held)

    def _some_pages(self) -> st.SearchStrategy[list[int]]:
        held = [page for page, count in self.model.held.items() if count]
        anything = st.integers(-1, len(self.model.held))
        return st.lists(st.sampled_from(held) if held else anything, max_size=20) | st.lists(anything, max_size=4)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_neighbours_come_first() -> None:
    pool = PagePool(200)
    assert pool.allocate(100) == list(range(100))
    pool.release([70, 5, 6, 7])
    assert pool.allocate(5) == [5, 6, 7, 70, 100]


@pytest.mark.parametrize("pages", [0, -1, 1 << 31])
def test_a_pool_needs_a_sensible_size(pages: int) -> None:
    with pytest.raises(ValueError, match=f"not {pages}"):
        PagePool(pages)


def test_bad_numbers_are_refused() -> None:
    pool = PagePool(4)
    with pytest.raises(ValueError, match="allocate -1"):
        pool.allocate(-1)
    for page in (-1, 4, 1 << 40):
        with pytest.raises(ValueError, match=f"page {page} is not one of the pool's 4"):
            pool.references(page)
    with pytest.raises(ValueError, match="step 0 is not running"):
        pool.step_end(0)


def test_threads_never_own_a_page_together() -> None:
    pool = PagePool(64)
    owners = [0] * 64
    wrong: list[int] = []

    def work(size: int) -> None:
        for _ in range(500):
            ticket = pool.step_begin()
            pages = pool.allocate(size) or []
            for page in pages:
                owners[page] += 1  # a page has one owner, so nobody else writes this place
            pool.share(pages)
            pool.release(pages)
            freed = pool.release(pages)
            wrong.extend(page for page in pages if owners[page] != 1 or freed != pages)
            for page in pages:
                owners[page] -= 1
            pool.step_end(ticket)

    threads = [threading.Thread(target=work, args=(size,)) for size in (7, 17, 29, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (pool.free, pool.resident, pool.in_flight) == (64, 0, 0)
    pool.check()

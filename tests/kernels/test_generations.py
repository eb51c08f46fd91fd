"""What nodes were given lately, beside a Python model of it: two dictionaries."""

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import Generations, sample


def packed(keys: list[int]) -> bytes:
    return array("Q", keys).tobytes()


CHAINS = st.lists(st.integers(0, 2), max_size=12).map(
    lambda path: [hash((7, *path[:end])) & (1 << 64) - 1 for end in range(len(path))]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(0, 3), CHAINS, st.integers(0, 12)),
        st.tuples(st.just("turn"), st.booleans()),
        st.tuples(st.just("clear"), st.integers(0, 3)),
    ),
    max_size=30,
)


MEMORY_S = 10.0


class Model:
    def __init__(self) -> None:
        self.young: dict[int, set[int]] = {}
        self.old: dict[int, set[int]] = {}
        self.young_uses: dict[int, list[float]] = {}
        """By the last key of what was shared: when."""
        self.old_uses: dict[int, list[float]] = {}

    def leading(self, held: set[int], keys: list[int]) -> int:
        return next((at for at, key in enumerate(keys) if key not in held), len(keys))

    def give(self, node: int, keys: list[int], limit: int, now: float) -> int:
        for count in {self.leading(held, keys) for held in self.young.values()} - {0}:
            key = keys[count - 1]
            self.young_uses.setdefault(key, list(self.old_uses.get(key, ()))).append(now)
        held = self.young.setdefault(node, set())
        known = self.leading(held, keys)
        added = keys[known : known + limit]
        held.update(added)
        return len(added)

    def turn(self, forget: bool) -> None:
        self.old, self.young = {} if forget else self.young, {}
        self.old_uses, self.young_uses = {} if forget else self.young_uses, {}

    def given(self, keys: list[int]) -> dict[int, int]:
        counts = {
            node: max(self.leading(generation.get(node, set()), keys) for generation in (self.young, self.old))
            for node in {*self.young, *self.old}
        }
        return {node: count for node, count in counts.items() if count}

    def uses(self, key: int, now: float) -> float:
        times = self.young_uses.get(key) or self.old_uses.get(key, ())
        if not times:
            return 0.0
        unseen, burst = (math.exp((times[0] - now) / memory) for memory in (MEMORY_S, MEMORY_S / 20))
        return sum(math.exp((at - now) / MEMORY_S) for at in times) / (1.0 - unseen + unseen * burst)


@given(STEPS, st.lists(CHAINS, max_size=5))
def test_generations_are_like_their_model(steps: list[tuple[object, ...]], chains: list[list[int]]) -> None:
    generations, model = Generations(1 << 16, MEMORY_S), Model()
    for now, step in enumerate(steps):
        match step:
            case ("give", int(node), list(keys), int(limit)):
                assert generations.give(node, packed(keys), limit, now) == model.give(node, keys, limit, now)
                chains = [*chains, keys]
            case ("turn", bool(forget)):
                generations.turn(forget)
                model.turn(forget)
            case ("clear", int(node)):
                generations.clear(node)
                model.young.pop(node, None)
                model.old.pop(node, None)
        for keys in chains:
            given, counts, uses = generations.given(packed(keys), now)
            flat = iter(memoryview(given).cast("I"))
            assert {node: counts[place] for node, place in zip(flat, flat, strict=True)} == model.given(keys)
            assert counts == sorted(set(counts))
            # Who shares more shares less as well.
            least = [max(model.uses(keys[end - 1], now) for end in counts[at:]) for at in range(len(counts))]
            assert uses == pytest.approx(least)
    both = (set().union(*generation.values()) for generation in (model.young, model.old))
    assert generations.keys() == sum(map(len, both))


@given(st.lists(st.integers(0, 1 << 63), max_size=60), st.integers(0, 40), st.integers(1, 9))
def test_a_sample_has_the_first_keys_then_some_and_the_last(keys: list[int], dense: int, stride: int) -> None:
    places = [at for at in range(len(keys)) if at < dense or (at - dense) % stride == stride - 1 or at == len(keys) - 1]
    assert sample(packed(keys), dense, stride) == packed([keys[at] for at in places])


def test_arguments_out_of_range_are_refused() -> None:
    generations = Generations(4, MEMORY_S)
    for call in (
        lambda: Generations(0, MEMORY_S),
        lambda: Generations(4, 0.0),
        lambda: Generations(4, math.nan),
        lambda: generations.give(4096, b"", 1, 0.0),
        lambda: generations.clear(-1),
        lambda: generations.given(b"1234567", 0.0),
        lambda: sample(b"12345678", 0, 0),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()


def test_what_goes_on_evenly_counts_the_same_from_the_start() -> None:
    generations = Generations(1 << 16, MEMORY_S)
    told = []
    for number in range(601):
        generations.give(0, packed([1, 2]), 9, number / 20)
        if number in (60, 200, 600):
            told.append(generations.given(packed([1, 2]), number / 20)[2][0])
    assert told == pytest.approx([20 * MEMORY_S] * 3, rel=0.15), "after 3, 10 and 30 s"

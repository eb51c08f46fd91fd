"""The holder's engine thread: what of a chain is lent, from where, for how long, and what makes room when it must."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.tiers import NAMESPACE
from tests.agent.transfer.holding import Cache, question
from trunkline.agent.transfer import messages
from trunkline.agent.transfer.leases import LeaseLimits
from trunkline.agent.transfer.lender import SLICE, Lent
from trunkline.agent.transfer.messages import Locate
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace

D, H = int(Tier.DEVICE), int(Tier.HOST)


class Clock:
    """Stands still, or goes on a little with every look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 1000.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def locate(*blocks: int, first: int = 0, namespace: Namespace = NAMESPACE, rungs: int = 64) -> Locate:
    asked = question(*blocks, first=first, namespace=namespace)
    keys = messages.rungs(asked.keys, asked.count)[:rungs]
    return Locate(messages.digest(namespace), first, asked.count, 0.0, 10.0, keys)


def ask(cache: Cache, question: Locate, session: int = 1, wait_s: float = 0.0) -> Lent:
    """The answer to a question that has nothing to wait for."""
    answers: list[Lent] = []
    cache.lender.ask(session, question, wait_s, answers.append)
    while not answers:
        cache.turn()
    (answer,) = answers
    return answer


def check(cache: Cache, lent: Lent, blocks: Sequence[int]) -> None:
    """What lies there is what was asked for."""
    keys = question(*blocks).keys
    levels = {level.tier: level for level in cache.cache.readable}
    for page, row in enumerate(lent.descriptors, lent.first):
        tier, slot = int(row["tier"]), int(row["slot"])
        assert levels[Tier(tier)].generations[slot] == row["generation"]
        assert cache.content(Tier(tier), slot) == keys[page].to_bytes(8, "little")
    tokens = b"".join([entry.tokens for entry in lent.chain])
    assert tokens == question(*blocks).tokens[: len(tokens)]
    assert len(tokens) == (64 * (lent.first + len(lent.descriptors)) if len(lent.descriptors) else 0)


def tiers(lent: Lent) -> list[int]:
    return [int(tier) for tier in lent.descriptors["tier"]]


def half_in_the_host(**changes: object) -> Cache:
    """Of the pages 1 to 6 the device has kept the first three."""
    cache = Cache(pages=8, host=32, **changes)  # type: ignore[arg-type]
    cache.compute(*range(1, 7))
    cache.settle()
    cache.compute(11, 12, 13, 14, 15)
    cache.settle()
    return cache


def on_disk(folder: Path, **lender: object) -> tuple[Cache, list[range]]:
    """A cache after a restart, and two chains that are on its disk."""
    before = Cache(pages=4, host=20, disk=folder)
    chains = [range(start, start + 3) for start in range(0, 150, 10)]
    for blocks in chains:
        before.compute(*blocks)
        before.settle()
    assert before.cache.close()
    cache = Cache(pages=4, host=20, disk=folder, **lender)  # type: ignore[arg-type]
    there = [blocks for blocks in chains if all(cache.cache.find(key) for key in question(*blocks).keys)]
    assert len(there) >= 2
    return cache, there[:2]


def test_pages_are_lent_where_they_lie() -> None:
    cache = Cache()
    cache.compute(1, 2, 3)
    lent = ask(cache, locate(1, 2, 3))
    assert (lent.first, lent.held, tiers(lent)) == (0, 3, [D, D, D])
    check(cache, lent, (1, 2, 3))


def test_from_the_host_where_they_are_there_too() -> None:
    cache = half_in_the_host()
    lent = ask(cache, locate(1, 2, 3, 4, 5, 6))
    assert tiers(lent) == [H] * 6
    check(cache, lent, range(1, 7))
    cache.compute(1, 2, 3, 4, 5, 6, 7)
    lent = ask(cache, locate(1, 2, 3, 4, 5, 6, 7))
    assert tiers(lent) == [H] * 6 + [D]
    check(cache, lent, range(1, 8))


def test_only_what_the_reader_lacks_is_lent_but_all_of_it_can_be_compared() -> None:
    cache = half_in_the_host()
    lent = ask(cache, locate(1, 2, 3, 4, 5, 6, first=4))
    assert (lent.first, tiers(lent), len(lent.chain)) == (4, [H, H], 6)
    check(cache, lent, range(1, 7))


def test_nothing_is_lent_of_a_chain_that_is_not_there() -> None:
    cache = Cache()
    cache.compute(1, 2, 3)
    for other in (locate(7, 8), locate(7, 1, 2), locate(1, 2, 3, namespace=Namespace("another", "float32", "layout"))):
        lent = ask(cache, other)
        assert (lent.number, lent.held, len(lent.descriptors)) == (0, 0, 0)
    assert ask(cache, locate(1, 2, 3, 4, first=3)).held == 3
    assert len(cache.lender.leases) == 0


def test_keys_that_are_there_under_another_namespace_are_of_no_use() -> None:
    cache = Cache()
    cache.compute(1, 2, 3)
    forged = replace(locate(1, 2, 3), namespace=messages.digest(NAMESPACE.salted("aa")))
    assert ask(cache, forged).held == 0


def test_a_key_at_another_depth_is_not_the_page_that_is_meant() -> None:
    cache = Cache()
    cache.compute(1, 2, 3)
    asked = locate(1, 2, 3)
    assert ask(cache, replace(asked, rungs=[(depth + 1, key) for depth, key in asked.rungs])).held == 0


@pytest.mark.parametrize("there", [1, 7, 20, 25, 26])
def test_a_ladder_of_keys_finds_nearly_all_that_is_there(there: int) -> None:
    cache = Cache(pages=64)
    cache.compute(*range(there))
    lent = ask(cache, locate(*range(26)))
    lacking = 26 - there
    assert there >= len(lent.descriptors) >= there - lacking // 4
    check(cache, lent, range(26))


def test_pages_on_disk_come_to_the_host_and_the_answer_waits_for_the_first(tmp_path: Path) -> None:
    clock = Clock()
    cache, (one, other) = on_disk(tmp_path, clock=clock)
    answers: list[Lent] = []
    cache.lender.ask(1, locate(*one), 1.0, answers.append)
    cache.turn()
    assert not answers
    while cache.memory.lanes.run() and not answers:
        cache.turn()
    (lent,) = answers
    assert lent.held == 3
    assert set(tiers(lent)) == {H}
    check(cache, lent, one)
    cache.lender.release(1, lent.number)

    cache.lender.ask(1, locate(*other), 1.0, answers.append)
    cache.turn()
    clock.now += 2.0
    cache.turn()
    late = answers[-1]
    assert (late.held, len(late.descriptors)) == (3, 0)
    cache.settle()


def test_a_reader_is_lent_so_much_at_a_time() -> None:
    cache = Cache(limits=LeaseLimits(peer_pages=4, total_pages=6))
    cache.compute(*range(8))
    one = ask(cache, locate(*range(8)))
    assert (one.held, len(one.descriptors), len(one.chain)) == (8, 4, 4)
    assert ask(cache, locate(*range(8), first=4)).number == 0
    assert len(ask(cache, locate(*range(8), first=4), session=2).descriptors) == 2
    cache.lender.release(1, one.number)
    rest = ask(cache, locate(*range(8), first=4))
    check(cache, rest, range(8))
    assert len(rest.descriptors) == 4


def test_a_lease_ends_when_it_is_given_back_when_its_reader_leaves_and_when_its_time_is_up() -> None:
    clock = Clock()
    cache = Cache(clock=clock)
    leases = cache.lender.leases
    cache.compute(1, 2, 3)
    one, two, three = (ask(cache, locate(1, 2, 3), session) for session in (1, 1, 2))
    cache.lender.release(2, one.number)
    cache.turn()
    assert len(leases) == 3, "one may not end another's"
    cache.lender.release(1, one.number)
    cache.turn()
    assert len(leases) == 2
    cache.lender.leave(1)
    cache.turn()
    assert (len(leases), two.number == three.number) == (1, False)
    clock.now += three.seconds + 0.1
    cache.turn()
    assert (len(leases), leases.expired, leases.broken) == (0, 1, 0)


def test_a_leave_forgets_questions_under_way(tmp_path: Path) -> None:
    cache, (one, _) = on_disk(tmp_path)
    answers: list[Lent] = []
    cache.lender.ask(1, locate(*one), 9.0, answers.append)
    cache.turn()
    cache.lender.leave(1)
    cache.settle()
    assert not answers
    assert len(cache.lender.leases) == 0


def test_leases_keep_no_room_from_the_holder_and_its_readers_see_that() -> None:
    cache = Cache(pages=12, host=2)
    cache.compute(1, 2, 3)
    cache.compute(11, 12, 13)
    oldest, newest = ask(cache, locate(1, 2, 3)), ask(cache, locate(11, 12, 13))
    cache.compute(*range(20, 28))
    assert (cache.lender.leases.broken, len(cache.lender.leases)) == (1, 1)
    check(cache, newest, (11, 12, 13))
    generations = cache.cache.readable[1].generations
    changed = [int(generations[row["slot"]] != row["generation"]) for row in oldest.descriptors]
    assert sum(changed) == 2, "as much as was needed went, the end of the chain first"
    cache.settle()
    pages = cache.cache.allocate(12)
    assert pages is not None
    cache.cache.release(pages)
    assert len(cache.lender.leases) == 0


def test_what_is_lent_is_not_evicted_while_there_is_something_else() -> None:
    cache = Cache(pages=12, host=2)
    cache.compute(1, 2, 3)
    lent = ask(cache, locate(1, 2, 3))
    for start in range(20, 100, 10):
        cache.compute(*range(start, start + 5))
        cache.turn()
    assert cache.lender.leases.broken == 0
    check(cache, lent, (1, 2, 3))


def test_a_long_chain_is_walked_in_many_turns_and_others_are_answered_meanwhile() -> None:
    count = 4 * SLICE
    cache = Cache(pages=count + 8, host=2, clock=Clock(step=0.0011))
    cache.compute(*range(count))
    cache.compute(5000, 5001)
    answers: list[Lent] = []
    cache.lender.ask(1, locate(*range(count)), 0.0, answers.append)
    cache.lender.ask(2, locate(5000, 5001), 0.0, answers.append)
    turns = 0
    while len(answers) < 2:
        cache.lender.turn()
        turns += 1
    assert turns >= 4
    assert [len(answer.descriptors) for answer in answers] == [2, count]
    check(cache, answers[1], range(count))


def test_pages_that_go_while_the_chain_is_walked_are_not_lent() -> None:
    count = 2 * SLICE
    cache = Cache(pages=count, host=2, clock=Clock(step=0.01))
    cache.compute(*range(count))
    answers: list[Lent] = []
    cache.lender.ask(1, locate(*range(count)), 0.0, answers.append)
    cache.lender.turn()
    cache.compute(5000, 5001, 5002)
    while not answers:
        cache.lender.turn()
    assert len(answers[0].descriptors) == count - 3
    check(cache, answers[0], range(count))


def test_a_lease_that_is_broken_while_it_is_described_is_none() -> None:
    count = 3 * SLICE
    cache = Cache(pages=count, host=2, clock=Clock(step=0.01))
    cache.compute(*range(count))
    answers: list[Lent] = []
    cache.lender.ask(1, locate(*range(count)), 0.0, answers.append)
    while not len(cache.lender.leases):
        cache.lender.turn()
    assert not answers
    cache.compute(5000)
    while not answers:
        cache.lender.turn()
    assert (answers[0].number, len(answers[0].descriptors)) == (0, 0)
    assert cache.lender.leases.broken == 1


def test_a_cache_that_is_cleared_keeps_what_is_being_read_and_says_that_it_went() -> None:
    cache = half_in_the_host()
    lent = ask(cache, locate(*range(1, 7)))
    cache.cache.clear()
    host = cache.cache.readable[0]
    assert all(host.generations[row["slot"]] != row["generation"] for row in lent.descriptors)
    assert ask(cache, locate(*range(1, 7))).held == 0
    cache.lender.leave(1)
    cache.settle()
    assert all(tier.free == tier.total for tier in cache.cache.tiers())

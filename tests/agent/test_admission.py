"""Segments that are too short to be worth their bytes in a lower tier."""

import math

import pytest

from tests.agent.test_migration import Node
from trunkline.agent.cache.admission import Admission, reaches
from trunkline.agent.cache.entry import Entry
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace

H = Tier.HOST


def test_what_is_not_known_refuses_nothing() -> None:
    admission = Admission()
    assert admission.least(0.0, math.inf) == 0
    assert admission.least(0.001, 0.030) == 0
    admission.waited(10, 0.2, 0.001)
    assert admission.least(0.001, math.inf) == 0


def test_a_segment_must_win_back_what_fetching_takes() -> None:
    admission = Admission()
    for _ in range(100):
        admission.waited(10, 0.11, 0.001)  # 100 ms beyond the copying
    assert admission.least(0.005, 0.030) == pytest.approx(4.0, rel=0.01)
    assert admission.least(0.0, 0.025) == pytest.approx(4.0, rel=0.01)


def test_where_computing_is_quicker_nothing_is_worth_it() -> None:
    assert Admission().least(0.03, 0.02) == math.inf


def test_a_segment_ends_where_something_else_branches_off() -> None:
    namespace, path = Namespace("m", "d", "l"), list[Entry]()
    for index in range(5):
        parent = path[-1] if path else None
        path.append(Entry(index, parent, namespace, b"", index, 16 * (index + 1), children=1))
    path[-1].children = 0
    assert reaches(path[-1], 5)
    assert not reaches(path[-1], 6)
    path[1].children = 2
    assert reaches(path[-1], 3)
    assert not reaches(path[-1], 4)
    assert not reaches(path[-1], math.inf)


def test_short_segments_go_and_long_ones_are_copied() -> None:
    node = Node(pages=10, host=20)
    migration = node.cache._migration
    assert migration is not None
    node.compute(5)
    node.compute(1, 2, 3, 4)
    for _ in range(100):
        migration.fetching.admission.waited(0, 0.1, 0.0)
    node.cache.prefill_rate = 16 / 0.05  # so that two pages are the least
    node.compute(6, 7, 8)
    node.compute(10, 11)
    node.settle()
    assert node.tiers(5) == [None]
    node.compute(12, 13)
    node.settle()
    assert node.tiers(1, 2, 3, 4)[-1] is H
    counters = node.cache.counters()
    assert counters.gone["device", "short"] == 1
    assert counters.least_pages["host"] == pytest.approx(2.0, rel=0.01)
    node.cache.check()

"""Sessions that are brought back from the disk before they come."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.test_migration import Node
from tests.agent.tiers import Memory
from trunkline.agent.cache import preload
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.preload import PreloadSettings
from trunkline.shared.names import Tier

RHYTHM, GRAPH = PreloadSettings(rhythm=True), PreloadSettings(graph=True)
H, K = Tier.HOST, Tier.DISK


class Clocked(Node):
    """A node whose time is `now`."""

    def __init__(self, folder: Path, settings: PreloadSettings) -> None:
        super().__init__(pages=6, host=20)
        self.now = 0.0
        self.memory = Memory(6, 20, 3, folder, 200, lambda: self.now)
        self.cache = PageCache(6, self.sink, self.memory.lower, settings)
        self._fillers = iter(range(1000, 9000, 3))

    def push_down(self, *sessions: int) -> None:
        """Others come, once each, until the sessions are on the disk alone."""
        while not all(self.session(each) == [K] * 3 for each in sessions):
            first = next(self._fillers)
            self.compute(first, first + 1, first + 2)
            self.settle()

    def turn_of(self, session: int) -> None:
        """Three pages, all of which are brought back first."""
        for _ in range(3):
            if fetch := self.fetch(session, session + 1, session + 2):
                while self.cache.awaits(fetch):
                    self.settle()
        self.compute(session, session + 1, session + 2)
        self.settle()

    def session(self, session: int) -> list[Tier | None]:
        return self.tiers(session, session + 1, session + 2)

    @property
    def preloaded(self) -> tuple[int, int]:
        """Pages, and those of use."""
        counters = self.cache.counters()
        return counters.preloaded_pages, counters.preloaded_used_pages


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[PreloadSettings], Clocked]]:
    nodes: list[Clocked] = []

    def make(settings: PreloadSettings) -> Clocked:
        nodes.append(Clocked(tmp_path / "cache", settings))
        return nodes[-1]

    yield make
    for each in nodes:
        each.cache.check()
        assert each.cache.close()


def come_every(node: Clocked, seconds: float, *sessions: int, turns: int = 2) -> None:
    for _ in range(turns):
        for session in sessions:
            node.turn_of(session)
        node.push_down(*sessions)
        node.now += seconds


def test_a_session_is_brought_back_before_it_usually_comes(node: Callable[[PreloadSettings], Clocked]) -> None:
    """After one pause of 100 s at half of the next; the more alike they are the later."""
    made = node(RHYTHM)
    come_every(made, 100.0, 1)
    for early in (25.0, 12.5):
        made.turn_of(1)
        pages, used = made.preloaded
        made.push_down(1)
        made.now += 99.0 - early
        made.settle()
        assert made.session(1) == [K] * 3
        made.now += 2.0
        made.settle()
        assert made.session(1) == [H] * 3
        assert made.preloaded == (pages + 3, used)
        made.now += early - 1.0
    made.turn_of(1)
    assert made.preloaded == (pages + 3, used + 3)


def test_pauses_that_have_nothing_in_common_are_no_rhythm(node: Callable[[PreloadSettings], Clocked]) -> None:
    made = node(RHYTHM)
    for pause in (1.0, 500.0, 1.0):
        made.turn_of(1)
        made.push_down(1)
        made.now += pause
    made.turn_of(1)
    before = made.preloaded
    made.push_down(1)
    for _ in range(100):
        made.now += 10.0
        made.settle()
    assert made.preloaded == before


def test_one_that_does_not_come_is_brought_back_once(node: Callable[[PreloadSettings], Clocked]) -> None:
    made = node(RHYTHM)
    come_every(made, 100.0, 1, turns=3)
    for _ in range(5):
        made.now += 60.0
        made.settle()
        made.push_down(1)
    assert made.preloaded[0] <= 3


def test_a_first_turn_says_nothing_of_the_next(node: Callable[[PreloadSettings], Clocked]) -> None:
    made = node(RHYTHM)
    come_every(made, 100.0, 1, turns=1)
    made.now += 1000.0
    made.settle()
    assert made.preloaded == (0, 0)


@pytest.mark.parametrize(("settings", "expected"), [(GRAPH, [H] * 3), (RHYTHM, [K] * 3)])
def test_who_follows_is_brought_back_with_who_comes(
    node: Callable[[PreloadSettings], Clocked], settings: PreloadSettings, expected: list[Tier]
) -> None:
    made = node(settings)
    come_every(made, 1e4, 1, 11, turns=preload.SURE + 1)
    assert made.session(11) == [K] * 3
    made.turn_of(1)
    assert made.session(11) == expected


def test_without_a_switch_nothing_is_remembered(node: Callable[[PreloadSettings], Clocked]) -> None:
    made = node(PreloadSettings())
    come_every(made, 100.0, 1, 11, turns=5)
    assert made.preloaded == (0, 0)
    assert made.cache._preload is not None
    assert not made.cache._preload._ends


def test_no_more_sessions_are_remembered_than_there_is_room_for(
    node: Callable[[PreloadSettings], Clocked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "REMEMBERED", 4)
    made = node(PreloadSettings(rhythm=True, graph=True))
    for turn in range(3):
        for first in range(1, 60, 3):
            made.compute(first, first + 1, first + 2)
            made.settle()
            made.now += 1.0 + turn
    guesses = made.cache._preload
    assert guesses is not None
    assert list(guesses._keys.values()) == list(guesses._ends)
    assert len(guesses._ends) == 4
    assert len(guesses._due) <= 8

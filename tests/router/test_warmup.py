"""A router that starts is held back until it knows what it decides on, for a while."""

from dataclasses import dataclass, field
from typing import cast

from trunkline.router.nodes import NodeState, Registry, SummaryStatus
from trunkline.router.warmup import DEADLINE_S, WarmUp


@dataclass
class OneNode:
    name: str
    state: NodeState = NodeState.JOINING
    summary: SummaryStatus = SummaryStatus.SYNCING


@dataclass
class Fleet:
    nodes: tuple[OneNode, ...]
    others: list[str] = field(default_factory=list)
    now: float = 100.0

    def warmup(self) -> WarmUp:
        return WarmUp(cast(Registry, self), lambda: self.others, lambda: self.now)


def test_every_node_that_serves_is_waited_for() -> None:
    first, second, dead = OneNode("a"), OneNode("b"), OneNode("c", NodeState.DOWN)
    warmup = Fleet((first, second, dead)).warmup()
    assert warmup.missing() == ["node a: its first answer", "node b: its first answer"]
    first.state = second.state = NodeState.READY
    first.summary = SummaryStatus.EXACT
    assert warmup.missing() == ["node b: its summary"]
    second.summary = SummaryStatus.ASSUMED
    assert warmup.missing() == []
    second.summary = SummaryStatus.SYNCING
    assert warmup.missing() == [], "it has started: later it is not held back"


def test_what_else_is_missing_is_waited_for() -> None:
    fleet = Fleet((OneNode("a", NodeState.READY, SummaryStatus.EXACT),), ["router r: its load"])
    warmup = fleet.warmup()
    assert warmup.missing() == ["router r: its load"]
    fleet.others.clear()
    assert warmup.missing() == []


def test_without_a_node_it_has_not_started() -> None:
    fleet = Fleet(())
    warmup = fleet.warmup()
    assert warmup.missing() == []
    fleet.nodes = (OneNode("a"),)
    assert warmup.missing() == ["node a: its first answer"]


def test_better_blind_than_not_at_all() -> None:
    fleet = Fleet((OneNode("a"),))
    warmup = fleet.warmup()
    fleet.now += DEADLINE_S - 0.1
    assert warmup.missing() == ["node a: its first answer"]
    fleet.now += 0.1
    assert warmup.missing() == []

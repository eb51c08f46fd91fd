"""Which nodes are lost, and which have left."""

from tests.router.serving import FAST, run
from trunkline.kernels.core import PrefixIndex
from trunkline.router.discovery.membership import Membership
from trunkline.router.nodes import NodeListener, Registry
from trunkline.shared.lease import Kind, Member, Notice
from trunkline.shared.names import SUMMARY_PARTITIONS


def member(name: str) -> Member:
    url = "http://127.0.0.1:9" if name == "a" else "http://127.0.0.2:9"
    return Member(Kind.NODE, name, url, name, "1")


def test_a_node_that_said_that_it_leaves_is_not_lost() -> None:
    async def scenario() -> None:
        registry = Registry((), PrefixIndex(SUMMARY_PARTITIONS, 1000), NodeListener(), timing=FAST)
        await registry.start()
        membership, a, b = Membership(registry, None), member("a"), member("b")
        await membership.apply([a, b])
        membership.notice(Notice(b, left=True))
        await membership.apply([])
        assert (membership.lost, registry.nodes) == (1, ())

        await membership.apply([b])
        membership.notice(Notice(b, left=True))
        membership.notice(Notice(b, left=False))  # Another incarnation is there.
        await membership.apply([])
        assert membership.lost == 2
        await registry.close()

    run(scenario())


def test_one_that_was_refused_is_tried_again_when_there_is_room() -> None:
    async def scenario() -> None:
        registry = Registry((), PrefixIndex(SUMMARY_PARTITIONS, 1000), NodeListener(), timing=FAST)
        await registry.start()
        membership, old = Membership(registry, None), member("a")
        new = Member(Kind.NODE, "a2", old.url, "a2", "1")  # Another name at the same address.
        await membership.apply([old, new])
        assert list(membership.refused) == ["a2"]
        await membership.apply([new])
        await membership.apply([new])
        assert ([node.url for node in registry.nodes], membership.refused) == ([old.url], {})
        await registry.close()

    run(scenario())

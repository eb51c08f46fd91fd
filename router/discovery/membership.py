"""Which nodes the router watches, by what is listed: leases in a registry, or endpoints in Kubernetes.

A listing says that a node is there; its probes say whether it can be used. A node that is listed no more goes when it
does not answer either: a registry that lost its data, or that nodes cannot reach, takes nobody out who serves.
"""

import logging
from collections.abc import Sequence

from trunkline.router.nodes import Node, NodeState, Registry
from trunkline.shared.errors import ConfigError
from trunkline.shared.lease import Member, Notice

log = logging.getLogger(__name__)


class Membership:
    """Used on the event loop only, by one task. Nodes that the registry has from the start are never removed."""

    def __init__(self, registry: Registry, secret: str | None) -> None:
        self.refused: dict[str, str] = {}
        """Members that are not watched, by id, and why."""
        self.unlisted: set[str] = set()
        """Nodes that serve though they are not listed any more, by id."""
        self.lost = 0
        """Nodes that were removed, and had not said that they leave."""
        self._leaving: set[str] = set()
        """Nodes that have said so, by id."""
        self._registry = registry
        self._secret = secret
        self._nodes: dict[str, Node] = {}
        """Those that were listed at some time, by id."""

    async def apply(self, members: Sequence[Member]) -> None:
        """These are all that are listed."""
        listed = {member.id for member in members}
        for id in [id for id in self.refused if id not in listed]:
            del self.refused[id]
        for member in members:
            self._join(member)
        gone = [(id, node) for id, node in self._nodes.items() if id not in listed]
        serving = {id for id, node in gone if node.state is NodeState.READY}
        for id in serving - self.unlisted:
            log.warning("node %s is not listed any more, and serves: it is kept while it does", self._nodes[id].name)
        self.unlisted = serving
        for id, node in gone:
            hands_on = node.state is NodeState.DRAINING and node.load.draining
            if id not in serving and not hands_on:
                log.warning("node %s is not listed and is %s: it is removed", node.name, node.state)
                del self._nodes[id]
                self.lost += id not in self._leaving
                self._leaving.discard(id)
                await self._registry.remove(node)
                self.refused.clear()  # There is room again, and its address is free.

    def notice(self, notice: Notice) -> None:
        """A member joins, came back as another incarnation, or leaves."""
        node = self._nodes.get(notice.member.id)
        if node is not None:
            self._mark(notice)
            self._registry.look(node)  # It is removed once it does not serve, after the next listing.
        elif not notice.left:
            self._join(notice.member)

    def _join(self, member: Member) -> None:
        if member.id in self._nodes or member.id in self.refused:
            return
        if not member.is_genuine(self._secret):
            self._refuse(member, "it does not prove to know the cluster secret")
            return
        try:
            self._nodes[member.id] = self._registry.add(member.url)
        except ConfigError as error:
            self._refuse(member, str(error))
        else:
            log.info("node %s joins at %s", member.name, member.url)

    def _mark(self, notice: Notice) -> None:
        if notice.left:
            self._leaving.add(notice.member.id)
        else:
            self._leaving.discard(notice.member.id)

    def _refuse(self, member: Member, why: str) -> None:
        self.refused[member.id] = why
        log.warning("node %s is not watched: %s", member.name, why)

"""One node as the router sees it."""

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from trunkline.router.follower import Follower
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.ask import base_url
from trunkline.shared.errors import ConfigError
from trunkline.shared.wire import AgentInfo, Finished, Load, ServedModel

_DEFAULT_PORTS = {"http": 80, "https": 443}


class NodeState(StrEnum):
    """Whether requests may go to a node."""

    JOINING = "joining"
    """Not reached yet."""
    READY = "ready"
    UNREADY = "unready"
    """Answers, and says that it is not ready."""
    DOWN = "down"
    """Does not answer, failed a request, or speaks another version."""
    DRAINING = "draining"
    """Is to get no new requests: it says so itself, or an operator does."""


class Node:
    """Attributes belong to the node's Watcher; everyone else reads them, on the event loop's thread."""

    __slots__ = (
        *("index", "url", "host", "port", "name"),
        *("info", "models", "transfer", "state", "error", "follower", "load", "load_at"),
    )

    def __init__(self, index: int, url: str) -> None:
        """`index` is the node's number in the prefix index. Raises ConfigError for a URL that is no server's root.

        `url` may be `host:port`.
        """
        self.index = index
        self.url = base_url(url).rstrip("/")
        try:
            parts = urlsplit(self.url)
            # A word alone is no node: a typing error would become a host.
            port = _DEFAULT_PORTS.get(parts.scheme) if parts.port is None and "://" in url else parts.port
            (parts.hostname or "").encode("idna")  # As who connects does: here is the place to say what is wrong.
        except ValueError as error:
            raise ConfigError(f"node URL {url!r}: {error}") from None
        # What urlsplit strips or leaves out is not of the form either.
        root = f"{parts.scheme}://{parts.netloc}"
        odd = self.url.lower() != root.lower() or parts.username is not None or " " in root or not root.isprintable()
        if parts.scheme not in _DEFAULT_PORTS or not port or not parts.hostname or odd:
            raise ConfigError(f"node URL {url!r} is not of the form http://host:port or host:port")
        self.host = parts.hostname
        self.port = port
        self.name = parts.netloc
        self.info: AgentInfo | None = None
        """None: not an agent, or not reached yet."""
        self.models: Mapping[str, ServedModel | None] | None = {}
        """Served models; the value is None where the namespace is not known. None: takes any model."""
        self.transfer = ""
        """host:port where other nodes ask it for pages; empty: it lends none."""
        self.state = NodeState.JOINING
        self.error = ""
        """What keeps it from being ready."""
        self.follower: Follower | None = None
        self.load = Load()
        self.load_at = 0.0
        """`time.monotonic()` of the last load report; 0.0: none in this epoch."""

    @property
    def summary(self) -> SummaryStatus:
        if self.follower is not None:
            return self.follower.status
        return SummaryStatus.ASSUMED if self.info is None and self.models != {} else SummaryStatus.SYNCING

    @property
    def identity(self) -> str:
        """The same for every router of a fleet, and another one for each incarnation of an agent."""
        return f"{self.host}:{self.port}" if self.info is None else f"{self.info.epoch:x}"

    def serves(self, model: str) -> bool:
        return self.models is None or model in self.models

    def view(self, now: float) -> dict[str, object]:
        """JSON for people and tools. `now` is `time.monotonic()`."""
        follower = self.follower
        return {
            "index": self.index,
            "name": self.name,
            "url": self.url,
            "state": self.state.value,
            "error": self.error,
            "epoch": self.info.epoch if self.info else None,
            "models": None if self.models is None else {name: _namespace(model) for name, model in self.models.items()},
            "summary": {
                "status": self.summary.value,
                "age_s": round(now - follower.heard_at, 3) if follower else None,
                "events": follower.stream.events if follower else None,
                "counters": asdict(follower.summary.counters) if follower else None,
            },
            "load": _load(self.load),
            "load_age_s": round(now - self.load_at, 3) if self.load_at else None,
        }

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.url!r}, {self.state})"


class NodeListener:
    """What wants to know of nodes. Called on the event loop; must be quick and not raise."""

    def on_load(self, node: Node, load: Load) -> None:
        """The node reported its load."""

    def on_finished(self, node: Node, finished: Finished) -> None:
        """The node reported a finished request; each once."""

    def on_identified(self, node: Node) -> None:
        """The node has said who it is: for the first time, or as another incarnation."""

    def on_void(self, node: Node) -> None:
        """What was assumed about the node's cache and load is void: it restarted, fell silent, or was removed."""


def _namespace(model: ServedModel | None) -> dict[str, object] | None:
    return None if model is None else {"context": model.context, **msgspec.structs.asdict(model.namespace)}


def _load(load: Load) -> dict[str, object]:
    tiers = {
        tier.tier.name.lower(): {key: value for key, value in msgspec.structs.asdict(tier).items() if key != "tier"}
        for tier in load.tiers
    }
    return msgspec.structs.asdict(load) | {"tiers": tiers}

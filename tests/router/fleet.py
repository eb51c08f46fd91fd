"""A scheduler and its nodes without a network, and prompts to place."""

import random
from array import array

from trunkline.kernels.core import PrefixIndex
from trunkline.router.body import Prompt
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.router.nodes import Node, NodeState
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.scheduler import Scheduler, Ticket
from trunkline.router.scheduler.sizes import size_of
from trunkline.router.settings import SchedulerSettings
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.canonical import Canonical, of_prompt
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import ServedModel

SPACE = Namespace("f00d", "float32", "layout")
RATE = 1000.0


def offer(load: NodeLoad, uncached: int, work: float) -> tuple[float, float, float]:
    """What the node could do for a request of so many tokens and seconds: work, wait, load."""
    size = size_of(uncached)
    wait_s = load.wait_s - load.passed[size] + work * (load.excess + load.longer[size])
    return work, wait_s, load.fill


class ExactNode(Node):
    """A node that follows its events exactly, without the events."""

    @property
    def summary(self) -> SummaryStatus:
        return SummaryStatus.EXACT


class Fleet:
    """Nodes that serve one model, a scheduler, and a clock that stands still."""

    def __init__(self, count: int, *, exact: bool = True, max_running: int = 10, **changes: object) -> None:
        self.now = 1000.0
        self.index = PrefixIndex()
        settings = SchedulerSettings(prefill_rate=RATE, max_running=max_running, seed=3, **changes)  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.index, settings, lambda: self.now)
        kind = ExactNode if exact else Node
        self.nodes = tuple(kind(index, f"http://127.0.0.1:{9000 + index}") for index in range(count))
        for node in self.nodes:
            node.state = NodeState.READY
            node.models = {"m": ServedModel("m", SPACE, 4096) if exact else None}

    def send(self, prompt: Prompt, salt: str = "") -> Ticket:
        """Places a request and sends it to the best node."""
        placement = self.scheduler.place(prompt, salt, self.nodes)
        return self.scheduler.start(placement.choice(0), placement, f"r{random.random()}")

    def answer(self, ticket: Ticket) -> None:
        self.scheduler.begin(ticket)
        self.scheduler.finish(ticket)

    def holds(self, node: int, prompt: Prompt, tier: Tier = Tier.DEVICE, bytes_per_token: float = 4.0) -> None:
        """The node has published the whole prompt."""
        chain = PromptKeys(prompt, "", Seeds(), 4.0).chain(SPACE)
        self.index.store(node, chain, depths(prompt, bytes_per_token), tier)


def depths(prompt: Prompt, bytes_per_token: float) -> "array[int]":
    """Tokens of a prompt that each of its keys covers, in their order."""
    content = prompt.content
    if not isinstance(content, Canonical):
        return array("I", range(PAGE_TOKENS, len(content) + 1, PAGE_TOKENS))
    covered = []
    for segment, end in content.boundaries():
        before = sum(map(len, content.texts[:segment]))
        covered.append(int((before + max(0, end - len(content.frames[segment]))) / bytes_per_token))
    most = max(1, int(sum(map(len, content.texts)) / bytes_per_token))
    return array("I", [min(tokens, most) for tokens in covered])


def text(seed: int, size: int = 4000) -> Prompt:
    return Prompt("m", of_prompt("".join(random.Random(seed).choices("abcdefgh ", k=size))))


def tokens(seed: int, size: int = 1000) -> Prompt:
    return Prompt("m", array("i", random.Random(seed).choices(range(32_000), k=size)))

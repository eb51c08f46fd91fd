"""A router that loses events: `python -m trunkline.loadtest.soak.lossy_router [FLAGS]`, flags as of `trunkline router`.

From SIGUSR1 until SIGUSR2 half of the live event batches of each agent are lost, as a network would.
"""

import random
import signal
import threading

import typer

from trunkline.router.cli import router
from trunkline.router.follower import Follower
from trunkline.shared.wire import EventBatch, Message, Request

LOSE, KEEP = signal.SIGUSR1, signal.SIGUSR2
_LOST = 0.5


def listen_for_signals() -> None:
    """In this process, from now on."""
    losing = threading.Event()
    signal.signal(LOSE, lambda *_: losing.set())
    signal.signal(KEEP, lambda *_: losing.clear())
    receive = Follower._receive

    async def receive_some(self: Follower, message: Message) -> Request | None:
        live = isinstance(message, EventBatch) and message.newest < 0
        return None if live and losing.is_set() and random.random() < _LOST else await receive(self, message)

    Follower._receive = receive_some  # type: ignore[method-assign]


if __name__ == "__main__":
    listen_for_signals()
    typer.run(router)

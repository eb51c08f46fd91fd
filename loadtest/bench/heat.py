"""What it costs the core to keep pages in order of worth, called from Python. CPU time of the process."""

import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median

from trunkline.agent.cache.visits import Visits
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import Tier

PAGES = 20_000
"""That could go."""
VISITS = 30_000


def run(rounds: int = 5) -> list[Row]:
    """Medians over `rounds`, in microseconds for each call."""
    chance = random.Random(1)
    heat = Visits(PAGES).heat
    visits = []
    for _ in range(VISITS):
        levels = [chance.randrange(7), 7 + chance.randrange(20), 27 + chance.randrange(20), 47 + chance.randrange(20)]
        visits.append(heat.visit(levels, chance.randrange(6)))
        if chance.random() < 0.5:
            heat.returned(chance.choice(visits[-2000:]))
    for page in range(PAGES):
        heat.offer(Tier.DEVICE, page, chance.choice(visits))
    pages = list(range(PAGES))

    offer, take, tier = heat.offer, heat.take, int(Tier.DEVICE)

    def update() -> None:
        for page in some:
            offer(tier, page, newest)

    def choose() -> None:
        """Each time the parent of what went has become a leaf, and is offered."""
        for parent in range(PAGES, PAGES + len(some)):
            taken.append(take(tier))
            offer(tier, parent, newest)

    updates, choices, returns = [], [], []
    for _ in range(rounds):
        newest = heat.visit([3, 12, 33, 55], 1)
        some = chance.sample(pages, 1000)
        updates.append(_seconds(update))
        taken: list[int | None] = [take(tier)]  # what was used gets its place
        choices.append(_seconds(choose))
        for gone in taken:
            if gone is not None:
                offer(tier, gone, chance.choice(visits))
        lately = [heat.visit([1], 0) for _ in range(1000)]
        returns.append(_seconds(partial(deque, map(heat.returned, lately), 0)))
    return [
        _figure(f"heat: a page of {PAGES} is used, us", updates, 0.3),
        _figure("heat: somebody came back, us", returns, 0.3),
        _figure(f"heat: the next of {PAGES} pages to go, us", choices, 2.0),
    ]


def _seconds(thousand: Callable[[], object]) -> float:
    began = time.process_time()
    thousand()
    return (time.process_time() - began) / 1000


def _figure(name: str, seconds: list[float], most_us: float) -> Row:
    value = median(seconds) * 1e6
    return row(name, value, None, None, f"<= {most_us:g}", value <= most_us)

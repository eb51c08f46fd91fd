"""Pictures of the page for the docs, of a made-up fleet: `python -m tests.router.ui.screenshots [FOLDER]`."""

import asyncio
import math
import random
import sys
import time
from pathlib import Path

import msgspec
from PIL import Image

from tests.router.serving import run, until
from tests.router.ui.browser import page
from tests.router.ui.cluster import SYSTEM, Cluster, cluster, crowd
from trunkline.router.nodes import NodeState
from trunkline.router.ui.history import STEP_S, STEPS, Step
from trunkline.shared.names import Tier
from trunkline.shared.pins import PinList, PinStatus

FOLDER = Path(__file__).parents[3] / "docs" / "operate" / "ui"
WIDE = {"width": 1360, "height": 900}
PINS = PinList(
    [
        PinStatus("5f0c2ad1", 12_288, 768, 768, None, True),
        PinStatus("9be41077", 2_048, 128, 126, 2_710.0, False),
    ]
)
PRODUCTS = ("Answer questions about invoices. ", "Review the change as a careful engineer would. ", "Plan the trip. ")


async def traffic(made: Cluster) -> None:
    """Products with long prompts of their own on top of a common one, and sessions of several turns."""
    chance = random.Random(4)
    for number in range(60):
        product = chance.choice(PRODUCTS)
        session = f"Session {chance.randrange(6)} of {product}" * 12
        system = SYSTEM * 4 + product * 30 + (session if number % 2 else "")
        await made.ask(f"question {number}", system)
        if number % 5 == 0:
            made.publish(f"gpu-{chance.randrange(196, 200)}", "", system, chance.choice((Tier.HOST, Tier.DISK)))
    await asyncio.sleep(0.5)


def hour() -> list[Step]:
    """A morning: more and more requests, a deployment that empties caches half an hour ago."""
    chance, now = random.Random(7), time.time()
    steps = []
    for number in range(STEPS):
        back = STEPS - 1 - number
        cold = math.exp(-((180 - back) / 40)) if back <= 180 else 0.0
        requests = round(150 + 40 * math.sin(number / 60) + chance.uniform(-15, 15))
        slow = (0.18 + 0.5 * cold) * chance.uniform(0.85, 1.15)
        found = round(2000 * requests * (0.86 - 0.5 * cold + chance.uniform(-0.03, 0.03)))
        quantiles = (slow, slow * chance.uniform(2.0, 2.6), slow * chance.uniform(4.0, 6.0))
        failed = 3 if 176 <= back <= 180 else 0
        expected = round(found * chance.uniform(1.0, 1.03))
        placed = 2000 * requests
        steps.append(Step(now - STEP_S * back, requests, failed, quantiles, placed, expected, placed, found))
    return steps


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with cluster([f"gpu-{number:03}" for number in range(196, 200)]) as made, page(viewport=WIDE) as opened:
        made.served.router.context.history.steps.extend(hour())
        await traffic(made)
        nodes = crowd(made.served, 196)
        nodes[57].state, nodes[57].error = NodeState.DOWN, "connection refused"
        nodes[58].state = nodes[121].state = NodeState.DRAINING
        await until(lambda: made.served.idle())
        await opened.goto(f"{made.url}/ui/")
        await opened.locator("#prefix-table tbody tr").first.wait_for()
        await opened.evaluate("for (const one of document.querySelectorAll('.scroll')) one.style.maxHeight = '17rem'")
        await opened.wait_for_timeout(800)
        await opened.screenshot(path=folder / "fleet.png", full_page=True)
        await opened.emulate_media(color_scheme="dark")
        await opened.locator("#decision-table tbody button").nth(3).click()
        await opened.locator("#detail-body table").wait_for()
        await opened.screenshot(path=folder / "explanation.png")
        await opened.keyboard.press("Escape")
        await opened.emulate_media(color_scheme="light")
        made.agents["gpu-199"].answers["GET /trunkline/pins"] = 200, msgspec.json.encode(PINS)
        await opened.get_by_role("button", name="gpu-199", exact=True).click()
        await opened.locator("#detail-body table").wait_for()
        await opened.screenshot(path=folder / "node.png")
        await opened.keyboard.press("Escape")
        await opened.emulate_media(color_scheme="dark")
        await opened.set_viewport_size({"width": 390, "height": 844})
        await opened.wait_for_timeout(500)
        await opened.screenshot(path=folder / "phone.png")
    for path in folder.glob("*.png"):  # A quarter of the bytes, and no difference to be seen.
        Image.open(path).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))

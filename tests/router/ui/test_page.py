"""The page in a real browser, over a real router."""

import json
import re
from typing import Any

import msgspec
from playwright.async_api import Page, expect

from tests.router.serving import run, until
from tests.router.ui.browser import page
from tests.router.ui.cluster import Cluster, cluster, crowd
from trunkline.router.nodes import NodeState
from trunkline.shared.handover import DrainStatus

LOOK_MS = 4000
"""Within this time the page asks anew, also of a router that has not answered."""
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


async def shown(opened: Page, made: Cluster, path: str = "/ui/") -> None:
    """The page, once it shows nodes."""
    await opened.goto(made.url + path)
    await expect(opened.locator("#node-table tbody tr").first).to_be_visible()


def test_nodes_prefixes_and_decisions_are_shown_and_each_opens_its_explanation() -> None:
    async def scenario() -> None:
        async with cluster(["node-a", "node-b"]) as made, page() as opened:
            for number in range(3):
                await made.ask(f"question {number}", name=f"request-{number}")
            made.served.router.context.history.expire()
            await shown(opened, made)
            rows = opened.locator("#node-table tbody tr")
            await expect(rows).to_have_count(2)
            await expect(rows.nth(0)).to_contain_text("node-a")
            await expect(rows.nth(0)).to_contain_text("/ 4,096")
            await expect(opened.locator("#totals")).to_contain_text("2 / 2")
            await expect(opened.locator("#prefix-table tbody tr")).to_have_count(1)
            await expect(opened.locator("#prefix-table tbody tr")).to_contain_text("node-")
            # Everything has come by push of nobody: a request that is made now is there soon.
            await made.ask("another question", name="request-later")
            await expect(opened.locator("#decision-table tbody tr").first).to_contain_text("request-later")
            await opened.get_by_role("button", name="request-1", exact=True).click()
            dialog = opened.get_by_role("dialog")
            await expect(dialog).to_contain_text("Request request-1")
            await expect(dialog.get_by_role("row", name="chosen")).to_contain_text("node-")
            # All that a cost is made of, in the place of its head.
            heads = dialog.get_by_role("columnheader")
            await expect(heads).to_contain_text(["", "node", "cost", "work", "wait", "drag", "load", "report age"])
            await expect(dialog.get_by_role("row", name="chosen").get_by_role("cell").nth(5)).to_contain_text("%")
            await expect(dialog).to_contain_text("done, status 200")
            await expect(opened).to_have_url(re.compile("#request=request-1$"))
            await dialog.get_by_role("button", name="Close").click()
            await expect(dialog).to_be_hidden()
            await expect(opened).to_have_url(re.compile("^[^#]*$"))

    run(scenario())


def test_an_explanation_has_an_address_and_one_that_is_not_kept_says_so() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page() as opened:
            await made.ask("hello", name="odd/id?#%20")
            await shown(opened, made, "/ui/#request=odd%2Fid%3F%23%2520")
            await expect(opened.get_by_role("dialog")).to_contain_text("done, status 200")
            await opened.evaluate("location.hash = 'request=no-such'")
            await expect(opened.get_by_role("dialog")).to_contain_text("no decision on request 'no-such' is kept")

    run(scenario())


def test_it_is_light_or_dark_as_the_reader_wants() -> None:
    async def colours(opened: Page) -> tuple[int, int]:
        """Brightness of page and text, 0 to 765."""
        found: list[str] = await opened.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        back, text = (sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) for colour in found)
        return back, text

    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page(color_scheme="light") as opened:
            await shown(opened, made)
            back, text = await colours(opened)
            assert back > 690
            assert text < 150
            await opened.emulate_media(color_scheme="dark")
            back, text = await colours(opened)
            assert back < 110
            assert text > 660

    run(scenario())


def test_two_hundred_nodes_are_found_sorted_and_fit_a_phone() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page(viewport={"width": 1280, "height": 800}) as opened:
            nodes = crowd(made.served, 199)
            nodes[150].error, nodes[150].state = "answers 503: still loading", NodeState.UNREADY
            await shown(opened, made)
            rows = opened.locator("#node-table tbody tr")
            await expect(rows).to_have_count(200)
            await expect(opened.locator("#map i")).to_have_count(200)
            # What is wrong comes first, and is said above.
            await expect(rows.nth(0)).to_contain_text("gpu-150")
            await expect(opened.locator("#problems")).to_contain_text("gpu-150 (answers 503: still loading)")
            await opened.get_by_role("button", name="waiting", exact=True).click()
            head = opened.get_by_role("columnheader", name="waiting")
            await expect(head).to_have_attribute("aria-sort", "descending")
            await expect(rows.nth(0).locator("[data-name=waiting]")).to_have_text("2")
            await opened.get_by_role("searchbox", name="Find").fill("GPU-17")
            await expect(rows).to_have_count(10)
            await expect(opened.locator("#node-count")).to_have_text("10 of 200 nodes")
            for width in (320, 390, 768, 1280):
                await opened.set_viewport_size({"width": width, "height": 800})
                assert await opened.evaluate("document.documentElement.scrollWidth") <= width

    run(scenario())


def test_names_with_markup_stay_names() -> None:
    async def scenario() -> None:
        async with cluster([EVIL]) as made, page() as opened:
            dialogs: list[Any] = []
            opened.on("dialog", lambda dialog: dialogs.append(dialog))
            node = made.served.router.context.registry.nodes[0]
            node.error = EVIL
            for name in ("<b>bold</b>", "<script>alert(3)</script>"):
                await made.ask("hello", name=name)
            await shown(opened, made)
            await expect(opened.locator("#node-table tbody th")).to_have_text(EVIL)
            await opened.get_by_role("button", name="<script>alert(3)</script>").click()
            await expect(opened.get_by_role("dialog")).to_contain_text(EVIL)
            await expect(opened.locator("#prefix-table")).to_contain_text(EVIL)
            assert await opened.locator("main script, main b, main img, dialog script, dialog img").count() == 0
            assert dialogs == []

    run(scenario())


def test_it_can_be_used_without_a_pointer() -> None:
    async def focused(opened: Page) -> str:
        found: str = await opened.evaluate("document.activeElement.id || document.activeElement.textContent")
        return found

    async def scenario() -> None:
        async with cluster(["node-a", "node-b"]) as made, page() as opened:
            await made.ask("hello", name="by-keyboard")
            for _ in range(2):
                made.served.router.context.history.expire()
            await shown(opened, made)
            await opened.keyboard.press("Tab")
            assert await focused(opened) == "Skip to the nodes"
            await opened.keyboard.press("Enter")
            await opened.keyboard.press("Tab")
            assert await focused(opened) == "node-filter"
            await opened.keyboard.press("Tab")  # The table's region, which scrolls.
            await opened.keyboard.press("Tab")
            assert await focused(opened) == "node"
            await opened.keyboard.press("Enter")
            head = opened.locator("#node-table").get_by_role("columnheader", name="node", exact=True)
            await expect(head).to_have_attribute("aria-sort", "ascending")
            button = opened.get_by_role("button", name="by-keyboard")
            await button.focus()
            await opened.keyboard.press("Enter")
            await expect(opened.get_by_role("dialog")).to_contain_text("status 200")
            assert await focused(opened) == "Close"
            await opened.keyboard.press("Escape")
            await expect(opened.get_by_role("dialog")).to_be_hidden()
            await expect(button).to_be_focused()
            chart = opened.get_by_role("img", name="Hit ratio")
            await chart.focus()
            await opened.keyboard.press("Home")
            await expect(opened.locator("#news")).to_contain_text("Hit ratio at")

    run(scenario())


def test_what_assistive_technology_needs_is_there() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page() as opened:
            await made.ask("hello")
            await made.ask("hello again")
            await shown(opened, made)
            for role in ("banner", "main", "contentinfo"):
                await expect(opened.get_by_role(role)).to_have_count(1)
            for name in ("Fleet", "Last hour", "Nodes", "Hot prefixes", "Decisions"):
                await expect(opened.get_by_role("region", name=name, exact=True).first).to_be_visible()
            # Every table has a caption and every column a header; every row has one of its own.
            assert await opened.evaluate(
                """[...document.querySelectorAll("main table")].every((table) => table.caption?.textContent
                && [...table.tHead.rows[0].cells].every((cell) => cell.scope === "col")
                && [...table.tBodies[0].rows].every((row) => row.querySelectorAll("th[scope=row]").length === 1))"""
            )
            # Every control has a name; no id is there twice.
            assert await opened.evaluate(
                """[...document.querySelectorAll("main button, main input, header button")].every((one) =>
                one.textContent.trim() || one.labels?.length)"""
            )
            ids: list[str] = await opened.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
            assert len(ids) == len(set(ids))
            await expect(opened.locator("#news")).to_have_attribute("aria-live", "polite")

    run(scenario())


def test_text_has_contrast_in_both_schemes() -> None:
    """WCAG's 4.5 to 1 for every colour of text on what it stands on."""
    pairs = [
        *((text, back) for text in ("text", "soft", "link", "good", "warn", "bad") for back in ("card", "page")),
        *(("text", back) for back in ("warn-page", "bad-page", "track")),
    ]

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page() as opened:
            await shown(opened, made)
            for scheme in ("light", "dark"):
                await opened.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                for text, back in pairs:
                    colours: list[str] = await opened.evaluate(
                        """(names) => names.map((name) =>
                        getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim())""",
                        [text, back],
                    )
                    high, low = sorted(map(luminance, colours), reverse=True)
                    assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, text, back, colours)

    run(scenario())


def test_a_token_is_asked_for_kept_for_the_tab_and_forgotten() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"], admin_token="s3cret") as made, page() as opened:
            await opened.goto(made.url + "/ui/")
            dialog = opened.get_by_role("dialog", name="Admin token")
            await expect(dialog).to_be_visible()
            await expect(opened.get_by_role("textbox", name="Token")).to_be_focused()
            await opened.keyboard.type("wrong")
            await opened.keyboard.press("Enter")
            await expect(dialog.get_by_role("alert")).to_contain_text("does not accept")
            await opened.keyboard.type("s3cret")
            await opened.keyboard.press("Enter")
            await expect(opened.locator("#node-table tbody tr")).to_have_count(1)
            await opened.reload()
            await expect(opened.locator("#node-table tbody tr")).to_have_count(1)
            await opened.get_by_role("button", name="Forget the token").click()
            await expect(dialog).to_be_visible()
            assert await opened.evaluate("sessionStorage.length") == 0

    run(scenario())


def test_without_a_token_nothing_can_be_changed() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page() as opened:
            for _ in range(2):
                await made.ask("hello")
            await shown(opened, made)
            await expect(opened.locator("#prefix-table tbody tr")).to_have_count(1)
            await expect(opened.locator("#connection")).to_contain_text("read-only")
            for name in ("Pin", "Clear", "Drain"):
                await expect(opened.locator("main").get_by_role("button", name=name)).to_have_count(0)
            # Nor by asking for it from the page.
            asked = "fetch('../admin/cache/node-a', { method: 'DELETE' }).then((one) => one.status)"
            assert await opened.evaluate(asked) == 403
            assert made.agents["node-a"].orders == []

    run(scenario())


def test_with_a_token_a_prefix_is_pinned_and_a_cache_cleared_once_confirmed() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"], admin_token="s3cret") as made, page() as opened:
            agent = made.agents["node-a"]
            pinned = {"id": "ab", "tokens": 320, "pages": 20, "held": 20, "expires_in": 3600.0, "lasting": False}
            agent.answers["POST /trunkline/pins"] = 200, json.dumps(pinned).encode()
            agent.answers["DELETE /trunkline/cache"] = 503, b'{"error":{"message":"still loading"}}'
            for _ in range(2):
                await made.ask("hello")
            await opened.goto(made.url + "/ui/")
            await expect(opened.get_by_role("textbox", name="Token")).to_be_focused()
            await opened.keyboard.type("s3cret")
            await opened.keyboard.press("Enter")
            outcome, dialog = opened.locator("#outcome"), opened.locator("#confirmation")
            await opened.get_by_role("button", name="Clear the cache of node-a").click()
            await expect(dialog).to_contain_text("Requests under way go on")
            await opened.keyboard.press("Enter")  # On what has the focus: Cancel.
            await expect(dialog).to_be_hidden()
            assert agent.orders == []
            await opened.get_by_role("button", name=re.compile("Pin .* on node-a")).click()
            await dialog.get_by_role("button", name="Pin it").click()
            await expect(outcome).to_contain_text("node-a keeps 20 pages until")
            (order,) = agent.orders
            body = json.loads(order.body)
            assert body["ttl"] == 3600
            await expect(opened.locator("#prefix-table tbody")).to_contain_text(body["key"])
            await opened.get_by_role("button", name="Clear the cache of node-a").click()
            await dialog.get_by_role("button", name="Clear it").click()
            await expect(outcome).to_contain_text("node node-a: answers 503: still loading")
            agent.answers["POST /trunkline/drain"] = 200, msgspec.json.encode(DrainStatus(draining=True, running=3))
            await opened.get_by_role("button", name="Drain node-a").click()
            await dialog.get_by_role("button", name="Drain it").click()
            await expect(outcome).to_contain_text("node-a drains: 3 requests are still under way there")

    run(scenario())


def test_what_is_pinned_at_a_node_is_shown_and_unpinned_once_confirmed() -> None:
    async def scenario() -> None:
        pin = {"id": "ab12", "tokens": 320, "pages": 20, "held": 18, "expires_in": 120.0, "lasting": False}
        async with cluster(["node-a"], admin_token="s3cret") as made, page() as opened:
            agent = made.agents["node-a"]
            agent.answers["GET /trunkline/pins"] = 200, json.dumps({"pins": [pin]}).encode()
            agent.answers["DELETE /trunkline/pins/ab12"] = 503, b'{"error":{"message":"still loading"}}'
            await opened.goto(made.url + "/ui/#node=node-a")
            await expect(opened.get_by_role("textbox", name="Token")).to_be_focused()
            await opened.keyboard.type("s3cret")
            await opened.keyboard.press("Enter")
            dialog = opened.get_by_role("dialog", name="Node node-a")
            row = dialog.get_by_role("row", name="ab12")
            for text in ("320", "18 / 20", "120 s, or a restart"):
                await expect(row).to_contain_text(text)
            await dialog.get_by_role("button", name="Unpin ab12").click()
            # It asks again once it has failed: before that has come, the pin must not be gone.
            async with opened.expect_response(lambda one: one.request.method == "GET" and "/admin/pins/" in one.url):
                await opened.get_by_role("button", name="Unpin it").click()
            await expect(dialog).to_contain_text("node node-a: answers 503: still loading")
            agent.answers["GET /trunkline/pins"] = 200, b'{"pins":[]}'
            agent.answers["DELETE /trunkline/pins/ab12"] = 204, b""
            await dialog.get_by_role("button", name="Unpin ab12").click()
            await opened.get_by_role("button", name="Unpin it").click()
            await expect(dialog).to_contain_text("None.")
            agent.answers["GET /trunkline/pins"] = 503, b'{"error":{"message":"still loading"}}'
            await opened.evaluate("location.hash = ''")
            await expect(dialog).to_be_hidden()
            await opened.evaluate("location.hash = 'node=node-a'")
            await expect(dialog.get_by_role("alert")).to_contain_text("still loading")
            await opened.evaluate("location.hash = 'node=no-such'")
            await expect(opened.get_by_role("dialog")).to_contain_text("no node is named 'no-such'")
            await opened.evaluate("location.hash = 'node=100%'")
            await expect(opened.get_by_role("dialog")).to_contain_text("no node is named '100%'")

    run(scenario())


def test_a_router_that_is_gone_is_said_to_be_and_found_again() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page() as opened:
            await opened.clock.install()
            await shown(opened, made)
            await opened.route("**/admin/**", lambda route: route.abort())
            await opened.clock.run_for(LOOK_MS)
            await expect(opened.locator("#connection")).to_contain_text("does not answer")
            await opened.unroute("**/admin/**")
            await opened.clock.run_for(LOOK_MS)
            await expect(opened.locator("#connection")).to_contain_text("As of")

    run(scenario())


def test_nobody_is_asked_while_nobody_looks() -> None:
    async def scenario() -> None:
        async with cluster(["node-a"]) as made, page() as opened:
            await opened.clock.install()
            await shown(opened, made)
            await opened.evaluate(
                """Object.defineProperty(document, "hidden", { get: () => window.away, configurable: true });
                window.away = true"""
            )
            async with opened.expect_request("**/admin/live"):  # What was due comes once more.
                await opened.clock.run_for(LOOK_MS)
            asked: list[str] = []
            opened.on("request", lambda request: asked.append(request.url))
            await opened.clock.run_for(10 * LOOK_MS)
            assert asked == []
            await opened.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
            await until(lambda: len(asked) > 0)

    run(scenario())

"""Decisions are told as they were made, and what became of the requests with them."""

import asyncio
import io
import json
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.router.fakes import FakeAgent, Fault
from tests.router.fleet import RATE, ExactNode, Fleet, text, tokens
from tests.router.serving import ask, chat, request, run, serving, until
from trunkline.router.explain.decisions import Decisions
from trunkline.router.explain.show import render, render_list
from trunkline.router.explain.view import brief, full
from trunkline.router.scheduler.placement import Placement
from trunkline.router.settings import SchedulerSettings
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.wire import Finished, Load

SETTINGS = SchedulerSettings()
PROMPTS = [text(seed) for seed in range(4)]


def told(placement: Placement, now: float = 0.0) -> dict[str, Any]:
    return full(placement.decision, SETTINGS, now)


def reasons(view: dict[str, Any]) -> list[str]:
    return [why["reason"] for why in view["why"]]


step = st.tuples(
    st.sampled_from(["send", "answer", "report", "hold", "wait", "outcome"]),
    st.integers(0, 4),
    st.integers(0, 3),
    st.floats(0.01, 2.0),
)


@settings(deadline=None)
@given(st.lists(step, max_size=40))
def test_what_is_told_is_what_was_decided_whatever_comes_later(
    steps: list[tuple[str, int, int, float]],
) -> None:
    """Every decision is told anew after everything has happened: ranking, matched tokens and load are as they were."""
    fleet = Fleet(5)
    seen = []
    tickets = []
    for action, node, which, seconds in steps:
        if action == "send":
            placement = fleet.scheduler.place(PROMPTS[which], "", fleet.nodes)
            order = [placement.choice(rank) for rank in range(5)]
            placement.decision.node = order[0].node
            facts = [(one.node.name, one.matched, one.load.fill, one.load.wait_s) for one in order]
            seen.append((placement, facts))
            tickets.append(fleet.scheduler.start(order[0], placement, f"r{len(seen)}"))
        elif action == "answer" and tickets:
            fleet.answer(tickets.pop(0))
        elif action == "report":
            fleet.scheduler.on_load(fleet.nodes[node], Load(running=which * 3, max_running=10, prefill_rate=RATE))
        elif action == "hold":
            fleet.holds(node, PROMPTS[which])
        elif action == "outcome":
            fleet.scheduler.on_finished(fleet.nodes[node], Finished(f"r{which}", 900, 0, 9, 0.0, seconds))
        else:
            fleet.now += seconds
    for placement, facts in seen:
        view = told(placement)
        shown = [(one["node"], one["matched_tokens"], one["load"]) for one in view["candidates"]]
        assert shown == [fact[:3] for fact in facts]
        assert all(sum(one["tiers"].values()) >= one["matched_tokens"] for one in view["candidates"])
        for one, (*_, wait_s) in zip(view["candidates"], facts, strict=True):
            assert one["cost_s"] == one["work_s"] + view["weight"] * (one["wait_s"] + one["drag_s"])
            assert one["wait_s"] >= 0.0
            assert view["prompt_tokens"] >= one["matched_tokens"]
            assert one["prefill_s"] >= one["work_s"] * 0.999
            if one["matched_tokens"] == 0:
                assert one["wait_s"] >= wait_s * 0.999
        assert reasons(view)[0] in ("cost", "near_tie")


def test_the_holder_of_a_prefix_is_chosen_for_its_cost() -> None:
    fleet = Fleet(3)
    fleet.holds(1, text(1))
    fleet.now += 1.5
    fleet.scheduler.on_load(fleet.nodes[1], Load(max_running=10, prefill_rate=RATE))
    fleet.now += 0.25
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    placement.decision.node = placement.choice(0).node
    view = told(placement)
    assert reasons(view) == ["cost"]
    best, *others = view["candidates"]
    assert best["node"] == view["node"] == "127.0.0.1:9001"
    assert best["tiers"] == {"device": best["matched_tokens"], "host": 0, "disk": 0, "claimed": 0, "pulled": 0}
    assert best["matched_tokens"] == view["matched_tokens"] > 900
    assert (best["report_age_s"], others[0]["report_age_s"]) == (0.25, None)
    assert [one["matched_tokens"] for one in others] == [0, 0]
    assert others[0]["work_s"] == others[0]["prefill_s"] == pytest.approx(placement.tokens / RATE)


def test_what_is_expected_of_a_copy_s_prefill_is_all_of_it() -> None:
    fleet = Fleet(3)
    fleet.holds(1, text(1))
    for number in range(30):
        placement = fleet.scheduler.place(text(1), "", fleet.nodes)
        (there,) = (one for one in map(placement.choice, range(3)) if one.node is fleet.nodes[1])
        fleet.scheduler.start(there, placement, f"r{number}")
    view = told(fleet.scheduler.place(text(1), "", fleet.nodes))
    copies = [one for one in view["candidates"] if one["matched_tokens"] == 0]
    assert len(copies) == 2
    for one in copies:
        assert one["prefill_s"] == pytest.approx(view["prompt_tokens"] / RATE)
        assert one["work_s"] < 0.9 * one["prefill_s"], "others pay for a part of it"


def test_tokens_expected_because_of_a_placement_are_claimed() -> None:
    fleet = Fleet(2)
    first = fleet.send(tokens(1)).choice.node
    placement = fleet.scheduler.place(tokens(1), "", fleet.nodes)
    best = told(placement)["candidates"][0]
    assert best["node"] == first.name
    assert best["tiers"]["claimed"] == best["matched_tokens"] > 900


def test_a_hit_given_up_for_load_is_named() -> None:
    fleet = Fleet(2)
    fleet.holds(0, text(1))
    fleet.scheduler.on_load(fleet.nodes[0], Load(max_running=10, running=10, prefill_rate=RATE))
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    placement.decision.node = placement.choice(0).node
    view = told(placement)
    assert reasons(view) == ["cost", "load_limit"]
    assert "127.0.0.1:9000 cost less" in view["why"][1]["text"]
    assert [one["full"] for one in view["candidates"]] == [False, True]
    fleet.scheduler.on_load(fleet.nodes[1], Load(max_running=10, running=10, prefill_rate=RATE))
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    placement.decision.node = placement.choice(0).node
    assert reasons(told(placement)) == ["cost", "all_full"]


def test_near_ties_and_single_nodes_are_said_to_be_so() -> None:
    for count, reason in ((1, "only"), (3, "near_tie")):
        fleet = Fleet(count)
        placement = fleet.scheduler.place(text(1), "", fleet.nodes)
        placement.decision.node = placement.choice(0).node
        assert reasons(told(placement)) == [reason]


def test_what_a_fair_share_overtakes_is_taken_from_the_wait() -> None:
    fleet = Fleet(2)
    for seed in range(6):
        fleet.send(text(seed))
    fleet.scheduler.place(text(9), "", fleet.nodes)  # Prices the accounts.
    waits = {node.name: fleet.scheduler.load_of(node).wait_s for node in fleet.nodes}
    overtaken = {node.index: lambda work, name=node.name: 0.75 * waits[name] for node in fleet.nodes}
    placement = fleet.scheduler.place(text(9), "", fleet.nodes, overtaken)
    placement.decision.node = placement.choice(0).node
    view = told(placement)
    assert [one["node"] for one in view["candidates"]] == [placement.choice(rank).node.name for rank in range(2)]
    for one in view["candidates"]:
        assert one["wait_s"] == pytest.approx(0.25 * waits[one["node"]])


def test_a_prompt_has_as_many_tokens_as_a_node_is_known_to_hold_of_it() -> None:
    """Its text was taken for fewer: the tokenizer of this model makes more of it."""
    fleet = Fleet(2, bytes_per_token=8.0)
    fleet.holds(1, text(1), bytes_per_token=2.0)
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    placement.decision.node = placement.choice(0).node
    view = told(placement)
    assert placement.choice(0).node is fleet.nodes[1]
    assert view["matched_tokens"] <= view["prompt_tokens"] == placement.tokens
    assert placement.tokens == pytest.approx(2000, rel=0.05)
    assert view["candidates"][1]["prefill_s"] == pytest.approx(placement.tokens / RATE)


def test_a_fast_node_is_told_by_its_drag_and_has_no_negative_wait() -> None:
    fleet = Fleet(2)
    for number in range(100):
        for node, seconds in zip(fleet.nodes, (0.3, 3.0), strict=True):
            fleet.scheduler.on_finished(node, Finished(f"r{number}", 1000, 0, 1, 0.0, seconds))
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    placement.decision.node = placement.choice(0).node
    fast, slow = told(placement)["candidates"]
    assert fast["node"] == fleet.nodes[0].name
    assert fast["drag_s"] < 0.0 < slow["drag_s"]
    assert fast["wait_s"] == slow["wait_s"] == 0.0
    assert fast["cost_s"] > 0.0


def test_a_node_with_room_is_preferred_to_a_cheaper_one_without() -> None:
    fleet = Fleet(2)
    fleet.holds(0, text(1))
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    placement.decision.node = fleet.nodes[1]  # As the admission does when the first one's batch is full.
    view = told(placement)
    assert reasons(view) == ["room"]
    assert [one["node"] for one in view["candidates"]] == [fleet.nodes[1].name, fleet.nodes[0].name]


class _SyncingNode(ExactNode):
    @property
    def summary(self) -> SummaryStatus:
        return SummaryStatus.SYNCING


def test_a_decision_without_a_summary_is_blind_and_counted() -> None:
    fleet = Fleet(2)
    lost = _SyncingNode(2, "http://127.0.0.1:9002")
    lost.models = fleet.nodes[0].models
    decisions = Decisions()
    for nodes in (fleet.nodes, (*fleet.nodes, lost)):
        fleet.now += 1.0
        fleet.scheduler.place(text(1), "", nodes)  # The nodes become known.
        fleet.now += 1.0
        placement = fleet.scheduler.place(text(1), "", nodes)
        placement.decision.node = placement.choice(0).node
        decisions.add("r", placement.decision, 1e-5)
    assert decisions.blind == 1
    view = told(placement)
    assert reasons(view)[-1] == "blind"
    assert [one["summary"] for one in view["candidates"] if one["node"] == lost.name] == ["unknown"]
    # One that is not among the candidates does not matter.
    decisions.add("r", fleet.scheduler.place(text(1), "", fleet.nodes).decision, 1e-5)
    assert decisions.blind == 1


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 9))
def test_the_ring_keeps_the_newest_and_finds_the_last_of_an_id(ids: list[int], room: int) -> None:
    fleet = Fleet(2)
    decisions = Decisions(max_bytes=room * (1400 + 2 * 72) + 1)
    model = []
    for number in ids:
        decision = fleet.scheduler.place(text(1), "", fleet.nodes).decision
        decisions.add(str(number), decision, 1e-5)
        model.append(decision)
    kept = model[-room:]
    assert decisions.newest(1000) == kept[::-1]
    assert decisions.newest(2) == kept[::-1][:2]
    assert all(not decision.groups and decision.ranking is None for decision in model[:-room])
    for number in range(7):
        last = [decision for decision in kept if decision.request_id == str(number)]
        assert decisions.find(str(number)) is (last[-1] if last else None)


def test_a_larger_fleet_means_fewer_decisions() -> None:
    decisions = Decisions(max_bytes=100_000)
    kept = []
    for count in (2, 400):
        fleet = Fleet(count)
        for number in range(100):
            decisions.add(str(number), fleet.scheduler.place(text(1), "", fleet.nodes).decision, 1e-5)
        kept.append(len(decisions))
    assert kept[0] > 10 * kept[1] >= 10


@pytest.mark.parametrize("count", [2, 100])
def test_what_is_kept_stays_within_the_bound_of_memory(count: int) -> None:
    fleet = Fleet(count)
    for node in range(count):
        fleet.holds(node, text(1, 8000))
    decisions = Decisions(max_bytes=500_000)
    fleet.scheduler.place(text(1, 8000), "", fleet.nodes)  # The accounts themselves are not what is kept.
    tracemalloc.start()
    try:
        for number in range(500):
            decision = fleet.scheduler.place(text(1, 8000), "", fleet.nodes).decision
            decisions.add(f"5be7c1f2a9d03e64-{number:x}", decision, 1e-5)
            decision.first_byte_s, decision.total_s = number / 7, number / 3
            decision.finished = Finished(decision.request_id, 1000 + number, 900 + number, 800 + number, 0.1, 0.2)
        used = tracemalloc.get_traced_memory()[0]
        used += sum(sys.getsizeof(decision.ranking) for decision in decisions.newest(500))  # The core's, not traced.
    finally:
        tracemalloc.stop()
    assert len(decisions) < 500
    assert used < 550_000


def get(path: str, *headers: str) -> bytes:
    return request(path, b"", method="GET", headers=headers)


def printed(shown: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(shown)
    output: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in output.splitlines())
    return output


def test_an_answered_request_is_explained_with_its_outcome() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a]) as served:
            node = served.router.context.registry.nodes[0]
            await until(lambda: node.summary == "exact" and node.load_at > 0)
            name = "odd/id?#../.%20"
            for _ in range(2):
                reply = await ask(served.port, request(body=chat("hello " * 100), headers=[f"x-request-id: {name}"]))
            a.publisher.finished(Finished(name, 160, 144, 4, 0.5, 0.25))
            path = "/admin/decisions/odd%2Fid%3F%23%2E%2E%2F%2E%2520"
            view = (await ask(served.port, get(path))).json
            assert view["request_id"] == name
            assert view["node"] == reply.headers["x-trunkline-node"]
            assert view["matched_tokens"] == int(reply.headers["x-trunkline-matched-tokens"]) > 100
            assert view["tries"] == [{"node": view["node"], "failed": None}]
            assert (view["outcome"]["state"], view["outcome"]["status"]) == ("done", 200)
            assert 0 < view["outcome"]["first_byte_s"] <= view["outcome"]["total_s"]
            await until(lambda: served.router.context.scheduler.accuracy.requests == 1)
            view = (await ask(served.port, get(path))).json
            reported = {"prompt_tokens": 160, "cached_tokens": 144, "output_tokens": 4, "queue_s": 0.5}
            assert view["outcome"]["reported"].items() >= reported.items()
            assert "144, " in printed(render(view))
            assert name in printed(render(view))
            listed = (await ask(served.port, get("/admin/decisions?limit=1"))).json
            assert [one["request_id"] for one in listed["decisions"]] == [name]
            assert listed["kept"] == 2
            rows = printed(render_list(listed))
            assert "2 kept" in rows
            assert " 160 " in rows, "what the node counted, not the estimate"

    run(scenario())


def test_a_retried_request_tells_of_both_nodes() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, FakeAgent("b") as b, serving([a, b]) as served:
            a.fault = Fault.UNAVAILABLE
            moved = []
            for number in range(8):
                await ask(served.port, request(body=chat(f"{number} " * 50), headers=[f"x-request-id: r{number}"]))
                view = (await ask(served.port, get(f"/admin/decisions/r{number}"))).json
                moved += [view] if len(view["tries"]) > 1 else []
            assert moved
            for view in moved:
                assert view["tries"] == [{"node": "a", "failed": "answered 503"}, {"node": "b", "failed": None}]
                assert reasons(view)[-1] == "retry"
                assert [one["node"] for one in view["candidates"]] == ["a", "b"]

    run(scenario())


def test_requests_that_fail_or_are_left_say_so() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a], max_tries=1) as served:
            a.fault = Fault.CUT
            await ask(served.port, request(body=chat(stream=True), headers=["x-request-id: cut"]))
            outcome = (await ask(served.port, get("/admin/decisions/cut"))).json["outcome"]
            assert (outcome["state"], outcome["status"]) == ("failed", 200)
            assert "node a" in outcome["error"]
            a.fault = Fault.HANG
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(request(headers=["x-request-id: left"]))
            await until(lambda: a.in_flight > 0)
            view = (await ask(served.port, get("/admin/decisions/left"))).json
            assert view["outcome"] == dict.fromkeys(view["outcome"]) | {"state": "under way"}
            writer.transport.abort()
            await until(served.idle)
            outcome = (await ask(served.port, get("/admin/decisions/left"))).json["outcome"]
            assert (outcome["state"], outcome["error"]) == ("failed", "the client left")

    run(scenario())


def test_unknown_ids_and_bad_limits_are_refused_and_the_token_is_asked_for() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a], admin_token="s3cret") as served:
            token = "Authorization: Bearer s3cret"
            for path in ("/admin/decisions", "/admin/decisions/x"):
                assert (await ask(served.port, get(path))).status == 401
            reply = await ask(served.port, get("/admin/decisions/no-such", token))
            assert reply.status == 404
            assert "no-such" in reply.error["message"]
            for limit in ("0", "1001", "many"):
                reply = await ask(served.port, get(f"/admin/decisions?limit={limit}", token))
                assert (reply.status, reply.error["param"]) == (422, "limit")
            assert (await ask(served.port, get("/admin/decisions", token))).json == {"decisions": [], "kept": 0}

    run(scenario())


def test_metrics_count_decisions_and_age_reports() -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a]) as served:
            await until(lambda: served.router.context.registry.nodes[0].load_at > 0)
            await ask(served.port, request())
            lines = (await ask(served.port, get("/metrics"))).body.decode().splitlines()
            values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            assert float(values["trunkline_router_decision_seconds_count"]) == 1
            assert float(values["trunkline_router_decision_seconds_sum"]) > 0
            assert float(values['trunkline_router_decision_seconds_bucket{le="+Inf"}']) == 1
            assert float(values["trunkline_router_blind_decisions_total"]) in (0, 1)
            assert 0 <= float(values['trunkline_router_node_report_age_seconds{node="a"}']) < 10

    run(scenario())


def test_the_command_shows_a_decision_and_names_an_unknown_one() -> None:
    code = (
        "import typer, sys, trunkline.router.ask_cli as cli; from trunkline.shared.errors import TrunklineError\n"
        "try:\n    typer.run(cli.explain)\nexcept TrunklineError as error:\n    sys.exit(str(error))"
    )

    async def scenario() -> None:
        async with FakeAgent("a") as a, serving([a]) as served:
            await ask(served.port, request(headers=["x-request-id: .."]))
            url = f"127.0.0.1:{served.port}"

            def command(*arguments: str) -> subprocess.CompletedProcess[str]:
                return subprocess.run(
                    [sys.executable, "-c", code, *arguments, "--url", url], capture_output=True, text=True, timeout=60
                )

            whole, listed, raw, unknown = await asyncio.gather(
                *(asyncio.to_thread(command, *args) for args in ([".."], [], ["..", "--json"], ["gone"]))
            )
            assert "only node ready" in whole.stdout
            assert "1 of 1 kept" in listed.stdout
            assert json.loads(raw.stdout)["request_id"] == ".."
            assert unknown.returncode == 1
            assert "'gone'" in unknown.stderr
            assert len(unknown.stderr.splitlines()) == 1

    run(scenario())


def test_a_list_and_a_wide_fleet_fit_eighty_columns() -> None:
    fleet = Fleet(40)
    fleet.holds(33, text(1))
    fleet.scheduler.on_load(fleet.nodes[33], Load(max_running=10, running=10, prefill_rate=RATE))
    placement = fleet.scheduler.place(text(1), "", fleet.nodes)
    decision = placement.decision
    decision.request_id, decision.node = "x" * 128, placement.choice(0).node
    shown = printed(render(told(placement)))
    assert "29 more candidates in --json" in shown
    assert "127.0.0.1:9033" in shown
    listed = {"decisions": [brief(decision, SETTINGS, 0.0)], "kept": 1}
    assert "near_tie" in printed(render_list(json.loads(json.dumps(listed))))
    decision.request_id = "5be7c1f2a9d03e64-2fab"  # As routers make them: on one line.
    listed = {"decisions": [brief(decision, SETTINGS, 0.0)], "kept": 1}
    assert decision.request_id in printed(render_list(json.loads(json.dumps(listed))))

"""One line for each request."""

import asyncio
from typing import Any

import pytest

from tests.router.fakes import FakeAgent, Fault
from tests.router.serving import ask, chat, request, run, serving, until
from trunkline.router import request_log
from trunkline.router.counters import Outcome
from trunkline.router.request_log import MAX_WAITING, REPORT_S, Ended, RequestLog
from trunkline.shared.wire import Finished


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", request_log.log.name)
    return caplog


def fields(lines: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(line)["fields"] for line in lines.records if line.name == request_log.log.name]


def test_each_request_has_its_figures_and_never_its_prompt(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "REPORT_S", 60.0)  # On a busy machine a report takes longer than a second.

    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            await until(lambda: served.router.context.registry.nodes[0].load_at > 0)  # It hears of what is reported.
            reply = await ask(served.port, request(body=chat("a secret prompt " * 40, stream=True)))
            agent.publisher.finished(Finished(reply.headers["x-request-id"], 160, 16, 4, 0.0, 0.01))
            await ask(served.port, request(body=chat("a secret prompt", model="none")))
            await until(lambda: len(fields(lines)) == 2)
            served_, refused = sorted(fields(lines), key=lambda line: line["outcome"])
            assert (served_["id"], served_["node"]) == (reply.headers["x-request-id"], "a")
            assert (served_["outcome"], served_["status"], served_["cached_tokens"]) == ("ok", 200, 16)
            assert 0 < served_["ttft_s"] <= served_["e2e_s"]
            assert (served_["prompt_tokens"], served_["output_tokens"]) == (160, 4)
            assert served_["matched_tokens"] == int(reply.headers["x-trunkline-matched-tokens"])
            assert (refused["outcome"], refused["status"]) == ("rejected", 404)
            assert "none" in refused["error"]
            assert "secret" not in repr(fields(lines))

    run(scenario())


def test_bodies_are_logged_if_told(lines: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent], log_bodies=True) as served:
            await ask(served.port, request(body=chat("a secret prompt")))
            await until(lambda: len(fields(lines)) == 1)
            assert "a secret prompt" in fields(lines)[0]["body"]

    run(scenario())


def test_what_broke_and_who_left_is_said(lines: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            agent.fault = Fault.CUT
            await ask(served.port, request(body=chat(stream=True)))
            agent.fault = Fault.STALL
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(request(body=chat(stream=True)))
            await until(lambda: served.inflight == 1)
            writer.close()
            await until(lambda: len(fields(lines)) == 2)
            broken, left = fields(lines)
            assert (broken["outcome"], broken["status"]) == ("broken", 200)
            assert "node a: connection lost in the response" in broken["error"]
            assert (left["outcome"], left["error"]) == ("left", "the client left")

    run(scenario())


def test_nobody_waits_for_lines_below_the_level(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with FakeAgent("a") as agent, serving([agent]) as served:
            assert served.router.context.request_log is None

    caplog.set_level("WARNING", request_log.log.name)
    run(scenario())


def test_lines_wait_for_the_report_in_order_and_not_for_long(lines: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RequestLog(clock=lambda: now)
    for number, outcome in enumerate((Outcome.OK, Outcome.LEFT)):
        decision = _Decision() if outcome is Outcome.OK else None
        log.add(Ended(str(number), "t", outcome, 200, "", decision, None))  # type: ignore[arg-type]
    now = 0.2
    log.expire()
    assert fields(lines) == []
    now = REPORT_S
    log.expire()
    assert [line["id"] for line in fields(lines)] == ["0", "1"]
    assert log.deadline == float("inf")


def test_what_waits_is_bounded(lines: pytest.LogCaptureFixture) -> None:
    log = RequestLog(clock=lambda: 0.0)
    for number in range(MAX_WAITING + 5):
        log.add(Ended(str(number), "", Outcome.OK, 200, "", _Decision(), None))  # type: ignore[arg-type]
    assert [line["id"] for line in fields(lines)] == list("01234")
    log.abandon()
    assert len(fields(lines)) == MAX_WAITING + 5


class _Decision:
    """As far as a line shows it."""

    model, node, tokens, matched, failures, finished = "m", None, 10, 0, (), None
    queued_s = first_byte_s = total_s = 0.0

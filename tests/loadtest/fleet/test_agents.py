"""A real agent with the emulated engine: its counters, and that its answers are known."""

from pathlib import Path

import httpx
import pytest

from trunkline.loadtest.fleet.agents import agents, await_idle, counters
from trunkline.loadtest.fleet.service import StartError
from trunkline.loadtest.load.check import find_check
from trunkline.loadtest.load.conversation import Request
from trunkline.loadtest.load.server import find
from trunkline.loadtest.load.settings import Range, Settings
from trunkline.loadtest.load.stream import Answer
from trunkline.shared.errors import TrunklineError

EMULATED = ("--engine", "emulated", "--pages", "300", "--time-scale", "0.1", "--page-bytes", "256")
TALK = (
    {"role": "system", "content": "You sort letters. " * 20},
    {"role": "user", "content": "Which one is first?"},
    {"role": "assistant", "content": "This one."},
    {"role": "tool", "tool_call_id": "call-1", "content": "7 letters, zwölf stamps"},
)


def test_an_agents_answer_is_the_known_one_and_its_counters_tell_of_it(tmp_path: Path) -> None:
    small = Settings(long_share=0.0, inputs=Range(8, 64), system=8)
    with agents(1, EMULATED, tmp_path) as (agent,):
        server = find(agent.url, small)
        check = find_check(server)
        body = {"model": server.model, "messages": TALK, "max_tokens": 9, "ignore_eos": True}
        texts = [
            httpx.post(f"{agent.url}/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
            for _ in range(2)
        ]
        await_idle([agent.url])
        now = counters(agent.url)
    assert check is not None
    request = Request("chat", 0, TALK, 9, None)
    assert texts[0] == texts[1]
    assert check(request, Answer(0.0, text=texts[0]))
    assert not check(request, Answer(0.0, text=texts[0].replace(texts[0][0], "#")))
    part = texts[0][:-4]
    assert not check(request, Answer(0.0, text=part))
    assert check(request, Answer(0.0, text=part, given_up=True)), "as far as it came"
    assert not check(request, Answer(0.0, text=f"#{part}", given_up=True))
    assert now["cached_tokens_total"] > 0
    assert now.tiers() == ["device"]
    assert now.pages("device")["total"] == 300


def test_an_agent_that_is_gone_is_said() -> None:
    with pytest.raises(TrunklineError, match=r"http://127\.0\.0\.1:1 does not answer: .*refused"):
        await_idle(["http://127.0.0.1:1"])


def test_an_agent_that_does_not_start_is_said(tmp_path: Path) -> None:
    said = r"agent-0 ended with status 1: .*profile 'nix' is not known"
    with (
        pytest.raises(StartError, match=said),
        agents(1, ("--engine", "emulated", "--profile", "nix"), tmp_path),
    ):
        pass

"""The whole system as a user starts it: `trunkline up`, the default model, two agents, one router."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parent.parent
PAGE = 16
READY_S = 240.0
MODEL = "smollm2-135m-instruct"
SYSTEM = "You are a patient librarian who answers in one short sentence. " + " ".join(
    f"Shelf {shelf} holds books about {subject}, and visitors may borrow {shelf % 5 + 1} of them for a week."
    for shelf, subject in enumerate(["history", "rivers", "music", "bread", "stars", "engines", "gardens"] * 6, start=1)
)


@dataclass
class Cluster:
    url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    port = _free_port()
    log = tmp_path_factory.mktemp("up") / "log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "trunkline.shared.cli", "up", "--agents", "2", "--port", str(port)]
            + ["--agent-port", str(_free_port()), "--kv-memory", "128MiB"],
            stdout=sink,
            stderr=subprocess.STDOUT,
            text=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _await_ready(url, process, log)
        yield Cluster(url, process)
    finally:
        before = len(log.read_text())
        process.send_signal(signal.SIGINT)
        try:
            status = process.wait(60)
        finally:
            process.kill()
    assert status == 0, log.read_text()[-4000:]
    assert "Traceback" not in log.read_text()
    assert "WARNING" not in log.read_text()[before:], "a clean end alarms nobody"


@pytest.mark.timeout(300)
def test_a_real_model_answers_in_english(cluster: Cluster) -> None:
    answer = _ask(cluster, [{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-trunkline-node"] in {"agent-0", "agent-1"}
    assert answer.headers["x-request-id"]


@pytest.mark.timeout(300)
def test_the_second_question_goes_to_the_node_that_has_the_prompt_and_skips_its_computation(cluster: Cluster) -> None:
    first = _ask(cluster, _chat("Where are the books about bread?"))
    assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < PAGE * 4
    prompt = first.json()["usage"]["prompt_tokens"]
    assert prompt > 900

    second = _until_summary_arrives(cluster, lambda: _ask(cluster, _chat("How long may I keep a book on stars?")))
    cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    shared_pages = (prompt - 40) // PAGE  # Both prompts differ only in their last, short message.
    assert second.headers["x-trunkline-node"] == first.headers["x-trunkline-node"]
    assert cached >= 0.95 * shared_pages * PAGE
    assert cached % PAGE == 0
    assert abs(int(second.headers["x-trunkline-matched-tokens"]) - cached) <= 4 * PAGE


@pytest.mark.timeout(300)
def test_a_hit_is_explained_with_what_was_really_cached(cluster: Cluster) -> None:
    first = _ask(cluster, _chat("Which shelf holds books about engines?"))
    second = _until_summary_arrives(cluster, lambda: _ask(cluster, _chat("Which shelf holds books about stars?")))
    usage = second.json()["usage"]
    deadline = time.monotonic() + 10
    while (view := _explained(cluster, second))["outcome"]["reported"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert view["node"] == first.headers["x-trunkline-node"]
    assert view["matched_tokens"] == int(second.headers["x-trunkline-matched-tokens"])
    assert view["candidates"][0]["node"] == view["node"]
    assert view["candidates"][0]["tiers"]["device"] > 900
    assert view["outcome"]["status"] == 200
    reported = view["outcome"]["reported"]
    assert reported["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 900
    assert reported["prompt_tokens"] == usage["prompt_tokens"]
    assert 0 < reported["prefill_s"] < view["outcome"]["first_byte_s"] <= view["outcome"]["total_s"]


@pytest.mark.timeout(300)
def test_the_same_answer_with_and_without_the_cache(cluster: Cluster) -> None:
    messages = _chat("Which shelf is about rivers?")
    answers = {_ask(cluster, messages).json()["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(answers) == 1


@pytest.mark.timeout(300)
def test_streams_through_the_router(cluster: Cluster) -> None:
    body = {"model": MODEL, "messages": _chat("Say hello."), "stream": True, "max_tokens": 12, "temperature": 0}
    with httpx.stream("POST", f"{cluster.url}/v1/chat/completions", json=body, timeout=120) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in lines[:-1])
    assert text.strip()


@pytest.mark.timeout(300)
def test_status_shows_both_nodes(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "trunkline.shared.cli", "status", "--json", "--url", cluster.url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    nodes = json.loads(shown.stdout)["nodes"]
    assert {node["name"] for node in nodes} == {"agent-0", "agent-1"}
    assert all(node["state"] == "ready" for node in nodes)


@pytest.mark.timeout(300)
def test_every_metric_is_documented(cluster: Cluster) -> None:
    _ask(cluster, [{"role": "user", "content": "Hi"}])
    documented = set(re.findall(r"trunkline_\w+", (ROOT / "docs/operate/metrics.md").read_text()))
    agent = str(_nodes(cluster)[0]["url"])
    served = {
        line.split()[2]
        for url in (cluster.url, agent)
        for line in httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
        if line.startswith("# HELP")
    }
    assert served == documented


@pytest.mark.timeout(300)
def test_a_short_load_test_finds_shared_prompts_in_the_caches(cluster: Cluster, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "locust", "-f", ROOT / "loadtest/locustfile.py", "--headless", "--reports", tmp_path]
    small = shlex.split("--inputs 120:200 --system 100 --shared-share 1 --long-share 0 --outputs 2:4 --turns 2")
    line += ["--host", cluster.url, "-u", "2", "-t", "8s", *small]
    run = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["requests"] >= 2
    assert summary["errors"] == {}
    assert summary["unfinished"] == 0
    assert summary["hit_ratio"] > 0.2
    assert set(summary["nodes"]) <= {"agent-0", "agent-1"}


@pytest.mark.timeout(300)
def test_a_killed_agent_is_started_again_and_its_old_summary_is_void(cluster: Cluster) -> None:
    first = _ask(cluster, _chat("Which shelf is about music?"))
    node = first.headers["x-trunkline-node"]
    os.kill(_agent_pid(cluster, node), signal.SIGKILL)
    other = _ask(cluster, _chat("Which shelf is about gardens?"))
    assert other.status_code == 200
    assert other.headers["x-trunkline-node"] != node
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and not all(entry["state"] == "ready" for entry in _nodes(cluster)):
        time.sleep(0.5)
    assert {entry["state"] for entry in _nodes(cluster)} == {"ready"}


def _chat(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def _ask(cluster: Cluster, messages: list[dict[str, str]]) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0}
    response = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response


def _explained(cluster: Cluster, response: httpx.Response) -> dict[str, Any]:
    command = [sys.executable, "-m", "trunkline.shared.cli", "explain", response.headers["x-request-id"], "--json"]
    shown = subprocess.run([*command, "--url", cluster.url], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(shown.stdout)  # type: ignore[no-any-return]


def _until_summary_arrives(cluster: Cluster, ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Events travel within tens of milliseconds; a loaded machine is given some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not any(node["keys"] for node in _nodes(cluster)):
        time.sleep(0.05)
    return ask()


def _nodes(cluster: Cluster) -> list[dict[str, object]]:
    return httpx.get(f"{cluster.url}/admin/nodes", timeout=10).json()["nodes"]  # type: ignore[no-any-return]


def _agent_pid(cluster: Cluster, name: str) -> int:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == cluster.process.pid and "agent" in arguments and name in arguments:
            return int(entry.name)
    raise LookupError(name)


def _await_ready(url: str, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail(f"the cluster did not come up:\n{log.read_text()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

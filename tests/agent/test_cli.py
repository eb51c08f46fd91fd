"""`trunkline agent` as a user runs it: what it refuses, and its life from start to SIGTERM."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from trunkline.agent import cli
from trunkline.agent.engine.builtin.executor import device_pages
from trunkline.agent.engine.emulated.answer import expected
from trunkline.agent.engine.emulated.profile import PROFILES
from trunkline.agent.engine.emulated.settings import Emulation
from trunkline.agent.engine.emulated.text import END_ID, EmulatedText
from trunkline.agent.settings import AgentSettings
from trunkline.agent.sizes import parse_bytes
from trunkline.shared.canonical import Message
from trunkline.shared.errors import ConfigError

AGENT = [sys.executable, "-m", "trunkline.shared.cli", "agent"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("2GB", 2_000_000_000), ("1048576", 1 << 20), ("1.5 gib", 3 << 29), ("64k", 64_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, "--kv-memory") == size


@pytest.mark.parametrize(
    "text", ["", "-5MiB", "much", "0", "5TiB", "1e9", "MiB", "9" * 400, "9" * 300 + "GiB", str(1 << 63)]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        parse_bytes(text, "--kv-memory")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "no-such-model"], "no-such-model"),
        (["--kv-memory", "lots"], "--kv-memory"),
        (["--step-tokens", "8", "--max-running", "8"], "--step-tokens"),
        (["--log-level", "loud"], "--log-level"),
        (["--cluster-secret-file", "/does/not/exist"], "/does/not/exist"),
        (["--host", "256.1.1.1"], "256.1.1.1"),
        (["--advertise", "http://10.0.0.1:8100"], "--registry"),
        (["--registry", "redis://h", "--advertise", "10.0.0.1"], "http://host:port"),
        (["--registry", "redis://h", "--host", "0.0.0.0"], "--advertise"),
        (["--registry", "http://h"], "--registry"),
        (["--engine", "emulated", "--profile", "gpt-9"], "llama-8b-h100"),
        (["--engine", "emulated", "--profile", "/does/not/exist.json"], "/does/not/exist.json"),
        (["--engine", "emulated", "--page-bytes", "1000"], "--page-bytes"),
        (["--engine", "emulated", "--model", "smollm2-135m-instruct"], "--profile"),
        (["--engine", "emulated", "--max-running", "9000"], "--step-tokens"),
        (["--profile", "llama-8b-h100"], "--engine emulated"),
        (["--page-bytes", "4096"], "--engine emulated"),
        (["--time-scale", "0.1"], "--engine emulated"),
    ],
)
def test_flags_that_cannot_be_used(model_path: Path, flags: list[str], words: str) -> None:
    app = typer.Typer()
    app.command()(cli.agent)
    result = CliRunner().invoke(app, ["--port", "0", *flags])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("flags", "pages", "limits"),
    [
        ([], 390_000 // 16, (256, 8192)),
        (["--profile", "smollm2-135m-cpu"], 17_472 // 16, (64, 512)),
        (["--pages", "50", "--max-running", "8", "--step-tokens", "64"], 50, (8, 64)),
        (["--kv-memory", "1MiB", "--page-bytes", "512"], 2048, (256, 8192)),
    ],
)
def test_an_emulated_node_is_what_its_profile_says_unless_flags_do(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], pages: int, limits: tuple[int, int]
) -> None:
    served: list[AgentSettings] = []
    monkeypatch.setattr("trunkline.agent.server.serve", lambda settings, _: served.append(settings))
    app = typer.Typer()
    app.command()(cli.agent)
    assert CliRunner().invoke(app, ["--port", "0", "--engine", "emulated", *flags]).exit_code == 0
    (settings,) = served
    assert isinstance(settings.model, Emulation)
    assert device_pages(settings, settings.model.page_bytes) == pages
    assert (settings.limits.max_running, settings.limits.step_tokens) == limits
    assert settings.served_name == f"emulated-{settings.model.profile.name}"


def refused(*flags: str) -> str:
    """The one line on stderr of an agent that does not start."""
    done = subprocess.run([*AGENT, *flags], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("trunkline: ")
    return line


def test_a_port_that_is_taken(model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1 port {port}" in refused("--port", str(port))


def test_a_broken_model_file(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + b"\xff" * 100)
    assert "broken.gguf" in refused("--port", "0", "--model", str(file))


@pytest.fixture(scope="module")
def agent(model_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Running, with its URL."""
    flags = ["--port", "0", "--pages", "100", "--threads", "1", "--name", "node-7", "--log-level", "warning"]
    flags += ["--drain-timeout", "200"]  # A busy machine takes long for sixty tokens.
    with subprocess.Popen([*AGENT, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("node-7 serves smollm2-135m-instruct on http://127.0.0.1:")
            assert line.endswith(": 100 pages, 1600 tokens of KV, context 1600\n")
            yield process, line.split()[4].rstrip(":")
        finally:
            process.kill()


def test_an_agent_serves_and_leaves_cleanly(agent: tuple[subprocess.Popen[str], str]) -> None:
    process, url = agent
    body = {"model": "smollm2-135m-instruct", "max_tokens": 12, "temperature": 0}
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    with httpx.Client(base_url=url, timeout=60) as client:
        answer = client.post("/v1/chat/completions", json=body | question)
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
        # A stream that runs while SIGTERM comes is finished.
        request = body | {"prompt": "Once upon a time", "stream": True, "ignore_eos": True, "max_tokens": 60}
        with client.stream("POST", "/v1/completions", json=request) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            # Whoever asks meanwhile hears that the node drains.
            while (ready := httpx.get(f"{url}/readyz")).status_code == 200:
                pass
            assert ready.status_code == 503
            assert "draining" in ready.json()["error"]["message"]
            assert httpx.post(f"{url}/v1/completions", json=request).status_code == 503
            events = [line for line in (first, *lines) if line]
        assert events[-1] == "data: [DONE]"
        tokens = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert tokens[-1]["choices"][0]["finish_reason"] == "length"
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_an_emulated_agent_serves_what_is_expected_without_torch() -> None:
    flags = ["--port", "0", "--name", "node-8", "--engine", "emulated", "--time-scale", "0.1", "--log-level", "warning"]
    text = EmulatedText()
    prompt = list(range(1000, 1100))
    right = b"".join(map(text.token_bytes, expected(prompt, 20, ignore_eos=True))).decode()
    body = {"model": "emulated-llama-8b-h100", "prompt": prompt, "max_tokens": 20, "ignore_eos": True}
    with subprocess.Popen([*AGENT, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("node-8 serves emulated-llama-8b-h100 on http://127.0.0.1:")
            assert line.endswith(": 24375 pages, 390000 tokens of KV, context 131072\n")
            with httpx.Client(base_url=line.split()[4].rstrip(":"), timeout=60) as client:
                assert client.get("/v1/models").json()["data"][0]["id"] == "emulated-llama-8b-h100"
                assert client.get("/trunkline/info").json()["max_running"] == PROFILES["llama-8b-h100"].max_running
                for cached in (0, 96):
                    answer = client.post("/v1/completions", json=body).json()
                    assert answer["choices"][0]["text"] == right
                    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
                with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                    events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
                assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == right
                messages = [{"role": "user", "content": "Wie geht's?"}]
                chat = text.encode(text.render_chat([Message("user", "Wie geht's?")]), add_special=False).ids
                reply = [token for token in expected(chat, 5000) if token != END_ID]
                answer = client.post("/v1/chat/completions", json={"model": body["model"], "messages": messages}).json()
                assert answer["choices"][0]["message"]["content"] == b"".join(map(text.token_bytes, reply)).decode()
                assert answer["choices"][0]["finish_reason"] == "stop"
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        finally:
            process.terminate()
            assert process.wait(30) == 0

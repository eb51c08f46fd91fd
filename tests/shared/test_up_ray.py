"""`trunkline up --ray ADDRESS` on a real Ray of two nodes: an actor's process, an actor and a node are killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from tests.redis_server import redis_server
from trunkline.shared.cli import build
from trunkline.shared.errors import ConfigError
from trunkline.shared.ray_cluster import patiently

DEADLINE_S = 180.0
TOKEN = "an admin token of this test"
PROMPT = "A long prefix that all of these have in common. " * 40


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster` with room for the fleet on either of its nodes: half a minute of starting."""
    # pytest's folder is too long for the names of its sockets.
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", folder)
        environment.setenv("RAY_AUTH_MODE", "disabled")
        environment.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        environment.setenv("TRUNKLINE_ADMIN_TOKEN", TOKEN)
        environment.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        made: list[Any] = []

        def start() -> None:
            made.append(Cluster(initialize_head=False))
            # Nobody looks at Ray's page or its driver's log, and it does not grow.
            spared = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
            for _ in range(2):
                made[-1].add_node(num_cpus=4, num_gpus=1, object_store_memory=100 << 20, **spared)

        try:
            patiently(start, lambda: made[-1].shutdown())
            yield made[-1]
        finally:
            made[-1].shutdown()


@contextlib.contextmanager
def up(address: str, folder: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(one.getsockname()[1]), str(other.getsockname()[1])]
    command = [sys.executable, "-m", "trunkline.shared.cli", "up", "--ray", address, "--threads", "1"]
    command += ["--engine", "emulated", "--profile", "llama-8b-h100", "--time-scale", "0.1"]
    command += ["--port", ports[0], "--agent-port", ports[1], *flags]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DEADLINE_S)
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def command_of(name: str) -> psutil.Process | None:
    """The process of the agent that has this name, in the Ray cluster of this test."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trunkline.shared.cli" in words and name in words:
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RAY_TMPDIR") == os.environ["RAY_TMPDIR"]:
                    return process
    return None


@pytest.mark.timeout(600)
def test_several_routers_share_a_fleet_with_gpus_through_a_registry(nodes: Any, tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    flags = ("--routers", "2", "--gpus", "1", "--registry")
    with redis_server() as redis, up(nodes.address, tmp_path, *flags, redis.url) as process:
        until(lambda: "Trunkline serves" in log.read_text() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        ready = [line.split() for line in log.read_text().splitlines() if line.startswith("[router-")]
        urls = {words[0]: words[3] for words in ready if words[1] == "ready"}
        assert set(urls) == {"[router-0]", "[router-1]"}
        for name in ("agent-0", "agent-1"):
            assert (agent := command_of(name)) is not None
            assert agent.environ()["CUDA_VISIBLE_DEVICES"] == "0", "the GPU of its node"
        for url in urls.values():
            with httpx.Client(base_url=url, timeout=30.0, headers={"authorization": f"Bearer {TOKEN}"}) as client:

                def found(client: httpx.Client = client) -> int:
                    body = {"prompt": PROMPT, "max_tokens": 4, "model": "emulated-llama-8b-h100"}
                    answer = client.post("/v1/completions", json=body).raise_for_status()
                    return int(answer.headers["x-trunkline-matched-tokens"])

                until(lambda found=found: found() > 0, log)  # type: ignore[misc]
                view = client.get("/admin/nodes").json()
                assert {node["name"] for node in view["nodes"]} == {"agent-0", "agent-1"}
                assert len(view["registry"]["routers"]) == 1, "the other one"


@pytest.mark.timeout(600)
def test_actors_and_nodes_that_die_come_back(nodes: Any, tmp_path: Path) -> None:
    """The last one of the cluster's: a node of it is gone afterwards."""
    log = tmp_path / "up.log"
    with up(nodes.address, tmp_path) as process:
        until(lambda: "Trunkline serves" in log.read_text() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        url = next(word for word in log.read_text().split() if word.startswith("http"))
        router = next(line.split()[3] for line in log.read_text().splitlines() if line.startswith("[router-0] ready"))
        assert url
        client = httpx.Client(base_url=router, timeout=30.0, headers={"authorization": f"Bearer {TOKEN}"})

        def asked() -> int:
            body = {"prompt": PROMPT, "max_tokens": 4, "model": "emulated-llama-8b-h100"}
            with contextlib.suppress(httpx.TransportError):
                answer = client.post("/v1/completions", json=body)
                assert answer.status_code in {200, 502, 503}, answer.text
                if answer.status_code == 200:
                    return int(answer.headers["x-trunkline-matched-tokens"])
            return -1

        def states() -> dict[str, str]:
            with contextlib.suppress(httpx.TransportError):
                view = client.get("/admin/nodes").json()
                return {node["name"]: node["state"] for node in view["nodes"]}
            return {}

        def whole() -> bool:
            return states() == {"agent-0": "ready", "agent-1": "ready"}

        until(whole, log)
        until(lambda: asked() > 0, log)  # The second one finds what the first has left.

        for victim in (lambda found: found, lambda found: found.parent()):  # the agent; its actor
            found = command_of("agent-0")
            assert found is not None
            victim(found).kill()
            until(lambda: not whole(), log)
            until(lambda: asked() >= 0, log)  # The other one serves.
            until(whole, log)
            assert (fresh := command_of("agent-0")) is not None
            assert fresh.pid != found.pid

        # What the processes say is where Ray's users look for it.
        said = "".join(path.read_text() for path in Path(os.environ["RAY_TMPDIR"]).glob("**/logs/worker-*.out"))
        assert said.count("agent-0 serves emulated-llama-8b-h100") >= 3
        assert "router on http" in said

        nodes.remove_node(nodes.worker_nodes.copy().pop(), allow_graceful=False)
        until(lambda: asked() >= 0, log)
        until(whole, log)
        until(lambda: asked() > 0, log)

        shown = CliRunner().invoke(build(), ["status", "--json", "--url", router])
        assert {node["name"] for node in json.loads(shown.output)["nodes"]} == {"agent-0", "agent-1"}
        client.close()
    assert "[up] stopped" in log.read_text()
    assert process.returncode == 0
    assert command_of("agent-0") is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--routers", "2", "--ray"], "in a --registry"),
        (["--gpus", "1"], "are for --ray"),
        (["10.0.0.5:6379"], "--ray 10.0.0.5:6379"),
        (["--ray", ""], "ADDRESS is empty"),
        (["--registry", "redis://h"], "are for --ray"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: list[str], said: str) -> None:
    refused = CliRunner().invoke(build(), ["up", *flags])
    assert isinstance(refused.exception, ConfigError)
    assert said in str(refused.exception)


def test_no_cluster_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = CliRunner().invoke(build(), ["up", "--ray", f"127.0.0.1:{port}"])
    assert isinstance(refused.exception, ConfigError)
    assert "no cluster" in str(refused.exception)


def test_nodes_that_do_not_start_in_time_are_started_again() -> None:
    outcomes = [RuntimeError("timed out"), RuntimeError("timed out"), "started"]
    undone: list[int] = []

    def start() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert patiently(start, lambda: undone.append(len(outcomes))) == "started"
    assert undone == [2, 1]
    outcomes[:] = [RuntimeError("timed out")] * 3
    with pytest.raises(RuntimeError, match="timed out"):
        patiently(start, lambda: None)

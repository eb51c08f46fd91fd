"""The router's bench: its backend and client with each other, and a short run of the whole."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from trunkline.loadtest.bench import client, router
from trunkline.loadtest.bench.client import Bodies, drive
from trunkline.shared.errors import ConfigError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def backend() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "trunkline.loadtest.bench.backend", str(port)])
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def test_every_request_is_answered_and_every_chunk_counted(backend: int) -> None:
    plain = drive("127.0.0.1", backend, Bodies(2000, 1000), 4, requests=20)
    streamed = drive("127.0.0.1", backend, Bodies(2000, 1000, stream_us=100), 4, requests=8)
    assert plain.requests >= 20
    assert (plain.chunks, plain.failures, streamed.failures) == (0, 0, 0)
    assert streamed.chunks == 64 * streamed.requests


def test_no_two_bodies_are_alike_and_most_share_a_beginning() -> None:
    bodies = [body for body, _ in zip(Bodies(3000, 2000), range(400), strict=False)]
    assert len(set(bodies)) == 400
    beginnings = [body[:1500] for body in bodies]
    assert 0.7 < max(beginnings.count(one) for one in set(beginnings)) / 400 < 0.9


def test_nothing_that_answers() -> None:
    with pytest.raises(ConfigError, match="nothing answers"):
        drive("127.0.0.1", free_port(), Bodies(100, 50), 1, requests=1)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "http://10.0.0.1:80", "http://127.0.0.1", "http://127.0.0.1:1"])
def test_a_peer_must_run_here(url: str) -> None:
    with pytest.raises(ConfigError, match="peer"):
        router.run(1, {"peer": url})


@pytest.mark.timeout(180)
def test_a_short_run_with_a_peer(backend: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "BACKENDS", (backend,))
    for name, small in {"SECONDS": 0.3, "CONNECTIONS": 8, "LOOKS": 2}.items():
        monkeypatch.setattr(router, name, small)
    monkeypatch.setattr(client, "BODIES", 20)
    rows = router.run(1, {"peer": f"http://127.0.0.1:{backend}"}, prompts=200)
    cpu, memory = rows[:3], rows[3:]
    assert all("(peer)" in str(row["figure"]) and float(str(row["ours"])) >= 0 for row in cpu)
    assert all(float(str(row["ours"])) > 10 for row in memory)

"""Locust itself, in a process of its own (it patches sockets), against a server that answers at once."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.loadtest.load.stub import Stub, serving

ROOT = Path(__file__).parents[3]
_HANGS_S = 120.0
"""Locust takes a second to start, and half a minute on a machine that has much else to do."""
BAD_TRACE = "<a file with a bad line>"
SMALL = [
    "--inputs",
    "64:200",
    "--system",
    "50",
    "--long-share",
    "0",
    "--outputs",
    "2:4",
    "--stop-timeout",
    "5",
    "--spawn-rate",
    "50",
]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest/locustfile.py"), *map(str, arguments)]


def headless(reports: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = command("--headless", "--reports", reports, *SMALL, *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=_HANGS_S)


def the_report(reports: Path) -> dict[str, Any]:
    (folder,) = reports.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["configuration.json", "report.html", "summary.json"]
    assert "first token" in (folder / "report.html").read_text()
    return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]


def test_a_closed_loop_of_conversations_leaves_a_report(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        run = headless(
            tmp_path, "--host", stub.url, "-u", 4, "-t", "2s", "--turns", 3, "--think", 0.05, "--tool-share", 0.5
        )
    assert run.returncode == 0, run.stderr
    summary = the_report(tmp_path)
    assert summary["requests"] > 4
    assert summary["errors"] == {}
    assert summary["nodes"]["stub-0"]["requests"] == summary["requests"]
    assert summary["hit_ratio"] == pytest.approx(0.5, abs=0.02)
    assert 0 < summary["ttft_s"]["p50"] <= summary["e2e_s"]["p50"]
    assert set(summary["kinds"]) == {"agent", "chat"}
    assert max(len(body["messages"]) for body in stub.bodies) == 6
    configuration = json.loads(next(tmp_path.glob("*/configuration.json")).read_text())
    assert configuration["settings"]["turns"] == [3, 3]
    assert configuration["load"]["users"] == 4


@pytest.mark.parametrize(("loop", "first"), [(("-u", 5), 5), (("--rate", 20, "--open-conversations", 7), 7)])
def test_a_run_that_settles_ends_with_its_window(tmp_path: Path, loop: tuple[object, ...], first: int) -> None:
    settles = ("--turns", 3, "--think", 0.1, "--warm-up", 50, "--settle", 0.3, "--window", 1)
    with serving(Stub()) as stub:
        run = headless(tmp_path, "--host", stub.url, *loop, *settles)
    assert run.returncode == 0, run.stderr
    summary = the_report(tmp_path)
    assert summary["unsettled"] == 0
    assert 0 < summary["requests"] <= len(stub.bodies) - first, "the first of each conversation do not count"
    begin, end = summary["window"]
    assert end - begin == pytest.approx(summary["seconds"])
    assert summary["seconds"] >= 1


def test_errors_are_counted_by_their_kind_and_end_in_the_exit_status(tmp_path: Path) -> None:
    with serving(Stub(fails=3)) as stub:
        run = headless(tmp_path, "--host", stub.url, "--rate", 20, "-t", "2s", "--cancel-share", 0.2)
    assert run.returncode == 1
    summary = the_report(tmp_path)
    assert summary["errors"] == {"HTTP 503": pytest.approx(len(stub.bodies) // 3, abs=1)}
    assert summary["given_up"] > 0
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("loop", [("-u", 3), ("--rate", 20, "--open-conversations", 3)])
def test_a_server_that_never_answers_ends_in_the_exit_status(tmp_path: Path, loop: tuple[object, ...]) -> None:
    """With the run, and not only with the patience of those who wait for an answer."""
    settles = ("--warm-up", 1000, "--settle", 0.3, "--window", 1)
    with serving(Stub(hangs=True)) as stub:
        run = headless(tmp_path, "--host", stub.url, "-t", "2s", "--stop-timeout", 1, *loop, *settles)
    assert run.returncode == 1
    assert "no request was answered" in run.stderr
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert (summary["requests"], summary["unsettled"], summary["unfinished"]) == (0, 3, 3)


def test_a_trace_ends_by_itself(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 300 * n, "input_length": 40, "hash_ids": [1, 2, n + 3], "output_length": 2} for n in range(5)
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serving(Stub()) as stub:
        run = headless(tmp_path / "reports", "--host", stub.url, "--trace", trace, "--block-tokens", 16)
    assert run.returncode == 0, run.stderr
    summary = the_report(tmp_path / "reports")
    assert summary["kinds"] == {"trace": 5}
    assert summary["seconds"] >= 1.2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "http://127.0.0.1:1"), "no server that speaks OpenAI's API at http://127.0.0.1:1"),
        (("--trace", "there/is/none"), "there/is/none"),
        (("--trace", BAD_TRACE), "t.jsonl:2: JSON is malformed"),
        (("--model", "nix"), "--model 'nix' is not served, but stub"),
        (("--inputs", "50000"), "do not fit into the context of stub, which is 40000"),
    ],
)
def test_bad_input_is_one_line_and_no_report(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, arguments: tuple[str, str], said: str
) -> None:
    trace = tmp_path_factory.mktemp("trace") / "t.jsonl"
    line = {"timestamp": 0, "input_length": 512, "hash_ids": [1], "output_length": 2}
    trace.write_text(f"{json.dumps(line)}\nnone\n")
    given = [str(trace) if argument == BAD_TRACE else argument for argument in arguments]
    with serving(Stub()) as stub:
        run = headless(tmp_path, "--host", stub.url, "-t", "5s", *given)
    assert run.returncode != 0
    assert said in run.stderr.strip().splitlines()[-1]
    assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_web_page_starts_a_run_and_a_bad_one_leaves_it_serving(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = f"http://127.0.0.1:{port}"
    log = tmp_path / "log"
    reports = tmp_path / "reports"
    line = command("--web-host", "127.0.0.1", "--web-port", port, "--reports", reports, "--logfile", log, *SMALL)
    with serving(Stub()) as stub, subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        try:
            _until(lambda: httpx.get(page).status_code == 200)
            swarm = {"user_count": 2, "spawn_rate": 10, "host": "http://127.0.0.1:1"}
            httpx.post(f"{page}/swarm", data=swarm)
            _until(lambda: "no server that speaks OpenAI's API at http://127.0.0.1:1" in log.read_text())
            assert list(reports.iterdir()) == []
            httpx.post(f"{page}/swarm", data={**swarm, "host": stub.url})
            _until(lambda: len(stub.bodies) > 2)
            httpx.post(f"{page}/stop", timeout=30)
        finally:
            process.terminate()
            process.wait(30)
    assert the_report(reports)["requests"] > 0
    assert "Traceback" not in log.read_text()


def _until(true: Any) -> None:
    deadline = time.monotonic() + _HANGS_S
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"nothing has happened in {_HANGS_S:.0f} s")

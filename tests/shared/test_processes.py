"""The watched child process, with real processes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from trunkline.shared.processes import Child

IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)


def python(code: str, lines: list[str]) -> Child:
    return Child("child", [sys.executable, "-c", code], lambda name, line: lines.append(line))


def test_output_is_relayed_and_status_returned() -> None:
    async def scenario() -> tuple[int, list[str]]:
        lines: list[str] = []
        child = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", lines)
        await child.start({})
        return await child.wait(), lines

    status, lines = asyncio.run(scenario())
    assert status == 3
    assert sorted(lines) == ["err", "out"]


def test_a_line_over_the_limit_does_not_end_the_relay() -> None:
    async def scenario() -> list[str]:
        lines: list[str] = []
        child = python("print('x' * 300_000); print('after')", lines)
        await child.start({})
        await child.wait()
        return lines

    assert asyncio.run(scenario())[-1] == "after"


def test_stop_kills_a_child_that_ignores_sigterm() -> None:
    async def scenario() -> tuple[int | None, list[str]]:
        lines: list[str] = []
        child = python(IGNORES_TERM, lines)
        await child.start({})
        while "deaf" not in lines:
            await asyncio.sleep(0.01)
        await child.stop(deadline_s=0.1)
        await child.stop()  # Idempotent.
        return await child.wait(), lines

    status, lines = asyncio.run(scenario())
    assert status == -signal.SIGKILL
    assert any("killed" in line for line in lines)


def test_a_waiter_that_gives_up_does_not_end_the_relay() -> None:
    async def scenario() -> list[str]:
        lines: list[str] = []
        child = python("import sys; print('one', flush=True); sys.stdin.read(); print('two')", lines)
        await child.start({})
        waiter = asyncio.create_task(child.wait())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await child.wait()
        return lines

    assert asyncio.run(scenario()) == ["one", "two"]


@pytest.mark.skipif(sys.platform != "linux", reason="children follow their parent through prctl, which is Linux's")
def test_children_of_a_killed_parent_end(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = (
        "import asyncio, sys, pathlib\n"
        "from trunkline.shared.processes import Child\n"
        "async def main():\n"
        "    child = Child('c', [sys.executable, '-c', 'import time; time.sleep(60)'], print)\n"
        "    await child.start({})\n"
        f"    pathlib.Path({str(marker)!r}).write_text(str(child.pid))\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )

    async def scenario() -> None:
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        while not marker.exists() or not marker.read_text():
            await asyncio.sleep(0.02)
        pid = int(marker.read_text())
        parent.kill()
        await parent.wait()
        async with asyncio.timeout(10):
            while _is_running(pid):
                await asyncio.sleep(0.02)

    asyncio.run(scenario())


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()

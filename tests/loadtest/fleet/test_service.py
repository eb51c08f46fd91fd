"""Servers in processes of their own, with real ones."""

import sys
from pathlib import Path

import httpx
import pytest

from trunkline.loadtest.fleet.service import HOST, Probe, Service, StartError, free_ports


def served(folder: Path, *command: str) -> Service:
    (port,) = free_ports(1)
    line = command or (sys.executable, "-m", "http.server", str(port), "--bind", HOST, "--directory", str(folder))
    return Service("files", line, port, folder / "log", Probe("/"), {})


def test_a_service_starts_is_measured_is_killed_and_starts_again(tmp_path: Path) -> None:
    service = served(tmp_path)
    try:
        service.start()
        service.await_ready()
        assert service.usage().rss_bytes > 1 << 20
        service.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(service.url)
        with pytest.raises(StartError, match="files has ended"):
            service.usage()
        service.start()
        service.await_ready()
        assert httpx.get(service.url).status_code == 200
    finally:
        service.stop()
    service.stop()


def test_what_does_not_start_is_said_with_its_last_words(tmp_path: Path) -> None:
    service = served(tmp_path, sys.executable, "-c", "print('no room'); raise SystemExit(3)")
    service.start()
    with pytest.raises(StartError, match="files ended with status 3: no room"):
        service.await_ready()


def test_what_is_not_ready_in_time_is_said(tmp_path: Path) -> None:
    service = served(tmp_path, sys.executable, "-c", "import time; time.sleep(60)")
    try:
        service.start()
        with pytest.raises(StartError, match="files is not ready after 0 s"):
            service.await_ready(0.3)
    finally:
        service.stop()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="/no/such cannot be started"):
        served(tmp_path, "/no/such").start()

"""Which routers are there, and what those are told that are."""

from pathlib import Path

import pytest

from trunkline.loadtest.fleet.fronts import fronts
from trunkline.loadtest.fleet.service import StartError

NODES = ("http://127.0.0.1:7001", "http://127.0.0.1:7002")


def test_a_program_below_the_folder_is_found_and_told_its_workers(tmp_path: Path) -> None:
    program = tmp_path / "v_vllm" / "bin" / "vllm-router"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    service = fronts(tmp_path)["vllm-round-robin"].service(NODES, "m", tmp_path)
    assert service.command[0] == str(program)
    assert set(NODES) < set(service.command)
    assert service.command[service.command.index("--policy") + 1] == "round_robin"
    assert service.url.endswith(service.command[service.command.index("--port") + 1])


def test_one_that_is_not_installed_says_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    front = fronts(tmp_path)["sglang-cache-aware"]
    assert front.program is None
    with pytest.raises(StartError, match=r"sglang-router 0\.3\.2 is neither on PATH nor below --peers"):
        front.service(NODES, "m", tmp_path)


def test_trunklines_own_router_is_always_there(tmp_path: Path) -> None:
    command = fronts(tmp_path)["trunkline"].service(NODES, "m", tmp_path).command
    assert command.count("--node") == 2


def test_nginx_has_a_configuration_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "nginx-program"
    command = fronts(tmp_path)["nginx-round-robin"].start(str(program), 7000, NODES, tmp_path)
    configuration = Path(command[command.index("-c") + 1]).read_text()
    assert "server 127.0.0.1:7001; server 127.0.0.1:7002;" in configuration
    assert "listen 127.0.0.1:7000 " in configuration

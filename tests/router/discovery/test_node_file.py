"""Nodes by a file that is written, moved away and filled with nonsense while the router serves."""

import logging
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.router.fakes import FakeAgent
from tests.router.serving import ask, request, run, serving, until
from trunkline.router.cli import router as command
from trunkline.router.discovery import listing, node_file
from trunkline.router.discovery.node_file import FileAddress
from trunkline.router.tenants import Tenants
from trunkline.shared.errors import ConfigError

SECRET = "a secret of the whole cluster"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LOOK_S", 0.05)
    monkeypatch.setattr(node_file, "READ_S", 0.05)


def test_nodes_come_move_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "nodes"

    async def main() -> None:
        async with serving([], listing=FileAddress(path)) as served:
            registry, found = served.router.context.registry, served.router.context.listing
            await until(lambda: found is not None and found.error == "it cannot be read: No such file or directory")
            ready = await ask(served.port, request("/readyz", b"", method="GET"))
            assert (ready.status, "cannot be read" in ready.body.decode()) == (503, True)
            async with FakeAgent("n1") as staying:
                async with FakeAgent("n0") as agent:
                    path.write_text(f"# ours\n\n{agent.url}\n  {staying.url.removeprefix('http://')}\n{agent.url}\n")
                    await until(lambda: len(registry.candidates("fake")) == 2)
                    assert (await ask(served.port, request())).status == 200
                    path.unlink()
                    await until(lambda: found is not None and not found.connected)
                    assert len(registry.candidates("fake")) == 2, "nodes stay as they are"
                    degraded = (await ask(served.port, request("/readyz", b"", method="GET"))).json["degraded"]
                    assert any("cannot be read" in entry for entry in degraded)
                    path.write_text(f"{staying.url.removeprefix('http://')}\n")
                    await until(lambda: found is not None and bool(found.membership.unlisted))
                await until(lambda: [node.name for node in registry.nodes] == ["n1"])
                assert (await ask(served.port, request())).headers["x-trunkline-node"] == "n1"

    with caplog.at_level(logging.INFO):
        run(main())
    assert "is not listed any more, and serves" in caplog.text


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"x" * (node_file.MAX_BYTES + 1)])
def test_a_file_that_is_no_list(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nodes"
    path.write_bytes(content)

    async def main() -> None:
        async with serving([], listing=FileAddress(path)) as served:
            found = served.router.context.listing
            assert found is not None
            await until(lambda: "cannot be read" in found.error)
            assert found.view()["connected"] is False

    run(main())


def test_lines_that_are_no_node_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nodes"

    async def main() -> None:
        async with (
            FakeAgent("n0", secret=SECRET) as agent,
            serving([], listing=FileAddress(path), tenants=Tenants(SECRET)) as served,
        ):
            path.write_text(f"ftp://nowhere\nnonsense\n{agent.url}\n")
            found = served.router.context.listing
            assert found is not None
            await until(lambda: set(found.membership.refused) == {"ftp://nowhere", "nonsense"})
            await until(lambda: len(served.router.context.registry.candidates("fake")) == 1)

    run(main())


def test_two_listings_are_one_too_many(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(command)
    refused = CliRunner().invoke(app, ["--node-file", str(tmp_path), "--kubernetes-service", "agents"])
    assert isinstance(refused.exception, ConfigError)
    assert "exclude each other" in str(refused.exception)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    os.mkfifo(path)

    async def story() -> None:
        async with serving([], listing=FileAddress(path)) as served:
            found = served.router.context.listing
            await until(lambda: found is not None and "it is no file" in found.error)

    run(story())

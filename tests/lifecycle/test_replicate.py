"""`trunkline cache replicate`: a prefix is at other nodes before anybody asks them for it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.lifecycle.fleet import TOKEN, Fleet, admin, ask, chat, fleet, prose, until
from trunkline.agent.cache_cli import cache as commands
from trunkline.shared.errors import TrunklineError
from trunkline.shared.names import REPLICATE_PATH


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet"), agents=3) as made:
        yield made


def test_the_least_busy_nodes_get_it_and_use_it(running: Fleet, tmp_path: Path) -> None:
    url, system = running.routers[0].url, prose(1)
    node, cached = ask(url, chat(system, "First?"))
    assert cached == 0
    prefix = tmp_path / "prefix.json"
    prefix.write_bytes(httpx.Request("POST", url, json={"messages": [{"role": "system", "content": system}]}).read())

    def replicate(count: int) -> str:
        done = CliRunner(env=TOKEN).invoke(commands, ["replicate", str(prefix), "--to", str(count), "--url", url])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    until(lambda: running.nodes()[node]["keys"] > 10)  # type: ignore[operator]
    said = replicate(1)
    assert f"{node} has" in said
    others = {one.name for one in running.agents} - {node}
    (first,) = (name for name in others if f"{name}: " in said)
    (holder,) = (one for one in running.agents if one.name == first)
    _, cached = ask(holder.url, chat(system, "Second?"))
    assert cached > 800, "though it has never been asked for it"
    until(lambda: running.nodes()[first]["keys"] > 10)  # type: ignore[operator]
    said = replicate(3)
    assert f"{(others - {first}).pop()}: " in said
    assert "lacked it and can pull it: 1 of 3 asked for" in said
    assert set(said.split("\n")[0].partition("was at ")[2].split(", ")) == {node, first}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": "nobody has seen this " * 30}, 404, "no node that lends pages holds"),
        ({"prompt": "a", "messages": []}, 400, "either prompt or messages"),
        ({}, 400, "either prompt or messages"),
        ({"key": "0123456789abcdef"}, 404, "holds key 0123456789abcdef"),
        ({"key": "0123456789abcdef", "prompt": "a"}, 400, "in place of"),
        ({"prompt": "a", "to": 0}, 422, "to"),
        ({"prompt": "a", "too": 2}, 422, "too"),
        ({"prompt": "a", "model": "another"}, 404, "another"),
        ({"prompt": "a", "tenant": "nobody"}, 404, "nobody"),
        ({"prompt": {"a": 1}}, 422, "prompt"),
    ],
)
def test_what_cannot_be_replicated_is_refused(running: Fleet, body: object, status: int, said: str) -> None:
    with admin(running.routers[0]) as client:
        answer = client.post(REPLICATE_PATH, json=body)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_the_command_says_in_a_line_what_is_wrong() -> None:
    for words in ([], ["text", "--key", "0123456789abcdef"]):
        failed = CliRunner().invoke(commands, ["replicate", *words])
        assert "either PREFIX or --key" in str(failed.exception)
    failed = CliRunner().invoke(commands, ["replicate", "text", "--url", "127.0.0.1:1"])
    assert isinstance(failed.exception, TrunklineError)
    assert "no router answers at http://127.0.0.1:1" in str(failed.exception)

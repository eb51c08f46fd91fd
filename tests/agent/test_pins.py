"""Pinned prefixes: through the API, over restarts, and from the command line."""

import asyncio
import logging
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.agent.fake_node import MODEL, FakeEngine, served
from tests.http_server import answering
from trunkline.agent import pin_file
from trunkline.agent import pins as pins_module
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache_cli import cache as commands
from trunkline.agent.engine.text import TextModel
from trunkline.agent.pin_file import FILE
from trunkline.agent.pins import Pins
from trunkline.shared.errors import Overloaded, RequestError, TrunklineError
from trunkline.shared.pins import CACHE_PATH, PINS_PATH

SECRET = "a secret of the cluster"


def keys_of(tokens: list[int], salt: str = "") -> list[int]:
    return Chain(MODEL.namespace.salted(salt), tokens).keys


def test_what_is_pinned_is_said_kept_and_let_go(text_model: TextModel) -> None:
    async def talk() -> None:
        engine = FakeEngine()
        async with served(engine, text_model) as client:
            pinned = await client.post(PINS_PATH, json={"prompt": list(range(40)), "ttl": 100})
            assert pinned.status_code == 200
            pin = pinned.json()
            keys = keys_of(list(range(40)))
            assert (pin["id"], pin["tokens"], pin["pages"], pin["held"]) == (f"{keys[-1]:016x}", 32, 2, 0)
            assert 90 < pin["expires_in"] <= 100
            assert not pin["lasting"]
            assert engine.pinning.keys == set(keys)
            (listed,) = (await client.get(PINS_PATH)).json()["pins"]
            assert listed["id"] == pin["id"]
            assert (await client.delete(f"{PINS_PATH}/{pin['id']}")).status_code == 204
            assert (await client.get(PINS_PATH)).json() == {"pins": []}
            assert engine.pinning.keys == set()
            assert (await client.delete(f"{PINS_PATH}/{pin['id']}")).status_code == 404

    asyncio.run(talk())


def test_a_prompt_is_text_tokens_or_a_chat(text_model: TextModel) -> None:
    async def talk() -> None:
        async with served(FakeEngine(), text_model) as client:
            text = await client.post(PINS_PATH, json={"prompt": "A librarian knows where each book is. " * 4})
            assert text.json()["pages"] > 0
            messages = [{"role": "system", "content": "You are a librarian who knows where each book is. " * 3}]
            chat = await client.post(PINS_PATH, json={"messages": messages})
            assert chat.json()["pages"] > 0
            assert chat.json()["expires_in"] is None

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": [1, 2, 3]}, 422, "no whole page of 16"),
        ({"prompt": list(range(180))}, 409, "11 pages would be pinned, of 10"),
        ({"prompt": list(range(40)), "ttl": 0}, 400, "ttl: 0 is not above 0"),
        ({"prompt": list(range(40)), "ttl": "long"}, 422, "ttl"),
        ({"prompt": list(range(40)), "tll": 100}, 422, "tll"),
        ({"prompt": []}, 400, "prompt: must not be empty"),
        ({"prompt": "x", "messages": []}, 400, "either prompt or messages"),
        ({}, 400, "either prompt or messages"),
        ({"key": "0123456789abcdef"}, 404, "no page here ends with key 0123456789abcdef"),
        ({"key": "0123456789ABCDEF"}, 400, "key: '0123456789ABCDEF' is not of 16 hex digits"),
        ({"key": "0" * 5000}, 400, "is not of 16 hex digits"),
        ({"key": "0123456789abcdef", "prompt": "x"}, 400, "it stands in place of prompt and messages"),
    ],
)
def test_what_cannot_be_pinned_is_refused(
    text_model: TextModel, body: dict[str, object], status: int, said: str
) -> None:
    async def talk() -> None:
        async with served(FakeEngine(), text_model) as client:
            answer = await client.post(PINS_PATH, json=body)
            assert answer.status_code == status
            assert said in answer.json()["error"]["message"]
            assert (await client.get(PINS_PATH)).json() == {"pins": []}

    asyncio.run(talk())


def resident(engine: FakeEngine, tokens: list[int]) -> Chain:
    """The whole pages of the prompt are in the cache."""
    chain = Chain(MODEL.namespace, tokens)
    pages = engine.cache.allocate(len(chain.keys))
    assert pages is not None
    pages = [engine.cache.commit(chain, index, page) for index, page in enumerate(pages)]
    engine.cache.release(pages)
    return chain


def test_a_prefix_that_is_here_is_pinned_by_the_key_at_its_end(text_model: TextModel) -> None:
    async def talk() -> None:
        engine = FakeEngine()
        chain = resident(engine, list(range(70)))
        # The first settles one page, the second two and a half; it hangs on the third page as well.
        engine.cache.attach_text(chain, struct.pack("<2Q", 0xABC, 0xDEF), struct.pack("<2I", 16, 40))
        async with served(engine, text_model) as client:
            for key, pages in ((chain.keys[2], 3), (0xABC, 1), (0xDEF, 2), (chain.keys[3], 4)):
                pin = (await client.post(PINS_PATH, json={"key": f"{key:016x}", "ttl": 60})).json()
                assert (pin["id"], pin["pages"], pin["held"]) == (f"{chain.keys[pages - 1]:016x}", pages, pages)
            assert engine.pinning.keys == set(chain.keys)

    asyncio.run(talk())


def test_a_cache_that_is_cleared_has_nothing_for_anybody(text_model: TextModel) -> None:
    async def talk() -> None:
        engine = FakeEngine()
        chain = resident(engine, list(range(70)))
        async with served(engine, text_model, secret=SECRET) as client:
            assert (await client.delete(CACHE_PATH)).status_code == 401
            assert engine.pinning.held(chain.keys) == 4
            proof = {"x-trunkline-cluster": SECRET}
            assert (await client.delete(CACHE_PATH, headers=proof)).status_code == 204
            assert engine.pinning.held(chain.keys) == 0
            engine.cache.check()

    asyncio.run(talk())


def test_with_a_secret_only_the_cluster_may_pin(text_model: TextModel) -> None:
    async def talk() -> None:
        async with served(FakeEngine(), text_model, secret=SECRET) as client:
            for answer in (
                await client.get(PINS_PATH),
                await client.post(PINS_PATH, json={"prompt": list(range(40))}),
                await client.delete(f"{PINS_PATH}/abc"),
            ):
                assert answer.status_code == 401
            proof = {"x-trunkline-cluster": SECRET, "x-trunkline-salt": "ab"}
            pinned = await client.post(PINS_PATH, json={"prompt": list(range(40))}, headers=proof)
            assert pinned.json()["id"] == f"{keys_of(list(range(40)), 'ab')[-1]:016x}"

    asyncio.run(talk())


def test_a_pin_ends_when_its_time_is_up() -> None:
    async def wait() -> None:
        engine = FakeEngine()
        pins = Pins(engine, None)
        await pins.open()
        await pins.pin(list(range(40)), "", 0.01)
        assert engine.pinning.keys
        async with asyncio.timeout(10):
            while engine.pinning.keys:
                await asyncio.sleep(0.005)
        assert pins.statuses() == []
        await pins.close()

    asyncio.run(wait())


def test_pins_survive_a_restart_beside_the_pages(tmp_path: Path) -> None:
    async def run() -> None:
        first = Pins(FakeEngine(), tmp_path)
        await first.open()
        assert (await first.pin(list(range(40)), "", None)).lasting
        await first.pin(list(range(100, 140)), "", 0.001)
        await first.close()
        await asyncio.sleep(0.002)
        engine = FakeEngine()
        again = Pins(engine, tmp_path)
        await again.open()
        (kept,) = again.statuses()
        assert kept.lasting
        assert engine.pinning.keys == set(keys_of(list(range(40))))
        await again.unpin(kept.id)
        await again.close()
        empty = Pins(FakeEngine(), tmp_path)
        await empty.open()
        assert empty.statuses() == []

    asyncio.run(run())


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"version": 9, "pins": []}', b'{"version": 1, "pins": [{}]}', b"\xff"]
)
def test_a_file_that_is_none_of_ours_pins_nothing(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        (tmp_path / FILE).write_bytes(content)
        pins = Pins(FakeEngine(), tmp_path)
        await pins.open()
        assert pins.statuses() == []

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "nothing is pinned" in caplog.text


def test_what_cannot_be_written_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pins_module, "RETRY_S", 0.01)
    folder, away = tmp_path / "disk", tmp_path / "away"
    folder.mkdir()

    async def kept() -> list[str]:
        """After a restart."""
        again = Pins(FakeEngine(), folder)
        await again.open()
        await again.close()
        return [status.id for status in again.statuses()]

    async def written(pins: Pins) -> None:
        async with asyncio.timeout(10):
            while pins.unsaved:
                await asyncio.sleep(0.005)

    async def run() -> None:
        engine = FakeEngine()
        pins = Pins(engine, folder)
        await pins.open()
        first = await pins.pin(list(range(40)), "", 1000)
        folder.rename(away)
        second = await pins.pin(list(range(100, 140)), "", None)
        longer = await pins.pin(list(range(40)), "", None)
        assert (first.lasting, second.lasting, longer.lasting, pins.unsaved) == (True, False, False, True)
        for _ in range(2):  # It is said of one that is pinned no more, too.
            with pytest.raises(Overloaded, match=r"pinned no more, but .* cannot be written \(No such file") as refused:
                await pins.unpin(first.id)
            assert refused.value.status == 503
        assert engine.pinning.keys == set(keys_of(list(range(100, 140)))), "let go nevertheless"
        away.rename(folder)
        assert await kept() == [first.id]
        await written(pins)
        assert await kept() == [second.id]
        assert [status.lasting for status in pins.statuses()] == [True]
        folder.rename(away)
        with pytest.raises(Overloaded):
            await pins.unpin(second.id)
        await pins.close()

    asyncio.run(run())
    assert "a restart pins what it has now" in caplog.text


def test_more_than_is_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        pins = Pins(FakeEngine(), tmp_path)
        await pins.open()
        assert (await pins.pin(list(range(40)), "", None)).lasting
        monkeypatch.setattr(pin_file, "MAX_FILE_BYTES", (tmp_path / FILE).stat().st_size)
        assert not (await pins.pin(list(range(100, 140)), "", None)).lasting
        await pins.close()
        again = Pins(FakeEngine(), tmp_path)
        await again.open()
        assert len(again.statuses()) == 1, "those of before"

    asyncio.run(run())
    assert "a restart pins what it has now" in caplog.text


def test_nobody_else_s_pin_is_let_go() -> None:
    async def run() -> None:
        pins = Pins(FakeEngine(), None)
        await pins.open()
        with pytest.raises(RequestError, match="no prefix is pinned as 'x'"):
            await pins.unpin("x")

    asyncio.run(run())


def test_the_commands_ask_and_show(tmp_path: Path) -> None:
    status = b'{"id": "ab", "tokens": 32, "pages": 2, "held": 1, "expires_in": null, "lasting": false}'
    chat = tmp_path / "chat.json"
    chat.write_text('{"messages": [], "model": "m"}')
    answers = [*[(200, status)] * 3, (200, b'{"pins": [' + status + b"]}"), (204, b"")]
    with answering(answers) as (url, asked):
        shown = "ab: 32 tokens, 1 of 2 pages are there, for ever; a restart forgets it\n"
        run = CliRunner().invoke
        assert run(commands, ["pin", "You are", "--node", url, "--ttl", "5"]).output == shown
        assert run(commands, ["pin", str(chat), "--node", url]).output == shown
        assert run(commands, ["pin", "You are " * 500, "--node", url]).output == shown
        assert run(commands, ["pins", "--node", url.removeprefix("http://")]).output == shown
        assert run(commands, ["unpin", "ab", "--node", url]).exit_code == 0
    assert asked == [
        ("POST", PINS_PATH, b'{"prompt":"You are","ttl":5.0}'),
        ("POST", PINS_PATH, b'{"messages":[],"ttl":null}'),
        ("POST", PINS_PATH, b'{"prompt":"' + b"You are " * 500 + b'","ttl":null}'),
        ("GET", PINS_PATH, b""),
        ("DELETE", f"{PINS_PATH}/ab", b""),
    ]


def test_a_refusal_and_no_answer_are_one_line(tmp_path: Path) -> None:
    with answering([(409, b'{"error": {"message": "too many"}}'), (500, b"<html>")]) as (url, _):
        refused = CliRunner().invoke(commands, ["pin", "You are", "--node", url])
        broken = CliRunner().invoke(commands, ["pin", "You are", "--node", url])
    gone = CliRunner().invoke(commands, ["pins", "--node", url])
    for result, said in ((refused, "too many"), (broken, "status 500"), (gone, "no answer")):
        assert isinstance(result.exception, TrunklineError)
        assert said in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["pin", "You are \udcff"],
        ["pin", '{"prompt": NaN}'],
        ["unpin", "\udcff"],
    ],
)
def test_what_cannot_be_sent_is_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(commands, [*arguments, "--node", "http://127.0.0.1:1"])
    assert isinstance(result.exception, TrunklineError)
    assert "cannot be sent" in str(result.exception)


@pytest.mark.parametrize("ttl", ["nan", "inf", "-1", "1e12"])
def test_a_time_that_no_pin_has_is_refused(ttl: str) -> None:
    result = CliRunner().invoke(commands, ["pin", "You are", "--ttl", ttl])
    assert result.exit_code == 2
    assert "--ttl" in result.output


def test_brackets_are_text_and_an_id_is_one_part_of_the_path() -> None:
    status = b'{"id": "ab", "tokens": 32, "pages": 2, "held": 1, "expires_in": null, "lasting": false}'
    with answering([(200, status), (204, b"")]) as (url, asked):
        assert CliRunner().invoke(commands, ["pin", "[" * 100_000, "--node", url]).exit_code == 0
        assert CliRunner().invoke(commands, ["unpin", "ab#/?x", "--node", url]).exit_code == 0
    assert asked[0][2] == b'{"prompt":"' + b"[" * 100_000 + b'","ttl":null}'
    assert asked[1][:2] == ("DELETE", f"{PINS_PATH}/ab%23%2F%3Fx")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"status": "ok"}', b"[]"])
def test_an_answer_that_is_no_agents_is_one_line(body: bytes) -> None:
    with answering([(200, body)]) as (url, _):
        result = CliRunner().invoke(commands, ["pins", "--node", url])
    assert isinstance(result.exception, TrunklineError)
    assert "no agent" in str(result.exception)

"""A node's lease, in a real Redis that comes and goes."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.redis_server import RedisServer, redis_server
from trunkline.agent.registration import Registration, Registry
from trunkline.shared import lease, registry
from trunkline.shared.lease import Kind, Member

URL = "http://10.0.0.1:8100"
SECRET = "a secret of the cluster"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.agent.registration.RENEW_S", 0.1)
    monkeypatch.setattr(registry, "ANSWER_S", 0.4)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def registration(redis: RedisServer, epoch: int = 1) -> Registration:
    return Registration(Registry(redis.address, URL), "gpu-1", epoch, SECRET)


async def members(redis: RedisServer) -> list[Member]:
    async with redis.address.connect() as client:
        return await lease.listing(client, redis.address.prefix, Kind.NODE)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_lease_is_taken_kept_and_given_up(redis: RedisServer) -> None:
    async def main() -> None:
        node = registration(redis)
        node.start()
        await until(lambda: node.registered)
        (member,) = await members(redis)
        assert (member.id, member.url, member.name, member.epoch) == (URL, URL, "gpu-1", "1")
        assert member.is_genuine(SECRET)
        assert not member.is_genuine("another secret")
        assert not Member(Kind.NODE, URL, "http://10.0.0.66:1", "gpu-1", "1", member.proof).is_genuine(SECRET)
        redis.command("FLUSHALL")
        async with asyncio.timeout(15):
            while not await members(redis):
                await asyncio.sleep(0.01)
        await node.close()
        assert not node.registered
        assert await members(redis) == []
        await node.close()

    asyncio.run(main())


def test_joining_returning_and_leaving_are_announced_and_renewing_is_not(redis: RedisServer) -> None:
    async def main() -> None:
        async with redis.address.connect() as client, client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(lease.channel(redis.address.prefix))
            await channel.get_message(timeout=1.0)
            first, second = registration(redis, 1), registration(redis, 2)
            first.start()
            await until(lambda: first.registered)
            await asyncio.sleep(0.5)  # some renewals
            await first.close()
            second.start()
            await until(lambda: second.registered)
            await second.close()
            seen = []
            while (message := await channel.get_message(timeout=0.3)) is not None:
                notice = lease.decode_notice(message["data"])
                seen.append((notice.member.epoch, notice.left))
            assert seen == [("1", False), ("1", True), ("2", False), ("2", True)]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_without_redis_it_says_so_and_comes_back(
    redis: RedisServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        node = registration(redis)
        node.start()
        await until(lambda: node.registered)
        (redis.kill if how == "kill" else redis.freeze)()
        await until(lambda: not node.registered)
        await asyncio.to_thread(redis.start if how == "kill" else redis.thaw)
        await until(lambda: node.registered)
        assert [member.url for member in await members(redis)] == [URL]
        (redis.kill if how == "kill" else redis.freeze)()
        async with asyncio.timeout(10):
            await node.close()  # returns though nobody answers

    asyncio.run(main())
    assert "new routers do not find this node" in caplog.text


def test_what_nobody_expected_does_not_end_it(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renew = lease.renew

    async def fail(*_: object) -> None:
        monkeypatch.setattr(lease, "renew", renew)
        raise KeyError("odd")

    async def main() -> None:
        monkeypatch.setattr(lease, "renew", fail)
        node = registration(redis)
        node.start()
        await until(lambda: node.registered)
        await node.close()

    asyncio.run(main())
    assert "this is a defect" in caplog.text

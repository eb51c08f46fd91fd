"""A registry of three sentinels and two servers, whose primary is killed, hangs and gives way under load."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from tests.router.replicas.fleet import fleet, get, link, load, quick, settled
from tests.router.serving import ask, run, serving, until
from tests.sentinels import RedisGroup, redis_group
from trunkline.router.replicas import link as link_module
from trunkline.shared import lease, registry
from trunkline.shared.registry import PASSWORD_VARIABLE, SENTINEL_PASSWORD_VARIABLE, registry_address


@pytest.fixture(autouse=True)
def less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    # Sentinels are processes with clocks of their own.
    monkeypatch.setattr(registry, "ANSWER_S", 2.0)
    monkeypatch.setattr(lease, "LEASE_S", 3.0)
    monkeypatch.setattr("trunkline.router.replicas.peers.LEASE_S", 3.0)
    monkeypatch.setattr(link_module, "ECHO_S", 1.5)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisGroup]:
    with redis_group() as found:
        monkeypatch.setenv(PASSWORD_VARIABLE, "of-redis")
        monkeypatch.setenv(SENTINEL_PASSWORD_VARIABLE, "of-sentinels")
        yield found


@pytest.mark.parametrize("how", ["killed", "hung", "gives way"])
def test_a_failover_under_load(group: RedisGroup, how: str, caplog: pytest.LogCaptureFixture) -> None:
    address = registry_address(group.url, None)

    async def main() -> None:
        async with fleet(address) as ((one, other), _agents):
            before = await asyncio.to_thread(group.primary)
            async with load(one, other):
                if how == "killed":
                    group.kill(before)
                elif how == "hung":
                    group.freeze(before)
                else:
                    await asyncio.to_thread(group.give_way)
                if how != "gives way":
                    await until(lambda: not link(one).connected and not link(other).connected)
                    readyz = await ask(one.port, get("/readyz"))
                    assert readyz.status == 200
                    assert any("registry" in entry for entry in readyz.json["degraded"])
                async with asyncio.timeout(30):
                    while await asyncio.to_thread(group.primary) == before:
                        await asyncio.sleep(0.05)
                # Links have noticed, and all is right again with the new primary.
                await until(lambda: link(one).losses > 0 and link(other).losses > 0)
                await until(lambda: settled(one, 2, 1) and settled(other, 2, 1))
                async with serving([], registry=address) as late:
                    await until(lambda: settled(late, 2, 2))
            if how == "hung":
                group.thaw(before)

    with caplog.at_level(logging.DEBUG):
        run(main())
    shown = caplog.text + repr(address)
    assert "of-redis" not in shown
    assert "of-sentinels" not in shown


def test_a_sentinel_that_hangs_is_not_waited_for(group: RedisGroup) -> None:
    """Whichever it is."""
    address = registry_address(group.url, None)

    async def main() -> None:
        for port in group.sentinels:
            group.freeze(port)
            async with registry.answering(), address.connect() as redis:
                assert await redis.ping()
            group.thaw(port)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("service", "password", "said"),
    [
        ("registry", "hunter2", f"another one ({SENTINEL_PASSWORD_VARIABLE})"),
        ("other", "of-sentinels", "0 of 3 sentinels know 'other'"),
    ],
)
def test_what_is_wrong_is_said(
    group: RedisGroup, monkeypatch: pytest.MonkeyPatch, service: str, password: str, said: str
) -> None:
    monkeypatch.setenv(SENTINEL_PASSWORD_VARIABLE, password)
    address = registry_address(group.url.replace("/registry", f"/{service}"), None)

    async def main() -> None:
        async with serving([], registry=address) as router:
            await until(lambda: said in link(router).error)
            assert "hunter2" not in link(router).error
            readyz = (await ask(router.port, get("/readyz"))).json
            assert any(said in entry for entry in readyz["missing"])

    run(main())

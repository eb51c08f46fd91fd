"""This router's connections to Redis: a lease, the members, and the batches of all routers.

One task, which does everything again from the start when anything fails:

    connect ── hello ──┬── listen: notices and batches, the own ones too: they show that all of it works
       ▲               ├── renew: the lease, the list of members
       │  pause        └── publish: a batch when something changed; a whole one every WHOLE_S
       └──────────────────── error, or own batches that do not come back
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from trunkline.router.discovery.membership import Membership
from trunkline.router.nodes import Registry
from trunkline.router.replicas.messages import REPLICAS_VERSION, Hello, decode, encode
from trunkline.router.replicas.outbox import Outbox
from trunkline.router.replicas.peers import Peers
from trunkline.router.timing import jittered
from trunkline.shared import lease
from trunkline.shared.errors import WireError
from trunkline.shared.lease import RENEW_S, Kind, Member
from trunkline.shared.registry import LONGEST_PAUSE_S, RegistryAddress, answering, explained

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

FLUSH_S = 0.005
"""From one batch to the next at least: changes gather meanwhile, the first one after a pause is sent at once."""
WHOLE_S = 0.5
ECHO_S = 2.0
"""Own batches that do not come back for so long: the connection is made anew."""
_LISTEN_S = 0.25
_FIRST_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class Link:
    """`start`, `close`. Used on the event loop only."""

    def __init__(
        self,
        address: RegistryAddress,
        member: Member,
        registry: Registry,
        membership: Membership,
        outbox: Outbox,
        peers: Peers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connected = False
        """Everything works, as far as is known."""
        self.error = "not connected yet"
        """Why it does not, else empty."""
        self.losses = 0
        """Times that the connection was lost."""
        self.bad_frames = 0
        self.routers: dict[str, Member] = {}
        """Other routers that have a lease, by id."""
        self.listed = False
        """Whether members were listed once."""
        self._address = address
        self._member = member
        self._registry = registry
        self._membership = membership
        self._outbox = outbox
        self._peers = peers
        self._clock = clock
        self._echo_at = 0.0
        self._echoed = self._leased = False
        """Since the last attempt to connect."""
        self._pending = asyncio.Event()
        self._whole = False
        """Somebody asked for a whole batch."""
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """The outbox has something to send."""
        self._pending.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"registry {self._address}")

    async def close(self) -> None:
        """Gives up the lease, if that can be said soon."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            async with self._address.connect() as redis:
                await lease.release(redis, self._address.prefix, self._member)
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("registry %s: the lease of this router runs out by itself: %s", self._address, explained(error))

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            began = self._clock()
            try:
                async with self._address.connect() as redis:
                    await self._serve(redis)
            except (RedisError, OSError, TimeoutError) as error:
                self._lost(error)
            except Exception as error:
                log.exception("registry: this is a defect, please report it")
                self._lost(error)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError  # Something failed as well, while the connections were closed.
            pause = _FIRST_PAUSE_S if self._clock() - began > ECHO_S * 2 else min(pause * 2, LONGEST_PAUSE_S)
            await self._wait(jittered(pause))

    async def _serve(self, redis: "Redis") -> None:
        async with aclosing(redis.pubsub(ignore_subscribe_messages=True)) as subscription:
            async with answering():
                await subscription.subscribe(lease.channel(self._address.prefix), self._channel)
                await redis.publish(self._channel, encode(Hello(REPLICAS_VERSION, self._member.id)))
            self._echo_at = self._clock()
            self._echoed = self._leased = False
            # Not a TaskGroup: in Python 3.11 one whose child fails while it is cancelled tells of the failure alone.
            tasks = [
                asyncio.create_task(part)
                for part in (self._listen(subscription), self._renew(redis), self._publish(redis))
            ]
            try:
                failed, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            failed.pop().result()

    async def _listen(self, subscription: "PubSub") -> None:
        while True:
            message = await subscription.get_message(timeout=_LISTEN_S)
            self._expire()
            if self._clock() - self._echo_at > ECHO_S:
                raise TimeoutError(f"own batches do not come back within {ECHO_S:g} s")
            if message is None:
                continue
            try:
                if message["channel"] == self._channel.encode():
                    self._receive(message["data"])
                else:
                    self._notice(message["data"])
            except WireError as error:
                self.bad_frames += 1
                if self.bad_frames & (self.bad_frames - 1) == 0:  # at 1, 2, 4, 8, ...: loud, and no flood
                    log.warning("registry: bad message (%d so far): %s", self.bad_frames, error)

    def _receive(self, frame: bytes) -> None:
        message = decode(frame)
        if message.router == self._member.id:
            self._echo()
        elif isinstance(message, Hello):
            self._whole = True
            self._pending.set()
        else:
            self._peers.receive(message, self._registry.nodes)

    def _notice(self, frame: bytes) -> None:
        notice = lease.decode_notice(frame)
        member = notice.member
        if member.kind is Kind.NODE:
            self._membership.notice(notice)
        elif member.id != self._member.id and notice.left:
            self.routers.pop(member.id, None)
            self._peers.forget(member.id, self._registry.nodes)
            log.info("router %s at %s leaves", member.id, member.url)

    async def _renew(self, redis: "Redis") -> None:
        prefix = self._address.prefix
        while True:
            await lease.renew(redis, prefix, self._member)
            await self._membership.apply(await lease.listing(redis, prefix, Kind.NODE))
            routers = await lease.listing(redis, prefix, Kind.ROUTER)
            self.routers = {member.id: member for member in routers if member.id != self._member.id}
            self.listed = self._leased = True
            self._check()
            await asyncio.sleep(jittered(RENEW_S))

    async def _publish(self, redis: "Redis") -> None:
        due = 0.0
        while True:
            now = self._clock()
            whole = self._whole or now >= due
            if whole:
                due = now + WHOLE_S
            self._whole = False
            self._pending.clear()
            batch = self._outbox.take(self._registry.nodes, now, whole=whole)
            async with answering():
                await redis.publish(self._channel, encode(batch))
            await asyncio.sleep(max(0.0, now + FLUSH_S - self._clock()))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - self._clock())):
                    await self._pending.wait()

    async def _wait(self, seconds: float) -> None:
        """While there is no connection, shares end in time, and what cannot be sent does not pile up."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            self._outbox.drop()
            self._expire()
            await asyncio.sleep(min(left, _LISTEN_S))

    def _expire(self) -> None:
        for router in self._peers.expire(self._registry.nodes):
            log.warning("router %s was not heard of for %g s: its share of the load is void", router, lease.LEASE_S)

    def _echo(self) -> None:
        self._echo_at, self._echoed = self._clock(), True
        self._check()

    def _check(self) -> None:
        """A server that is full passes batches on, and takes no lease."""
        if self._echoed and self._leased and not self.connected:
            self.connected, self.error = True, ""
            log.info("registry %s: connected", self._address)

    def _lost(self, error: BaseException) -> None:
        reason = explained(error)
        if self.connected:
            self.losses += 1
        if self.connected or reason != self.error:
            log.warning(
                "registry %s: %s; nodes stay as they are, other routers' load is not known", self._address, reason
            )
        self.connected, self.error = False, reason

    @property
    def _channel(self) -> str:
        return f"{self._address.prefix}:load"

"""Leases: who belongs to a cluster, for as long as it says so. Kept in Redis by every member for itself.

    trunkline:0:node:ID    what a member is (JSON), with an expiry of LEASE_S
    trunkline:0:nodes      a set of the ids; those whose lease has ended are taken out by whoever lists them
    trunkline:0:members    a channel; a member that joins, returns or leaves is announced at once

Routers likewise, under `router` and `routers`. Redis may lose everything: leases are renewed every RENEW_S, and a
renewal that finds no lease makes a new one. What asks Redis raises RedisError, OSError or TimeoutError.
"""

import hashlib
import hmac
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec

from trunkline.shared.errors import UNDECODABLE, WireError
from trunkline.shared.registry import answering

if TYPE_CHECKING:
    from redis.asyncio import Redis

LEASE_S = 3.0
RENEW_S = 1.0
MAX_MEMBERS = 4096
"""Of a kind; those beyond it are not listed."""
REGISTRY_VERSION = 1

log = logging.getLogger(__name__)


class Kind(StrEnum):
    NODE = "node"
    ROUTER = "router"


class Member(msgspec.Struct, frozen=True):
    """A node or a router. `id`: a node's URL, or a random word of a router's process."""

    kind: Kind
    id: Annotated[str, msgspec.Meta(max_length=512)]
    url: Annotated[str, msgspec.Meta(max_length=512)]
    name: Annotated[str, msgspec.Meta(max_length=256)]
    epoch: str = ""
    """Another one each time that the process starts."""
    proof: str = ""
    """That it knows the cluster secret: routers send that to nodes, so nobody else may pose as one."""
    version: int = REGISTRY_VERSION

    def signed(self, secret: str | None) -> "Member":
        return self if secret is None else msgspec.structs.replace(self, proof=self._proof(secret))

    def is_genuine(self, secret: str | None) -> bool:
        """Always, without a secret."""
        return secret is None or hmac.compare_digest(self.proof.encode(), self._proof(secret).encode())

    def _proof(self, secret: str) -> str:
        text = "\0".join(("trunkline member", self.kind, self.id, self.url, self.name, self.epoch))
        return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


class Notice(msgspec.Struct, frozen=True):
    """On the channel of members."""

    member: Member
    left: bool


_encoder = msgspec.json.Encoder()
_members = msgspec.json.Decoder(Member)
_notices = msgspec.json.Decoder(Notice)


def channel(prefix: str) -> str:
    """Where notices come."""
    return f"{prefix}:members"


def decode_notice(frame: bytes) -> Notice:
    """Raises WireError for anything but a notice of this version."""
    try:
        notice = _notices.decode(frame)
    except UNDECODABLE as error:
        raise WireError(f"notice of {len(frame)} bytes does not decode: {error}") from None
    if notice.member.version != REGISTRY_VERSION:
        raise WireError(f"member speaks registry version {notice.member.version}, this is {REGISTRY_VERSION}")
    return notice


async def renew(redis: "Redis", prefix: str, member: Member) -> None:
    """Takes the lease, or renews it. Announced if there was none, or another incarnation's."""
    record = _encoder.encode(member)
    async with answering():
        before = await redis.set(_key(prefix, member), record, px=int(LEASE_S * 1000), get=True)
        await redis.sadd(_index(prefix, member.kind), member.id)
        if before != record:
            await redis.publish(channel(prefix), _encoder.encode(Notice(member, left=False)))


async def release(redis: "Redis", prefix: str, member: Member) -> None:
    """Gives the lease up, and says so."""
    async with answering(), redis.pipeline(transaction=False) as pipe:
        pipe.delete(_key(prefix, member))
        pipe.srem(_index(prefix, member.kind), member.id)
        pipe.publish(channel(prefix), _encoder.encode(Notice(member, left=True)))
        await pipe.execute()


async def listing(redis: "Redis", prefix: str, kind: Kind) -> list[Member]:
    """Everyone whose lease runs. What does not decode is logged and left out."""
    async with answering():
        found: set[bytes] = await redis.smembers(_index(prefix, kind))  # type: ignore[assignment]  # Nothing is decoded.
        ids = sorted(found)[:MAX_MEMBERS]
        if not ids:
            return []
        records = await redis.mget([f"{prefix}:{kind}:".encode() + id for id in ids])
    members, ended = [], []
    for id, record in zip(ids, records, strict=True):
        if record is None:
            ended.append(id)
            continue
        try:
            member = _members.decode(record)
        except UNDECODABLE as error:
            log.warning("registry: the record of %s %.80r does not decode: %s", kind, id, error)
            continue
        if member.version != REGISTRY_VERSION:
            log.warning("registry: %s %.80r speaks version %d, this is %d", kind, id, member.version, REGISTRY_VERSION)
        elif member.kind == kind:
            members.append(member)
    if ended:
        async with answering():
            await redis.srem(_index(prefix, kind), *ended)
    return members


def _key(prefix: str, member: Member) -> str:
    return f"{prefix}:{member.kind}:{member.id}"


def _index(prefix: str, kind: Kind) -> str:
    return f"{prefix}:{kind}s"

"""The reader's side of the control channel: one connection to each holder, opened when it is first asked."""

import asyncio
import logging
import secrets
import ssl
import time
from dataclasses import dataclass, field

from trunkline.agent.transfer import messages
from trunkline.agent.transfer.connection import ClientCounters, Connection, Holder, Located, Question
from trunkline.agent.transfer.errors import FrameError, PeerLost, PeerRefused
from trunkline.agent.transfer.messages import Challenge, Hello, Kind, Refused, Welcome
from trunkline.agent.transfer.proof import NONCE_BYTES, agrees, proof
from trunkline.agent.transfer.server import Identity

CONNECT_S = 2.0
"""To connect and to be let in."""
FIRST_REST_S, LONGEST_REST_S = 0.5, 30.0
"""A holder that failed is not tried again for so long, doubling."""
MAX_HOLDERS = 256
READ_BYTES = 1 << 20
"""Of an answer that are taken at a time: token ids are megabytes."""

log = logging.getLogger(__name__)


class TransferClient:
    """Used on the event loop. Holders are named by `host:port`."""

    def __init__(self, identity: Identity, secret: str | None, tls: ssl.SSLContext | None = None) -> None:
        self.counters = ClientCounters()
        self._identity = identity
        self._secret = secret
        self._tls = tls
        self._contacts: dict[str, _Contact] = {}

    async def locate(self, address: str, question: Question, wait_s: float, timeout_s: float) -> Located:
        """Raises PeerLost when there is no answer within `timeout_s`, FrameError for a bad one, PeerRefused.

        `wait_s`: how long the holder may wait until it can lend page `first`.
        """
        self.counters.questions += 1
        contact = await self._contact(address)
        if time.monotonic() < contact.rests_until:
            raise PeerLost(f"{address}: failed a moment ago and is left alone")
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect(contact)
                located = await connection.locate(question, wait_s)
        except TimeoutError:
            # It may be busy, and others read from it: the connection stays.
            self._failed(contact, f"no answer within {timeout_s:.2f} s")
            raise PeerLost(f"{address}: no answer within {timeout_s:.2f} s") from None
        except (FrameError, PeerLost, PeerRefused) as error:
            self._failed(contact, str(error))
            if contact.connection is not None:
                contact.connection.abort()
            raise type(error)(f"{address}: {error}") from None
        contact.rest_s = 0.0
        self.counters.located_pages += len(located.descriptors)
        return located

    async def close(self) -> None:
        """Ends every connection, and with them every lease. Idempotent."""
        contacts, self._contacts = list(self._contacts.values()), {}
        for contact in contacts:
            await contact.close()

    async def _contact(self, address: str) -> "_Contact":
        contact = self._contacts.get(address)
        if contact is None:
            contact = self._contacts[address] = _Contact(address)
            if len(self._contacts) > MAX_HOLDERS:
                await self._contacts.pop(next(iter(self._contacts))).close()
        return contact

    async def _connect(self, contact: "_Contact") -> Connection:
        async with contact.opening:
            if contact.connection is not None and contact.connection.alive:
                return contact.connection
            contact.connection = await self._open(contact.address)
            return contact.connection

    async def _open(self, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=self._tls, limit=READ_BYTES
                )
                messages.give_up_on_silence(writer)
                try:
                    holder = await self._introduce(host, reader, writer)
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, EOFError, ValueError, OverflowError, TimeoutError) as error:
            raise PeerLost(f"cannot be reached: {str(error) or type(error).__name__}") from None
        log.info("transfer: reads from %s at %s", holder.node, address)
        return Connection(address, holder, reader, writer, self.counters)

    async def _introduce(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Holder:
        frame = await messages.read_frame(reader)
        challenge = messages.message(frame, Kind.CHALLENGE, Challenge)
        if challenge.version != messages.VERSION:
            raise PeerRefused(f"speaks version {challenge.version} of the transfer protocol, not {messages.VERSION}")
        nonce, me = secrets.token_bytes(NONCE_BYTES), self._identity
        proved = proof(self._secret, b"reader", challenge.nonce, nonce)
        hello = Hello(messages.VERSION, me.node, nonce, proved, me.namespace)
        writer.write(messages.frame(Kind.HELLO, hello))
        frame = await messages.read_frame(reader)
        if frame.kind == Kind.REFUSED:
            raise PeerRefused(f"refused: {messages.message(frame, Kind.REFUSED, Refused).reason}")
        welcome = messages.message(frame, Kind.WELCOME, Welcome)
        if not agrees(welcome.proof, proof(self._secret, b"holder", challenge.nonce, nonce)):
            raise PeerRefused(f"{welcome.node!r} does not prove that it knows this cluster's secret")
        return Holder(welcome.node, welcome.offer.at(host))

    def _failed(self, contact: "_Contact", why: str) -> None:
        self.counters.failures += 1
        now = time.monotonic()
        if now >= contact.rests_until:
            contact.rest_s = min(max(FIRST_REST_S, 2 * contact.rest_s), LONGEST_REST_S)
            contact.rests_until = now + contact.rest_s
            log.warning("transfer: %s: %s; left alone for %.1f s", contact.address, why, contact.rest_s)


@dataclass(eq=False, slots=True)
class _Contact:
    """A holder that was asked for."""

    address: str
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    rests_until: float = 0.0
    """After it failed; asked again only then."""
    rest_s: float = 0.0

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()

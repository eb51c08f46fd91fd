"""The holder's side of the control channel: who may ask, how much at a time, and what they are answered."""

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
from dataclasses import dataclass, field
from itertools import count

from trunkline.agent.transfer import messages
from trunkline.agent.transfer.errors import FrameError, PeerRefused, TransferError
from trunkline.agent.transfer.lender import Lender, Lent
from trunkline.agent.transfer.messages import HEAD, Challenge, Frame, Hello, Kind, Locate, Refused, Welcome
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.pace import Pace
from trunkline.agent.transfer.proof import NONCE_BYTES, agrees, proof
from trunkline.kernels.core import encode_located
from trunkline.shared.namespace import Namespace

GREETING_S = 5.0
"""For a connection to say who it is, and as long for its TLS before that."""
ANSWER_S = 5.0
"""Beyond what a question itself may wait: for the engine to come to it."""
MAX_WAIT_S = 10.0
"""Of what a question may ask for."""
WRITE_S = 10.0
"""For a reader to take an answer; then it is let go with its leases."""
MAX_SESSIONS, MAX_CONNECTIONS = 256, 320
"""Readers, and connections with those that have not said yet who they are."""
MAX_LEASES = 1024
"""That a reader has not given back, ended or not."""
QUESTIONS_PER_S = 100.0
"""Of one reader; what comes faster is read later."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node is to its peers."""

    node: str
    namespace: Namespace
    """Without a salt."""
    offer: Offer


@dataclass(eq=False, slots=True)
class Session:
    """One reader that has proved who it is."""

    number: int
    node: str
    writer: asyncio.StreamWriter
    leases: dict[int, int] = field(default_factory=dict)
    """Numbers of the lender's leases, by the numbers of their questions; 0: not answered yet. What was given back is
    not there."""
    answers: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """Of questions that are not answered yet, by their numbers."""


@dataclass(slots=True)
class ServerCounters:
    """Since the start."""

    sessions: int = 0
    refused: int = 0
    """Connections that were not let in."""
    bad_frames: int = 0
    questions: int = 0
    located_pages: int = 0
    unanswered: int = 0
    """Questions that the engine did not come to in time."""


class TransferServer:
    """Used on the event loop."""

    def __init__(
        self,
        identity: Identity,
        lender: Lender,
        secret: str | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: with which both sides show certificates; None: none are asked for."""
        self.counters = ServerCounters()
        self._identity = identity
        self._lender = lender
        self._secret = secret
        self._tls = tls
        self._sessions: dict[str, Session] = {}
        """By the names of the readers' nodes."""
        self._numbers = count(1)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Takes connections on a socket that is bound."""
        patience = GREETING_S if self._tls is not None else None
        self._server = await asyncio.start_server(
            self._connected, sock=listener, ssl=self._tls, ssl_handshake_timeout=patience
        )

    async def close(self) -> None:
        """Ends every session, and with it its leases. Idempotent."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self.counters.refused += 1
            writer.transport.abort()
            return
        messages.give_up_on_silence(writer)

        def ended(task: asyncio.Task[None]) -> None:  # also of a task that was cancelled before it began
            self._connections.discard(task)
            writer.close()

        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: Session | None = None
        try:
            async with asyncio.timeout(GREETING_S):
                session = await self._greet(reader, writer)
            await self._converse(session, reader)
        except TransferError as error:
            self._complain(error, writer)
        except (OSError, EOFError, TimeoutError) as error:
            log.debug("transfer: a connection ended: %r", error)
        finally:
            if session is not None:
                self._end(session)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Session:
        """Raises PeerRefused, after the other was told, and FrameError."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(messages.frame(Kind.CHALLENGE, Challenge(messages.VERSION, nonce)))
        await writer.drain()
        frame = await messages.read_frame(reader)
        hello = messages.message(frame, Kind.HELLO, Hello)
        if reason := self._objection(hello, nonce):
            writer.write(messages.frame(Kind.REFUSED, Refused(reason)))
            await writer.drain()
            raise PeerRefused(f"{hello.node!r}: {reason}")
        if (old := self._sessions.get(hello.node)) is not None:
            # One connection per reader: the earlier one is broken, or of an earlier incarnation.
            log.info("transfer: %s has come again", hello.node)
            old.writer.close()
            self._end(old)
        session = self._sessions[hello.node] = Session(next(self._numbers), hello.node, writer)
        self.counters.sessions += 1
        welcome = Welcome(self._identity.node, proof(self._secret, b"holder", nonce, hello.nonce), self._identity.offer)
        writer.write(messages.frame(Kind.WELCOME, welcome))
        await writer.drain()
        return session

    def _objection(self, hello: Hello, nonce: bytes) -> str:
        """Why this reader is not let in; empty: it is."""
        mine, theirs = self._identity.namespace, hello.namespace
        if hello.version != messages.VERSION:
            return f"speaks version {hello.version} of the transfer protocol, this node {messages.VERSION}"
        if not agrees(hello.proof, proof(self._secret, b"reader", nonce, hello.nonce)):
            return "does not prove that it knows this cluster's secret"
        for name in ("fingerprint", "dtype", "layout", "lora"):
            if getattr(mine, name) != getattr(theirs, name):
                return f"its KV is of another {name}: {getattr(theirs, name)!r}, here {getattr(mine, name)!r}"
        if len(self._sessions) >= MAX_SESSIONS:
            return f"{MAX_SESSIONS} readers are connected already"
        return ""

    async def _converse(self, session: Session, reader: asyncio.StreamReader) -> None:
        pace = Pace(QUESTIONS_PER_S)
        while True:
            frame = await messages.read_frame(reader, lambda: messages.MAX_LOCATE_BYTES)
            if frame.kind == Kind.LOCATE:
                if len(session.answers) >= messages.MAX_QUESTIONS or len(session.leases) >= MAX_LEASES:
                    asked, kept = len(session.answers), len(session.leases)
                    raise FrameError(f"{session.node!r} has {asked} questions open and gives {kept} leases not back")
                locate = Locate.decode(frame.body)
                self.counters.questions += 1
                session.leases[frame.number] = 0
                session.answers[frame.number] = asyncio.create_task(self._answer(session, frame.number, locate))
                await asyncio.sleep(pace.wait())
            elif frame.kind == Kind.RELEASE:
                self._release(session, frame)
            else:
                raise FrameError(f"frame of kind {frame.kind} from {session.node!r} where questions are due")

    def _release(self, session: Session, frame: Frame) -> None:
        if (task := session.answers.pop(frame.number, None)) is not None:
            task.cancel()
        if number := session.leases.pop(frame.number, 0):
            self._lender.release(session.number, number)

    async def _answer(self, session: Session, number: int, locate: Locate) -> None:
        try:
            await self._answered(session, number, locate)
        finally:
            session.answers.pop(number, None)

    async def _answered(self, session: Session, number: int, locate: Locate) -> None:
        lent = await self._lent(session, locate)
        if lent is not None and lent.number:
            session.leases[number] = lent.number
        else:
            del session.leases[number]
        if lent is None:
            return
        body = await asyncio.to_thread(self._body, lent)
        self.counters.located_pages += len(lent.descriptors)
        session.writer.writelines((HEAD.pack(sum(map(len, body)), Kind.LOCATED, number), *body))
        try:
            async with asyncio.timeout(WRITE_S):
                await session.writer.drain()
        except (OSError, TimeoutError):
            session.writer.transport.abort()  # With its connection the reader's leases end.

    async def _lent(self, session: Session, locate: Locate) -> Lent | None:
        """What the engine says; None if it does not come to it in time: the reader has given up by then."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Lent] = loop.create_future()

        def settle(lent: Lent) -> None:
            if not answered.done():
                answered.set_result(lent)
            else:
                self._lender.release(session.number, lent.number)

        def answer(lent: Lent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(settle, lent)

        wait_s = min(locate.wait_s, MAX_WAIT_S)
        timer = loop.call_later(wait_s, self._lender.wake)
        try:
            self._lender.ask(session.number, locate, wait_s, answer)
            async with asyncio.timeout(wait_s + ANSWER_S):
                return await answered
        except TimeoutError:
            self.counters.unanswered += 1
            log.warning("transfer: the engine did not come to a question of %s within %.0f s", session.node, ANSWER_S)
            return None
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled():  # in the same moment
                settle(answered.result())
            raise
        finally:
            timer.cancel()

    def _body(self, lent: Lent) -> tuple[bytes, bytes]:
        """In a worker thread: token ids may be megabytes."""
        lease_ms = round(lent.seconds * 1000)
        head = encode_located(self._identity.offer.epoch, lent.first, lent.held, lease_ms, lent.descriptors.tobytes())
        return head, b"".join([entry.tokens for entry in lent.chain])

    def _end(self, session: Session) -> None:
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            for task in session.answers.values():
                task.cancel()
            self._lender.leave(session.number)

    def _complain(self, error: TransferError, writer: asyncio.StreamWriter) -> None:
        counters = self.counters
        if isinstance(error, PeerRefused):
            counters.refused += 1
        else:
            counters.bad_frames += 1
        bad = counters.refused + counters.bad_frames
        if bad.bit_count() == 1:  # 1, 2, 4, ...: whoever sends junk fills no disk
            peer = writer.get_extra_info("peername")
            log.warning("transfer: %d connections turned away so far, the last from %s: %s", bad, peer, error)

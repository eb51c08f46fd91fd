"""One connection to a holder: questions under way, and what was located."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from trunkline.agent.transfer import messages
from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.agent.transfer.errors import FrameError, PeerLost
from trunkline.agent.transfer.messages import HEAD, Answer, Frame, Kind, Locate
from trunkline.agent.transfer.offer import Offer
from trunkline.kernels.core import MAX_CHAIN_PAGES
from trunkline.shared.namespace import Namespace

LEASE_S = 30.0
"""Asked for; a holder may give less."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """Where are the pages `first .. count` of a chain? `keys` and `tokens` (packed i32) are of the whole chain."""

    namespace: Namespace
    """With its salt."""
    keys: Sequence[int]
    tokens: bytes
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a connection leads to."""

    node: str
    offer: Offer


class Located:
    """Pages that may be read until `release`. Their token ids are the reader's."""

    def __init__(self, connection: "Connection", number: int, answer: Answer, until: float) -> None:
        self.holder = connection.holder
        self.first = answer.first
        self.held = answer.held
        """Pages of the chain that the holder has; those that it did not lend may be asked for again."""
        self.descriptors: Descriptors = answer.descriptors
        """Of the pages from `first` on; tier NOT_LENT where one is not lent."""
        self.until = until
        """`time.monotonic()` at which the lease ends, or before."""
        self._connection = connection
        self._number = number

    @property
    def valid(self) -> bool:
        """Whether the lease may still last: without its connection it has ended."""
        return self._connection.alive and time.monotonic() < self.until

    def release(self) -> None:
        """Gives the pages back. Idempotent; does not wait."""
        self._connection.release(self._number)


@dataclass(slots=True)
class ClientCounters:
    """Since the start."""

    questions: int = 0
    located_pages: int = 0
    false_pages: int = 0
    """Described by holders, but of other token ids."""
    failures: int = 0


class Connection:
    """Questions under way on one connection, and the task that reads their answers."""

    def __init__(
        self,
        address: str,
        holder: Holder,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        counters: ClientCounters,
    ) -> None:
        self.holder = holder
        self._reader = reader
        self._writer = writer
        self._counters = counters
        self._numbers = count(1)
        self._turns = asyncio.Semaphore(messages.MAX_QUESTIONS)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._most = messages.MAX_CONTROL_BYTES
        """Bytes of the longest answer that any question under way may have."""
        self._task = asyncio.create_task(self._read(), name=f"transfer {address}")

    @property
    def alive(self) -> bool:
        return not self._task.done()

    async def locate(self, question: Question, wait_s: float) -> Located:
        """Raises PeerLost, FrameError."""
        async with self._turns:
            if not self.alive:
                raise PeerLost("has ended the connection")
            return await self._locate(question, wait_s)

    async def _locate(self, question: Question, wait_s: float) -> Located:
        number = next(self._numbers) & 0xFFFF_FFFF
        first, last = question.first, min(question.count, MAX_CHAIN_PAGES)
        rungs = messages.rungs(question.keys, last)
        body = Locate(messages.digest(question.namespace), first, last, wait_s, LEASE_S, rungs).encode()
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        self._most = max(self._most, messages.most_bytes(last))
        try:
            self._writer.writelines((HEAD.pack(len(body), Kind.LOCATE, number), body))
            asked = time.monotonic()
            frame = await answered
            answer = await asyncio.to_thread(Answer.decode, frame.body, question.tokens)
        except asyncio.CancelledError:
            self.release(number)  # Nobody will read what the holder lends.
            raise
        finally:
            del self._waiting[number]
        if answer.epoch != self.holder.offer.epoch or (len(answer.descriptors) and answer.first != first):
            raise FrameError("answers as another incarnation, or another question")
        if answer.false:
            self._counters.false_pages += answer.false
            log.warning("transfer: %s has %d pages of other token ids", self.holder.node, answer.false)
        return Located(self, number, answer, asked + answer.lease_s)

    def release(self, number: int) -> None:
        """Once for each question."""
        if self.alive:
            self._writer.write(HEAD.pack(0, Kind.RELEASE, number))

    def abort(self) -> None:
        """Ends at once. Does not wait."""
        self._writer.transport.abort()
        self._task.cancel()

    async def close(self) -> None:
        self.abort()
        await asyncio.wait([self._task])

    async def _read(self) -> None:
        error: Exception = PeerLost("has ended the connection")
        try:
            while True:
                frame = await messages.read_frame(self._reader, lambda: self._most)
                answered = self._waiting.get(frame.number)
                if frame.kind != Kind.LOCATED:
                    raise FrameError(f"sends a frame of kind {frame.kind} where answers are due")
                if answered is not None and not answered.done():
                    answered.set_result(frame)
        except FrameError as bad:
            error = bad
        except (OSError, EOFError):
            pass
        finally:
            self._writer.transport.abort()
            for answered in self._waiting.values():
                if not answered.done():
                    answered.set_exception(error)

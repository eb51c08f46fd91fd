"""Publishes what the cache holds to every router: numbered batches, with load, over ZeroMQ.

A thread of its own owns the sockets and the log. The engine thread only appends: it never waits for a socket or a
follower. A follower that is too slow loses batches at its high-water mark, sees the gap and asks for them again.
"""

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import zmq

from trunkline.agent.event_log import EventLog
from trunkline.kernels.core import PrefixIndex
from trunkline.shared.errors import ConfigError, WireError
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.wire import (
    MAX_NAME,
    MAX_REQUEST_BYTES,
    Cleared,
    Finished,
    Load,
    Moved,
    Removed,
    Stored,
    decode_request,
    encode,
)

FLUSH_S = 0.02
"""How long events gather before a batch is sent."""
HEARTBEAT_S = 0.25
MAX_FINISHED = 4096
"""Finished requests that wait for a batch; the oldest go first."""
PUB_QUEUE = 256
"""Batches queued per follower, then lost to it. At 2 x 200 KB each this bounds a stuck follower to 100 MB."""
REPLY_QUEUE = 256
"""Messages queued per asking follower: a whole snapshot of the largest index, or two answers to Replay."""
_REQUESTS_PER_TURN = 16
_LINGER_MS = 200

log = logging.getLogger(__name__)


class EventPublisher:
    """A `SummarySink` whose other end is every router.

    `load` is called from the publisher's thread at every batch: it must be quick and safe to call from there.
    `max_keys` bounds the mirror: pages of all tiers, and MAX_TEXT_KEYS_PER_PAGE text keys for each.
    Ports of 0 are chosen by the system; `events` and `replay` are the endpoints after `start`.
    Raises ConfigError for a node name that routers would refuse.
    """

    def __init__(
        self,
        node: str,
        load: Callable[[], Load],
        *,
        max_keys: int,
        host: str = "127.0.0.1",
        events_port: int = 0,
        replay_port: int = 0,
    ) -> None:
        if len(node) > MAX_NAME:
            raise ConfigError(f"node name of {len(node)} characters is over the cap of {MAX_NAME}: {node[:40]!r}...")
        self.epoch = secrets.randbits(63)
        self.events = ""
        self.replay = ""
        self.error: str | None = None
        """Why the thread ended before `close`; followers see silence then."""
        self._load = load
        self._host = host
        self._ports = events_port, replay_port
        self._log = EventLog(node, self.epoch, PrefixIndex(SUMMARY_PARTITIONS, max_keys))
        self._finished: deque[Finished] = deque(maxlen=MAX_FINISHED)
        self._dropped_replies = 0
        self._bad_requests = 0
        self._stop = threading.Event()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Binds both sockets and starts the thread. Raises ConfigError if a port cannot be bound."""
        context = zmq.Context()
        try:
            publisher = _bound(context, zmq.PUB, self._host, self._ports[0], PUB_QUEUE)
            answers = _bound(context, zmq.ROUTER, self._host, self._ports[1], REPLY_QUEUE)
        except ConfigError:
            context.destroy(linger=0)
            raise
        self.events = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = answers.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(
            target=self._main, args=(context, publisher, answers), name="trunkline-events", daemon=True
        )
        self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Sends what is pending and joins the thread, for at most `timeout` seconds. Idempotent."""
        self._stop.set()
        self._wake()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                log.error("events: thread did not end within %.1f s", timeout)
                return
            self._thread = None
        self._wake_in.close()
        self._wake_out.close()

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        if self._log.append(Stored(keys, depths, tier)):
            self._wake()

    def moved(self, keys: bytes, tier: Tier) -> None:
        if self._log.append(Moved(keys, tier)):
            self._wake()

    def removed(self, keys: bytes) -> None:
        if self._log.append(Removed(keys)):
            self._wake()

    def cleared(self) -> None:
        if self._log.append(Cleared()):
            self._wake()

    def finished(self, finished: Finished) -> None:
        """Reports a finished request with the next batch. From any thread."""
        if len(finished.request_id) > MAX_NAME:  # clients may choose it
            finished = msgspec.structs.replace(finished, request_id=finished.request_id[:MAX_NAME])
        self._finished.append(finished)
        self._wake()

    def stats(self) -> dict[str, int]:
        """Counters for metrics."""
        return self._log.stats() | {"dropped_replies": self._dropped_replies, "bad_requests": self._bad_requests}

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: nothing is published any more
            self._wake_in.send(b"\0")

    def _main(self, context: "zmq.Context[zmq.Socket[bytes]]", publisher: "_Socket", answers: "_Socket") -> None:
        try:
            self._run(publisher, answers)
        except Exception as error:  # the thread's last line of defence: say why the stream went silent
            self.error = f"{type(error).__name__}: {error}"
            log.critical("events: publisher failed, routers will distrust this node: %s", self.error, exc_info=True)
        finally:
            context.destroy(linger=_LINGER_MS)

    def _run(self, publisher: "_Socket", answers: "_Socket") -> None:
        poller = zmq.Poller()
        poller.register(answers, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        due = time.monotonic()
        while not self._stop.is_set():
            ready = dict(poller.poll(max(0, int((due - time.monotonic()) * 1000) + 1)))
            now = time.monotonic()
            if self._wake_out.fileno() in ready:
                self._drain_wakes()
                due = min(due, now + FLUSH_S)
            if now >= due:
                self._publish(publisher)
                due = now + HEARTBEAT_S
            if answers in ready:
                self._answer(publisher, answers)
        self._publish(publisher)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _publish(self, publisher: "_Socket") -> None:
        finished = [self._finished.popleft() for _ in range(len(self._finished))]
        for batch in self._log.flush(self._load(), finished):
            publisher.send(encode(batch))  # PUB never blocks: it drops at a follower's mark

    def _answer(self, publisher: "_Socket", answers: "_Socket") -> None:
        self._publish(publisher)  # so that there is a batch, and answers are as new as they can be
        for _ in range(_REQUESTS_PER_TURN):
            try:
                identity, *frames = answers.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                request = decode_request(b"".join(frames))
            except WireError as error:
                self._bad_requests += 1
                if self._bad_requests.bit_count() == 1:  # 1, 2, 4, ...: whoever sends junk fills no disk
                    log.warning("events: %d requests ignored so far, the last: %s", self._bad_requests, error)
                continue
            for message in self._log.answer(request):
                try:
                    answers.send_multipart([identity, encode(message)], zmq.NOBLOCK)
                except zmq.ZMQError as error:  # its queue is full, or it left: it asks again if it is still there
                    self._dropped_replies += 1
                    log.warning("events: answer to %s cut short: %s", type(request).__name__, error)
                    break


_Socket = zmq.Socket[bytes]


def _bound(context: "zmq.Context[_Socket]", kind: int, host: str, port: int, queue: int) -> _Socket:
    sock = context.socket(kind)
    sock.setsockopt(zmq.SNDHWM, queue)
    sock.setsockopt(zmq.RCVHWM, queue)
    sock.setsockopt(zmq.LINGER, _LINGER_MS)
    sock.setsockopt(zmq.IPV6, int(":" in host))
    sock.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    if kind == zmq.ROUTER:
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue is an error we see, not a silent loss
    address = f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"
    try:
        sock.bind(address)
    except zmq.ZMQError as error:
        sock.close()
        raise ConfigError(
            f"cannot bind the event stream to {address}: {error.strerror}; choose another host or port"
        ) from None
    return sock

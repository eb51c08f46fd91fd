"""Holders that are killed or hang, as processes: what came stays, and the rest is not waited for."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.agent.transfer.slabs import EPOCH, PAGE_BYTES, located, make, page, targets
from tests.agent.transfer.test_backends import LOST, OK, PAGES, open_backend
from trunkline.agent.transfer.offer import Offer

_PROCESS = """
import sys, time
from tests.agent.transfer.test_backends import Holder
holder = Holder()
holder.tcp.lender.rate = 200_000
print(holder.offer.tcp, holder.offer.shm, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_a_process_that_is_killed_or_hangs_in_the_middle(kind: str, signal_: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROCESS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            tcp_address, shm_name = process.stdout.readline().split()
            own, like = make(PAGES, first=100), make(PAGES)
            backend = open_backend(kind, Offer(EPOCH, PAGE_BYTES, tcp_address, shm_name), own)
            stop = threading.Timer(0.2, process.send_signal, [signal_])
            stop.start()
            sources, to = located(like, list(range(PAGES)) * 20), targets(list(range(PAGES)) * 20)
            result = backend.read(sources, to, 0.6)
            stop.join()
            if signal_ is signal.SIGKILL:
                process.wait()
                assert backend.read(sources, to, 1.0).statuses == bytes([LOST]) * len(to)
            backend.close()
        finally:
            process.kill()
    if kind == "tcp":
        came = result.statuses.count(OK)
        assert 1 <= came < len(to)
        assert result.statuses == bytes([OK] * came + [LOST] * (len(to) - came))
        assert result.error
        assert (page(own, 0) == 0).all()
    else:
        # Memory of one machine: what was located stays, whatever becomes of its process.
        assert result == (bytes(len(to)), None)


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_hangs_before_its_pages_are_asked_for(signal_: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROCESS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            tcp_address, _ = process.stdout.readline().split()
            own = make(PAGES, first=100)
            backend = open_backend("tcp", Offer(EPOCH, PAGE_BYTES, tcp_address), own)
            process.send_signal(signal_)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            result = backend.read(located(make(PAGES), [1, 2]), targets([1, 2]), 0.3)
            backend.close()
        finally:
            process.kill()
    assert result.statuses == bytes([LOST, LOST])
    assert result.error
    assert int(page(own, 1)[0]) == 101

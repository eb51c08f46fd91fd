"""`trunkline drain`: takes a node out of service, and waits until it may be stopped."""

import time
from urllib.parse import quote

import msgspec

from trunkline.shared.ask import Asker, asking
from trunkline.shared.errors import UNDECODABLE, TrunklineError
from trunkline.shared.handover import DrainStatus
from trunkline.shared.names import DRAIN_ADMIN_PATH

POLL_S = 0.5
ANSWER_S = 10.0
"""The router asks the node."""


def drain(node: str, url: str, *, undo: bool, timeout_s: float, token: str | None) -> None:
    """Prints what it comes to. Raises TrunklineError, also when the node is not drained within `timeout_s`."""
    path = f"{DRAIN_ADMIN_PATH}/{quote(node, safe='')}"
    with asking(url, token) as asker:
        if undo:
            asker.delete(path, ANSWER_S)
            print(f"{node} takes requests again")
            return
        asker.post(path, timeout_s=ANSWER_S)
        print(f"{node} takes no new requests")
        status = _wait(asker, path, time.monotonic() + timeout_s)
        if not status.draining:
            raise TrunklineError(f"{node} takes requests again: it was started anew, or its draining was undone")
    print(f"{status.handed} of {status.offered} warm prefixes are at other nodes, {status.tokens} tokens")
    if status.running:
        raise TrunklineError(f"{status.running} requests still run on {node} after {timeout_s:g} s")
    print(f"nothing runs on {node} any more: stop it, or `trunkline drain --undo {node} --url {url}`")


def _wait(asker: Asker, path: str, until: float) -> DrainStatus:
    while True:
        try:
            status = msgspec.json.decode(asker.get(path, ANSWER_S).content, type=DrainStatus)
        except UNDECODABLE as error:
            raise TrunklineError(f"what answers is no router: {error}") from None
        if not status.draining or (status.over and not status.running) or time.monotonic() > until:
            return status
        time.sleep(POLL_S)

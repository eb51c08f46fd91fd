"""Every interval and deadline of the router's view of its nodes, in seconds."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Defaults are for a network of machines; tests shorten them."""

    probe_s: float = 1.0
    """Between two probes of a node that answers."""
    probe_timeout_s: float = 1.5
    """For one probe, connection included: a node that hangs is out after two of these at most."""
    probe_backoff_s: float = 2.0
    """Longest pause between two probes of a node that does not answer."""
    reply_s: float = 1.0
    """For the next message of an answer to Replay or SnapshotRequest."""
    stale_s: float = 2.0
    """Silence after which a summary is distrusted: eight heartbeats."""
    reopen_s: float = 5.0
    """Silence after which the sockets are opened anew."""
    gone_s: float = 30.0
    """Silence after which a summary is cleared."""
    snapshot_backoff_s: float = 10.0
    """Longest pause between two snapshots of a node whose summary keeps disagreeing."""
    partial_retry_s: float = 60.0
    """Between two tries to make a partial summary whole."""


def jittered(seconds: float) -> float:
    """Spread over half of it, so that routers and nodes do not act in step."""
    return seconds * (0.75 + 0.5 * random.random())  # noqa: S311 - not a secret

"""Names and numbers that router and agent must agree on."""

from enum import IntEnum, StrEnum

PAGE_TOKENS = 16
"""Tokens per page: the unit of allocation, hashing, eviction and transfer."""

TEXT_CHUNK = 128
"""Bytes of canonical text per text key. About 30 tokens of English: finer than two pages, and half the keys."""

MAX_TEXT_KEYS_PER_PAGE = 8
"""Text keys a node publishes for one page; the oldest go first. Bounds a summary to this many keys per page."""

SUMMARY_PARTITIONS = 16
"""Partitions of an index of summaries: each has a digest of its own, and is repaired alone when that disagrees."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Default cap of a request body: 8 MiB is two million tokens of English."""

HEADER_REQUEST_ID = "x-request-id"
HEADER_SALT = "x-trunkline-salt"
"""Router to agent: hex salt of the authenticated tenant. Believed only beside a valid HEADER_CLUSTER."""
HEADER_LEAD = "x-trunkline-lead"
"""Router to agent: seconds by which the request's tenant is behind its fair share of the node. Believed as the salt."""
HEADER_CLUSTER = "x-trunkline-cluster"
"""Router to agent: proof that the caller knows the cluster secret."""

HEADER_PULL_FROM = "x-trunkline-pull-from"
"""Router to agent: the node that holds more of the prefix; see `shared/pull.py`. Believed as HEADER_SALT is."""

ROUTER_PORT = 8000
AGENT_PORT = 8100
INFO_PATH = "/trunkline/info"
PULLS_PATH = "/trunkline/pulls"
DRAIN_ADMIN_PATH = "/admin/drain"
REPLICATE_PATH = "/admin/replicate"
MAX_LISTED = 1000
"""Decisions that a router lists at once."""


class EngineKind(StrEnum):
    """What computes in an agent."""

    BUILTIN = "builtin"
    EMULATED = "emulated"


class Tier(IntEnum):
    """Where a page lies, fastest first."""

    DEVICE = 0
    HOST = 1
    DISK = 2

"""Routing policies by name: Trunkline's own scheduler, and its peers' re-implemented from their published formulas."""

from collections.abc import Callable
from functools import partial

from trunkline.loadtest.sim.policies.aibrix import AibrixPrefix
from trunkline.loadtest.sim.policies.base import Policy, Setup, View
from trunkline.loadtest.sim.policies.cache_aware import CacheAware, CacheAwareEvent
from trunkline.loadtest.sim.policies.dynamo import DynamoKv
from trunkline.loadtest.sim.policies.hashing import ConsistentHash, PrefixHashBounded, SessionSticky
from trunkline.loadtest.sim.policies.llmd import LlmdApprox, LlmdPrecise
from trunkline.loadtest.sim.policies.plain import GlobalPoolRoundRobin, LeastRequest, PowerOfTwo, Random, RoundRobin
from trunkline.loadtest.sim.policies.preble import Preble
from trunkline.loadtest.sim.policies.ray_prefix import RayPrefix
from trunkline.loadtest.sim.policies.trunkline import Trunkline
from trunkline.loadtest.sim.policies.trunkline_x2 import TrunklineX2
from trunkline.shared.errors import ConfigError

__all__ = ["POLICIES", "Policy", "Setup", "View", "find_policies"]

POLICIES: dict[str, Callable[[Setup, View], Policy]] = {
    "trunkline": Trunkline,
    "trunkline_x2": TrunklineX2,
    "trunkline_x2_silent": partial(TrunklineX2, telling=False),
    "round_robin": RoundRobin,
    "random": Random,
    "least_request": LeastRequest,
    "power_of_two": PowerOfTwo,
    "consistent_hash": ConsistentHash,
    "session_sticky": SessionSticky,
    "prefix_hash_bounded": PrefixHashBounded,
    "cache_aware": CacheAware,
    "cache_aware_event": CacheAwareEvent,
    "dynamo_kv": DynamoKv,
    "dynamo_kv_s32": partial(DynamoKv, scale=32.0),
    "llmd_precise": LlmdPrecise,
    "llmd_approx": LlmdApprox,
    "aibrix_prefix": AibrixPrefix,
    "preble": Preble,
    "ray_prefix": RayPrefix,
    "ray_prefix_10": partial(RayPrefix, imbalance=10),
    "global_pool_rr": GlobalPoolRoundRobin,
}


def find_policies(names: str) -> list[str]:
    """Names in a comma-separated list, each once; `all`: every one. Raises ConfigError naming the known ones."""
    wanted = list(POLICIES) if names == "all" else [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in POLICIES:
            raise ConfigError(f"policy {name!r} is not known; there are {', '.join(POLICIES)}, and all")
    return list(dict.fromkeys(wanted))

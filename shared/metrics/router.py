"""Every metric of a router."""

from trunkline.shared.metrics.definition import Catalog, Label
from trunkline.shared.names import SUMMARY_PARTITIONS

ROUTER = Catalog("Router", "trunkline_router")

NODE = Label("node", bound="nodes of the fleet")
TENANT = Label("tenant", bound="tenants of the tenants file; `default` without one")
STATUS = Label("status", bound="HTTP statuses")
OUTCOME = Label("outcome", ("ok", "rejected", "overloaded", "failed", "broken", "left"))
STATE = Label("state", ("joining", "ready", "unready", "down", "draining"))
SUMMARY = Label("status", ("exact", "syncing", "partial", "stale", "assumed"))
EVENT = Label(
    "event",
    (
        *("batches", "duplicates", "gaps", "replays", "snapshots"),
        *("mismatches", "repairs", "epochs", "dropped_keys", "bad_frames"),
    ),
)
REFUSAL = Label("reason", ("rate_limit", "queue_full", "queue_deadline", "priority"))
CLAIM = Label("kind", ("burst", "assumed"))
PARTITION = Label("partition", tuple(map(str, range(SUMMARY_PARTITIONS))))
OPERATION = Label("kind", ("lookups", "changes"))
HANDING = Label("outcome", ("handed", "failed"))
PEER = Label("what", ("sent", "received", "missed", "refused"))

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TTFT = (
    *(0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
"""Fine enough that a quantile between two of them is within a quarter of the truth."""
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0)
_DECISION = (10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3)

_requests = ROUTER.section("Requests")
INFLIGHT = _requests.gauge("inflight", "requests begun and not answered")
REQUESTS = _requests.counter(
    "requests",
    "requests for completions that have ended: `overloaded` with 429 or 503, `rejected` with another 4xx, `failed` "
    "with another 5xx; `broken`: the response began, and is not whole; `left`: the client did not wait or not read",
    OUTCOME,
)
RESPONSES = _requests.counter("responses", "responses begun", STATUS)
TTFT = _requests.histogram("ttft_seconds", "of streams: from the complete request to the first token", bounds=_TTFT)
ITL = _requests.histogram(
    "itl_seconds",
    "of streams: between two events, as they come in; only of those that the core passes on, so not with TLS, "
    "HTTP/1.0 or an `--access-log`",
    bounds=_GAP,
)
E2E = _requests.histogram("e2e_seconds", "of whole responses: from the complete request to their end", bounds=_LATENCY)
RETRIES = _requests.counter("retries", "tries that moved on to another node")
STARVED = _requests.counter(
    "starved_requests",
    "refused with 503: no file descriptor was left for a connection to a node",
    watch="should be flat; raise the limit of open files",
)
BROKEN = _requests.counter("broken_responses", "responses that a node did not complete", watch="should be flat")
PROMPT_TOKENS = _requests.counter("prompt_tokens", "of placed requests, estimated", unit="tokens")
MATCHED_TOKENS = _requests.counter("matched_tokens", "of these, expected in the chosen node's cache", unit="tokens")
LOG_LINES = _requests.counter("access_log_lines", "written to `--access-log`, if there is one")
LOG_DROPPED = _requests.counter(
    "access_log_dropped_lines", "not written: the disk is full, fails, or is too slow", watch="should be flat"
)

_decisions = ROUTER.section("Decisions")
DECISION = _decisions.histogram(
    "decision_seconds", "from decoded request to ranking; its count is that of the decisions", bounds=_DECISION
)
BLIND = _decisions.counter(
    "blind_decisions",
    "made while the summary of a candidate was syncing or stale, as of the last 50 ms: a hit may have been missed",
    watch="should be flat but for starts",
)
CHECKED_REQUESTS = _decisions.counter("checked_requests", "requests that nodes reported as finished")
CHECKED_EXPECTED = _decisions.counter("checked_expected_tokens", "expected to be cached, of these", unit="tokens")
CHECKED_CACHED = _decisions.counter("checked_cached_tokens", "really reused, of these", unit="tokens")
FALSE_PROMISES = _decisions.counter(
    "false_promises", "requests that found under three quarters of what was expected", watch="should be rare"
)
CLAIMED_KEYS = _decisions.gauge("claimed_keys", "keys expected because of what was placed", CLAIM)

_nodes = ROUTER.section("Nodes")
NODE_STATE = _nodes.gauge("node_state", "1 for the state that it is in", NODE, STATE)
NODE_SUMMARY = _nodes.gauge("node_summary", "1 for the status of its summary", NODE, SUMMARY)
NODE_DEGRADED = _nodes.gauge("node_degraded", "1 if the summary is not exact", NODE, watch="alert on 1")
NODE_REPORT_AGE = _nodes.gauge(
    "node_report_age_seconds",
    "since it last reported its load; no sample before it did",
    NODE,
    unit="seconds",
    watch="alert above 2",
)
NODE_RUNNING = _nodes.gauge("node_running", "requests placed there by this router", NODE)
NODE_PENDING = _nodes.gauge("node_pending_tokens", "uncached tokens placed there and not answered", NODE, unit="tokens")
NODE_STREAM = _nodes.counter(
    "node_stream",
    "what happened on its event stream; `mismatches` of the digest, `repairs` of single partitions",
    NODE,
    EVENT,
)

_index = ROUTER.section("Index")
INDEX_KEYS = _index.gauge("index_keys", "distinct keys of all summaries")
INDEX_BYTES = _index.gauge("index_bytes", "memory of the index", unit="bytes")
INDEX_OPERATIONS = _index.counter(
    "index_operations",
    "keys looked up and changed: even over the partitions, but for lookups of a prompt that most requests begin with",
    PARTITION,
    OPERATION,
)
INDEX_DROPPED = _index.counter("index_dropped_keys", "keys refused at the index's bound", watch="should be flat")

_queue = ROUTER.section("Queue and tenants")
HELD_REQUESTS = _queue.gauge("held_requests", "requests that wait here for a node with room")
HELD_BYTES = _queue.gauge("held_bytes", "their bodies", unit="bytes")
HELD_WORK = _queue.gauge("held_work_seconds", "their prefill, in seconds of a node", unit="seconds")
HELD_WAIT = _queue.histogram("held_wait_seconds", "from being held to being sent, of those that were", bounds=_LATENCY)
TENANT_HELD = _queue.gauge("tenant_held_requests", "of these, the tenant's", TENANT)
TENANT_REFUSED = _queue.counter("tenant_refused", "requests that were not served", TENANT, REFUSAL)
TENANT_REQUESTS = _queue.counter(
    "tenant_requests", "as nodes reported them; only with a tenants file, like those that follow", TENANT
)
TENANT_PROMPT = _queue.counter("tenant_prompt_tokens", "of their prompts", TENANT, unit="tokens")
TENANT_CACHED = _queue.counter("tenant_cached_tokens", "of these, reused", TENANT, unit="tokens")
TENANT_OUTPUT = _queue.counter("tenant_output_tokens", "of their replies", TENANT, unit="tokens")
TENANT_WORK = _queue.counter(
    "tenant_work_seconds",
    "what it was charged for its share: uncached prefill and replies, in seconds of a node",
    TENANT,
    unit="seconds",
)

_draining = ROUTER.section("Nodes that drain")
HANDED = _draining.counter(
    "handed_prefixes", "warm prefixes of nodes that drain, by what became of this router's order to pull them", HANDING
)
HANDED_TOKENS = _draining.counter("handed_tokens", "tokens of those that were `handed`", unit="tokens")

REPLICAS = ROUTER.section("Registry and other routers")
REGISTRY_CONNECTED = REPLICAS.gauge(
    "registry_connected", "1 while the registry works; no sample without one", watch="alert on 0"
)
REGISTRY_LOSSES = REPLICAS.counter("registry_losses", "times that its connection was lost")
REGISTRY_BAD = REPLICAS.counter("registry_bad_messages", "messages in it that did not decode", watch="should be flat")
REGISTRY_UNLEASED = REPLICAS.gauge("registry_unleased_nodes", "nodes that serve though their lease has ended")
REGISTRY_REFUSED = REPLICAS.gauge(
    "registry_refused_nodes", "members that are not watched: no proof of the cluster secret, or a URL of no use"
)
REGISTRY_LOST = REPLICAS.counter(
    "registry_lost_nodes", "nodes that were removed, for neither lease nor answer, and had not said that they leave"
)
PEERS = REPLICAS.gauge("peers", "other routers that were heard of")
PEER_BATCHES = REPLICAS.counter("peer_batches", "among routers; `refused`: too many routers", PEER)
PEER_CLAIMS_KEPT = REPLICAS.counter("peer_claims_kept", "claims that the others were not told of: too many at once")

ENDPOINTS = ROUTER.section("Listed nodes")
ENDPOINTS_CONNECTED = ENDPOINTS.gauge(
    "endpoints_connected",
    "1 while the Kubernetes API or the file tells of nodes; no sample without `--kubernetes-service` or `--node-file`",
    watch="alert on 0",
)
ENDPOINTS_LOSSES = ENDPOINTS.counter(
    "endpoints_losses", "times that the watch was lost, or the file could not be read any more"
)
ENDPOINTS_UNLISTED = ENDPOINTS.gauge("endpoints_unlisted_nodes", "nodes that serve though they are not listed any more")
ENDPOINTS_REFUSED = ENDPOINTS.gauge("endpoints_refused_nodes", "listed nodes that are not watched: no room, or no URL")

"""Every metric of an agent."""

from trunkline.shared.metrics.definition import Catalog, Label
from trunkline.shared.names import Tier

AGENT = Catalog("Agent", "trunkline_agent")

NODE, MODEL, VERSION = (
    Label(name, bound=f"one: {what}")
    for name, what in (("node", "this node's"), ("model", "as it is served"), ("version", "of Trunkline"))
)
_TIERS = tuple(tier.name.lower() for tier in Tier)
PATH = Label("path", ("/v1/completions", "/v1/chat/completions", "/v1/models", "other"))
STATUS = Label("status", bound="HTTP statuses")
TIER = Label("tier", _TIERS)
FOUND = Label("tier", (*_TIERS, "peer"))
PAGES_STATE = Label("state", ("free", "resident", "in_flight", "cached", "leased", "total"))
SOURCE, TARGET = Label("source", _TIERS), Label("target", _TIERS)
GONE = Label("reason", ("room", "copied", "short", "expired", "damaged"))
LOST = Label("reason", ("changed", "damaged", "absent", "lost"))
WAY = Label("way", ("shm", "nixl", "tcp"))
STEP = Label("kind", ("prefill", "decode"))

_STEP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_WAIT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_MOVE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_SIZE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)

_node = AGENT.section("Node and requests")
INFO = _node.gauge("info", "1: who this is", NODE, MODEL, VERSION)
READY = _node.gauge("ready", "1 while requests are taken")
DRAINING = _node.gauge("draining", "1 while it takes no new requests and hands on what it holds")
ALIVE = _node.gauge("engine_alive", "1 while the engine steps")
REGISTERED = _node.gauge("registered", "1 while its lease is renewed; no sample without a registry")
ANSWERS = _node.counter("http_answers", "HTTP answers; `other`: health, metrics, unknown paths", PATH, STATUS)
RUNNING = _node.gauge("running", "sequences in the batch")
WAITING = _node.gauge("waiting", "sequences accepted and not in the batch")
BACKLOG = _node.gauge("backlog_tokens", "prompt tokens accepted, not cached, not computed", unit="tokens")
REQUESTS = _node.counter("requests", "finished sequences")
QUEUE = _node.histogram("queue_seconds", "of finished sequences: from being accepted to the first step", bounds=_WAIT)
PREFILL = _node.histogram("prefill_seconds", "of these: from the first step to the first token", bounds=_WAIT)
PROMPT_TOKENS = _node.counter("prompt_tokens", "of these", unit="tokens")
CACHED_TOKENS = _node.counter("cached_tokens", "of the prompts, whose KV was reused", unit="tokens")
OUTPUT_TOKENS = _node.counter("output_tokens", "generated", unit="tokens")

_engine = AGENT.section("Engine")
PREFILL_RATE = _engine.gauge("prefill_tokens_per_second", "smoothed", unit="tokens/s")
DECODE_RATE = _engine.gauge("decode_tokens_per_second", "smoothed", unit="tokens/s")
UTILIZATION = _engine.gauge("utilization", "share of the last seconds in which a step ran", unit="share")
STEPS = _engine.counter("steps", "model steps")
STEP_TIME = _engine.histogram("step_seconds", "of a step; `prefill`: with a part of a prompt in it", STEP, bounds=_STEP)
STEP_SEQUENCES = _engine.histogram("step_sequences", "sequences in a step: the batch", bounds=_SIZE, unit="")
STEP_TOKENS = _engine.histogram("step_tokens", "tokens computed in a step", bounds=_TOKENS, unit="tokens")
PREEMPTIONS = _engine.counter("preemptions", "sequences that gave their pages to an older one, and are computed again")
FAILED_STEPS = _engine.counter("failed_steps", "steps that raised", watch="should be 0")
FAILED_CHECKS = _engine.counter(
    "failed_checks", "idle checks that found pages which nobody accounts for: leaks", watch="should be 0"
)
LATE = _engine.counter(
    "late_seconds",
    "of an [emulated engine](commands.md#an-emulated-engine): by how much steps ended after their time, summed; "
    "divided by the steps it should be small beside a step: else this machine is too slow for the profile",
    unit="seconds",
)

_cache = AGENT.section("Cache")
PAGES = _cache.gauge(
    "pages",
    "`free` + `resident` + `in_flight` = `total`; of the resident, `cached` are held by nobody, and `leased` by other "
    "nodes' leases alone",
    TIER,
    PAGES_STATE,
    unit="pages",
)
PAGE_BYTES = _cache.gauge("page_bytes", "of a page of this tier", TIER, unit="bytes")
FRAGMENTATION = _cache.gauge(
    "fragmentation",
    "1 - the longest run of free pages / free pages: 0 when what is free is in one piece; only requests "
    "to the disk gain from neighbours",
    TIER,
    unit="share",
)
FOUND_TOKENS = _cache.counter(
    "found_tokens",
    "the cached tokens of finished sequences, by where they were when the sequence came",
    FOUND,
    unit="tokens",
)
FALSE_HITS = _cache.counter("false_hits", "keys that matched other tokens: computed, never served")
EVICTED = _cache.counter(
    "evicted_pages",
    "pages that left a tier: `room` (others needed it), `copied` (to have room; it is in the tier below), `short` (its "
    "segment was not worth its bytes there), `expired` (`--disk-ttl`), `damaged`",
    TIER,
    GONE,
    unit="pages",
)
LEARNED = _cache.gauge(
    "eviction_learned",
    "1 while the [learned order](../develop/eviction.md) decides who goes; 0: least recently used first",
    TIER,
)
ADMISSION = _cache.gauge(
    "admission_pages",
    "the threshold of heat: pages that a segment must have to be copied to this tier; +Inf: computing is quicker than "
    "bringing back",
    TIER,
    unit="pages",
)
PINNED = _cache.gauge("pinned_pages", "that stay while others can go, there or not: pinned", unit="pages")
PINS_UNSAVED = _cache.gauge(
    "pins_unsaved",
    "1 while a restart would pin what was pinned before: the file in `--disk-cache` cannot be written",
    watch="should be 0",
)
CORE = _cache.gauge("core_pages", "the same: that nearly all requests begin with", unit="pages")
PROTECTED = _cache.gauge(
    "protected_pages",
    "these together, with what waiting requests have found and what is being fetched for them",
    unit="pages",
)

_tiers = AGENT.section("Tiers")
MOVED = _tiers.counter("moved_pages", "pages copied from one tier to another", SOURCE, TARGET, unit="pages")
MOVED_BYTES = _tiers.counter("moved_bytes", "of these, as they lie in the lower one", SOURCE, TARGET, unit="bytes")
MOVE_TIME = _tiers.histogram("move_seconds", "to copy a batch of them", SOURCE, TARGET, bounds=_MOVE)
BAD_MOVES = _tiers.counter(
    "bad_moves",
    "pages that did not arrive, or damaged: dropped and computed again",
    SOURCE,
    TARGET,
    unit="pages",
    watch="should be flat",
)
MOVE_RATE = _tiers.gauge(
    "move_pages_per_second",
    "speed while copying, as the choice between bringing back and computing sees it",
    SOURCE,
    TARGET,
    unit="pages/s",
)
FETCHES = _tiers.counter("fetches", "requests for which pages were brought back from a lower tier")
LATE_FETCHES = _tiers.counter("late_fetches", "of these, those that gave up waiting")
WRONG_FETCHES = _tiers.counter(
    "wrong_fetches", "of these, those for which it took longer than computing what came, the late ones among them"
)
SKIPPED = _tiers.counter(
    "skipped_pages", "pages in lower tiers that were computed, since that was expected to be quicker", unit="pages"
)
WRONG_SKIPS = _tiers.counter(
    "wrong_skips", "requests for which it was not, by the speeds measured until they ended: a wrong choice"
)
PRELOADED = _tiers.counter(
    "preloaded_pages",
    "pages brought from the disk to the host before they were asked for (`--preload-rhythm`, `--preload-graph`)",
    unit="pages",
)
PRELOADED_USED = _tiers.counter(
    "preloaded_used_pages", "of these, those that were still there when their session came", unit="pages"
)
PACED = _tiers.counter(
    "paced_seconds",
    "time in which pages that a request waits for were held back: moves had taken their share of the time in which the "
    "engine computes",
    unit="seconds",
)
URGENT = _tiers.counter(
    "urgent_pages",
    "pages copied downwards while a request waited for their room: more was taken at once than the tier keeps free",
    unit="pages",
)
DROPPED = _tiers.counter(
    "dropped_pages",
    "pages on disk that were damaged or could not be read, and those that hung on them: computed again",
    unit="pages",
    watch="should be flat",
)
DISK_FAILED = _tiers.gauge(
    "disk_failed", "1 while memory has taken the place of a disk that failed", watch="alert on 1"
)
DISK_FAILURES = _tiers.counter("disk_failures", "times that the disk failed")
HOST_BYTES = _tiers.gauge("host_bytes", "memory of the host tier, taken at start", unit="bytes")
HOST_HUGE = _tiers.gauge(
    "host_huge_bytes",
    "of it, in huge pages; less than all: the system grants none, or had none left",
    unit="bytes",
)
HOST_PINNED = _tiers.gauge("host_pinned", "1 if the memory is pinned for a GPU")

_transfer = AGENT.section("Transfer between nodes")
PULLS = _transfer.counter("pulls", "times that another node was asked for pages of a request")
PULLS_UNANSWERED = _transfer.counter(
    "unanswered_pulls", "of these, not answered in time: the holder is gone, busy or of another kind"
)
PULLS_ABANDONED = _transfer.counter(
    "abandoned_pulls", "of these, left since computing the pages had become quicker: the choice was wrong"
)
PULLED = _transfer.counter("pulled_pages", "pages that came from other nodes", unit="pages")
PULLED_BAD = _transfer.counter(
    "bad_pulled_pages",
    "pages that did not come: `changed` (let go by the holder meanwhile), `damaged` (checksum), `absent`, `lost` "
    "(connection); they are computed",
    LOST,
    unit="pages",
)
ORDERED = _transfer.counter(
    "ordered_tokens",
    "tokens whose pages came because a router ordered so (`trunkline cache replicate`, or another node that drains), "
    "not for a request",
    unit="tokens",
)
WAY_FAILURES = _transfer.counter(
    "pull_way_failures", "times that a way to a holder failed; it is left alone for 30 s", WAY
)
LOCATE_QUESTIONS = _transfer.counter("locate_questions", "questions to other nodes")
LOCATE_FAILURES = _transfer.counter("locate_failures", "of these, without an answer that could be used")
LOCATED = _transfer.counter("located_pages", "pages whose place they told", unit="pages")
LOCATED_FALSE = _transfer.counter(
    "locate_false_pages",
    "pages that another node has under the same keys, but of other tokens: not read",
    unit="pages",
)
LEND_SESSIONS = _transfer.gauge("lend_sessions", "nodes that may ask this one for pages")
LEASES = _transfer.gauge("leases", "their leases")
LENT = _transfer.gauge("lent_pages", "the pages in them", unit="pages")
LENT_BYTES = _transfer.counter(
    "lent_bytes",
    "sent to other nodes over TCP; what they read from shared memory is not seen here",
    unit="bytes",
)
LEND_WAITED = _transfer.counter(
    "lend_paced_seconds",
    "that threads which send pages over TCP have given way to an engine that computes on the same cores",
    unit="seconds",
)
LEND_QUESTIONS = _transfer.counter("lend_questions", "questions of other nodes")
LEND_UNANSWERED = _transfer.counter("lend_unanswered", "of these, not answered in time")
LEND_LOCATED = _transfer.counter("lend_located_pages", "pages that they were told the place of", unit="pages")
LEND_REFUSED = _transfer.counter(
    "lend_refused",
    "connections that were not let in: another secret, model or page layout",
    watch="should be flat",
)
LEND_BAD = _transfer.counter("lend_bad_frames", "connections that sent what is no frame", watch="should be flat")
LEASES_GRANTED = _transfer.counter("leases_granted", "leases")
LEASES_BROKEN = _transfer.counter("leases_broken", "of these, ended because this node needed the room")
LEASES_EXPIRED = _transfer.counter("leases_expired", "of these, not given back in time")

_events = AGENT.section("Event stream")
EVENTS_KEYS = _events.gauge("events_keys", "keys published and not removed")
EVENTS_KEPT = _events.gauge("events_kept_batches", "batches kept for replays")
EVENTS_PENDING = _events.gauge("events_pending_keys", "keys that wait for the next batch")
EVENTS_BATCHES = _events.counter("events_batches", "batches numbered")
EVENTS_FOLDED = _events.counter(
    "events_folded", "times that too much was pending, so that followers must take a snapshot"
)
EVENTS_OVERFLOWED = _events.counter("events_overflowed", "keys beyond the bound of what is published")
EVENTS_DROPPED = _events.counter("events_dropped_replies", "answers to followers that did not take them")
EVENTS_BAD = _events.counter("events_bad_requests", "requests of followers that did not decode")

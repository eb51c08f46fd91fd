"""A prefix that another node holds, while that one is busy: through the router, with the default model."""

import http.client
import json
import random
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from trunkline.loadtest.bench.cluster import cluster
from trunkline.loadtest.bench.completion import Reply, Target, complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import PAGE_TOKENS

PREFIX_TOKENS = 7000
TAIL_TOKENS = 16
OUTPUT_TOKENS = 8
WARM_TOKENS = 512
REACH = 0.1
KNOWN_S = 30.0
_MEMORY = ("--kv-memory", "768MiB", "--host-memory", "768MiB")


def pull(rounds: int) -> Iterator[Row]:
    """Time to first token: each round another prompt, which one node has computed. Then that node begins another one,
    and the router is asked for the first again."""
    with cluster(2, *_MEMORY) as (url, urls):
        holder, reader = (find_target(f"agent-{number}", url) for number, url in enumerate(urls))
        for node in (holder, reader):  # What a server does only once; and now it knows how quickly it computes.
            complete(node, random_tokens(WARM_TOKENS), 1)
        pairs = [_pair(holder, find_target("router", url), url, seed) for seed in range(rounds)]
    ratio = median(pair.ratio() for pair in pairs)
    pulled, computed = median(pair.pulled.ttft for pair in pairs), median(pair.computed.ttft for pair in pairs)
    title = f"{PREFIX_TOKENS} tokens held by another node, which is busy, default model: time to first token, s"
    yield row(title, pulled, computed, ratio, f"<= {REACH}x computing, answers equal", ratio <= REACH)


class _Pair(NamedTuple):
    """Of the same prompt."""

    pulled: Reply
    computed: Reply

    def ratio(self) -> float:
        """Of their times to the first token. Raises RuntimeError if they are not what they should be."""
        if self.pulled.text != self.computed.text:
            raise RuntimeError("the answer with pulled pages is another one")
        if self.pulled.node == "agent-0" or self.pulled.cached_tokens < PREFIX_TOKENS // PAGE_TOKENS * PAGE_TOKENS:
            raise RuntimeError(f"{self.pulled.cached_tokens} of {PREFIX_TOKENS} tokens were at {self.pulled.node}")
        return self.pulled.ttft / self.computed.ttft


def _pair(holder: Target, router: Target, url: str, seed: int) -> _Pair:
    prompt = random_tokens(PREFIX_TOKENS + TAIL_TOKENS, random.Random(seed))
    computed = complete(holder, prompt, OUTPUT_TOKENS)
    with _busy(holder, url):
        return _Pair(complete(router, prompt, OUTPUT_TOKENS), computed)


@contextmanager
def _busy(node: Target, router: str) -> Iterator[None]:
    """The node computes a prompt that nobody has seen, and the router knows."""
    connection = http.client.HTTPConnection(node.host, node.port)
    body = {"model": node.model, "prompt": random_tokens(PREFIX_TOKENS), "max_tokens": 1}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    try:
        ends = time.monotonic() + KNOWN_S
        while _backlog(router, node.name) < PREFIX_TOKENS // 2:
            if time.monotonic() > ends:
                raise RuntimeError(f"the router does not hear that {node.name} is busy")
            time.sleep(0.1)
        yield
    finally:
        connection.close()


def _backlog(router: str, node: str) -> int:
    """Tokens of prompts that the node has still to compute, as the router knows."""
    with urllib.request.urlopen(f"{router}/admin/nodes", timeout=10) as response:
        nodes = {one["name"]: one for one in json.load(response)["nodes"]}
    tokens: int = nodes[node]["load"]["backlog_tokens"]
    return tokens

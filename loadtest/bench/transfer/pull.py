"""A prefix that the other node holds, with the default model: pulled, beside computed again on the same node."""

import json
import random
import urllib.request
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from trunkline.loadtest.bench.cluster import cluster
from trunkline.loadtest.bench.completion import Reply, Target, complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import HEADER_PULL_FROM, INFO_PATH, PAGE_TOKENS
from trunkline.shared.pull import PullFrom

PREFIX_TOKENS = 7000
TAIL_TOKENS = 16
OUTPUT_TOKENS = 8
REACH = 0.1
_MEMORY = ("--kv-memory", "768MiB", "--host-memory", "768MiB")


def pull(rounds: int) -> Iterator[Row]:
    """Time to first token: each round another prompt, which one node has computed and the other is asked for."""
    with cluster(2, *_MEMORY) as (_, urls):
        holder, reader = (find_target(f"agent-{number}", url) for number, url in enumerate(urls))
        with urllib.request.urlopen(urls[0] + INFO_PATH, timeout=10) as response:
            header = {HEADER_PULL_FROM: str(PullFrom(json.load(response)["transfer"], PREFIX_TOKENS))}
        pairs = [_pair(holder, reader, header, seed) for seed in range(rounds + 1)]
    del pairs[0]  # It warms up, and tells the reader how quickly it computes.
    ratio = median(pair.ratio() for pair in pairs)
    pulled, computed = median(pair.pulled.ttft for pair in pairs), median(pair.computed.ttft for pair in pairs)
    title = f"{PREFIX_TOKENS} tokens held by the other node, default model: time to first token, s"
    yield row(title, pulled, computed, ratio, f"<= {REACH}x computing, answers equal", ratio <= REACH)


class _Pair(NamedTuple):
    """Of the same prompt."""

    pulled: Reply
    computed: Reply

    def ratio(self) -> float:
        """Of their times to the first token. Raises RuntimeError if they are not what they should be."""
        if self.pulled.text != self.computed.text:
            raise RuntimeError("the answer with pulled pages is another one")
        if self.pulled.cached_tokens < PREFIX_TOKENS // PAGE_TOKENS * PAGE_TOKENS:
            raise RuntimeError(f"{self.pulled.cached_tokens} of {PREFIX_TOKENS} tokens were pulled")
        return self.pulled.ttft / self.computed.ttft


def _pair(holder: Target, reader: Target, header: dict[str, str], seed: int) -> _Pair:
    prompt = random_tokens(PREFIX_TOKENS + TAIL_TOKENS, random.Random(seed))
    computed = complete(holder, prompt, OUTPUT_TOKENS)
    return _Pair(complete(reader, prompt, OUTPUT_TOKENS, header), computed)

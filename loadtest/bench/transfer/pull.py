"""A prefix that the other node holds, with the default model: pulled, beside computed again on the same node."""

import json
import random
import urllib.request
from collections.abc import Iterator
from statistics import median

from trunkline.loadtest.bench.cluster import cluster
from trunkline.loadtest.bench.completion import complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import HEADER_PULL_FROM
from trunkline.shared.pull import PullFrom

PREFIX_TOKENS = 7000
TAIL_TOKENS = 16
OUTPUT_TOKENS = 8
REACH = 0.1
_MEMORY = ("--kv-memory", "768MiB", "--host-memory", "768MiB")


def pull(rounds: int) -> Iterator[Row]:
    """Time to first token: each round another prompt, which one node has computed and the other is asked for."""
    ratios, pulled, computed = [], [], []
    with cluster(2, *_MEMORY) as (_, urls):
        holder, reader = (find_target(f"agent-{number}", url) for number, url in enumerate(urls))
        with urllib.request.urlopen(f"{urls[0]}/trunkline/info", timeout=10) as response:
            address = json.load(response)["transfer"]
        for number in range(rounds + 1):  # the first warms up, and tells the reader how quickly it computes
            prompt = random_tokens(PREFIX_TOKENS + TAIL_TOKENS, random.Random(number))
            recomputed = complete(holder, prompt, OUTPUT_TOKENS)
            header = {HEADER_PULL_FROM: str(PullFrom(address, PREFIX_TOKENS))}
            reply = complete(reader, prompt, OUTPUT_TOKENS, header)
            if reply.text != recomputed.text:
                raise RuntimeError("the answer with pulled pages is another one")
            if number:
                pulled.append(reply.ttft)
                computed.append(recomputed.ttft)
                ratios.append(reply.ttft / recomputed.ttft)
    ratio = median(ratios)
    title = f"{PREFIX_TOKENS} tokens held by the other node, default model: time to first token, s"
    reach = f"<= {REACH}x computing, answers equal"
    yield row(title, median(pulled), median(computed), ratio, reach, ratio <= REACH)

"""An agent's engine against others that speak OpenAI's API, over HTTP and in turns.

Prompts are token ids, new ones for every measurement, so that nothing is cached that should not be and every target
computes the same number of tokens. Times are wall-clock as a client sees them. Compare on an idle machine, and within
one run: the targets share the cores, so only one of them works at a time.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

from trunkline.loadtest.bench.completion import Target, complete, find_target, random_tokens
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import PAGE_TOKENS

PROMPT_TOKENS = 1000
QUESTION_TOKENS = 24
QUESTIONS = 3
DECODE_TOKENS = 48
STREAMS = (1, 4)
SETTLE_S = 3.0
"""Before each turn: vLLM's worker keeps a core busy for a second after its last request, waiting for the next."""
START_S = 180.0


def run(rounds: int = 3, peers: Mapping[str, str] | None = None) -> list[Row]:
    """One row per figure and peer. Starts an agent with the default model on both cores, and stops it."""
    with _agent() as url:
        ours = find_target("ours", url)
        others = [find_target(name, peer) for name, peer in (peers or {}).items()]
        measured: dict[str, dict[str, list[float]]] = {target.name: {} for target in (ours, *others)}
        for target in (ours, *others):
            complete(target, random_tokens(64), 4)  # what a server does only once
        for _ in range(rounds):
            for target in (ours, *others):
                time.sleep(SETTLE_S)
                for figure, value in _measure(target):
                    measured[target.name].setdefault(figure, []).append(value)
    medians = {name: {figure: median(values) for figure, values in own.items()} for name, own in measured.items()}
    return [*_compared(medians, others), *_reuse(medians, others)]


def _measure(target: Target) -> Iterator[tuple[str, float]]:
    yield "prefill", PROMPT_TOKENS / complete(target, random_tokens(PROMPT_TOKENS), 1).ttft
    for streams in STREAMS:
        prompts = [random_tokens(32) for _ in range(streams)]
        with ThreadPoolExecutor(streams) as pool:
            replies = list(pool.map(lambda prompt: complete(target, prompt, DECODE_TOKENS), prompts))
        seconds = max(reply.last for reply in replies) - min(reply.first for reply in replies)
        yield f"decode {streams}", streams * (DECODE_TOKENS - 1) / seconds
    system = random_tokens(PROMPT_TOKENS)
    cold, *warm = (complete(target, system + random_tokens(QUESTION_TOKENS), 2) for _ in range(1 + QUESTIONS))
    yield "cold", cold.ttft
    yield "warm", median(reply.ttft for reply in warm)
    yield "cached", min(reply.cached_tokens for reply in warm)


def _compared(medians: Mapping[str, Mapping[str, float]], peers: Sequence[Target]) -> list[Row]:
    names = {"prefill": f"prefill of {PROMPT_TOKENS} tokens, tokens/s"}
    names |= {f"decode {n}": f"decode, {n} stream{'s' * (n > 1)}, tokens/s" for n in STREAMS}
    rows: list[Row] = []
    for figure, title in names.items():
        ours = medians["ours"][figure]
        if not peers:
            rows.append(row(title, ours, None, None, ">= 0.8x the peer", None))
        for peer in peers:
            ratio = ours / medians[peer.name][figure]
            value = medians[peer.name][figure]
            rows.append(row(f"{title} ({peer.name})", ours, value, ratio, ">= 0.8x the peer", ratio >= 0.8))
    return rows


def _reuse(medians: Mapping[str, Mapping[str, float]], peers: Sequence[Target]) -> list[Row]:
    """Of a shared prefix of PROMPT_TOKENS: what was reused of its whole pages, and what that does to the wait."""
    whole = PROMPT_TOKENS // PAGE_TOKENS * PAGE_TOKENS
    share = {name: 100 * own["cached"] / whole for name, own in medians.items()}
    speed = {name: own["cold"] / own["warm"] for name, own in medians.items()}
    peer = peers[0].name if peers else None
    rows = [
        row("TTFT, cold, s", medians["ours"]["cold"], medians[peer]["cold"] if peer else None, None, "", None),
        row("TTFT, cached prefix, s", medians["ours"]["warm"], medians[peer]["warm"] if peer else None, None, "", None),
    ]
    for title, own, least in (
        (f"cached share of {whole} shared tokens, %", share, 95.0),
        ("TTFT cold / cached", speed, 5.0),
    ):
        rows.append(row(title, own["ours"], own[peer] if peer else None, None, f">= {least:g}", own["ours"] >= least))
    return rows


@contextmanager
def _agent() -> Iterator[str]:
    """The URL of an agent of our own, on a free port."""
    command = [sys.executable, "-m", "trunkline.shared.cli", "agent", "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _url(process)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def _url(process: "subprocess.Popen[str]") -> str:
    """From the line that says that the agent is ready."""
    if process.stdout is None:
        raise ConfigError("the agent has no output")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(process.stdout.readline)
        try:
            words = line.result(START_S).split()
        except TimeoutError:
            process.kill()
            raise ConfigError(f"the agent is not ready after {START_S:.0f} s") from None
    url = next((word.rstrip(":") for word in words if word.startswith("http://")), None)
    if url is None:
        raise ConfigError("the agent did not start: see above")
    return url

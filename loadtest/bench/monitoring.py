"""What watching a router costs it: CPU time per request of counting, of scrapes, of its log, and of traces.

Counting cannot be turned off, so what it does for a request is timed by itself, beside the CPU time of a whole request.
The rest is routers with and without it, in front of the same backends, taking turns.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from time import process_time

import httpx

from trunkline.loadtest.bench.client import Bodies
from trunkline.loadtest.bench.router import HOST, QUIET, SMALL, Target, backends, cpu_s, cpu_us, processes, router
from trunkline.loadtest.bench.row import Row, row
from trunkline.router.counters import Counters, Outcome
from trunkline.shared.metrics.router import DECISION

SHARE = 0.03
"""Of a request's CPU time, for metrics."""
SAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
_COUNTED = 100_000
_SCRAPES = 50


def run(rounds: int = 3) -> list[Row]:
    """One row per figure. Starts routers over four backends, and stops what it started."""
    bodies = Bodies(*SMALL, stream_us=None)
    with ExitStack() as stack:
        stack.enter_context(backends())
        collector = stack.enter_context(_sink())
        plain = stack.enter_context(router(*QUIET, name="metrics"))
        traced = ("--otlp-endpoint", collector)
        others = {
            "with a line in the log": stack.enter_context(router("--log-level", "info", name="logged")),
            "with traces of all requests": stack.enter_context(router(*QUIET, *traced, name="traced")),
            "with traces of one in a hundred": stack.enter_context(
                router(*QUIET, *traced, name="sampled", environment=SAMPLED)
            ),
        }
        figures: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, target in {"": plain, **others}.items():
                figures.setdefault(name, []).append(cpu_us(target, bodies))
        whole = median(figures[""])
        counting, scrape_ms = _counting_us(), _scrape_ms(plain)
    share = counting / whole
    return [
        row("CPU us per request, 8 KB prompt", whole, None, None, "", None),
        row("of these, counting", counting, None, share, f"<= {SHARE:g} of them", share <= SHARE),
        row("CPU ms of a scrape", scrape_ms, None, None, "", None),
        *(
            row(f"CPU us per request, {name}", own, whole, own / whole, "", None)
            for name, own in ((name, median(values)) for name, values in figures.items() if name)
        ),
    ]


def _counting_us() -> float:
    """What is counted for one streamed request."""
    counters, decisions = Counters(), DECISION.distribution()
    began = process_time()
    for _ in range(_COUNTED):
        counters.inflight += 1
        decisions.add(20e-6)
        counters.responses[200] += 1
        counters.began(0.03, 1000, 2000, stream=True)
        counters.e2e.add(0.5)
        counters.inflight -= 1
        counters.outcomes[Outcome.OK] += 1
    return 1e6 * (process_time() - began) / _COUNTED


def _scrape_ms(target: Target) -> float:
    watched = processes(target)
    before = cpu_s(watched)
    with httpx.Client(base_url=f"http://{HOST}:{target.port}") as client:
        for _ in range(_SCRAPES):
            client.get("/metrics").raise_for_status()
    return 1000 * (cpu_s(watched) - before) / _SCRAPES


@contextmanager
def _sink() -> Iterator[str]:
    """A collector that takes spans and forgets them. Its URL."""
    with ThreadingHTTPServer((HOST, 0), _Taking) as server:
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...

"""`docs/operate/metrics.md`."""

from collections.abc import Iterator

from trunkline.shared.metrics.agent import AGENT
from trunkline.shared.metrics.definition import Catalog, Histogram, Label, Metric
from trunkline.shared.metrics.router import ROUTER

_HEAD = """# Metrics

<!-- Written by `make monitoring` from shared/metrics/: change it there. -->
Prometheus text on `/metrics`, of routers and of agents. All counters count from the start of the process. The values of
labels are fixed words, or bounded by the configuration, whatever clients send. What to alert on: [alerts](alerts.md).
"""

_COST = """## What it costs
`trunkline bench monitoring`, on two cores that had much else to do, in two runs: a request of 8 KB takes the router 105
and 133 us of CPU. Counting is 0.8 us of them (0.8 and 0.6 %; to be reached: 3 %), a scrape takes 2 ms. Its line in the
log takes up to 21 us, and its [trace](traces.md) 285 and 261 us; 49 us if one in a hundred is sampled.
"""


def page() -> str:
    return "\n".join([_HEAD, *_catalog(ROUTER), *_catalog(AGENT), _COST])


def _catalog(catalog: Catalog) -> Iterator[str]:
    yield f"## {catalog.title}"
    for section in catalog.sections:
        yield f"\n### {catalog.title}: {section.title[0].lower()}{section.title[1:]}"
        yield "| metric | type | unit | labels | |\n|---|---|---|---|---|"
        yield from map(_row, section.metrics)
    yield f"\n### {catalog.title}: labels and buckets"
    yield "| label | of | values |\n|---|---|---|"
    yield from _labels(catalog)
    yield "\n| histogram | buckets |\n|---|---|"
    yield from (_buckets(metric) for metric in catalog if isinstance(metric, Histogram))
    yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(label.name for label in metric.labels)
    watch = f"; **{metric.watch}**" if metric.watch else ""
    return f"| `{metric}` | {metric.kind} | {metric.unit} | {labels} | {metric.help}{watch} |"


def _labels(catalog: Catalog) -> Iterator[str]:
    """Each label once; those of one name with other values are several."""
    users: dict[Label, list[str]] = {}
    for metric in catalog:
        for label in metric.labels:
            users.setdefault(label, []).append(str(metric).removeprefix(f"{catalog.prefix}_"))
    for label, names in users.items():
        values = label.bound or ", ".join(f"`{word}`" for word in label.words)
        yield f"| {label.name} | {', '.join(f'`{name}`' for name in names)} | {values} |"


def _buckets(metric: Histogram) -> str:
    return f"| `{metric}` | up to {', '.join(f'{bound:g}' for bound in metric.bounds)} |"

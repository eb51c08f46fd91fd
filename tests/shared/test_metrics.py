import re

import pytest
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from trunkline.shared.metrics.agent import AGENT
from trunkline.shared.metrics.definition import Catalog, Histogram, Label
from trunkline.shared.metrics.distribution import Distribution
from trunkline.shared.metrics.router import ROUTER


@pytest.mark.parametrize("catalog", [ROUTER, AGENT], ids=lambda catalog: catalog.title)
def test_names_units_and_labels_follow_prometheus(catalog: Catalog) -> None:
    names = [str(metric) for metric in catalog]
    assert len(set(names)) == len(names)
    for metric in catalog:
        assert re.fullmatch(rf"{catalog.prefix}(_[a-z0-9]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        base = metric.name.removesuffix("_total")
        for unit in ("seconds", "bytes", "tokens", "pages"):
            assert base.endswith(f"_{unit}") <= (metric.unit == unit), metric
        assert metric.help, metric
        assert (
            metric.help[0] != metric.help[0].upper() or not metric.help[0].isalpha() or metric.help.startswith("HTTP")
        )
        assert not metric.help.endswith("."), metric
        for label in metric.labels:
            assert bool(label.words) != bool(label.bound), f"{metric}: what bounds {label.name}?"


@pytest.mark.parametrize("catalog", [ROUTER, AGENT], ids=lambda catalog: catalog.title)
def test_bounds_of_histograms_ascend(catalog: Catalog) -> None:
    for metric in catalog:
        if isinstance(metric, Histogram):
            assert list(metric.bounds) == sorted(set(metric.bounds))


def test_what_is_served_is_what_was_defined() -> None:
    section = Catalog("Test", "test").section("Things")
    things = section.counter("things", "things seen", Label("kind", ("a", "b")), watch="should be flat")
    size = section.gauge("size_bytes", "how large", unit="bytes")
    took = section.histogram("took_seconds", "how long", bounds=(0.1, 1.0))
    seconds = took.distribution()
    for value in (0.05, 0.1, 0.5, 7.0):
        seconds.add(value)
    assert _text(things.by([(("a",), 3), (("b",), 0)]), size.of(None), took.of(seconds)) == [
        "# HELP test_things_total things seen (should be flat)",
        "# TYPE test_things_total counter",
        'test_things_total{kind="a"} 3.0',
        'test_things_total{kind="b"} 0.0',
        "# HELP test_size_bytes how large",
        "# TYPE test_size_bytes gauge",
        "# HELP test_took_seconds how long",
        "# TYPE test_took_seconds histogram",
        'test_took_seconds_bucket{le="0.1"} 2.0',
        'test_took_seconds_bucket{le="1.0"} 3.0',
        'test_took_seconds_bucket{le="+Inf"} 4.0',
        "test_took_seconds_count 4.0",
        "test_took_seconds_sum 7.65",
    ]


def test_counts_from_elsewhere_are_added() -> None:
    values = Distribution((1.0, 2.0))
    values.add(1.5)
    values.extend([1, 0, 2], 9.0)
    assert values.buckets() == [("1.0", 1), ("2.0", 2), ("+Inf", 4)]
    assert (values.count, values.sum) == (4, 10.5)
    with pytest.raises(ValueError, match="shorter"):
        values.extend([1], 0.0)


def _text(*families: Family) -> list[str]:
    class Fixed(Collector):
        def collect(self) -> list[Family]:
            return list(families)

    registry = CollectorRegistry()
    registry.register(Fixed())
    return generate_latest(registry).decode().splitlines()

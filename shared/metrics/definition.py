"""What a metric is, defined once: what is served, documented and drawn all comes from here.

    REQUESTS = ROUTER.section("Requests")
    RETRIES = REQUESTS.counter("retries", "Tries that moved on to another node.")

A collector fills a definition with values when it is scraped; queries name it by `str(RETRIES)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from trunkline.shared.metrics.distribution import Distribution

M = TypeVar("M", bound="Metric")


@dataclass(frozen=True, slots=True)
class Label:
    """What tells samples apart. Their number is bounded, whatever clients send."""

    name: str
    words: tuple[str, ...] = ()
    """All values that there are. Empty: `bound` says what bounds them."""
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Metric(ABC):
    """One name in the exposition. `help` is a phrase; `watch`: what an operator should see of it."""

    name: str
    unit: str
    help: str
    labels: tuple[Label, ...]
    watch: str

    kind = ""

    @abstractmethod
    def by(self, samples: Iterable[tuple[Sequence[str], Any]]) -> Family:
        """Values of the labels, in their order, and what there is of them."""

    def __str__(self) -> str:
        """As its samples are named; a histogram's have `_bucket`, `_sum` or `_count` behind it."""
        return self.name

    @property
    def text(self) -> str:
        """The HELP line."""
        return f"{self.help} ({self.watch})" if self.watch else self.help

    @property
    def _names(self) -> list[str]:
        return [label.name for label in self.labels]


class Number(Metric):
    """A counter or a gauge: each sample is one number."""

    def of(self, value: float | None) -> Family:
        """The only sample of one without labels. None: there is nothing to say, so no sample."""
        return self.by(() if value is None else [((), value)])

    def by(self, samples: Iterable[tuple[Sequence[str], float]]) -> Family:
        """Values of the labels, in their order, and the number."""
        family = self._family()
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        raise NotImplementedError


class Counter(Number):
    """Counts since the start of the process."""

    kind = "counter"

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.name.removesuffix("_total"), self.text, labels=self._names)


class Gauge(Number):
    """How it is now."""

    kind = "gauge"

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.text, labels=self._names)


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Counts of values up to each of `bounds`."""

    bounds: tuple[float, ...] = ()

    kind = "histogram"

    def distribution(self) -> Distribution:
        """To count in."""
        return Distribution(self.bounds)

    def of(self, values: Distribution) -> Family:
        """Of one without labels."""
        return self.by([((), values)])

    def by(self, samples: Iterable[tuple[Sequence[str], Distribution]]) -> Family:
        """Values of the labels, in their order, and what was counted."""
        family = HistogramMetricFamily(self.name, self.text, labels=self._names)
        for values, counted in samples:
            family.add_metric(values, counted.buckets(), counted.sum)
        return family


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics of one thing."""

    title: str
    prefix: str
    metrics: list[Metric] = field(default_factory=list)

    def counter(self, name: str, help: str, *labels: Label, unit: str = "", watch: str = "") -> Counter:
        return self._add(Counter(f"{self.prefix}_{name}_total", unit, help, labels, watch))

    def gauge(self, name: str, help: str, *labels: Label, unit: str = "", watch: str = "") -> Gauge:
        return self._add(Gauge(f"{self.prefix}_{name}", unit, help, labels, watch))

    def histogram(
        self, name: str, help: str, *labels: Label, bounds: tuple[float, ...], unit: str = "seconds", watch: str = ""
    ) -> Histogram:
        return self._add(Histogram(f"{self.prefix}_{name}", unit, help, labels, watch, bounds))

    def _add(self, metric: M) -> M:
        self.metrics.append(metric)
        return metric


@dataclass(frozen=True, slots=True)
class Catalog:
    """All metrics of one process."""

    title: str
    prefix: str
    sections: list[Section] = field(default_factory=list)

    def section(self, title: str) -> Section:
        section = Section(title, self.prefix)
        self.sections.append(section)
        return section

    def __iter__(self) -> Iterator[Metric]:
        return (metric for section in self.sections for metric in section.metrics)

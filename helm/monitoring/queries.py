"""Queries that ask for metrics of the lists, and so for none that does not exist.

`by`: labels that are told apart; over all others it is summed up. `where`: a selector, without braces.
"""

from monitoring.panels import Query
from trunkline.shared.metrics.definition import Counter, Gauge, Histogram


def rate(metric: Counter, by: str = "", where: str = "", *, legend: str = "", always: bool = True) -> Query:
    """Per second."""
    return Query(_rate(f"{metric}", by, where), legend or _legend(by), always)


def total(metric: Gauge, by: str = "", where: str = "", *, legend: str = "", always: bool = True) -> Query:
    """Now."""
    return Query(_sum(f"{metric}{{{where}}}", by), legend or _legend(by), always)


def worst(metric: Gauge, by: str, where: str = "", *, legend: str = "", always: bool = True) -> Query:
    """Now, and the largest instead of the sum."""
    return Query(f"max by ({by}) ({metric}{{{where}}})", legend or _legend(by), always)


def quantiles(metric: Histogram, where: str = "", *, always: bool = True) -> list[Query]:
    buckets = _rate(f"{metric}_bucket", "le", where)
    shares = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    return [Query(f"histogram_quantile({share}, {buckets})", name, always) for name, share in shares.items()]


def mean(metric: Histogram, by: str = "", where: str = "", *, always: bool = True) -> Query:
    parts = (_rate(f"{metric}_{part}", by, where) for part in ("sum", "count"))
    return Query(" / ".join(parts), _legend(by), always)


def ratio(
    part: Counter, whole: Counter, by: str = "", where: str = "", *, legend: str = "", always: bool = True
) -> Query:
    return Query(" / ".join(_rate(f"{one}", by, where) for one in (part, whole)), legend or _legend(by), always)


def _rate(name: str, by: str, where: str) -> str:
    return _sum(f"rate({name}{{{where}}}[$__rate_interval])", by)


def _sum(what: str, by: str) -> str:
    return f"sum by ({by}) ({what})" if by else f"sum({what})"


def _legend(by: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by.split(",")) if by else ""

"""Grafana's JSON: panels with their queries, laid out in rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trunkline.shared.metrics.definition import Metric

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_HEIGHT = 8
_UNITS = {"seconds": "s", "bytes": "bytes", "share": "percentunit", "bytes/s": "Bps"}
"""Ours, as Grafana calls them; others are plain numbers."""


@dataclass(frozen=True, slots=True)
class Query:
    """`always`: it has an answer in every fleet that has served requests. `legend`: in Grafana's template language."""

    text: str
    legend: str = ""
    always: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time, or the newest values as large numbers (`stat`)."""

    title: str
    queries: Sequence[Query]
    unit: str = ""
    help: str | Metric = ""
    """A metric: what its own says."""
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    height: int = _HEIGHT

    def json(self, number: int, x: int, y: int) -> dict[str, Any]:
        custom = {"fillOpacity": 15, "showPoints": "never"}
        if self.stacked:
            custom |= {"fillOpacity": 60, "stacking": {"mode": "normal"}}
        defaults: dict[str, Any] = {"unit": _UNITS.get(self.unit, "short"), "min": 0}
        if self.kind == "timeseries":
            defaults["custom"] = custom
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.help if isinstance(self.help, str) else f"{self.help}: {self.help.text}",
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
            if self.kind == "timeseries"
            else {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"},
            "targets": [
                {
                    "refId": chr(ord("A") + at),
                    "expr": query.text,
                    "legendFormat": query.legend,
                    "datasource": DATASOURCE,
                }
                for at, query in enumerate(self.queries)
            ],
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """What a reader chooses at the top; all there are if nothing is chosen. `query`: what there is to choose from."""

    name: str
    query: str
    several: bool = True

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": self.query, "refId": self.name},
            "refresh": 2,
            "includeAll": self.several,
            "multi": self.several,
            "allValue": ".*" if self.several else None,
            "current": {"text": "All", "value": "$__all"} if self.several else {},
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows of panels; a row is as high as its highest panel."""

    name: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    choices: Sequence[Choice] = field(default_factory=tuple)

    @property
    def queries(self) -> list[Query]:
        return [query for _, panels in self.rows for panel in panels for query in panel.queries]

    def json(self) -> str:
        panels: list[dict[str, Any]] = []
        y = 0
        for title, row in self.rows:
            panels.append(_row(len(panels) + 1, title, y))
            y += 1
            x = high = 0
            for panel in row:
                if x + panel.width > _WIDTH:
                    x, y, high = 0, y + high, 0
                panels.append(panel.json(len(panels) + 1, x, y))
                x, high = x + panel.width, max(high, panel.height)
            y += high
        source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
        dashboard = {
            "uid": f"trunkline-{self.name}",
            "title": f"Trunkline / {self.title}",
            "tags": ["trunkline"],
            "timezone": "browser",
            "schemaVersion": 39,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "graphTooltip": 1,
            "links": [{"type": "dashboards", "tags": ["trunkline"], "title": "Trunkline", "keepTime": True}],
            "templating": {"list": [source, *(choice.json() for choice in self.choices)]},
            "panels": panels,
        }
        return json.dumps(dashboard, indent=1) + "\n"


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        "panels": [],
    }

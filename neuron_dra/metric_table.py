"""Metrics as rows of a table: a program declares a row for each metric, and changes metrics by their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_TYPES: Final[Mapping[str, Any]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram, "info": Info}
_SUFFIXES: Final = {"counter": "_total", "info": "_info"}
"""What the client library adds to a name."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric: its name without the suffix of its type, its type, labels and meaning, and buckets of a histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()

    def row(self) -> tuple[str, str, tuple[str, ...], str]:
        """Return the name as exported, type, labels and meaning, for the documentation."""
        return self.name + _SUFFIXES.get(self.kind, ""), self.kind, self.labels, self.text

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """Return a counter or a gauge without samples, for a collector that makes them when it is asked."""
        family_type = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return family_type(self.name, self.text, labels=self.labels)


class Rows:
    """The rows of a program, in the order in which they are exported. `prefix` is that of all names."""

    def __init__(self, prefix: str) -> None:
        self.all: list[Series] = []
        self._prefix = prefix

    def gauge(self, name: str, text: str, *labels: str) -> Series:
        """Add a gauge."""
        return self._added("gauge", name, text, labels)

    def counter(self, name: str, text: str, *labels: str) -> Series:
        """Add a counter."""
        return self._added("counter", name, text, labels)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Series:
        """Add a histogram."""
        return self._added("histogram", name, text, labels, buckets)

    def info(self, name: str, text: str) -> Series:
        """Add a metric that is always 1, and whose labels say something."""
        return self._added("info", name, text, ())

    def _added(
        self, kind: str, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...] = ()
    ) -> Series:
        series = Series(f"{self._prefix}_{name}", kind, labels, text, buckets)
        self.all.append(series)
        return series


class MetricTable:
    """The metrics of a program. A method takes the row of a metric, and the values of its labels."""

    def __init__(self, rows: Sequence[Series]) -> None:
        self.registry = CollectorRegistry()
        self._metric_by_name: dict[str, Any] = {}
        for row in rows:
            more = {"buckets": row.buckets} if row.buckets else {}
            metric = _TYPES[row.kind](row.name, row.text, row.labels, registry=self.registry, **more)
            self._metric_by_name[row.name] = metric

    def of(self, row: Series, *labels: object) -> Any:
        """Return the metric of a row, or that of these labels. A series exists from then on, a counter at 0."""
        metric = self._metric_by_name[row.name]
        return metric.labels(*labels) if labels else metric

    def add(self, row: Series, *labels: object, number: float = 1) -> None:
        """Increase a counter."""
        self.of(row, *labels).inc(number)

    def set(self, row: Series, value: float, *labels: object) -> None:
        """Set a gauge."""
        self.of(row, *labels).set(value)

    def observe(self, row: Series, value: float, *labels: object) -> None:
        """Add a value to a histogram."""
        self.of(row, *labels).observe(value)

    def clear(self, *rows: Series) -> None:
        """Remove all series of gauges, and set one without labels to 0."""
        for row in rows:
            if row.labels:
                self.of(row).clear()
            else:
                self.set(row, 0)

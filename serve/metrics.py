"""``GET /metrics``: the engine's figures in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST
_TOTAL = "_total"


class _Snapshot:
    """A collector over figures already read."""

    def __init__(self, stats: Mapping[str, float], labels: Mapping[str, str]) -> None:
        self._stats = stats
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        """One family per figure; names that end in ``_total`` are counters."""
        for name, value in sorted(self._stats.items()):
            kind = CounterMetricFamily if name.endswith(_TOTAL) else GaugeMetricFamily
            family = kind(f"pace_{name}", f"PACE engine: {name}", labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family


def render_metrics(stats: Mapping[str, float], labels: Mapping[str, str]) -> bytes:
    """The text of ``/metrics``.

    Args:
        stats: ``Engine.stats()``.
        labels: put on every sample (model, replica); never a session's id.
    """
    registry = CollectorRegistry()
    registry.register(_Snapshot(stats, labels))
    return generate_latest(registry)

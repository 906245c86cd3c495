"""The producer's statistics as Prometheus metrics, read when they are asked for.

    metrics = ProducerMetrics(producer)  # from now on every scrape of the process has them
    metrics.unregister()

Not imported by ``waybill.producer``: who imports this needs the package ``prometheus-client``.

A registry gets one collector, whatever number of producers, since a family of metrics may stand in
a scrape once; the label ``log`` tells them apart. Producing pays nothing for it: the numbers are
those of ``producer.stats``, which a scrape asks for (some 100 µs a producer; up to 0.2 s while a
``produce`` waits for room).

A closed producer keeps its counts until ``unregister``, so that a job may push them at its end; its
sizes and ages are left out. In a fork the parent's producer shows nothing until the fork uses it.
Custom collectors are not part of prometheus_client's multi-process mode.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import accumulate
from weakref import WeakKeyDictionary

from prometheus_client.core import (
    REGISTRY,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from waybill.errors import InputError
from waybill.producer.lossless import LosslessProducer
from waybill.producer.model import BUCKETS_US, Histogram, ProducerStats

_PREFIX = "waybill_producer_"
_LABELS = ("log",)
_COUNTERS = {
    "appended": "Messages that the write-ahead log took.",
    "delivered": "Messages that Kafka acknowledged, recovered ones included.",
    "retried": "Hand-overs of a message to Kafka after a failure.",
    "undeliverable": "Messages that Kafka refused for good: parked, or taken by on_undeliverable.",
    "recovered": "Messages of a dead process that were produced again when the log was opened.",
    "poisoned": "Segments rewritten, because the disk refused to sync their file.",
}
"""Field of ``ProducerStats`` -> help. The name on the wire ends in ``_total``."""
_NAMES = {"poisoned": "poisoned_segments"}
"""Where the field's name would say too little."""
_GAUGES = {
    "in_doubt": "Messages appended or recovered that are not settled yet.",
    "retrying": "Of those in doubt: messages that wait in the retry log.",
    "parked": "Refused messages that wait in the producer's own parking place.",
}
_GAUGES_WHILE_OPEN = {
    "wal_bytes": ("wal_bytes", "Allocated on disk: log, retry log, parking place."),
    "checkpoint_age_seconds": ("checkpoint_age_s", "Time since the checkpoint on disk was true."),
}
"""Name -> field, help."""
_LATENCY = "append_latency_seconds"
_LATENCY_HELP = "Time until the log has a message, measured for one call of produce in 64."
_BOUNDS = [*(str(bound / 1e6) for bound in BUCKETS_US[:-1]), "+Inf"]
"""In seconds."""


class ProducerMetrics:
    """The metrics of one producer in a registry; registered when it is made.

    Args:
        producer: whose; open.
        registry: prometheus_client's own one unless given.
        log: value of the label ``log``; else the producer's name.

    Raises:
        InputError: the registry has an open producer under that label already.
        ValueError: the registry has other metrics of these names.
    """

    def __init__(
        self,
        producer: LosslessProducer,
        registry: CollectorRegistry = REGISTRY,
        *,
        log: str | None = None,
    ) -> None:
        self._producer = producer
        self._registry = registry
        self._log = producer.name if log is None else log
        self.register()

    def register(self) -> None:
        """Have scrapes show this producer (again); twice is as good as once.

        A closed producer under the same label gives way.

        Raises:
            InputError, ValueError: as when it is made.
        """
        with _CHANGING:
            collector = _COLLECTORS.get(self._registry)
            if collector is None:
                collector = _ProducersCollector()
                self._registry.register(collector)
                _COLLECTORS[self._registry] = collector
            collector.add(self._log, self._producer)

    def unregister(self) -> None:
        """Have scrapes show it no more; twice is as good as once."""
        with _CHANGING:
            collector = _COLLECTORS.get(self._registry)
            if collector is not None and collector.remove(self._log, self._producer):
                del _COLLECTORS[self._registry]
                self._registry.unregister(collector)


class _ProducersCollector(Collector):
    """What one registry asks: all its producers, each family once."""

    def __init__(self) -> None:
        self._producers: dict[str, LosslessProducer] = {}

    def add(self, log: str, producer: LosslessProducer) -> None:
        before = self._producers.get(log, producer)
        if before is not producer and not before.closed:
            raise InputError(
                f"the registry has an open producer under log={log!r}; "
                "unregister that one or give this one another label (log=…)"
            )
        self._producers[log] = producer

    def remove(self, log: str, producer: LosslessProducer) -> bool:
        """Forget a producer; tell whether it was the last."""
        if self._producers.get(log) is not producer:
            return False
        del self._producers[log]
        return not self._producers

    def describe(self) -> Iterable[Metric]:
        """Name the families, so that a registry finds a second one of a name."""
        return _families([])

    def collect(self) -> Iterable[Metric]:
        """Return what is true now."""
        return _families(
            [
                (log, producer.stats, not producer.closed)
                for log, producer in sorted(self._producers.items())
                if not producer.inherited
            ]
        )


_CHANGING = threading.Lock()
_COLLECTORS: WeakKeyDictionary[CollectorRegistry, _ProducersCollector] = WeakKeyDictionary()


def _families(known: list[tuple[str, ProducerStats, bool]]) -> Iterator[Metric]:
    """Yield every family with a sample for each (log, stats, whether it is open)."""
    for field, about in _COUNTERS.items():
        counter = CounterMetricFamily(_PREFIX + _NAMES.get(field, field), about, labels=_LABELS)
        for log, stats, _ in known:
            counter.add_metric([log], getattr(stats, field))
        yield counter
    for field, about in _GAUGES.items():
        yield _gauge(field, field, about, known)
    still_open = [producer for producer in known if producer[2]]
    for name, (field, about) in _GAUGES_WHILE_OPEN.items():
        yield _gauge(name, field, about, still_open)
    latency = HistogramMetricFamily(_PREFIX + _LATENCY, _LATENCY_HELP, labels=_LABELS)
    for log, stats, _ in known:
        took = stats.append_latency
        latency.add_metric([log], _cumulated(took), took.sum_ns / 1e9)
    yield latency


def _gauge(
    name: str, field: str, about: str, known: list[tuple[str, ProducerStats, bool]]
) -> Metric:
    gauge = GaugeMetricFamily(_PREFIX + name, about, labels=_LABELS)
    for log, stats, _ in known:
        gauge.add_metric([log], getattr(stats, field))
    return gauge


def _cumulated(took: Histogram) -> list[tuple[str, float]]:
    """Return (upper bound in seconds, how many took at most that), as Prometheus counts."""
    return list(zip(_BOUNDS, accumulate(took.counts), strict=True))

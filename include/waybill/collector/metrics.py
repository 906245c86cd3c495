"""Counters of one worker, for Prometheus; the page asks for no secret, so it names no pipeline."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CollectorMetrics:
    """What this process has answered."""

    TYPE = CONTENT_TYPE_LATEST.encode()

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "waybill_collector_requests",
            "Requests answered, by status.",
            ["status"],
            registry=self._registry,
        )
        self._events = Counter(
            "waybill_collector_events",
            "Records: accepted, come before (duplicate), or no event (rejected).",
            ["outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "waybill_collector_answer_seconds",
            "From the end of a request's head to its answer.",
            buckets=_BUCKETS_S,
            registry=self._registry,
        )

    def answered(self, status: int, took_s: float) -> None:
        """Count an answer."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(took_s)

    def events(self, accepted: int, duplicates: int, rejected: int) -> None:
        """Count records."""
        counts = {"accepted": accepted, "duplicate": duplicates, "rejected": rejected}
        for outcome, count in counts.items():
            if count:
                self._events.labels(outcome).inc(count)

    def page(self) -> bytes:
        """Return the page that is scraped."""
        return generate_latest(self._registry)

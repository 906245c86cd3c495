"""How long an event takes from the lossless producer to a row that the warehouse shows.

The real applications `processing` and `loading`, each in its process, with default settings. Orders
are sent at a fixed rate; each hundredth is a probe. A probe's clock runs from its ``produce`` to
the first query that finds its row committed; the warehouse is asked for them every 20 ms.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

PROBE_EVERY = 100
TEAM = "latency"
"""Of the pipeline; so is its schema called."""
_ASK_S = 0.02
_WARM_S = 15.0
_LIMIT_S = 120.0
_PROBE = "probe"


def measure(settings: Any, folder: Path, *, per_s: float, seconds: float) -> dict[str, float]:
    """Send ``per_s`` events a second for so many seconds; return p50 and p99, in seconds.

    Args:
        settings: over the servers, of a tracker and a warehouse of their own.
        folder: of the pipeline.
    """
    from tests.support import streams

    from waybill import services

    services.migrate(settings)
    services.run_deploy(settings, folder, who="bench")
    with streams.stopped_at_end(settings):
        streams.keep_running(settings)
        sender, asker = Sender(settings, per_s), Asker(settings)
        sender.send(_WARM_S, limit_s=_LIMIT_S)
        asker.wait_for(sender.number, limit_s=_LIMIT_S)
        began, first = time.monotonic(), sender.number
        thread = threading.Thread(target=asker.follow, args=(first,), daemon=True)
        thread.start()
        sender.send(seconds, limit_s=_LIMIT_S)
        rate = (sender.number - first) / (time.monotonic() - began)
        asker.end = sender.number
        thread.join(_LIMIT_S)
        sender.close()
    took = [asker.seen[number] - sent for number, sent in sender.sent.items() if number >= first]
    p50, p99 = np.percentile(took, [50, 99])
    return {
        "latency_p50_s": round(float(p50), 3),
        "latency_p99_s": round(float(p99), 3),
        "latency_events_per_s": round(rate),
        "latency_probes": len(took),
    }


class Sender:
    """Sends orders through the lossless producer; keeps when each probe was taken."""

    def __init__(self, settings: Any, per_s: float) -> None:
        from waybill.producer import LosslessProducer
        from waybill.storage import open_log

        self._probe, self._other = _pattern(_PROBE), _pattern("somebody")
        self._topic = open_log(settings.kafka).ensure_topic(f"events.{TEAM}.warehouse").name
        kafka = {"bootstrap.servers": settings.kafka.bootstrap_servers}
        self._producer = LosslessProducer(settings.wal, kafka, name="bench")
        self._per_s = per_s
        self.number = 0
        self.sent: dict[int, float] = {}

    def send(self, seconds: float, *, limit_s: float) -> None:
        """Send for so long; then wait until Kafka has all."""
        began, first = time.monotonic(), self.number
        while (now := time.monotonic() - began) < seconds:
            while self.number - first < now * self._per_s:
                number = self.number
                if number % PROBE_EVERY == 0:
                    value = _filled(self._probe, number)
                    self.sent[number] = time.monotonic()
                else:
                    value = _filled(self._other, number)
                self._producer.produce(self._topic, value, b"[%d]" % number)
                self.number += 1
            self._producer.poll(0)
            time.sleep(0.005)
        if self._producer.flush(limit_s):
            raise SystemExit(f"Kafka did not take all within {limit_s:.0f} s")

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()


def _pattern(customer: str) -> bytes:
    """Return an order as bytes in which its number, and so its key and its id, may be put."""
    from tests.benchmarks.processing import message

    number = 987_654_321
    _, value = message(number, team=TEAM, customer=customer)
    ident = str(orjson.loads(value)["id"]).encode()
    return value.replace(ident, b"%032d").replace(b"%d" % number, b"%d")


def _filled(pattern: bytes, number: int) -> bytes:
    """Return the order of a number. Cost: 0.5 µs, so that others have the machine."""
    return pattern % ((number,) * 3)


class Asker:
    """Asks the warehouse which probes it shows."""

    def __init__(self, settings: Any) -> None:
        import psycopg

        dsn = settings.destinations["warehouse"].dsn.get_secret_value()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self.seen: dict[int, float] = {}
        self.end: int | None = None
        """All are sent; this is the number after the last."""

    def wait_for(self, number: int, *, limit_s: float) -> None:
        """Wait until all orders before ``number`` are shown; have probes found quickly from now on.

        Raises:
            SystemExit: they are not.
        """
        import psycopg

        ends = time.monotonic() + limit_s
        while time.monotonic() < ends:
            try:
                [count] = self._rows(f"SELECT count(*) FROM {TEAM}.orders")
            except psycopg.errors.UndefinedTable:
                count = 0
            if count == number:
                self._connection.execute(
                    f"CREATE INDEX ON {TEAM}.orders (number) WHERE customer = '{_PROBE}'"
                )
                return
            time.sleep(0.2)
        raise SystemExit(f"{count:,} of {number:,} orders came within {limit_s:.0f} s")

    def follow(self, first: int) -> None:
        """Ask until all probes from ``first`` on are shown."""
        lowest = -(-first // PROBE_EVERY) * PROBE_EVERY
        query = f"SELECT number FROM {TEAM}.orders WHERE customer = '{_PROBE}' AND number >= {{}}"
        while self.end is None or lowest < self.end:
            found = self._rows(query.format(lowest))
            now = time.monotonic()
            for number in found:
                self.seen.setdefault(number, now)
            while lowest in self.seen:
                lowest += PROBE_EVERY
            time.sleep(_ASK_S)

    def _rows(self, query: str) -> list[int]:
        return [row[0] for row in self._connection.execute(query)]

"""A consumer of micro-batches in simulated time, for the governor: live events beside a replay."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence

import numpy as np

from waybill.ledger import BatchProgress
from waybill.replay.throttle import LoadLook, ReplayThrottle

LOOK_S, SEND_S = 0.03, 25e-6


class SimulatedConsumer:
    """A topic, its consumer and the clock. A batch of n events takes ``fixed_s + n * event_s``,
    give or take ``noise``; one begins at a tick, or at once when the one before took longer.

    Args:
        fixed_s: seconds of a batch without events.
        event_s: seconds more for each event.
        live: when each live event comes, in seconds, ascending.
        trigger_s: between ticks.
        cap: most events of a batch.
        noise: standard deviation of a batch's time, as a share of it.
        stops_s: from when on it does not run.
    """

    def __init__(
        self,
        fixed_s: float,
        event_s: float,
        live: Sequence[float] = (),
        *,
        trigger_s: float = 0.5,
        cap: int = 200_000,
        noise: float = 0.1,
        stops_s: float = float("inf"),
        seed: int = 1,
    ) -> None:
        self.now = 0.0
        self.sent: list[float] = []
        self.batches: list[BatchProgress] = []
        self.latencies: list[np.ndarray] = []
        self._live = np.asarray(live, dtype=float)
        self._fixed_s, self._event_s, self._noise = fixed_s, event_s, noise
        self._trigger_s, self._cap, self._stops_s = trigger_s, cap, stops_s
        self._free_at = 0.0
        self._live_read = self._sent_read = self._told = 0
        self._ended: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        self._random = random.Random(seed)

    @property
    def batch_events(self) -> int:
        return self._cap

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def send(self) -> None:
        self.now += SEND_S
        self.sent.append(self.now)

    def look(self) -> LoadLook:
        self.now += LOOK_S
        self.run(self.now)
        done = [b for b in self.batches[self._told :] if b.committed_s <= self.now]
        self._told += len(done)
        _, live, sent = max(end for end in self._ended if end[0] <= self.now)
        come = int(np.searchsorted(self._live, self.now)) + len(self.sent)
        return LoadLook(self.now, come - live - sent, tuple(done))

    def run(self, until: float) -> None:
        """Begin all batches that begin before a time."""
        while (begins := self._next_start()) < min(until, self._stops_s):
            self._batch(begins)

    def _next_start(self) -> float:
        first = [float("inf")]
        if self._live_read < len(self._live):
            first.append(float(self._live[self._live_read]))
        if self._sent_read < len(self.sent):
            first.append(self.sent[self._sent_read])
        last = self.batches[-1] if self.batches else None
        if last and (last.took_s or 0.0) > self._trigger_s and min(first) <= self._free_at:
            return self._free_at
        ready = max(min(first), self._free_at)
        return ready if ready == float("inf") else -(-ready // self._trigger_s) * self._trigger_s

    def _batch(self, begins: float) -> None:
        live = self._live[self._live_read : int(np.searchsorted(self._live, begins, "right"))]
        sent = self.sent[self._sent_read : bisect.bisect_right(self.sent, begins)]
        if len(live) + len(sent) > self._cap:
            last = np.sort(np.concatenate([live, sent]))[self._cap - 1]
            live, sent = live[live <= last], sent[: bisect.bisect_right(sent, last)]
        number = len(live) + len(sent)
        cost = self._fixed_s + self._event_s * number
        took = max(0.3 * cost, self._random.gauss(cost, self._noise * cost))
        self._free_at = begins + took
        self._live_read += len(live)
        self._sent_read += len(sent)
        self._ended.append((self._free_at, self._live_read, self._sent_read))
        self.latencies.append(self._free_at - live)
        self.batches.append(
            BatchProgress(len(self.batches) + 1, self._free_at, took, number, len(live))
        )

    def waited(self, since: float) -> np.ndarray:
        """Return how long live events waited, in seconds, of batches that ended after a time."""
        ended = zip(self.latencies, self.batches, strict=True)
        return np.concatenate([waited for waited, b in ended if b.committed_s > since])

    def p95(self, since: float) -> float:
        """Return the 95th percentile of what they waited."""
        return float(np.percentile(self.waited(since), 95))


def replayed(
    consumer: SimulatedConsumer,
    governor: ReplayThrottle,
    *,
    events: int = 10**9,
    until: float = 1e9,
) -> int:
    """Replay so many events, or until a time; returns how many went."""
    number = 0
    while number < events and consumer.now < until:
        governor.wait()
        consumer.send()
        number += 1
    consumer.run(consumer.now)
    return number

"""The throttle: a replay goes as fast as it can without slowing live traffic down.

A topic is read in micro-batches. A batch of n events takes a + b n seconds, the next one takes what
came meanwhile, and an event waits for the batch that runs, then for its own. With live events
coming at rate L a batch settles at a / (1 - b L) seconds, with a replay beside them at rate R at
a / (1 - b (L + R)). Their ratio, and with it that of the latencies, is 1 + g at

    R = g / (1 + g) x (1 / b - L)

whatever a is: *the replay may have a fixed share of the capacity that live traffic leaves free*.
Where batches are shorter than the trigger interval, latency grows by less than that.

b is measured: the ledger says of each batch how many events it had and how long it took. Where that
leaves b in doubt (all batches alike, few of them) it is taken for high; what the replay adds makes
batches differ, and the doubt goes.

  - Nothing live for 30 s: full speed, until two full batches of its own wait unread. Live traffic
    that begins just then waits behind those; from the next batch on the replay is governed.
  - Live events, or unread ones that nobody knows yet: the rate above; while more waits than three
    batches usually take, half of it, then a quarter, and so on down to the floor.
  - Processing does not run (events wait, no commit for 30 s): live events wait for it, not for the
    replay: full speed up to the same two batches, then 50 events/s.
  - The floor: 0.5 % of what processing does, between 1 and 50 events/s. No replay stalls.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from waybill.errors import StopError
from waybill.ledger import BatchProgress, consumer_progress, topic_positions
from waybill.storage import KafkaLog, TopicInfo, TrackerStore

_LOG = logging.getLogger(__name__)
_GROWTH = 0.06
"""By which live latency may grow; 0.10 is promised, the rest is for what the model leaves out."""
_LESS_WHEN_USED = 0.7
"""Of the growth, where live traffic takes all: a batch that took long makes the next one longer."""
_LOOK_S = 1.0
_LOOK_SHARE = 0.05
"""Most of the time that looking may take."""
_QUIET_S = 30.0
_RECENT_S = 10.0
_KEPT_BATCHES = 120
_FIT_FROM = 5
_AHEAD_BATCHES = 2
_LAG_BATCHES = 3
_FLOOR_PER_S, _LEAST_PER_S, _FLOOR_SHARE = 50.0, 1.0, 0.005
_LEAST_COST_S = 1e-6
_LEAST_HELD = 1 / 64
_HELD_STEP = 0.1
_SLICE_S = 0.05
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class LoadLook:
    """How a topic stands."""

    now_s: float
    """Since the epoch, by the tracker's clock."""
    backlog: int
    """Events that processing has not committed."""
    batches: tuple[BatchProgress, ...]
    """Committed since the look before, the oldest first; at first the newest ones of before."""


class LoadWatch(Protocol):
    """Sees how a topic stands."""

    @property
    def batch_events(self) -> int:
        """Most events of one batch."""
        ...

    def look(self) -> LoadLook:
        """Return how it stands now."""
        ...


class TopicWatch:
    """Reads the backlog and the batches of one topic from Kafka and the ledger.

    Args:
        log: where the topic is.
        tracker: the ledger.
        topic: what is watched.
        destination: whose commits its batches are.
        batch_events: most events of one batch.
    """

    def __init__(
        self,
        log: KafkaLog,
        tracker: TrackerStore,
        topic: TopicInfo,
        *,
        destination: str,
        batch_events: int,
    ) -> None:
        self._log, self._tracker, self._topic = log, tracker, topic
        self._destination = destination
        self._batch_events = batch_events
        self._after = 0

    def follow(self, topic: TopicInfo) -> None:
        """Watch the next generation of the topic from now on."""
        self._topic = topic

    @property
    def batch_events(self) -> int:
        """Most events of one batch."""
        return self._batch_events

    def look(self) -> LoadLook:
        """Return how it stands now.

        Raises:
            RetryError: Kafka or the tracker does not answer.
        """
        positions = self._positions()
        ends = self._log.watermarks(self._topic)
        found = consumer_progress(
            self._tracker,
            f"processing/{self._topic.name}",
            self._destination,
            after=self._after,
            limit=_KEPT_BATCHES,
        )
        if found.batches:
            self._after = found.batches[-1].commit_number
        backlog = sum(
            max(0, high - max(low, positions.get(number, 0)))
            for number, (low, high) in ends.items()
        )
        return LoadLook(found.now_s, backlog, found.batches)

    def _positions(self) -> dict[int, int]:
        """Return where processing stands; of a topic that it refuses to read: nowhere."""
        topic = self._topic
        try:
            return topic_positions(
                self._tracker,
                cluster_id=topic.cluster_id,
                topic_id=topic.topic_id,
                topic=topic.name,
            )
        except StopError as error:
            _LOG.warning("processing does not read %s: %s", topic.name, error)
            return {}


class ReplayThrottle:
    """Paces one replay.

    Args:
        watch: sees the topic; ``None``: not governed.
        rate_per_s: most events a second in any case; ``None``: no such limit.
        clock: seconds, monotonic.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        watch: LoadWatch | None,
        rate_per_s: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._watch = watch
        self._limit = math.inf if rate_per_s is None else float(rate_per_s)
        self._clock, self._sleep = clock, sleep
        self._left = self._sent = 0
        self._room: float = math.inf
        self._rate, self._mode = self._limit, "at full speed"
        self._held = 1.0
        self._looks_at = -math.inf
        self._none_unread_s: float | None = None
        self._due = -math.inf
        self._batches: deque[BatchProgress] = deque(maxlen=_KEPT_BATCHES)
        self._sent_at: deque[tuple[float, int]] = deque(maxlen=_KEPT_BATCHES)

    @property
    def rate_per_s(self) -> float:
        """Events a second that may go now; infinite: as fast as Kafka takes them."""
        return self._rate

    def wait(self) -> bool:
        """Wait until one more may go; return whether it is the first of some that may.

        Those are 500 at most, or what may go in 0.05 s.

        Raises:
            RetryError: it is governed, and Kafka or the tracker does not answer.
        """
        first = self._left <= 0
        if first:
            self._grant()
        self._left -= 1
        return first

    def _grant(self) -> None:
        if self._watch is not None and self._clock() >= self._looks_at:
            self._look(self._watch)
        if self._room <= 0:
            self._rate = min(self._limit, _FLOOR_PER_S)
        number = _CHUNK if math.isinf(self._rate) else max(1, int(self._rate * _SLICE_S))
        if math.isfinite(self._rate):
            now = self._clock()
            self._due = max(self._due, now - _SLICE_S)
            if self._due > now:
                self._sleep(self._due - now)
            self._due += number / self._rate
        self._left = number
        self._sent += number
        self._room -= number

    def _look(self, watch: LoadWatch) -> None:
        began = self._clock()
        look = watch.look()
        if self._none_unread_s is None or not look.backlog:
            self._none_unread_s = look.now_s
        self._batches.extend(look.batches)
        self._sent_at.append((look.now_s, self._sent))
        mode, rate, self._room = self._decide(look, watch.batch_events)
        self._rate = min(self._limit, rate)
        if mode != self._mode:
            _LOG.info("%s: %s (%d unread)", mode, _said(self._rate), look.backlog)
        self._mode = mode
        now = self._clock()
        self._looks_at = now + max(_LOOK_S, (now - began) / _LOOK_SHARE)

    def _decide(self, look: LoadLook, batch_events: int) -> tuple[str, float, float]:
        """Return what it does from now on, at which rate, and how many may go at that rate."""
        room = _AHEAD_BATCHES * batch_events - min(self._sent, look.backlog)
        if not self._runs(look):
            return self._stands(look), math.inf, room
        if not self._is_live(look):
            return "nothing is live", math.inf, room
        live, own, others = self._rates(look)
        self._follow_lag(look, live + own + others)
        allowed = self._held * (allowed_rate(self._batches, live, batch_events) - others)
        return "held for live traffic", max(allowed, self._floor()), math.inf

    def _runs(self, look: LoadLook) -> bool:
        if not look.backlog:
            return True
        if not self._batches:
            return False
        return look.now_s - self._batches[-1].committed_s < self._span(_QUIET_S)

    def _stands(self, look: LoadLook) -> str:
        """Return what a topic without recent commits means, in words.

        Where it was idle, the first events of the replay may be on their way through processing.
        """
        committed = self._batches[-1].committed_s if self._batches else -math.inf
        waited_s = look.now_s - max(self._none_unread_s or 0.0, committed)
        if waited_s < self._span(_QUIET_S):
            return "processing has committed nothing of it yet"
        return "processing does not run"

    def _is_live(self, look: LoadLook) -> bool:
        known = self._since(look, self._span(_QUIET_S))
        if known:
            return any(batch.live for batch in known)
        return look.backlog > self._sent

    def _rates(self, look: LoadLook) -> tuple[float, float, float]:
        """Return events a second: live ones, this replay's, those of others."""
        span = self._span(_RECENT_S)
        recent = self._since(look, span)
        live = sum(batch.live for batch in recent)
        seen = [sent for at, sent in self._sent_at if at >= look.now_s - span]
        own = self._sent - min(seen, default=self._sent)
        others = max(0, sum(batch.events for batch in recent) - live - own)
        return live / span, own / span, others / span

    def _follow_lag(self, look: LoadLook, per_s: float) -> None:
        recent = self._since(look, self._span(_RECENT_S))
        usual = max([per_s * _LOOK_S, *(float(batch.events) for batch in recent)])
        if look.backlog > _LAG_BATCHES * usual:
            self._held = max(_LEAST_HELD, self._held / 2)
        else:
            self._held = min(1.0, self._held + _HELD_STEP)

    def _floor(self) -> float:
        if not self._batches:
            return _FLOOR_PER_S
        newest = self._batches[-1].committed_s
        span = self._span(_RECENT_S)
        done = sum(batch.events for batch in self._batches if batch.committed_s > newest - span)
        return min(_FLOOR_PER_S, max(_LEAST_PER_S, _FLOOR_SHARE * done / span))

    def _span(self, least_s: float) -> float:
        """Return so many seconds, or more where batches take long."""
        newest = list(self._batches)[-_FIT_FROM:]
        return max(least_s, 4 * max((batch.took_s or 0.0 for batch in newest), default=0.0))

    def _since(self, look: LoadLook, span_s: float) -> list[BatchProgress]:
        return [batch for batch in self._batches if batch.committed_s > look.now_s - span_s]


def allowed_rate(batches: Iterable[BatchProgress], live_per_s: float, batch_events: int) -> float:
    """Return the events a second that all replays of a topic together may add; can be negative."""
    costs = batch_costs(batches)
    if costs is None:
        return _share(0.0) * live_per_s
    fixed_s, event_s = costs
    most = 1 / (event_s + fixed_s / batch_events)
    return _share(live_per_s / most) * (most - live_per_s)


def _share(used: float) -> float:
    """Return the share of what is free, where live traffic takes so much of the capacity."""
    growth = _GROWTH * (1 - _LESS_WHEN_USED * min(1.0, used))
    return growth / (1 + growth)


def batch_costs(batches: Iterable[BatchProgress]) -> tuple[float, float] | None:
    """Return (seconds of a batch without events, seconds more for each event), taken for high.

    The cost of an event is the slope of a straight line through the batches, those left out that
    took strangely long, plus two standard errors; at most what all of them took over all events.
    ``None``: no batch's time is known.
    """
    known = [(b.events, b.took_s) for b in batches if b.events and b.took_s is not None]
    if not known:
        return None
    events, took = np.array(known, dtype=float).T
    highest = float(took.sum() / events.sum())
    slope, error = _line(events, took)
    event_s = max(_LEAST_COST_S, min(highest, max(0.0, slope) + 2 * error))
    return max(0.0, float(np.median(took - event_s * events))), event_s


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return a line's slope and its standard error; the error is infinite where it is unknown."""
    slope, rest, spread = _fitted(x, y)
    usual = 4 * float(np.median(np.abs(rest)))
    if (kept := np.abs(rest) <= max(usual, 1e-9)).sum() < len(x):
        x, y = x[kept], y[kept]
        slope, rest, spread = _fitted(x, y)
    if len(x) < _FIT_FROM or spread <= 0:
        return 0.0, math.inf
    return slope, math.sqrt(float(rest @ rest) / (len(x) - 2) / spread)


def _fitted(x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, float]:
    dx, dy = x - x.mean(), y - y.mean()
    spread = float(dx @ dx)
    slope = float(dx @ dy) / spread if spread > 0 else 0.0
    return slope, dy - slope * dx, spread


def _said(rate_per_s: float) -> str:
    return "full speed" if math.isinf(rate_per_s) else f"{rate_per_s:,.0f} events/s"

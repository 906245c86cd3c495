"""What clusters and teams were like over the last hours, in equal steps of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, text

from waybill.clusters.loads import HotSpot
from waybill.clusters.records import now_s
from waybill.events import rfc3339
from waybill.storage import TrackerStore

HistorySpan = Literal["1h", "6h", "24h"]
MOST_TEAMS = 50
"""Teams that are asked for at once."""
_MOST_DRAWN = 10
"""Hot spots of a cluster and step."""
_STEPS: dict[HistorySpan, tuple[int, int]] = {"1h": (60, 60), "6h": (72, 300), "24h": (96, 900)}
"""How many steps of how many seconds."""
_CLUSTERS = text("""
SELECT cluster AS name, floor(extract(epoch FROM at) / :step_s)::bigint AS step,
  max(lag_s) AS lag_s, avg(demand_cores) AS demand_cores, max(needed_cores) AS needed_cores,
  max(cores) AS cores, avg(arrival_per_s) AS arrival_per_s, avg(processed_per_s) AS processed_per_s
FROM cluster_loads WHERE at >= to_timestamp(:since_s) GROUP BY 1, 2
""")
_TEAMS = text("""
SELECT team AS name, floor(extract(epoch FROM at) / :step_s)::bigint AS step, max(lag_s) AS lag_s
FROM team_loads WHERE team = ANY(:teams) AND at >= to_timestamp(:since_s) GROUP BY 1, 2
""")
_HOT = text("""
SELECT cluster AS name, floor(extract(epoch FROM at) / :step_s)::bigint AS step, hot
FROM cluster_loads WHERE at >= to_timestamp(:since_s) AND hot <> '[]' ORDER BY at
""")
_OF_CLUSTERS = (
    "lag_s", "demand_cores", "needed_cores", "cores", "arrival_per_s", "processed_per_s"
)  # fmt: skip

Series = Mapping[str, Sequence[float | None]]
"""Numbers by what they are, one for each step; None: the coordinator did not look then."""


@dataclass(frozen=True, slots=True)
class History:
    """Numbers over time, by name."""

    since: datetime
    """Where the first step begins."""
    step_s: int
    steps: int
    series: Mapping[str, Series]
    """Of each cluster, or team, that there is something of."""
    hot: Mapping[str, Mapping[int, Sequence[HotSpot]]] = field(default_factory=dict)
    """Hot spots by cluster and step, the first ten; of teams: none."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "since": rfc3339(self.since),
            "step_s": self.step_s,
            "steps": self.steps,
            "series": {name: dict(one) for name, one in sorted(self.series.items())},
            "hot": {
                name: [{"step": step, **asdict(one)} for step in sorted(own) for one in own[step]]
                for name, own in sorted(self.hot.items())
            },
        }


def cluster_history(
    tracker: TrackerStore, span: HistorySpan, teams: Collection[str] | None = None
) -> History:
    """Return lag (the longest), cores, speed (the mean) and hot spots, by cluster.

    Args:
        tracker: the books.
        span: how far back.
        teams: whose hot spots are wanted; None: of all.

    Raises:
        RetryError: the tracker does not answer.

    Cost: a row for each cluster and minute of the span.
    """
    with tracker.transaction() as connection:
        found = _history(connection, span, _CLUSTERS, _OF_CLUSTERS, {})
        return replace(found, hot=_hot(connection, found, teams))


def team_history(tracker: TrackerStore, span: HistorySpan, teams: Sequence[str]) -> History:
    """Return the longest lag in each step, by team.

    Raises:
        RetryError: the tracker does not answer.

    Cost: a row for each of the teams, ``MOST_TEAMS`` at most, and minute of the span.
    """
    with tracker.transaction() as connection:
        asked = {"teams": list(teams[:MOST_TEAMS])}
        return _history(connection, span, _TEAMS, ("lag_s",), asked)


def _hot(
    connection: Connection, drawn: History, teams: Collection[str] | None
) -> dict[str, dict[int, list[HotSpot]]]:
    """Return the hot spots of each cluster by step, each once."""
    first = int(drawn.since.timestamp()) // drawn.step_s
    asked = {"step_s": drawn.step_s, "since_s": first * drawn.step_s}
    found: dict[str, dict[int, dict[HotSpot, None]]] = {}
    for row in connection.execute(_HOT, asked):
        place = int(row.step) - first
        if 0 <= place < drawn.steps:
            spots = [HotSpot(**one) for one in row.hot if teams is None or one["team"] in teams]
            if spots:
                own = found.setdefault(row.name, {}).setdefault(place, {})
                own.update(dict.fromkeys(spots))
    return {
        name: {place: list(spots)[:_MOST_DRAWN] for place, spots in own.items()}
        for name, own in found.items()
    }


def _history(
    connection: Connection,
    span: HistorySpan,
    query: Any,
    columns: Sequence[str],
    asked: Mapping[str, Any],
) -> History:
    steps, step_s = _STEPS[span]
    first = int(now_s(connection) // step_s) - steps + 1
    found: dict[str, dict[str, list[float | None]]] = {}
    rows = connection.execute(query, {**asked, "step_s": step_s, "since_s": first * step_s})
    for row in rows:
        place = int(row.step) - first
        if not 0 <= place < steps:  # written after the clock was read
            continue
        series = found.setdefault(row.name, {name: [None] * steps for name in columns})
        for name in columns:
            value = getattr(row, name)
            series[name][place] = None if value is None else round(float(value), 4)
    return History(datetime.fromtimestamp(first * step_s, UTC), step_s, steps, found)

"""Teams with pipelines, their topics in memory, and what processing commits of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from uuid import uuid4

from sqlalchemy import select, text
from tests.support import orders

from waybill.clusters import Assignment, Move, Placement
from waybill.deployment import deploy
from waybill.errors import RetryError, WaybillError
from waybill.ledger import BatchCommit, OffsetRange, acquire_lease, commit_batch
from waybill.storage import TopicInfo, TopicSpan, TrackerStore
from waybill.storage.tracker import cluster_assignments


def deploy_teams(tracker: TrackerStore, folder: Path, *teams: str) -> None:
    """Deploy a pipeline for each team, all of them into the destination ``warehouse``.

    Applications of the clusters that tests make are at work.
    """
    serve(tracker, "default", "second", "spare", "small", "big")
    for team in teams:
        home = orders.write_orders(folder / team, rows=0)
        declaration = home / "pipeline.yaml"
        words = declaration.read_text()
        words = words.replace(f"team: {orders.team_of(folder / team)}", f"team: {team}")
        words = words.replace("schema: shop", f"schema: {team.replace('-', '_')}")
        words = words.replace("id: test-orders\nname: orders", f"id: {team}-orders\nname: {team}")
        declaration.write_text(words)
        deploy(tracker, home, who="ann")


def serve(tracker: TrackerStore, *clusters: str) -> None:
    """Have applications of these clusters be at work for an hour."""
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO applications (cluster, kind, epoch, at_work, started_at, heartbeat_at)"
                " VALUES (:cluster, 'processing', 1, true, now() - interval '1 hour', "
                "now() + interval '1 hour') ON CONFLICT DO NOTHING"
            ),
            [{"cluster": name} for name in clusters],
        )


def topic_of(team: str) -> str:
    """Return a team's topic."""
    return f"events.{team}.warehouse"


class LogInMemory:
    """What the coordinator asks of Kafka: topics with partitions, ends, and when records came."""

    def __init__(self) -> None:
        self.ends: dict[str, dict[int, int]] = {}
        self.came_at_s: dict[str, float] = {}
        """Of a topic's oldest unread record."""
        self.away: set[str] = set()
        """Topics without a leader."""
        self.silent: set[str] = set()
        """Topics whose records do not come in time."""
        self.calls: list[str] = []

    def topics(self) -> set[str]:
        self.calls.append("topics")
        return set(self.ends)

    def spans(self, names: Collection[str]) -> dict[str, TopicSpan | WaybillError]:
        self.calls.append("spans")
        return {name: self._span(name) for name in names}

    def _span(self, name: str) -> TopicSpan | WaybillError:
        if name in self.away:
            return RetryError(f"partition 0 of {name!r} has no leader")
        marks = {number: (0, end) for number, end in self.ends[name].items()}
        return TopicSpan(TopicInfo(name, "kafka", f"id-{name}", len(marks), 1), marks)

    def first_times(
        self, offsets: Mapping[str, Mapping[int, int]]
    ) -> dict[str, dict[int, int | None]]:
        self.calls.append("first_times")
        return {
            topic: dict.fromkeys(at, round(self.came_at_s[topic] * 1000))
            for topic, at in offsets.items()
            if topic not in self.silent
        }


def process(
    tracker: TrackerStore,
    team: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    took_ms: int | None = 500,
    tasks_ms: int | None = None,
) -> None:
    """Commit one batch of a team's topic, as processing does."""
    name = topic_of(team)
    consumer = f"processing/{name}"
    epoch = acquire_lease(tracker, consumer, holder="test")
    commit = BatchCommit(
        batch_id=uuid4(),
        consumer=consumer,
        epoch=epoch,
        cluster_id="kafka",
        topic_id=f"id-{name}",
        topic=name,
        destination="warehouse",
        ranges=[OffsetRange(n, start, end, end - start) for n, (start, end) in ranges.items()],
        counts=(),
        took_ms=took_ms,
        tasks_ms=tasks_ms,
    )
    commit_batch(tracker, commit, lambda *_: None)


def age_looks(tracker: TrackerStore, seconds: float) -> None:
    """Let the coordinator's looks, and all batches, be older than they are."""
    older = {"by": seconds}
    with tracker.transaction() as connection:
        for table, column in (("team_loads", "at"), ("batches", "committed_at")):
            connection.execute(
                text(f"UPDATE {table} SET {column} = {column} - make_interval(secs => :by)"), older
            )


def look_back(tracker: TrackerStore) -> None:
    """Let the looks at topics before this one be a minute old, and all have come in since."""
    with tracker.transaction() as connection:
        connection.execute(
            text("UPDATE topic_looks SET written = 0, at = at - interval '1 minute'")
        )


def set_load(tracker: TrackerStore, team: str, *, cores: float, lag_s: float = 0.0) -> None:
    """Write looks at a team that keeps so many cores busy: 1,000 events a second for an hour."""
    insert = text(
        "INSERT INTO team_loads (team, at, consumers, written, read, lag_s, batches, batch_events,"
        " core_s) SELECT :team, clock_timestamp() - make_interval(mins => 30 - n), 1, n * 60000,"
        " n * 60000, :lag, 60, 60000, :core_s FROM generate_series(0, 30) AS n"
    )
    known = text(
        "INSERT INTO topic_looks (topic, written, read, lag_s) VALUES (:topic, 1800000, 1800000, "
        ":lag) ON CONFLICT (topic) DO UPDATE SET lag_s = excluded.lag_s"
    )
    with tracker.transaction() as connection:
        connection.execute(text("DELETE FROM team_loads WHERE team = :team"), {"team": team})
        connection.execute(insert, {"team": team, "lag": lag_s, "core_s": cores * 60})
        connection.execute(known, {"topic": topic_of(team), "lag": lag_s})


def assignment_versions(tracker: TrackerStore) -> list[Assignment]:
    """Return all versions of the assignment that are kept, the oldest first."""
    query = select(cluster_assignments).order_by(cluster_assignments.c.version)
    with tracker.transaction() as connection:
        return [
            Assignment(
                int(row.version),
                {team: Placement(**at) for team, at in row.placements.items()},
                tuple(Move(**move) for move in row.moves),
                tuple(row.waiting),
                tuple(row.problems),
            )
            for row in connection.execute(query)
        ]

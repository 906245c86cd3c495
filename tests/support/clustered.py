"""Teams with pipelines, their topics in memory, and what processing commits of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from sqlalchemy import text
from tests.support import orders

from waybill.deployment import deploy
from waybill.errors import RetryError
from waybill.ledger import BatchCommit, OffsetRange, acquire_lease, commit_batch
from waybill.storage import TopicInfo, TrackerStore


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
        words = words.replace("id: test-orders\nname: orders", f"id: {team}-orders\nname: {team}")
        declaration.write_text(words)
        deploy(tracker, home, who="ann")


def serve(tracker: TrackerStore, *clusters: str) -> None:
    """Have applications of these clusters be at work for an hour."""
    rows = [{"name": f"application/processing/{name}"} for name in clusters]
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO consumers (name, epoch, holder, acquired_at, seen_at) VALUES "
                "(:name, 1, 'test', now() - interval '1 hour', now() + interval '1 hour') "
                "ON CONFLICT DO NOTHING"
            ),
            rows,
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

    def topics(self) -> set[str]:
        return set(self.ends)

    def describe(self, name: str) -> TopicInfo:
        if name in self.away:
            raise RetryError(f"topic {name!r}: partition 0 has no leader")
        return TopicInfo(name, "kafka", f"id-{name}", len(self.ends[name]), 1)

    def watermarks(self, topic: TopicInfo) -> dict[int, tuple[int, int]]:
        return {number: (0, end) for number, end in self.ends[topic.name].items()}

    def first(self, topic: str, offsets: Mapping[int, int]) -> dict[int, tuple[int, bytes]]:
        return {number: (round(self.came_at_s[topic] * 1000), b"") for number in offsets}


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


def set_load(tracker: TrackerStore, team: str, *, cores: float, lag_s: float = 0.0) -> None:
    """Write looks at a team that keeps so many cores busy: 1,000 events a second for an hour."""
    insert = text(
        "INSERT INTO team_loads (team, at, consumers, written, read, lag_s, batches, batch_events,"
        " core_s) SELECT :team, clock_timestamp() - make_interval(mins => 30 - n), 1, n * 60000,"
        " n * 60000, :lag, 60, 60000, :core_s FROM generate_series(0, 30) AS n"
    )
    with tracker.transaction() as connection:
        connection.execute(text("DELETE FROM team_loads WHERE team = :team"), {"team": team})
        connection.execute(insert, {"team": team, "lag": lag_s, "core_s": cores * 60})
